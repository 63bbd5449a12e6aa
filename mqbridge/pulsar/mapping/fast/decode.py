"""Messages of a batch entry.

Most metadata fits a template that an earlier message left; other metadata is decoded field by field, and what is unusual by plain
code. All three are spelled out in one loop, because calls per message cost more than what they do.
"""

import struct
from functools import partial

from google.protobuf.message import DecodeError

from mqbridge.mapping.bounded_cache import BoundedCache
from mqbridge.mapping.lazy_properties import is_utf8
from mqbridge.mapping.parse_templates import ParseTemplates
from mqbridge.message import Message
from mqbridge.pulsar.mapping.fast.fields import decode_fields
from mqbridge.pulsar.mapping.fast.templates import MetadataTemplate, Numbers, template_of
from mqbridge.pulsar.mapping.properties import deliver_at, read_message
from mqbridge.pulsar.wire.entry import Entry
from mqbridge.pulsar.wire.ids import signed
from mqbridge.pulsar.wire.pb.PulsarApi_pb2 import SingleMessageMetadata
from mqbridge.pulsar.wire.single_metadata import is_varint
from mqbridge.wire.varint import decode_varint

_SIZE = struct.Struct(">I")

_templates = ParseTemplates[MetadataTemplate]()
_numbers = Numbers()
_keys: BoundedCache[bytes, str] = BoundedCache(bytes.decode)


def decode_batch(entry: Entry) -> list[Message] | None:  # noqa: PLR0912, PLR0915 - per message; calls cost more
    """The messages that are to be delivered; None for a batch that does not hold exactly its messages."""
    payload, count, ack_set, ledger, number = entry.payload, entry.count, entry.ack_set, entry.ledger, entry.entry
    publish_time, due_at, delivery_count = entry.metadata.publish_time, deliver_at(entry), entry.redelivery_count
    templates = _templates.by_length if due_at is None else {}
    size_at, numbers, keys, new = _SIZE.unpack_from, _numbers, _keys, object.__new__
    messages: list[Message] = []
    at, size, time, time_of = 0, len(payload), None, b""
    message: Message
    try:
        for index in range(count):
            begin = at + 4
            (metadata_size,) = size_at(payload, at)
            end = begin + metadata_size
            due = not ack_set or entry.is_due(index)
            template = templates.get(metadata_size)
            if (
                template is not None
                and (fields := template.unpack(payload, begin))[::2] == template.fixed
                and ((text := b"\n".join(fields[template.texts])).isascii() or is_utf8(text))
                and (length := numbers[fields[template.size]]) >= 0
                and (not template.sequence_id or is_varint(fields[template.sequence_id]))
                and (not template.time or fields[template.time] == time_of or is_varint(fields[template.time]))
            ):
                at = end + length
                message = new(template.message_class)
                message.payload = payload[end:at]
                message.position = (ledger, number, index)
                message.publish_time, message.delivery_count = publish_time, delivery_count
                message.property_names, message.lengths = template.names, template.lengths
                message.values = fields[template.users]
                message.key = None if not (place := template.key) else keys[fields[place]]
                message.msg_type = fields[place].decode() if (place := template.type) else None
                if not (place := template.time):
                    message.event_time = None
                else:
                    if (varint := fields[place]) != time_of:
                        time, time_of = _read_time(varint), varint
                    message.event_time = time
                if template.carried is not None and not template.carried.fill(message, fields):
                    message = read_message(SingleMessageMetadata.FromString(payload[begin:end]), payload[end:at], entry, index)
            elif (found := decode_fields(payload, begin, end)) is not None:
                message, length = found
                at = end + length
                message.position = (ledger, number, index)
                message.publish_time, message.delivery_count = publish_time, delivery_count
                if due_at is not None:
                    message = message.replace(deliver_at=due_at)
                _templates.learn(metadata_size, partial(template_of, payload[begin:end]))
            else:
                single = SingleMessageMetadata.FromString(payload[begin:end])
                at = end + single.payload_size
                message = read_message(single, payload[end:at], entry, index)
                due = due and not single.compacted_out
            if not end <= at <= size:
                return None
            if due:
                messages.append(message)
    except (struct.error, DecodeError, IndexError):
        return None
    if at != size:
        return None
    _templates.read += count
    return messages


def _read_time(varint: bytes) -> int | None:
    """An event time. Those of 16 seconds end alike, so the end is cached."""
    if len(varint) == 6:
        return varint[0] & 0x7F | (varint[1] & 0x7F) << 7 | _numbers[varint[2:]] << 14
    return signed(decode_varint(varint, 0)[0]) or None
