"""How a piece of input becomes a message: bytes with the fields of the command line, or an object as `consume --json` has it."""

import base64
from dataclasses import dataclass
from typing import Any

import orjson

from mqbridge.errors import ConfigError
from mqbridge.message import Message, Pair

MAX_SHOWN = 60
_TEXTS = ("key", "msg_type")
_BYTES = ("payload", "ordering_key", "attributes")
_TIMES = ("event_time", "deliver_at")
_OF_ITS_COPY = frozenset({"topic", "partition", "position", "publish_time", "delivery_count", "origin", "hops"})
"""Fields of the message that was read: the new one gets its own."""


@dataclass(frozen=True, slots=True)
class Form:
    """The fields of every message; a key before the delimiter goes before `key`."""

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

    def message(self, piece: bytes) -> Message:
        """The message of one piece. Raises ConfigError for an object that is none."""
        return self._of_json(piece) if self.from_json else self._of_bytes(piece)

    def _of_bytes(self, piece: bytes) -> Message:
        key: str | bytes | None = self.key
        if self.key_delimiter is not None and self.key_delimiter in piece:
            raw, _, piece = piece.partition(self.key_delimiter)
            key = _text(raw)
        return Message(
            None if self.empty_is_null and not piece else piece,
            self.properties,
            key=key,
            ordering_key=self.ordering_key,
            keys=self.keys,
            msg_type=self.msg_type,
            attributes=self.attributes,
            event_time=self.event_time,
            deliver_at=self.deliver_at,
        )

    def _of_json(self, piece: bytes) -> Message:
        """What the object does not say is as the command line says."""
        message = self._of_bytes(b"")
        message.payload = None
        for name, value in _object(piece).items():
            field, is_base64 = name.removesuffix("_base64"), name.endswith("_base64")
            setattr(message, field, _value(field, value, is_base64=is_base64, piece=piece))
        return message


def _text(raw: bytes) -> str | bytes:
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return raw


def _object(piece: bytes) -> dict[str, Any]:
    try:
        said = orjson.loads(piece)
    except ValueError as error:
        raise _bad(piece, f"is not JSON ({error})") from error
    if not isinstance(said, dict):
        raise _bad(piece, "is not an object")
    return {name: value for name, value in said.items() if name not in _OF_ITS_COPY}


def _value(field: str, value: Any, *, is_base64: bool, piece: bytes) -> Any:
    """One field as a message has it. Raises ConfigError."""
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
        raise _bad(piece, f"has no good {field!r} ({error})") from error
    raise _bad(piece, f"has {field!r}: {value!r}, which no message has")


def _bad(piece: bytes, problem: str) -> ConfigError:
    shown = piece[:MAX_SHOWN].decode(errors="replace") + ("…" if len(piece) > MAX_SHOWN else "")
    return ConfigError(f"the input {shown!r} {problem}", hint="Write one object per line, as `mqbridge consume --json` does")
