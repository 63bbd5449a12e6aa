"""JSON as fastjson writes it: keys may be bare numbers, and objects.

A key of any kind becomes text: a number its digits, an object its source. So `{0:1}` reads like `{"0":1}`, and a map by queue
like standard JSON with the queue's object in a string, which is how we write one.

Bodies that are standard JSON, nearly all, go through orjson; the parser here sees the others.
"""

import re
from collections.abc import Callable
from json import JSONDecoder
from typing import Any, TypeVar

import orjson

from mqbridge.errors import RemoteProtocolError

MAX_DEPTH = 64
"""Objects and lists in each other; the deepest known body has 5."""

_BLANKS = re.compile(r"[ \t\r\n]*")
_SCALARS = JSONDecoder(strict=False)
"""Reads texts, in which control characters may stand, numbers and words."""

T = TypeVar("T")


def loads(data: bytes) -> Any:
    """The value of a body. Raises RemoteProtocolError, which says where reading stopped."""
    try:
        return orjson.loads(data)
    except ValueError:
        return _loads(data)


def _loads(data: bytes) -> Any:
    try:
        text = data.decode()
        value, at = _value(text, _skip(text, 0), MAX_DEPTH)
        at = _skip(text, at)
    except (ValueError, IndexError) as error:
        raise RemoteProtocolError(f"a body of {len(data)} bytes that is no JSON, not even fastjson's: {error}") from error
    if at != len(text):
        raise RemoteProtocolError(f"something follows the JSON of a body at character {at}: {text[at : at + 40]!r}")
    return value


def _skip(text: str, at: int) -> int:
    found = _BLANKS.match(text, at)
    return found.end() if found else at


def _value(text: str, at: int, depth: int) -> tuple[Any, int]:
    start = text[at]
    if start in "{[":
        if not depth:
            raise ValueError(f"more than {MAX_DEPTH} values in each other at character {at}")
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
# As fastjson reads: numbers and flags may be quoted. Each raises TypeError, ValueError or OverflowError.


def read(what: str, body: bytes, build: Callable[[dict[str, Any]], T]) -> T:
    """What `build` makes of a body that is an object. Raises RemoteProtocolError, which names `what`."""
    members = loads(body)
    if not isinstance(members, dict):
        raise RemoteProtocolError(f"the body of {what} is a {type(members).__name__} and not an object: {body[:200]!r}")
    try:
        return build(members)
    except (TypeError, ValueError, OverflowError) as error:
        raise RemoteProtocolError(f"the body of {what} makes no sense ({error}): {body[:200]!r}") from error


def text(value: Any) -> str:
    """Text; nothing else is read as text."""
    if not isinstance(value, str):
        raise TypeError(f"{str(value)[:40]!r} is not text")
    return value


def loose_text(value: Any) -> str:
    """Text in a list or map: a number or flag there is read as its text."""
    return value if isinstance(value, str) else str(value)


def whole(value: Any) -> int:
    """A number that may be quoted."""
    number = value if type(value) is int else int(value)
    if not -(1 << 63) <= number < 1 << 63:
        raise ValueError(f"{str(value)[:40]} exceeds 64 bits")
    return number


def flag(value: Any) -> bool:
    """True or false; everything that is not true is false, as in Java."""
    return value is True or str(value).lower() == "true"


def items(value: Any) -> list[Any]:
    """A list."""
    if not isinstance(value, list):
        raise TypeError(f"{str(value)[:40]} is not a list")
    return value


def members_of(value: Any) -> dict[str, Any]:
    """An object without its members that are null, which count as missing."""
    if not isinstance(value, dict):
        raise TypeError(f"{str(value)[:40]} is not an object")
    return {name: member for name, member in value.items() if member is not None}
