"""Builds a message from an input record: a payload plus the fields of the command line, or JSON as `consume --json` writes it."""

import base64
import json
from dataclasses import dataclass
from typing import Any

import orjson

from mqbridge.errors import ConfigError
from mqbridge.message import Message, Pair

MAX_SHOWN_BYTES = 60
"""Errors show at most this much of a record."""
MAX_DIGITS = 20
"""No field of a message has a number of more digits."""
MAX_TIME_MS = (1 << 63) - 1
"""Systems store times as signed numbers of 64 bits."""
_TEXT_FIELDS = ("key", "msg_type")
_BYTES_FIELDS = ("payload", "ordering_key", "attributes")
_TIME_FIELDS = ("event_time", "deliver_at")
_IGNORED_FIELDS = frozenset({"topic", "partition", "position", "publish_time", "delivery_count", "origin", "hops"})
"""Fields that belong to the message that was read, not to the new one: its place, origin, publish time and deliveries."""


@dataclass(frozen=True, slots=True)
class MessageBuilder:
    """Builds messages from records: the fields that the command line sets for every message, and how records are read.

    With a `key_delimiter`, the text before it in a record is the key; `key` is for records without it. `keys` are index keys
    (RocketMQ). Times are in ms since the epoch. With `empty_is_null`, an empty payload becomes a null payload (a tombstone).
    With `from_json`, each record is a JSON object.
    """

    key_delimiter: bytes | None = None
    key: str | bytes | None = None
    ordering_key: bytes | None = None
    keys: tuple[str, ...] = ()
    properties: tuple[Pair, ...] = ()
    msg_type: str | None = None
    attributes: bytes | None = None
    event_time: int | None = None
    deliver_at: int | None = None
    empty_is_null: bool = False
    from_json: bool = False

    def make_message(self, record: bytes) -> Message:
        """Build the message of one record. Raises ConfigError if the record must be a JSON object and is not a valid one."""
        return self._from_json(record) if self.from_json else self._from_bytes(record)

    def _from_bytes(self, record: bytes) -> Message:
        """Build a message with the record, or the part after its key, as payload."""
        key: str | bytes | None = self.key
        if self.key_delimiter is not None and self.key_delimiter in record:
            key_bytes, _, record = record.partition(self.key_delimiter)
            key = text_or_bytes(key_bytes)
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
        """Build a message from a JSON object; fields that it lacks come from the command line, a missing payload is null."""
        message = self._from_bytes(b"")
        message.payload = None
        for name, value in _parse_object(record).items():
            field, is_base64 = name.removesuffix("_base64"), name.endswith("_base64")
            setattr(message, field, _convert(field, value, is_base64=is_base64, record=record))
        return message


def text_or_bytes(value: bytes) -> str | bytes:
    """Return the text of these bytes, or if they are not UTF-8 the bytes themselves."""
    try:
        return value.decode()
    except UnicodeDecodeError:
        return value


def _parse_object(record: bytes) -> dict[str, Any]:
    """Parse a JSON object and return the fields that the new message takes over. Raises ConfigError."""
    try:
        orjson.loads(record)  # strict: no NaN, no lone surrogate, limited nesting
    except ValueError as error:
        raise _record_error(record, f"is not JSON ({error})") from error
    try:
        fields = json.loads(record, object_pairs_hook=_unique, parse_int=_parse_int)
    except (ValueError, RecursionError) as error:
        raise _record_error(record, f"cannot be used ({error})") from error
    if not isinstance(fields, dict):
        raise _record_error(record, "is not an object")
    fields = {name: value for name, value in fields.items() if name not in _IGNORED_FIELDS}
    twice = [name for name in fields if f"{name}_base64" in fields]
    if twice:
        raise _record_error(record, f"has both {twice[0]!r} and '{twice[0]}_base64'")
    return fields


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return the members of a JSON object. Raises ValueError for a name that occurs twice, of which JSON keeps only one."""
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for index, name in enumerate(names) if name in names[:index])
        raise ValueError(f"{twice!r} occurs twice in an object")
    return found


def _parse_int(digits: str) -> int | float:
    """Return the number; one of many digits, which is no value of any field, as a float."""
    return int(digits) if len(digits) <= MAX_DIGITS else float(digits)


def _convert(field: str, value: Any, *, is_base64: bool, record: bytes) -> Any:
    """Convert a JSON value to the type of the message's field. Raises ConfigError."""
    if is_base64 and field not in (*_BYTES_FIELDS, "key"):
        raise _record_error(record, f"has '{field}_base64', but {field!r} is not a field with bytes")
    try:
        if value is None and field == "payload":
            return None
        if is_base64:
            return base64.b64decode(value, validate=True)
        if field in _BYTES_FIELDS and isinstance(value, str):
            return value.encode()
        if field in _TEXT_FIELDS and isinstance(value, str):
            return value
        if field in _TIME_FIELDS and type(value) is int:
            return _checked_time(value)
        if field == "keys" and isinstance(value, list):
            return tuple(_checked_text(item) for item in value)
        if field == "properties":
            return tuple(_checked_property(pair) for pair in (value.items() if isinstance(value, dict) else value))
        shown = json.dumps(value)[:MAX_SHOWN_BYTES]
    except (ValueError, TypeError, RecursionError) as error:
        raise _record_error(record, f"has an invalid {field!r} ({error})") from error
    raise _record_error(record, f"has {field!r}: {shown}, which is not a field of a message, or not of its type")


def _checked_time(value: int) -> int:
    if not 0 <= value <= MAX_TIME_MS:
        raise ValueError(f"{value} is not a time in ms since 1970")
    return value


def _checked_property(pair: Any) -> Pair:
    """Return a name and a value, which must be texts: no other type has one spelling that every reader expects."""
    if not isinstance(pair, tuple | list) or len(pair) != 2:
        raise ValueError(f"{json.dumps(pair)[:MAX_SHOWN_BYTES]} is not a pair of a name and a value")
    return _checked_text(pair[0]), _checked_text(pair[1])


def _checked_text(value: Any) -> str:
    if not isinstance(value, str):
        shown = json.dumps(value)[:MAX_SHOWN_BYTES]
        raise ValueError(f"{shown} is not a text; write it in quotation marks, or leave it out")  # noqa: TRY004 - see `_convert`
    return value


def _record_error(record: bytes, problem: str) -> ConfigError:
    shown = record[:MAX_SHOWN_BYTES].decode(errors="replace") + ("…" if len(record) > MAX_SHOWN_BYTES else "")
    return ConfigError(f"the input {shown!r} {problem}", hint="Write one object per line, as `mqbridge consume --json` does")
