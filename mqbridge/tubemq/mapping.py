"""TubeMQ message <-> `Message`.

A TubeMQ message is a body and one attribute string of `key=value` pairs joined by commas. Coming in, the string is kept
in `attributes` byte for byte and its pairs become properties of the same names, `$msgType$` and `$msgTime$` among them.

Going out, a message that still has its attribute string, unchanged, gets it back verbatim. For any other one is built:

    user pairs , mqbridge.v=1 , $msgType$=… , $msgTime$=… , mqbridge.… = …

Everything in a built string is percent-encoded where it holds `%`, `,` or `=`, because native readers split on these;
`mqbridge.v=1` says that this was done, and that the string is ours and no attribute string of a user. The origin stamp is
appended to either kind.
"""

import struct
from collections.abc import Sequence
from datetime import UTC, datetime, tzinfo
from urllib.parse import unquote

from mqbridge.attributes import read_pairs
from mqbridge.carried import CARRIED_KEYS, ORIGIN, carry, escape_user, uncarry
from mqbridge.errors import MappingError
from mqbridge.message import Message, Pair
from mqbridge.tubemq.native import MSG_TIME, MSG_TIME_DIGITS, MSG_TYPE, Minutes, NativeMessage, minutes_of, system_fields
from mqbridge.tubemq.wire.payload import CHECKSUM_MASK, HAS_ATTRIBUTES, join_payload
from mqbridge.tubemq.wire.pb.broker_pb2 import TransferedMessage
from mqbridge.wire.checksum import crc32

BUILT: Pair = ("mqbridge.v", "1")
CARRIED_BY_ALL = ("key", "ordering_key", "keys", "deliver_at", "null")
CARRIED = (*CARRIED_BY_ALL, "event_time")
"""Fields that a TubeMQ message cannot say natively; event time only when it is not just the minute of `$msgTime$`."""


_LENGTH = struct.Struct(">i")
_ESCAPES = str.maketrans({"%": "%25", ",": "%2C", "=": "%3D"})


class Encoded:
    """The fields of a send request."""

    __slots__ = ("data", "flag", "msg_time", "msg_type")

    def __init__(self, data: bytes, flag: int, msg_type: str | None, msg_time: str | None) -> None:
        self.data, self.flag, self.msg_type, self.msg_time = data, flag, msg_type, msg_time


# --- in ---------------------------------------------------------------------------------------------------------------


def decode(pack: Sequence[TransferedMessage], offset: int, zone: tzinfo = UTC) -> list[Message]:
    """The messages of one fetch that began at `offset`. One that is damaged becomes a Message with its `defect`."""
    messages: list[Message] = []
    minutes = minutes_of(zone)
    for index, item in enumerate(pack):
        data = item.payLoadData
        if crc32(data) & CHECKSUM_MASK != item.checkSum:
            messages.append(Message(data, position=(offset, index), defect="its checksum does not match its content"))
            continue
        attributes = None
        if item.flag & HAS_ATTRIBUTES and len(data) >= 4:
            end = 4 + _LENGTH.unpack_from(data)[0]
            # The Java SDK's clearAttribute() sets the flag without writing the block: then all of it is the body.
            if 4 <= end <= len(data):
                attributes = data[4:end]
                data = data[end:]
        if attributes is None:
            messages.append(Message(data, position=(offset, index)))
        elif b"mqbridge." in attributes:
            messages.append(_from_stamped(data, attributes, (offset, index), minutes))
        else:
            messages.append(NativeMessage(data, attributes, (offset, index), minutes))
    return messages


def _from_stamped(body: bytes, attributes: bytes, position: tuple[int, int], minutes: Minutes) -> Message:
    items = attributes.split(b",")
    marker = f"{BUILT[0]}={BUILT[1]}".encode()
    if marker in items:
        at = items.index(marker)
        own = [_unescape(pair) for pair in read_pairs(b",".join(items[:at]))]
        tail = [_unescape(pair) for pair in read_pairs(b",".join(items[at + 1 :]))]
        kept = None
    else:
        at = len(items)
        while at and items[at - 1].partition(b"=")[0].decode(errors="replace") in CARRIED_KEYS:
            at -= 1
        kept = b",".join(items[:at])
        own = list(read_pairs(kept))
        tail = [_unescape(pair) for pair in read_pairs(b",".join(items[at:]))]
    fields = uncarry(tail)[1]
    properties = uncarry(own)[0] if kept is None else tuple(own)
    msg_type, event_time = system_fields(properties, minutes)
    if kept is not None:
        fields = {"attributes": kept, "event_time": event_time} | fields
    tombstone = fields.pop("null", None) is not None
    return Message(
        None if tombstone and not body else body,
        properties,
        msg_type=dict(tail).get(MSG_TYPE, msg_type),
        position=position,
        **fields,
    )


# --- out --------------------------------------------------------------------------------------------------------------


def encode(message: Message, stamp: str | None, zone: tzinfo = UTC) -> Encoded:
    """What to send for a message; `stamp` is its origin. Raises MappingError for a message that was never readable."""
    if message.defect is not None:
        raise MappingError(f"the message at {message.position} could not be read: {message.defect}")
    body = message.payload or b""
    time = None if message.event_time is None else _minute_text(message.event_time, zone)
    ours: list[Pair]
    if message.attributes is not None and _unchanged(message, message.attributes):
        text = message.attributes
        ours = carry(
            message, CARRIED if system_fields(message.properties, minutes_of(zone))[1] != message.event_time else CARRIED_BY_ALL
        )
    else:
        text, ours = _build(message, time)
        # The broker refuses a message of no bytes at all; the marker alone makes one of an empty body.
        if not (text or ours or stamp is not None) and body:
            return Encoded(body, 0, message.msg_type, time)
        ours.insert(0, BUILT)
    if stamp is not None:
        ours.append((ORIGIN, stamp))
    if ours:
        tail = ",".join(map(_escape, ours)).encode()
        text = text + b"," + tail if text else tail
    return Encoded(*join_payload(text, body), message.msg_type, time)


def _unchanged(message: Message, attributes: bytes) -> bool:
    """Whether the attribute string still says what the message says; a route may have edited properties or type."""
    pairs = read_pairs(attributes)
    return pairs == message.properties and next((v for k, v in pairs if k == MSG_TYPE), None) == message.msg_type


def _build(message: Message, time: str | None) -> tuple[bytes, list[Pair]]:
    """The user's pairs as text, and what is to follow the marker."""
    system: list[Pair] = []
    if message.msg_type is not None and message.property(MSG_TYPE) != message.msg_type:
        system.append((MSG_TYPE, message.msg_type))
    if time is not None and message.property(MSG_TIME) is None:
        system.append((MSG_TIME, time))
    text = ",".join(_escape(escape_user(pair)) for pair in message.properties)
    return text.encode(), [*system, *carry(message, (*CARRIED, "attributes"))]


def _escape(pair: Pair) -> str:
    key, value = (part.translate(_ESCAPES) for part in pair)
    if not value.strip():
        # Java readers fail on blank values; a lone percent sign stands for nothing at all.
        value = value.replace(" ", "%20") or "%"
    return f"{key or '%'}={value}"


def _unescape(pair: Pair) -> Pair:
    key, value = ("" if part == "%" else unquote(part) if "%" in part else part for part in pair)
    return key, value


def _minute_text(event_time: int, zone: tzinfo) -> str | None:
    try:
        return datetime.fromtimestamp(event_time // 1000, zone).strftime("%Y%m%d%H%M").zfill(MSG_TIME_DIGITS)
    except (ValueError, OverflowError, OSError):
        return None
