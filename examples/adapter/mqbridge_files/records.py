"""The mapping. A message is stored as one line of JSON with the fields that differ from their defaults."""

from base64 import b64decode, b64encode
from typing import Any

import orjson

from mqbridge.errors import MappingError
from mqbridge.mapping.field_table import DROPPED, NATIVE, RECOMPUTED, FieldRule, FieldTable
from mqbridge.message import Message, Position, format_position

MAX_LINE_BYTES = 16 << 20
_DEFAULTS = Message(None).as_dict()
_BINARY = {"payload", "ordering_key", "attributes"}
"""Fields that are stored as readable strings if they are valid UTF-8, else as `{"base64": ...}`, like all other bytes."""
_NOT_STORED = {
    "position": (RECOMPUTED, "the number of the line"),
    "delivery_count": (DROPPED, "it counts the deliveries of the source"),
    "defect": (DROPPED, "a message with a defect is rejected"),
}

TABLE = FieldTable(
    "files", "files", tuple(FieldRule(name, name, *_NOT_STORED.get(name, (NATIVE, "unchanged"))) for name in Message.__slots__)
)


def encode(message: Message, prefix: str | None) -> bytes:
    """Encode a message as a line. With a `prefix`, also store the origin of the message: the prefix and its position.

    Raises MappingError if the message must be rejected.
    """
    try:
        line = orjson.dumps(_record(message, prefix), option=orjson.OPT_APPEND_NEWLINE)
    except orjson.JSONEncodeError as error:
        raise MappingError(f"the message cannot be written as JSON: {error}") from error
    if len(line) > MAX_LINE_BYTES:
        raise MappingError(f"the line has {len(line)} bytes, the maximum is {MAX_LINE_BYTES}")
    return line


def decode(line: bytes, position: Position) -> Message:
    """Decode a line. An invalid line becomes a message with a defect, so the lines behind it can still be read."""
    try:
        fields = {name: _from_json(name, value) for name, value in orjson.loads(line).items()}
        return Message(**(_DEFAULTS | fields | {"position": position}))
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        return Message(line, position=position, defect=f"the line is not a valid message: {error}")


def preview(message: Message, prefix: str | None, _now_ms: int) -> list[tuple[str, str | bytes]]:
    """Return the fields as they would be stored, for `mqbridge explain`. Raises MappingError."""
    record = _record(message, prefix)
    properties = [(f"property {name}", value) for name, value in record.pop("properties", ())]
    return [(name, value if isinstance(value, str) else orjson.dumps(value)) for name, value in record.items()] + properties


def _record(message: Message, prefix: str | None) -> dict[str, Any]:
    if message.defect is not None:
        raise MappingError(f"the message could not be decoded: {message.defect}")
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
