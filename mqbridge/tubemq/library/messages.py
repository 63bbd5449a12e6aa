"""Encode and decode message data (body, attributes, type and time).

Programs need this module for the senders that take encoded messages, and for packs (the messages of one response of a Broker),
which are received undecoded. In the protocol the attributes are one string: `key=value` pairs joined by commas, `$msgType$` and
`$msgTime$` first.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from mqbridge.errors import LocalProtocolError
from mqbridge.tubemq.wire.attributes import MSG_TIME_DIGITS
from mqbridge.tubemq.wire.payload import checksum, join_payload, split_payload
from mqbridge.tubemq.wire.stored_message import StoredMessage

MSG_TYPE, MSG_TIME = "$msgType$", "$msgTime$"
_FORBIDDEN = (",", "=", MSG_TYPE, MSG_TIME)
"""Texts that a key or value of an attribute must not contain."""


@dataclass(slots=True)
class TubeMessage:
    """A message. Brokers filter by `msg_type`; `msg_time` is a minute in the cluster's time zone, YYYYMMDDHHMM.

    Each of the two is None if the message has none. The Broker assigns `id` when it stores the message; it is 0 until then.
    """

    body: bytes
    attributes: dict[str, str] = field(default_factory=dict)
    msg_type: str | None = None
    msg_time: str | None = None
    id: int = 0


def encode(message: TubeMessage) -> tuple[bytes, int]:
    """Return the `data` and `flag` arguments of a sender's `send`.

    Raises LocalProtocolError for texts that attributes cannot carry. Pass `msg_type` and `msg_time` to `send`, too.
    """
    pairs: list[tuple[str, str]] = []
    if message.msg_type is not None:
        pairs.append((MSG_TYPE, _check_text(message.msg_type)))
    if message.msg_time is not None:
        if len(message.msg_time) != MSG_TIME_DIGITS or not message.msg_time.isdecimal():
            raise LocalProtocolError(f"{message.msg_time!r} is not a message time: write YYYYMMDDHHMM")
        pairs.append((MSG_TIME, message.msg_time))
    pairs += [(_check_text(key), _check_text(value)) for key, value in message.attributes.items()]
    text = ",".join(f"{key}={value}" for key, value in pairs).encode() if pairs else None
    return join_payload(text, message.body)


def _check_text(text: str) -> str:
    """Return the text; raise LocalProtocolError if it cannot be a key or value of an attribute."""
    if not text.strip() or any(forbidden in text for forbidden in _FORBIDDEN):
        raise LocalProtocolError(
            f"{text!r} cannot be a key or value of an attribute: it must not be blank, nor contain a comma, an equals sign,"
            f" {MSG_TYPE} or {MSG_TIME}"
        )
    return text


def decode(message: StoredMessage) -> TubeMessage:
    """Decode a message of a pack. Raises LocalProtocolError if its checksum is wrong; the SDKs skip such a message silently."""
    data = message.payLoadData
    if checksum(data) != message.checkSum:
        raise LocalProtocolError(f"message {message.messageId} is damaged: its checksum differs from {message.checkSum}")
    text, body = split_payload(data, message.flag)
    pairs = dict(_split_pairs(text.decode("utf-8", "replace"))) if text else {}
    return TubeMessage(body, pairs, pairs.pop(MSG_TYPE, None), pairs.pop(MSG_TIME, None), message.messageId)


def decode_all(messages: Iterable[StoredMessage], types: Mapping[str, object] | Iterable[str] = ()) -> list[TubeMessage]:
    """Decode the messages of a pack; with `types`, return only the messages of these types.

    `types` contains message types, or is a mapping with message types as keys; if it is empty, all messages are returned. Brokers
    compare only hashes of types, so they may send messages of other types, too. Raises LocalProtocolError like `decode`.
    """
    selected_types = frozenset(types)
    decoded = [decode(message) for message in messages]
    return [message for message in decoded if message.msg_type in selected_types] if selected_types else decoded


def _split_pairs(text: str) -> Iterator[tuple[str, str]]:
    """Yield the (key, value) pairs of an attribute string, without items that have no `=`."""
    for item in text.split(","):
        key, separator, value = item.partition("=")
        if separator:
            yield key, value
