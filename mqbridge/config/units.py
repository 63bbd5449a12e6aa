"""Durations, sizes and addresses as text: `30s`, `1m30s`, `512KiB`, `127.0.0.1:8098`.

They are parsed when the configuration is loaded: in the models a duration is seconds (float), a size is bytes (int), and an
address stays a text. Dumped durations and sizes (`model_dump`, the JSON Schema's defaults) are texts that parse to the same
value.
"""

import re
from typing import Annotated, Any

from pydantic import BeforeValidator, PlainSerializer, WithJsonSchema
from pydantic_core import PydanticCustomError

_UNIT_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_UNIT_BYTES = {"B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}

_NUMBER = r"\d+(?:\.\d+)?"
_DURATION = re.compile(rf"(?:{_NUMBER}(?:ms|[smhd])\s*)+")
_DURATION_PART = re.compile(rf"({_NUMBER})(ms|[smhd])")
_SIZE = re.compile(rf"({_NUMBER})\s*([KMG]i?B|B)?")
_ADDRESS = re.compile(r"(?P<host>\[[0-9A-Fa-f:.]+\]|[^\[\]:\s]+):(?P<port>\d{1,5})")
MAX_PORT = 65535


def parse_duration(text: str) -> float:
    """Parse a duration such as `30s`, `250ms` or `1h30m` to seconds. Raises ValueError, also for a number without a unit."""
    if not _DURATION.fullmatch(text):
        raise ValueError(f"{text!r} is not a duration: write a number and a unit, as in 250ms, 30s, 5m, 1h30m or 2d")
    return sum(float(number) * _UNIT_SECONDS[unit] for number, unit in _DURATION_PART.findall(text))


def format_duration(seconds: float) -> str:
    """Format seconds in the largest unit that divides them, or in milliseconds, rounded to six decimals (1 ns)."""
    for unit in ("d", "h", "m", "s"):
        count = seconds / _UNIT_SECONDS[unit]
        if count >= 1 and count.is_integer():
            return f"{int(count)}{unit}"
    return f"{seconds * 1000:f}".rstrip("0").rstrip(".") + "ms"


def parse_size(text: str) -> int:
    """Parse a size such as `512KiB`, `1MB` or `4096` to bytes. Raises ValueError."""
    match = _SIZE.fullmatch(text)
    size = float(match[1]) * _UNIT_BYTES[match[2] or "B"] if match else 0.0
    if match is None or not size.is_integer():
        raise ValueError(f"{text!r} is not a size: write whole bytes, or a number and a unit, as in 512KiB, 32MiB, 1MB")
    return int(size)


def format_size(size: int) -> str:
    """Format bytes in the largest binary unit that divides them, so that the text parses to the same value."""
    for unit in ("GiB", "MiB", "KiB"):
        if size and size % _UNIT_BYTES[unit] == 0:
            return f"{size // _UNIT_BYTES[unit]}{unit}"
    return f"{size}B"


def split_listen_address(text: str) -> tuple[str, int]:
    """Split `host:port` or `[::1]:port` into host and port. Port 0, for any free port, is allowed. Raises ValueError."""
    match = _ADDRESS.fullmatch(text)
    if match is None or int(match["port"]) > MAX_PORT:
        raise ValueError(f"{text!r} is not an address: write HOST:PORT, as in 127.0.0.1:8098 or [::1]:8098")
    return match["host"].strip("[]"), int(match["port"])


def _read_duration(value: Any) -> Any:
    """Parse a text. Raises PydanticCustomError if it is invalid, and for any other value."""
    if isinstance(value, str):
        return _read(parse_duration, value)
    raise PydanticCustomError(
        "duration", "{value} has no unit: write a text such as 250ms, 30s, 5m, 1h30m or 2d", {"value": repr(value)}
    )


def _read_size(value: Any) -> Any:
    """Parse a text; pydantic validates any other value as a whole number."""
    return _read(parse_size, value) if isinstance(value, str) else value


def _read_address(value: Any) -> Any:
    """Check a text; pydantic rejects any other value."""
    if isinstance(value, str):
        _read(split_listen_address, value)
    return value


def _read(parse: Any, value: str) -> Any:
    """Return `parse(value)`. Raises PydanticCustomError in place of its ValueError."""
    try:
        return parse(value.strip())
    except ValueError as error:
        # The text is passed as a value: pydantic would read braces in the message as a template.
        raise PydanticCustomError("unit", "{problem}", {"problem": str(error)}) from error


Duration = Annotated[
    float,
    BeforeValidator(_read_duration),
    PlainSerializer(format_duration),
    WithJsonSchema({"type": "string", "format": "duration", "examples": ["250ms", "30s", "1h30m"]}),
]
"""A number of seconds that is written with a unit."""

Size = Annotated[
    int,
    BeforeValidator(_read_size),
    PlainSerializer(format_size),
    WithJsonSchema({"type": ["string", "integer"], "format": "size", "examples": ["512KiB", "32MiB", 65536]}),
]
"""A number of bytes that is written with a unit or as a whole number."""

Address = Annotated[str, BeforeValidator(_read_address), WithJsonSchema({"type": "string", "format": "address"})]
"""An address as `host:port`."""
