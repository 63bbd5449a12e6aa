"""The mapping: a message as one line of JSON, with every field that differs from its default."""

from base64 import b64decode, b64encode
from typing import Any

import orjson

from mqbridge.errors import MappingError
from mqbridge.mapping.field_table import DROPPED, NATIVE, RECOMPUTED, FieldRule, FieldTable
from mqbridge.message import Message, Position, format_position

MAX_LINE_BYTES = 16 << 20
_DEFAULTS = Message(None).as_dict()
_BINARY = {"payload", "ordering_key", "attributes"}
"""Fields of bytes: a string where they are UTF-8, which people can read, else `{"base64": ...}`."""
_NOT_STORED = {
    "position": (RECOMPUTED, "the number of the line"),
    "delivery_count": (DROPPED, "it counts the deliveries of the source"),
    "defect": (DROPPED, "a message that could not be read is refused"),
}

TABLE = FieldTable(
    "files", "files", tuple(FieldRule(name, name, *_NOT_STORED.get(name, (NATIVE, "as it is"))) for name in Message.__slots__)
)


def encode(message: Message, prefix: str | None) -> bytes:
    """The line; the origin is stamped where there is a prefix for it. Raises MappingError for what must be refused."""
    try:
        line = orjson.dumps(_record(message, prefix), option=orjson.OPT_APPEND_NEWLINE)
    except orjson.JSONEncodeError as error:
        raise MappingError(f"it cannot be written as JSON: {error}") from error
    if len(line) > MAX_LINE_BYTES:
        raise MappingError(f"the line would have {len(line)} bytes, at most {MAX_LINE_BYTES} are taken")
    return line


def decode(line: bytes, position: Position) -> Message:
    """The message of a line. A line that cannot be read becomes a message with a defect: others behind it can."""
    try:
        fields = {name: _from_json(name, value) for name, value in orjson.loads(line).items()}
        return Message(**(_DEFAULTS | fields | {"position": position}))
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        return Message(line, position=position, defect=f"the line is no message: {error}")


def preview(message: Message, prefix: str | None, _now_ms: int) -> list[tuple[str, str | bytes]]:
    """What would be written, field by field: for `mqbridge explain`. Raises MappingError."""
    record = _record(message, prefix)
    properties = [(f"property {name}", value) for name, value in record.pop("properties", ())]
    return [(name, value if isinstance(value, str) else orjson.dumps(value)) for name, value in record.items()] + properties


def _record(message: Message, prefix: str | None) -> dict[str, Any]:
    if message.defect is not None:
        raise MappingError(f"it could not be read: {message.defect}")
    fields = message.as_dict()
    if prefix is not None:
        fields |= {"origin": prefix + format_position(message.position), "hops": message.hops + 1}
    stored = {name: value for name, value in fields.items() if name not in _NOT_STORED and value != _DEFAULTS[name]}
    return {name: _to_json(name, value) for name, value in stored.items()}


def _to_json(name: str, value: Any) -> Any:
    if not isinstance(value, bytes):
        return value
    if name in _BINARY:
        try:
            return value.decode()
        except UnicodeDecodeError:
            pass
    return {"base64": b64encode(value).decode()}


def _from_json(name: str, value: Any) -> Any:
    if isinstance(value, dict):
        return b64decode(value["base64"])
    if name in _BINARY:
        return value.encode()
    if name == "properties":
        return tuple((key, text) for key, text in value)
    return tuple(value) if name == "keys" else value
