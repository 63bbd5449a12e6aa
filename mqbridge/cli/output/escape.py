"""Makes payloads and names safe for a terminal: no control character of a message may reach the terminal."""

import re
from typing import Any

import orjson

from mqbridge.message import Message

_CONTROLS = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")
"""Control characters, line separators, and characters that change the direction of text."""
_BINARY_CONTROLS = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
"""Control characters except tab and line ends: a payload that contains one counts as binary."""
# A string, a punctuation character, or another value (a number, true, false or null).
_JSON_SYMBOL = re.compile(r'"(?:[^"\\]|\\.)*"|[{}\[\],:]|[^\s{}\[\],:"]+')
_SURROGATES = re.compile("[\ud800-\udfff]")
HEX_COLUMNS = 16
"""Bytes per line of a hex dump."""
MAX_PRETTY_BYTES = 256 << 10
"""A larger JSON document is shown as it is, not indented."""


def escape_line(value: str | bytes) -> str:
    """Return the value on one line; control characters, and bytes that are not UTF-8, become numeric escapes."""
    text = value.decode(errors="backslashreplace") if isinstance(value, bytes) else value
    return escape_raw(_CONTROLS.sub(_numeric_escape, text))


def escape_raw(text: str) -> str:
    r"""Return a text without lone surrogates: bytes that are not UTF-8 (see `wire/text.py`) like \xb4, others like \ud800."""
    return text if text.isascii() else _SURROGATES.sub(_surrogate_escape, text)


def json_bytes(value: Any, options: int) -> bytes:
    """Return a value as JSON with these options of orjson; texts that are not UTF-8 are escaped as by `escape_raw`."""
    try:
        return orjson.dumps(value, default=str, option=options)
    except TypeError:  # a text has a lone surrogate, such as a byte of an argument that is not UTF-8
        return orjson.dumps(_without_surrogates(value), default=str, option=options)


def _without_surrogates(value: Any) -> Any:
    if isinstance(value, dict):
        return {_without_surrogates(name): _without_surrogates(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_without_surrogates(item) for item in value]
    return escape_raw(value) if isinstance(value, str) else value


def text_bytes(text: str) -> bytes:
    """Return the bytes of an argument or of a text of a message: UTF-8, and the bytes that stand in it as lone surrogates."""
    return text.encode("utf-8", "surrogateescape")


def _surrogate_escape(match: re.Match[str]) -> str:
    code = ord(match[0])
    return f"\\x{code - 0xDC00:02x}" if 0xDC80 <= code <= 0xDCFF else f"\\u{code:04x}"


def _numeric_escape(match: re.Match[str]) -> str:
    code = ord(match[0])
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"


def payload_kind(message: Message) -> str:
    """Classify the payload: tombstone, empty, JSON, text or binary."""
    payload = message.payload
    if payload is None:
        return "tombstone"
    if not payload:
        return "empty"
    try:
        text = payload.decode()
    except UnicodeDecodeError:
        return "binary"
    if _BINARY_CONTROLS.search(text):
        return "binary"
    return "JSON" if text.lstrip()[:1] in {"{", "["} and _is_json(payload) else "text"


def payload_lines(message: Message, limit: int) -> list[str]:
    """Return the beginning of the payload as lines: JSON indented, text as it is, binary as a hex dump.

    `limit` is in bytes for binary payloads, in characters for text and for JSON after indenting.
    """
    payload, kind = message.payload or b"", payload_kind(message)
    if kind == "binary":
        return _hex_dump(payload[:limit]) + _omission(limit, len(payload), "bytes")
    text = payload.decode()
    if kind == "JSON" and len(payload) <= MAX_PRETTY_BYTES:
        text = indent_json(text)
    return text[:limit].splitlines() + _omission(limit, len(text), "characters")


def _omission(limit: int, size: int, unit: str) -> list[str]:
    """Return a line that says how much of `size` is left out after `limit`; no line if nothing is."""
    return [f"… {size - limit:,} more {unit}"] if size > limit else []


def _is_json(payload: bytes) -> bool:
    try:
        orjson.loads(payload)
    except ValueError:
        return False
    return True


def indent_json(text: str) -> str:
    """Indent JSON and keep each number and string as written: a decoder would round numbers and drop duplicate keys."""
    parts: list[str] = []
    depth, previous = 0, ""
    for symbol in _JSON_SYMBOL.findall(text):
        if symbol in "}]":
            depth -= 1
            if previous not in "{[":
                parts.append("\n" + "  " * depth)
        elif previous and previous in "{[,":
            parts.append("\n" + "  " * depth)
        depth += symbol in "{["
        parts.append(": " if symbol == ":" else symbol)
        previous = symbol
    return "".join(parts)


def _hex_dump(data: bytes) -> list[str]:
    lines = []
    for start in range(0, len(data), HEX_COLUMNS):
        row = data[start : start + HEX_COLUMNS]
        text = "".join(chr(byte) if 0x20 <= byte < 0x7F else "." for byte in row)
        lines.append(f"{start:08x}  {row.hex(' '):<{HEX_COLUMNS * 3 - 1}}  {text}")
    return lines
