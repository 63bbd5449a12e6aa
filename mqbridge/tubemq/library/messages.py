"""Encode and decode message data (body, attributes, type and time), for the senders of encoded messages and for packs.

In the protocol the attributes are one string: `key=value` pairs joined by commas, `$msgType$` and `$msgTime$` first.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from mqbridge.errors import LocalProtocolError
from mqbridge.tubemq.wire.attributes import MSG_TIME_DIGITS
from mqbridge.tubemq.wire.payload import checksum, join_payload, split_payload
from mqbridge.tubemq.wire.stored_message import StoredMessage

MSG_TYPE, MSG_TIME = "$msgType$", "$msgTime$"
_RESERVED = (",", "=", "$msgType$", "$msgTime$")


@dataclass(slots=True)
class TubeMessage:
    """A message. Brokers filter by `msg_type`; `msg_time` has twelve digits, YYYYMMDDHHMM; the Broker assigns `id`."""

    body: bytes
    attributes: dict[str, str] = field(default_factory=dict)
    msg_type: str | None = None
    msg_time: str | None = None
    id: int = 0


def encode(message: TubeMessage) -> tuple[bytes, int]:
    """Return the `data` and `flag` arguments of `send`. Raises LocalProtocolError for texts that attributes cannot carry."""
    pairs: list[tuple[str, str]] = []
    if message.msg_type is not None:
        pairs.append((MSG_TYPE, _valid(message.msg_type)))
    if message.msg_time is not None:
        if len(message.msg_time) != MSG_TIME_DIGITS or not message.msg_time.isdecimal():
            raise LocalProtocolError(f"{message.msg_time!r} is not a message time: write YYYYMMDDHHMM")
        pairs.append((MSG_TIME, message.msg_time))
    pairs += [(_valid(key), _valid(value)) for key, value in message.attributes.items()]
    text = ",".join(f"{key}={value}" for key, value in pairs).encode() if pairs else None
    return join_payload(text, message.body)


def _valid(text: str) -> str:
    if not text.strip() or any(mark in text for mark in _RESERVED):
        raise LocalProtocolError(f"{text!r} cannot be an attribute: no comma, no equals sign, no reserved name, not blank")
    return text


def decode(message: StoredMessage) -> TubeMessage:
    """Decode a message of a pack. Raises LocalProtocolError for a wrong checksum; the SDKs skip such messages silently."""
    data = message.payLoadData
    if checksum(data) != message.checkSum:
        raise LocalProtocolError(f"message {message.messageId} is damaged: its checksum differs from {message.checkSum}")
    text, body = split_payload(data, message.flag)
    pairs = dict(_pairs(text.decode("utf-8", "replace"))) if text else {}
    return TubeMessage(body, pairs, pairs.pop(MSG_TYPE, None), pairs.pop(MSG_TIME, None), message.messageId)


def decode_all(messages: Iterable[StoredMessage], types: Mapping[str, object] | Iterable[str] = ()) -> list[TubeMessage]:
    """Decode a pack; with `types` only messages of these types. Brokers compare hashes of types, so they may send others, too."""
    wanted = frozenset(types)
    decoded = [decode(message) for message in messages]
    return [message for message in decoded if message.msg_type in wanted] if wanted else decoded


def _pairs(text: str) -> Iterator[tuple[str, str]]:
    for item in text.split(","):
        key, separator, value = item.partition("=")
        if separator:
            yield key, value
