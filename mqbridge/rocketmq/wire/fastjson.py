"""Parser for the JSON that Java's fastjson library writes: the keys of an object may be unquoted numbers, or objects.

The parser returns every key as a string: a number as its digits, an object as its source text. So `{0:1}` has the same result as
`{"0":1}`. A key that is an object, such as a queue, has the same result as the quoted text of that object, which mqbridge writes.

Nearly every body is standard JSON, which orjson parses; the parser in this file is the fallback for all others.
"""

import re
from collections.abc import Callable
from json import JSONDecoder
from typing import Any, TypeVar

import orjson

from mqbridge.errors import RemoteProtocolError

MAX_DEPTH = 64
"""Deepest nesting of objects and lists; the deepest known body has 5."""

_WHITESPACE = re.compile(r"[ \t\r\n]*")
_SCALAR_DECODER = JSONDecoder(strict=False)
"""Decodes strings (which may contain control characters), numbers and literals."""

T = TypeVar("T")


def loads(data: bytes, name: str = "a body") -> Any:
    """Parse a body. Raises RemoteProtocolError, which contains `name`, if it is neither standard JSON nor fastjson's JSON."""
    try:
        return orjson.loads(data)
    except ValueError:
        return _parse(data, name)


def _parse(data: bytes, name: str) -> Any:
    try:
        text = data.decode()
        value, at = _parse_value(text, _skip_whitespace(text, 0), MAX_DEPTH)
        at = _skip_whitespace(text, at)
    except (ValueError, IndexError) as error:
        raise RemoteProtocolError(f"{name} ({len(data)} bytes) is neither standard JSON nor fastjson's JSON: {error}") from error
    if at != len(text):
        raise RemoteProtocolError(f"{name} continues at character {at} after the end of its JSON: {text[at : at + 40]!r}")
    return value


def _skip_whitespace(text: str, at: int) -> int:
    """Return the index of the first character from `at` on that is not white space."""
    match = _WHITESPACE.match(text, at)
    return match.end() if match else at


# Each parse function returns a value and the index behind it; `depth` is the number of levels that may still be nested.


def _parse_value(text: str, at: int, depth: int) -> tuple[Any, int]:
    start = text[at]
    if start in "{[":
        if not depth:
            raise ValueError(f"more than {MAX_DEPTH} nested values at character {at}")
        return (_parse_object if start == "{" else _parse_list)(text, at, depth - 1)
    return _SCALAR_DECODER.raw_decode(text, at)


def _parse_list(text: str, at: int, depth: int) -> tuple[list[Any], int]:
    values: list[Any] = []
    at = _skip_whitespace(text, at + 1)
    if text[at] == "]":
        return values, at + 1
    while True:
        value, at = _parse_value(text, at, depth)
        values.append(value)
        at = _skip_whitespace(text, at)
        if text[at] == "]":
            return values, at + 1
        at = _expect(text, at, ",")


def _parse_object(text: str, at: int, depth: int) -> tuple[dict[str, Any], int]:
    members: dict[str, Any] = {}
    at = _skip_whitespace(text, at + 1)
    if text[at] == "}":
        return members, at + 1
    while True:
        key, after = _parse_value(text, at, depth)
        name = key if isinstance(key, str) else text[at:after]
        at = _expect(text, _skip_whitespace(text, after), ":")
        members[name], at = _parse_value(text, at, depth)
        at = _skip_whitespace(text, at)
        if text[at] == "}":
            return members, at + 1
        at = _expect(text, at, ",")


def _expect(text: str, at: int, separator: str) -> int:
    """Return the index behind a separator and the white space that follows. Raises ValueError if there is another character."""
    if text[at] != separator:
        raise ValueError(f"{separator!r} is missing at character {at} before {text[at : at + 10]!r}")
    return _skip_whitespace(text, at + 1)


# --- values of members ------------------------------------------------------------------------------------------------------
# The `as_` functions convert a parsed value as fastjson does: numbers and booleans may be quoted. They raise TypeError,
# ValueError or OverflowError if they cannot convert a value; `as_loose_text` and `as_bool` convert every value.


def decode_object(name: str, body: bytes, build: Callable[[dict[str, Any]], T]) -> T:
    """Parse a body that is an object, and return what `build` makes of it.

    Raises RemoteProtocolError for any other body, and if `build` raises. `name`, the name of the body's class, is for the error.
    """
    members = loads(body, f"the body of {name}")
    if not isinstance(members, dict):
        raise RemoteProtocolError(f"the body of {name} is of the type {type(members).__name__}, not an object: {body[:200]!r}")
    try:
        return build(members)
    except (TypeError, ValueError, OverflowError) as error:
        raise RemoteProtocolError(f"the body of {name} is invalid ({error}): {body[:200]!r}") from error


def as_text(value: Any) -> str:
    """Return `value`, which must be a string."""
    if not isinstance(value, str):
        raise TypeError(f"{str(value)[:40]!r} is not text")
    return value


def as_loose_text(value: Any) -> str:
    """Return the text of a value in a list or map, where numbers and booleans are accepted as text too."""
    return value if isinstance(value, str) else str(value)


def as_int64(value: Any) -> int:
    """Return a 64-bit integer, which may be quoted; the fraction of an unquoted number is dropped."""
    number = value if type(value) is int else int(value)
    if not -(1 << 63) <= number < 1 << 63:
        raise ValueError(f"{str(value)[:40]} exceeds 64 bits")
    return number


def as_bool(value: Any) -> bool:
    """Return a boolean, which may be quoted; every value except true means false, as in Java."""
    return value is True or str(value).lower() == "true"


def as_list(value: Any) -> list[Any]:
    """Return `value`, which must be a list."""
    if not isinstance(value, list):
        raise TypeError(f"{str(value)[:40]} is not a list")
    return value


def as_members(value: Any) -> dict[str, Any]:
    """Return the members of an object, without those that are null, which count as missing."""
    if not isinstance(value, dict):
        raise TypeError(f"{str(value)[:40]} is not an object")
    return {name: member for name, member in value.items() if member is not None}
