"""Property block, key and times of a message, in both directions: plain code on protobuf objects, the reference for `fast`.

MessageMetadata (of an entry that is no batch) and SingleMessageMetadata (of a message in a batch) name these fields alike, so the
same code serves both. Every property keeps its name and its order. What Pulsar has no field for travels as reserved properties,
the TubeMQ attribute string among it, byte for byte. A property `$msgType$`, whoever wrote it, is the message type.
"""

import base64
from itertools import chain
from typing import Any

from mqbridge.mapping.reserved_properties import (
    EVENT_TIME,
    TYPE,
    WITHOUT,
    carry_fields,
    escape_user_property,
    origin_properties,
    read_carried,
)
from mqbridge.message import MSG_TYPE, Message, Pair, format_position
from mqbridge.pulsar.mapping.table import TABLE
from mqbridge.pulsar.wire.entry import Entry
from mqbridge.pulsar.wire.ids import signed, unsigned
from mqbridge.pulsar.wire.pb.PulsarApi_pb2 import MessageMetadata, SingleMessageMetadata

Metadata = MessageMetadata | SingleMessageMetadata

CARRIED_FIELDS = tuple(field for field in TABLE.carried_fields() if field not in {"origin", "hops"})
"""The fields that Pulsar has none of its own for; `origin_properties` writes the other two."""


# --- write ------------------------------------------------------------------------------------------------------------


def write_fields(metadata: Metadata, message: Message, origin: str | None) -> None:
    """Set everything but the payload and its size. `origin` is the prefix of the origin, None for no stamp."""
    write_keys(metadata, message)
    pairs = [escape_user_property(pair) for pair in message.properties]
    pairs += carry_fields(message, CARRIED_FIELDS) + type_properties(message)
    if message.event_time == 0:  # on the wire 0 means none, so the first millisecond of all is carried
        pairs.append((EVENT_TIME, "0"))
    pairs += origin_properties(message, None if origin is None else origin + format_position(message.position))
    for name, value in pairs:
        metadata.properties.add(key=name, value=value)
    if message.event_time:
        metadata.event_time = unsigned(message.event_time)
    if message.payload is None:
        metadata.null_value = True


def write_keys(metadata: Metadata, message: Message) -> None:
    """Set the key and the ordering key, by which brokers dispatch."""
    if isinstance(message.key, bytes):
        metadata.partition_key = base64.b64encode(message.key).decode()
        metadata.partition_key_b64_encoded = True
    elif message.key is not None:
        metadata.partition_key = message.key
    if message.ordering_key is not None:
        metadata.ordering_key = message.ordering_key


def type_properties(message: Message) -> list[Pair]:
    """Carries a message type that no property says, and the absence of one that a property seems to say."""
    if message.property(MSG_TYPE) == message.msg_type:
        return []
    return [(WITHOUT, "msg_type")] if message.msg_type is None else [(TYPE, message.msg_type)]


# --- read -------------------------------------------------------------------------------------------------------------


def read_message(metadata: Metadata, payload: bytes, entry: Entry, index: int) -> Message:
    """The message at this index of an entry. `metadata` is the message's own: that of the entry where it is no batch."""
    position = (entry.ledger, entry.entry, index)
    pairs = [(pair.key, pair.value) for pair in metadata.properties]
    # Text that is not UTF-8 comes as bytes.
    if not all(isinstance(text, str) for text in (metadata.partition_key, *chain(*pairs))):
        return Message(payload, position=position, defect="its key or its properties are not UTF-8")
    properties, carried = read_carried(pairs, blank=not payload)
    key = read_key(metadata.partition_key, metadata.partition_key_b64_encoded) if metadata.HasField("partition_key") else None
    fields: dict[str, Any] = {
        "payload": None if metadata.null_value else payload,
        "publish_time": entry.metadata.publish_time,
        "deliver_at": deliver_at(entry),
        "delivery_count": entry.redelivery_count,
        "position": position,
        "key": key,
        "ordering_key": metadata.ordering_key if metadata.HasField("ordering_key") else None,
        "msg_type": next((value for name, value in properties if name == MSG_TYPE), None),
        "event_time": signed(metadata.event_time) if metadata.event_time else None,
    }
    return Message(properties=properties, **(fields | carried))


def deliver_at(entry: Entry) -> int | None:
    """When the messages of an entry are due, in ms since the epoch."""
    return entry.metadata.deliver_at_time if entry.metadata.HasField("deliver_at_time") else None


def read_key(key: str, is_base64: bool) -> str | bytes:
    """The key that a text stands for."""
    if not is_base64:
        return key
    try:
        return base64.b64decode(key, validate=True)
    except ValueError:  # not the base64 that it claims to be: kept as text
        return key
