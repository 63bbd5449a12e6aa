"""Messages for people: a body, attributes, a type and a time, and what a pack holds of them.

What the protocol calls attributes is one text, `key=value` joined by commas, in which `$msgType$` and `$msgTime$` come first.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from mqbridge.errors import LocalProtocolError
from mqbridge.tubemq.wire.attributes import MSG_TIME_DIGITS
from mqbridge.tubemq.wire.pack import Transfered
from mqbridge.tubemq.wire.payload import checksum, join_payload, split_payload

MSG_TYPE, MSG_TIME = "$msgType$", "$msgTime$"
_RESERVED = (",", "=", "$msgType$", "$msgTime$")


@dataclass(slots=True)
class TubeMessage:
    """A message. `msg_type` is what servers filter by; `msg_time` is twelve digits, YYYYMMDDHHMM; `id` is the Broker's."""

    body: bytes
    attributes: dict[str, str] = field(default_factory=dict)
    msg_type: str | None = None
    msg_time: str | None = None
    id: int = 0


def encode(message: TubeMessage) -> tuple[bytes, int]:
    """Data and flag, for `send`. Raises LocalProtocolError for what attributes cannot carry."""
    pairs: list[tuple[str, str]] = []
    if message.msg_type is not None:
        pairs.append((MSG_TYPE, _whole(message.msg_type)))
    if message.msg_time is not None:
        if len(message.msg_time) != MSG_TIME_DIGITS or not message.msg_time.isdecimal():
            raise LocalProtocolError(f"{message.msg_time!r} is no time of a message: it is written YYYYMMDDHHMM")
        pairs.append((MSG_TIME, message.msg_time))
    pairs += [(_whole(key), _whole(value)) for key, value in message.attributes.items()]
    text = ",".join(f"{key}={value}" for key, value in pairs).encode() if pairs else None
    return join_payload(text, message.body)


def _whole(text: str) -> str:
    if not text.strip() or any(mark in text for mark in _RESERVED):
        raise LocalProtocolError(f"{text!r} cannot stand in attributes: no comma, no equals sign, no reserved name, not blank")
    return text


def decode(message: Transfered) -> TubeMessage:
    """Read a message of a pack. Raises LocalProtocolError when its checksum is wrong: SDKs skip such a one without a word."""
    data = message.payLoadData
    if checksum(data) != message.checkSum:
        raise LocalProtocolError(f"message {message.messageId} is damaged: its checksum is not {message.checkSum}")
    text, body = split_payload(data, message.flag)
    pairs = dict(_pairs(text.decode("utf-8", "replace"))) if text else {}
    return TubeMessage(body, pairs, pairs.pop(MSG_TYPE, None), pairs.pop(MSG_TIME, None), message.messageId)


def decode_all(messages: Iterable[Transfered], types: Mapping[str, object] | Iterable[str] = ()) -> list[TubeMessage]:
    """Read a pack, of filtered topics only what has one of `types`: Brokers compare hashes, so foreign types may come along."""
    wanted = frozenset(types)
    found = [decode(message) for message in messages]
    return [message for message in found if message.msg_type in wanted] if wanted else found


def _pairs(text: str) -> Iterator[tuple[str, str]]:
    for item in text.split(","):
        key, found, value = item.partition("=")
        if found:
            yield key, value
