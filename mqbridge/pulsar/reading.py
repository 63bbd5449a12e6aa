"""Pulsar message -> `Message`: plainly by protobuf, and the messages of batches by hand.

By hand a head is cut into its fields, and property pairs, which repeat from message to message, are looked up as the bytes that
they are. A head with anything out of the ordinary is read plainly.
"""

import base64
import struct
from collections.abc import Sequence
from itertools import chain
from typing import Any

from google.protobuf.message import DecodeError

from mqbridge.attributes import MEMO_CHARS, MEMO_ENTRIES
from mqbridge.carried import ATTRIBUTES, CARRIED_KEYS, ORIGIN, USER_PREFIX, uncarry
from mqbridge.errors import RemoteProtocolError
from mqbridge.message import Message, Pair
from mqbridge.pulsar.fields import MSG_TYPE
from mqbridge.pulsar.wire.batch import split_batch
from mqbridge.pulsar.wire.entry import Entry
from mqbridge.pulsar.wire.pb.PulsarApi_pb2 import MessageMetadata, SingleMessageMetadata
from mqbridge.wire.varint import decode_varint

# Field tags of SingleMessageMetadata.
_PROPERTY, _PARTITION_KEY, _PAYLOAD_SIZE, _EVENT_TIME, _B64_KEY = 0x0A, 0x12, 0x18, 0x28, 0x30
_ORDERING_KEY, _SEQUENCE_ID, _NULL_VALUE, _NULL_KEY = 0x3A, 0x40, 0x48, 0x50
_TEXTS = frozenset({_PROPERTY, _PARTITION_KEY, _ORDERING_KEY})
_FLAGS = frozenset({_B64_KEY, _NULL_VALUE, _NULL_KEY})
_SIZE = struct.Struct(">I")
_TYPE, _USER = MSG_TYPE.encode(), USER_PREFIX.encode()

_NAME, _VALUE = 0x0A, 0x12
"""Of a property."""

_pairs: dict[bytes, Pair] = {}
_times: dict[bytes, int] = {}


# --- plainly ----------------------------------------------------------------------------------------------------------


def read(said: MessageMetadata | SingleMessageMetadata, payload: bytes, entry: Entry, index: int) -> Message:
    """One message; `said` is the entry's metadata where it is no batch."""
    metadata = entry.metadata
    place = (entry.ledger, entry.entry, index)
    pairs = [(pair.key, pair.value) for pair in said.properties]
    # Text that is not UTF-8 comes as bytes.
    if not all(isinstance(text, str) for text in (said.partition_key, *chain(*pairs))):
        return Message(payload, position=place, defect="its key or its properties are not UTF-8")
    properties, carried = uncarry(pairs, blank=not payload)
    fields: dict[str, Any] = {
        "payload": None if said.null_value else payload,
        "publish_time": metadata.publish_time,
        "deliver_at": metadata.deliver_at_time if metadata.HasField("deliver_at_time") else None,
        "delivery_count": entry.redelivery_count,
        "position": place,
        "key": _key_of(said.partition_key, said.partition_key_b64_encoded) if said.HasField("partition_key") else None,
        "ordering_key": said.ordering_key if said.HasField("ordering_key") else None,
        "msg_type": next((value for name, value in properties if name == MSG_TYPE), None),
        "event_time": _signed(said.event_time) if said.event_time else None,
    }
    return Message(properties=properties, **(fields | carried))


def _key_of(key: str, is_base64: bool) -> str | bytes:
    if not is_base64:
        return key
    try:
        return base64.b64decode(key, validate=True)
    except ValueError:  # not the base64 that it claims to be: kept as the text that it is
        return key


def _signed(value: int) -> int:
    return value - (1 << 64) if value >= 1 << 63 else value


# --- by hand ----------------------------------------------------------------------------------------------------------


def read_batch(entry: Entry) -> list[Message]:
    """The messages of a batch that are to be delivered. Raises RemoteProtocolError when it does not hold what it says."""
    payload, count, ack_set = entry.payload, entry.count, entry.ack_set
    size_at, rest = _SIZE.unpack_from, _rest_of(entry)
    messages: list[Message] = []
    at, size = 0, len(payload)
    try:
        for index in range(count):
            begin = at + 4
            end = begin + size_at(payload, at)[0]
            message = Message.__new__(Message)
            length = _fill(message, payload, begin, end)
            due = not ack_set or _is_due(ack_set, index)
            if length >= 0:
                message.position = (entry.ledger, entry.entry, index)
                message.publish_time, message.deliver_at, message.delivery_count = rest
                message.defect = None
            else:
                single = SingleMessageMetadata.FromString(payload[begin:end])
                length = single.payload_size
                message = read(single, payload[end : end + length], entry, index)
                due = due and not single.compacted_out
            at = end + length
            if not end <= at <= size:
                break
            if due:
                messages.append(message)
        else:
            if at == size:
                return messages
    except (struct.error, DecodeError, IndexError):
        pass
    split_batch(payload, count)  # raises, and says what is wrong
    raise RemoteProtocolError(f"{size} bytes of a batch of {count} cannot be read")


def _is_due(ack_set: Sequence[int], index: int) -> bool:
    word, bit = divmod(index, 64)
    return word < len(ack_set) and bool(ack_set[word] >> bit & 1)


def _rest_of(entry: Entry) -> tuple[int, int | None, int]:
    metadata = entry.metadata
    deliver_at = metadata.deliver_at_time if metadata.HasField("deliver_at_time") else None
    return metadata.publish_time, deliver_at, entry.redelivery_count


def _fill(message: Message, data: bytes, at: int, end: int) -> int:  # noqa: C901, PLR0912, PLR0915 - per message; calls cost more
    """Read the head between two places into a message, with the payload behind it.

    The length of that payload; -1 for a head that is to be read plainly.
    """
    pairs: list[Pair] = []
    ours: list[Pair] = []
    begin, length, null, is_base64 = at, -1, False, False
    key: bytes | None = None
    message.ordering_key = message.event_time = None
    get = _pairs.get
    while at < end:
        tag = data[at]
        if tag in _TEXTS:
            size = data[at + 1]
            at += 2
            if size > 127:
                if data[at] > 127:
                    return -1
                size += (data[at] - 1) << 7
                at += 1
            item = data[at : at + size]
            at += size
            if tag == _PROPERTY:
                pair = get(item)
                if pair is None:
                    pair = _read_pair(item)
                    if pair is None:
                        return -1
                    if pair[0] in CARRIED_KEYS and not item.startswith(_USER, 2):
                        ours.append(pair)
                        continue
                pairs.append(pair)
            elif tag == _PARTITION_KEY:
                key = item
            else:
                message.ordering_key = item
        elif tag == _PAYLOAD_SIZE:
            length = data[at + 1]
            at += 2
            if length > 127:
                if data[at] < 128:
                    length += (data[at] - 1) << 7
                    at += 1
                else:
                    length, at = decode_varint(data, at - 1)
        elif tag == _EVENT_TIME:
            message.event_time = _times.get(data[at + 1 : at + 7])
            if message.event_time is not None:
                at += 7
            else:
                message.event_time, at = _read_time(data, at + 1)
        elif tag == _SEQUENCE_ID:
            _, at = decode_varint(data, at + 1)
        elif tag in _FLAGS and data[at + 1] < 2:
            if tag == _B64_KEY:
                is_base64 = data[at + 1] == 1
            elif tag == _NULL_VALUE:
                null = data[at + 1] == 1
            at += 2
        else:
            return -1
    if at != end or length < 0:
        return -1
    message.payload = None if null else data[end : end + length]
    message.properties = tuple(pairs)
    message.keys = ()
    message.msg_type = message.attributes = message.origin = message.key = None
    message.hops = 0
    if data.find(_TYPE, begin, end) >= 0:
        message.msg_type = message.property(MSG_TYPE)
    try:
        if key is not None:
            message.key = _key_of(key.decode(), is_base64)
        return length if not ours or _become(message, ours, blank=not length) else -1
    except UnicodeDecodeError:
        return -1


def _become(message: Message, ours: list[Pair], *, blank: bool) -> bool:
    """Set what was carried; False when a pair of these is not ours after all."""
    rest = []
    for pair in ours:
        name, value = pair
        if name == ATTRIBUTES:
            message.attributes = value.encode()
        elif name == ORIGIN:
            message.origin = value
            message.hops = 1
        else:
            rest.append(pair)
    if rest:
        own, fields = uncarry(ours, blank=blank)
        if own or "deliver_at" in fields:
            return False
        for name, said in fields.items():
            setattr(message, name, said)
    return True


def _read_time(data: bytes, at: int) -> tuple[int | None, int]:
    """An event time and the place after it. Those of six bytes, which are all of our days, are remembered."""
    number, end = decode_varint(data, at)
    time = _signed(number) if number else None
    if time is not None and end - at == 6:
        if len(_times) >= MEMO_ENTRIES:
            _times.clear()
        _times[data[at:end]] = time
    return time, end


def _read_pair(item: bytes) -> Pair | None:
    """A property; None for one that is to be read plainly. What is ours is another one in each message, and not remembered."""
    try:
        name_end = 2 + item[1]
        size, start = item[name_end + 1], name_end + 2
        if size > 127:
            size += (item[start] - 1) << 7
            start += 1
        # Other lengths, fields in another order, or twice.
        if item[0] != _NAME or item[name_end] != _VALUE or item[1] > 127 or start + size != len(item) or item[start - 1] > 127:
            return None
        name, value = item[2:name_end].decode(), item[start:].decode()
    except (UnicodeDecodeError, IndexError):
        return None
    if name.startswith(USER_PREFIX):
        name = name[len(USER_PREFIX) :]
    elif name in CARRIED_KEYS:
        return name, value
    if size <= MEMO_CHARS:
        if len(_pairs) >= MEMO_ENTRIES:
            _pairs.clear()
        _pairs[item] = (name, value)
    return name, value
