"""Pulsar message -> `Message`: plainly by protobuf, and the messages of batches fast.

Most heads in batches are of a shape that came before; others are cut by hand, and those with anything out of the ordinary are
read plainly.
"""

import struct
from collections.abc import Sequence
from functools import partial
from itertools import chain
from typing import Any

from google.protobuf.message import DecodeError

from mqbridge.errors import RemoteProtocolError
from mqbridge.mapping.bounded_cache import BoundedCache
from mqbridge.mapping.lazy_properties import is_utf8
from mqbridge.mapping.parse_templates import ParseTemplates
from mqbridge.mapping.reserved_properties import read_carried
from mqbridge.message import MSG_TYPE, Message
from mqbridge.pulsar.mapping.cutting import cut_head, key_of, signed
from mqbridge.pulsar.mapping.shapes import HeadShape, is_number, read_number, shape_of
from mqbridge.pulsar.wire.batch import split_batch
from mqbridge.pulsar.wire.entry import Entry
from mqbridge.pulsar.wire.pb.PulsarApi_pb2 import MessageMetadata, SingleMessageMetadata
from mqbridge.wire.varint import decode_varint

_SIZE = struct.Struct(">I")


# --- plainly ----------------------------------------------------------------------------------------------------------


def read(said: MessageMetadata | SingleMessageMetadata, payload: bytes, entry: Entry, index: int) -> Message:
    """One message; `said` is the entry's metadata where it is no batch."""
    metadata = entry.metadata
    place = (entry.ledger, entry.entry, index)
    pairs = [(pair.key, pair.value) for pair in said.properties]
    # Text that is not UTF-8 comes as bytes.
    if not all(isinstance(text, str) for text in (said.partition_key, *chain(*pairs))):
        return Message(payload, position=place, defect="its key or its properties are not UTF-8")
    properties, carried = read_carried(pairs, blank=not payload)
    fields: dict[str, Any] = {
        "payload": None if said.null_value else payload,
        "publish_time": metadata.publish_time,
        "deliver_at": metadata.deliver_at_time if metadata.HasField("deliver_at_time") else None,
        "delivery_count": entry.redelivery_count,
        "position": place,
        "key": key_of(said.partition_key, said.partition_key_b64_encoded) if said.HasField("partition_key") else None,
        "ordering_key": said.ordering_key if said.HasField("ordering_key") else None,
        "msg_type": next((value for name, value in properties if name == MSG_TYPE), None),
        "event_time": signed(said.event_time) if said.event_time else None,
    }
    return Message(properties=properties, **(fields | carried))


# --- fast -------------------------------------------------------------------------------------------------------------


_shapes = ParseTemplates[HeadShape]()
_sizes = BoundedCache(read_number)
_keys: BoundedCache[bytes, str] = BoundedCache(bytes.decode)


def read_batch(entry: Entry) -> list[Message]:  # noqa: PLR0912, PLR0915 - per message; calls cost more
    """The messages of a batch that are to be delivered. Raises RemoteProtocolError when it does not hold what it says."""
    payload, count, ack_set, ledger, number = entry.payload, entry.count, entry.ack_set, entry.ledger, entry.entry
    publish_time, deliver_at, delivery_count = _rest_of(entry)
    shapes = _shapes.by_length if deliver_at is None else {}
    size_at, sizes, key_of_bytes, new = _SIZE.unpack_from, _sizes, _keys.get, object.__new__
    messages: list[Message] = []
    at, size, time, time_of = 0, len(payload), None, b""
    message: Message
    try:
        for index in range(count):
            begin = at + 4
            (head_size,) = size_at(payload, at)
            end = begin + head_size
            due = not ack_set or _is_due(ack_set, index)
            shape = shapes.get(head_size)
            if (
                shape is not None
                and (fields := shape.unpack(payload, begin))[::2] == shape.fixed
                and ((text := b"\n".join(fields[shape.texts])).isascii() or is_utf8(text))
                and (length := sizes[fields[shape.size_at]]) >= 0
                and (not shape.sequence_at or is_number(fields[shape.sequence_at]))
                and (not shape.time_at or fields[shape.time_at] == time_of or is_number(fields[shape.time_at]))
            ):
                at = end + length
                message = new(shape.kind)
                message.payload = payload[end:at]
                message.position = (ledger, number, index)
                message.publish_time, message.delivery_count = publish_time, delivery_count
                message.property_names, message.lengths, message.values = shape.names, shape.lengths, fields[shape.users]
                message.key = None if not (place := shape.key_at) else key_of_bytes(fields[place]) or _keys[fields[place]]
                message.msg_type = fields[place].decode() if (place := shape.type_at) else None
                if not (place := shape.time_at):
                    message.event_time = None
                else:
                    if (said := fields[place]) != time_of:
                        time, time_of = _time(said), said
                    message.event_time = time
                if shape.carried is not None and not shape.carried.fill(message, fields):
                    message = read(SingleMessageMetadata.FromString(payload[begin:end]), payload[end:at], entry, index)
            elif (found := cut_head(payload, begin, end)) is not None:
                message, length = found
                at = end + length
                message.position = (ledger, number, index)
                message.publish_time, message.delivery_count = publish_time, delivery_count
                if deliver_at is not None:
                    message = message.replace(deliver_at=deliver_at)
                _shapes.learn(head_size, partial(shape_of, payload[begin:end]))
            else:
                single = SingleMessageMetadata.FromString(payload[begin:end])
                at = end + single.payload_size
                message = read(single, payload[end:at], entry, index)
                due = due and not single.compacted_out
            if not end <= at <= size:
                break
            if due:
                messages.append(message)
        else:
            if at == size:
                _shapes.earn(count)
                return messages
    except (struct.error, DecodeError, IndexError):
        pass
    split_batch(payload, count)  # raises, and says what is wrong
    raise RemoteProtocolError(f"{size} bytes of a batch of {count} cannot be read")


def _time(said: bytes) -> int | None:
    """An event time by its varint. Those of 16 seconds end alike, so the end is remembered."""
    if len(said) == 6:
        return said[0] & 0x7F | (said[1] & 0x7F) << 7 | _sizes[said[2:]] << 14
    return signed(decode_varint(said, 0)[0]) or None


def _is_due(ack_set: Sequence[int], index: int) -> bool:
    word, bit = divmod(index, 64)
    return word < len(ack_set) and bool(ack_set[word] >> bit & 1)


def _rest_of(entry: Entry) -> tuple[int, int | None, int]:
    metadata = entry.metadata
    deliver_at = metadata.deliver_at_time if metadata.HasField("deliver_at_time") else None
    return metadata.publish_time, deliver_at, entry.redelivery_count
