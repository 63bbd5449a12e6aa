"""Parser for JSON as fastjson writes it: keys may be bare numbers or objects.

Every key becomes text: a number becomes its digits, an object its source text. So `{0:1}` reads like `{"0":1}`. A map whose keys
are queues reads like standard JSON with the queue's object as a string, which is the form that mqbridge writes.

Nearly every body is standard JSON, which orjson parses; this parser is the fallback for all others.
"""

import re
from collections.abc import Callable
from json import JSONDecoder
from typing import Any, TypeVar

import orjson

from mqbridge.errors import RemoteProtocolError

MAX_DEPTH = 64
"""Deepest nesting of objects and lists; the deepest known body has 5."""

_BLANKS = re.compile(r"[ \t\r\n]*")
_SCALARS = JSONDecoder(strict=False)
"""Reads strings (control characters allowed), numbers and literals."""

T = TypeVar("T")


def loads(data: bytes) -> Any:
    """Parse a body. Raises RemoteProtocolError, which says where parsing stopped."""
    try:
        return orjson.loads(data)
    except ValueError:
        return _parse(data)


def _parse(data: bytes) -> Any:
    try:
        text = data.decode()
        value, at = _value(text, _skip(text, 0), MAX_DEPTH)
        at = _skip(text, at)
    except (ValueError, IndexError) as error:
        raise RemoteProtocolError(f"a body of {len(data)} bytes that is neither JSON nor fastjson's JSON: {error}") from error
    if at != len(text):
        raise RemoteProtocolError(f"trailing text after the JSON of a body at character {at}: {text[at : at + 40]!r}")
    return value


def _skip(text: str, at: int) -> int:
    found = _BLANKS.match(text, at)
    return found.end() if found else at


def _value(text: str, at: int, depth: int) -> tuple[Any, int]:
    start = text[at]
    if start in "{[":
        if not depth:
            raise ValueError(f"more than {MAX_DEPTH} nested values at character {at}")
        return (_object if start == "{" else _list)(text, at, depth - 1)
    return _SCALARS.raw_decode(text, at)


def _list(text: str, at: int, depth: int) -> tuple[list[Any], int]:
    values: list[Any] = []
    at = _skip(text, at + 1)
    if text[at] == "]":
        return values, at + 1
    while True:
        value, at = _value(text, at, depth)
        values.append(value)
        at = _skip(text, at)
        if text[at] == "]":
            return values, at + 1
        at = _expect(text, at, ",")


def _object(text: str, at: int, depth: int) -> tuple[dict[str, Any], int]:
    members: dict[str, Any] = {}
    at = _skip(text, at + 1)
    if text[at] == "}":
        return members, at + 1
    while True:
        key, after = _value(text, at, depth)
        name = key if isinstance(key, str) else text[at:after]
        at = _expect(text, _skip(text, after), ":")
        members[name], at = _value(text, at, depth)
        at = _skip(text, at)
        if text[at] == "}":
            return members, at + 1
        at = _expect(text, at, ",")


def _expect(text: str, at: int, mark: str) -> int:
    if text[at] != mark:
        raise ValueError(f"{mark!r} is missing at character {at} before {text[at : at + 10]!r}")
    return _skip(text, at + 1)


# --- values of members ------------------------------------------------------------------------------------------------------
# Conversions of fastjson: numbers and flags may be quoted. Each raises TypeError, ValueError or OverflowError.


def read(name: str, body: bytes, build: Callable[[dict[str, Any]], T]) -> T:
    """Parse a body that is an object and pass it to `build`. Raises RemoteProtocolError, which mentions `name`."""
    members = loads(body)
    if not isinstance(members, dict):
        raise RemoteProtocolError(f"the body of {name} is a {type(members).__name__} and not an object: {body[:200]!r}")
    try:
        return build(members)
    except (TypeError, ValueError, OverflowError) as error:
        raise RemoteProtocolError(f"the body of {name} is invalid ({error}): {body[:200]!r}") from error


def text(value: Any) -> str:
    """Return the value, which must be a string."""
    if not isinstance(value, str):
        raise TypeError(f"{str(value)[:40]!r} is not text")
    return value


def loose_text(value: Any) -> str:
    """Return the text of a value in a list or map, where numbers and flags count as text too."""
    return value if isinstance(value, str) else str(value)


def whole(value: Any) -> int:
    """Return a 64-bit integer, which may be quoted."""
    number = value if type(value) is int else int(value)
    if not -(1 << 63) <= number < 1 << 63:
        raise ValueError(f"{str(value)[:40]} exceeds 64 bits")
    return number


def flag(value: Any) -> bool:
    """Return a boolean, which may be quoted; everything but true is false, as in Java."""
    return value is True or str(value).lower() == "true"


def items(value: Any) -> list[Any]:
    """Return the value, which must be a list."""
    if not isinstance(value, list):
        raise TypeError(f"{str(value)[:40]} is not a list")
    return value


def members_of(value: Any) -> dict[str, Any]:
    """Return an object without its null members, which count as missing."""
    if not isinstance(value, dict):
        raise TypeError(f"{str(value)[:40]} is not an object")
    return {name: member for name, member in value.items() if member is not None}
