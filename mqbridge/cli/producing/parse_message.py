"""Turns an input record into a message: bytes plus the command line's fields, or JSON as `consume --json` writes it."""

import base64
from dataclasses import dataclass
from typing import Any

import orjson

from mqbridge.errors import ConfigError
from mqbridge.message import Message, Pair

MAX_SHOWN_BYTES = 60
_TEXTS = ("key", "msg_type")
_BYTES = ("payload", "ordering_key", "attributes")
_TIMES = ("event_time", "deliver_at")
_IGNORED_FIELDS = frozenset({"topic", "partition", "position", "publish_time", "delivery_count", "origin", "hops"})
"""Fields of the message that was read; the new message gets its own values."""


@dataclass(frozen=True, slots=True)
class MessageTemplate:
    """The fields of every message. A key before the delimiter overrides `key`."""

    key_delimiter: bytes | None = None
    key: str | None = None
    ordering_key: bytes | None = None
    keys: tuple[str, ...] = ()
    properties: tuple[Pair, ...] = ()
    msg_type: str | None = None
    attributes: bytes | None = None
    event_time: int | None = None
    deliver_at: int | None = None
    empty_is_null: bool = False
    from_json: bool = False

    def message(self, record: bytes) -> Message:
        """Build the message of one record. Raises ConfigError for an invalid object."""
        return self._from_json(record) if self.from_json else self._from_bytes(record)

    def _from_bytes(self, record: bytes) -> Message:
        key: str | bytes | None = self.key
        if self.key_delimiter is not None and self.key_delimiter in record:
            key_bytes, _, record = record.partition(self.key_delimiter)
            key = _text_or_bytes(key_bytes)
        return Message(
            None if self.empty_is_null and not record else record,
            self.properties,
            key=key,
            ordering_key=self.ordering_key,
            keys=self.keys,
            msg_type=self.msg_type,
            attributes=self.attributes,
            event_time=self.event_time,
            deliver_at=self.deliver_at,
        )

    def _from_json(self, record: bytes) -> Message:
        """Build a message from a JSON object; fields that it lacks come from the command line."""
        message = self._from_bytes(b"")
        message.payload = None
        for name, value in _object(record).items():
            field, is_base64 = name.removesuffix("_base64"), name.endswith("_base64")
            setattr(message, field, _value(field, value, is_base64=is_base64, record=record))
        return message


def _text_or_bytes(value: bytes) -> str | bytes:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return value


def _object(record: bytes) -> dict[str, Any]:
    try:
        fields = orjson.loads(record)
    except ValueError as error:
        raise _invalid(record, f"is not JSON ({error})") from error
    if not isinstance(fields, dict):
        raise _invalid(record, "is not an object")
    return {name: value for name, value in fields.items() if name not in _IGNORED_FIELDS}


def _value(field: str, value: Any, *, is_base64: bool, record: bytes) -> Any:
    """Convert a JSON value to the type of the message's field. Raises ConfigError."""
    try:
        if value is None and field == "payload":
            return None
        if is_base64 and field in (*_BYTES, "key"):
            return base64.b64decode(value, validate=True)
        if field in _BYTES and isinstance(value, str):
            return value.encode()
        if field in _TEXTS and isinstance(value, str):
            return value
        if field in _TIMES and type(value) is int:
            return value
        if field == "keys" and isinstance(value, list):
            return tuple(str(one) for one in value)
        if field == "properties":
            pairs = value.items() if isinstance(value, dict) else value
            return tuple((str(name), str(text)) for name, text in pairs)
    except (ValueError, TypeError) as error:
        raise _invalid(record, f"has an invalid {field!r} ({error})") from error
    raise _invalid(record, f"has {field!r}: {value!r}, which no message has")


def _invalid(record: bytes, problem: str) -> ConfigError:
    shown = record[:MAX_SHOWN_BYTES].decode(errors="replace") + ("…" if len(record) > MAX_SHOWN_BYTES else "")
    return ConfigError(f"the input {shown!r} {problem}", hint="Write one object per line, as `mqbridge consume --json` does")
