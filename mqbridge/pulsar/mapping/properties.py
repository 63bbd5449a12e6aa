"""Converts the properties, key and times of a message to and from Pulsar's metadata.

MessageMetadata (of an entry without batch framing) and SingleMessageMetadata (of a message in a batch) use the same field names,
so the same code serves both. Every property keeps its name and its order. Fields that Pulsar lacks become reserved properties;
the TubeMQ attribute string is kept byte for byte. A property `$msgType$` is the message type, no matter which client wrote it.
"""

from collections.abc import Sequence
from itertools import chain

from mqbridge.mapping.reserved_properties import (
    EVENT_TIME,
    TYPE,
    WITHOUT,
    carry_fields,
    escape_user_property,
    origin_properties,
    read_carried,
)
from mqbridge.message import MSG_TYPE, RESERVED_PREFIX, Message, Pair, format_position
from mqbridge.pulsar.mapping.keys import decode_key, encode_key
from mqbridge.pulsar.mapping.raw_entry import Metadata
from mqbridge.pulsar.mapping.table import TABLE
from mqbridge.pulsar.wire.entry import Entry
from mqbridge.pulsar.wire.ids import signed, unsigned
from mqbridge.pulsar.wire.pb.PulsarApi_pb2 import MessageMetadata
from mqbridge.pulsar.wire.single_metadata import add_properties, encode_prefix, set_key
from mqbridge.wire.text import decode_text

CARRIED_FIELDS = tuple(field for field in TABLE.carried_fields() if field not in {"origin", "hops"})
"""Fields that Pulsar lacks and that become reserved properties, except origin and hops, which `origin_properties` writes."""


# --- write ------------------------------------------------------------------------------------------------------------


def write_fields(metadata: MessageMetadata, message: Message, origin_prefix: str | None) -> None:
    """Set all fields of the metadata.

    `origin_prefix` begins the new origin (see `mqbridge.message.origin_prefix`); None keeps the origin of the message, if any.
    """
    write_keys(metadata, message.key, message.ordering_key)
    add_properties(metadata, write_properties(message, origin_prefix))
    if message.event_time:
        metadata.event_time = unsigned(message.event_time)  # uint64 in Pulsar; times before 1970 are negative here
    if message.payload is None:
        metadata.null_value = True


def encode_single(message: Message, origin_prefix: str | None) -> bytes:
    """Encode SingleMessageMetadata with its size prefix, for a message in a batch. `origin_prefix` is as in `write_fields`."""
    key, is_base64 = encode_key(message.key)
    time = 0 if message.event_time is None else unsigned(message.event_time)
    size = -1 if message.payload is None else len(message.payload)  # -1: a tombstone
    return encode_prefix(size, write_properties(message, origin_prefix), key, is_base64, message.ordering_key, time)


def write_properties(message: Message, origin_prefix: str | None) -> Sequence[Pair]:
    """Return all properties: the user's first, then the reserved ones. `origin_prefix` is as in `write_fields`."""
    pairs = list(message.properties)
    names = [name for name, _ in pairs]
    if RESERVED_PREFIX in "".join(names):  # one search, because few messages have such a name
        pairs = list(map(escape_user_property, pairs))
    pairs += carry_fields(message, CARRIED_FIELDS)
    if message.msg_type is not None or MSG_TYPE in names:
        pairs += type_properties(message)
    if message.event_time == 0:  # on the wire 0 means none, so time 0 needs a reserved property
        pairs.append((EVENT_TIME, "0"))
    origin = None if origin_prefix is None else origin_prefix + format_position(message.position)
    return pairs + origin_properties(message, origin)


def write_keys(metadata: MessageMetadata, key: str | bytes | None, ordering_key: bytes | None) -> None:
    """Set the key and the ordering key of an entry; brokers dispatch entries by them."""
    key, is_base64 = encode_key(key)
    if key is not None:
        set_key(metadata, key)
    if is_base64:
        metadata.partition_key_b64_encoded = True
    if ordering_key is not None:
        metadata.ordering_key = ordering_key


def type_properties(message: Message) -> list[Pair]:
    """Return the reserved property for a message type that differs from the property `$msgType$`; nothing if they are equal.

    `WITHOUT` says that the message has no type, although it has that property.
    """
    if message.property(MSG_TYPE) == message.msg_type:
        return []
    return [(WITHOUT, "msg_type")] if message.msg_type is None else [(TYPE, message.msg_type)]


# --- read -------------------------------------------------------------------------------------------------------------


class MessageReader:
    """Makes the messages of one entry, which share its publish time, delivery time and delivery count."""

    __slots__ = ("_deliver_at", "_delivery_count", "_entry", "_ledger", "_publish_time")

    def __init__(self, entry: Entry) -> None:
        self._ledger, self._entry = entry.id
        self._publish_time, self._deliver_at = entry.metadata.publish_time, delivery_time_of(entry)
        self._delivery_count = entry.redelivery_count

    def read(self, metadata: Metadata, payload: bytes, index: int) -> Message:
        """Return the message at this index of the entry. `metadata` is the entry's own if the entry has no batch framing."""
        position = (self._ledger, self._entry, index)
        pairs = tuple([(pair.key, pair.value) for pair in metadata.properties])
        key = metadata.partition_key if metadata.HasField("partition_key") else None
        try:
            text = "".join(chain.from_iterable(pairs)) + (key or "")
        except TypeError:  # the protobuf library returns strings that are not UTF-8 as bytes
            pairs = tuple((decode_text(name), decode_text(value)) for name, value in pairs)
            key = None if key is None else decode_text(key)
            text = "".join(chain.from_iterable(pairs))
        message = Message(
            None if metadata.null_value else payload,
            pairs,
            key if key is None else decode_key(key, metadata.partition_key_b64_encoded),
            metadata.ordering_key if metadata.HasField("ordering_key") else None,
        )
        message.event_time = signed(time) if (time := metadata.event_time) else None
        message.publish_time, message.deliver_at = self._publish_time, self._deliver_at
        message.delivery_count, message.position = self._delivery_count, position
        if RESERVED_PREFIX in text or MSG_TYPE in text:  # one search, because few messages have either
            _set_carried(message, blank=not payload)
        return message


def _set_carried(message: Message, *, blank: bool) -> None:
    """Set the message type, and the fields that reserved properties carry; these replace what was read from Pulsar's fields.

    `blank` is True if the payload is empty; only then a reserved property may say that the message is a tombstone.
    """
    message.properties, carried = read_carried(message.properties, blank=blank)
    message.msg_type = message.property(MSG_TYPE)
    for field, value in carried.items():
        setattr(message, field, value)


def delivery_time_of(entry: Entry) -> int | None:
    """Return the delivery time of the entry's messages in ms since the epoch; None without a delay."""
    return entry.metadata.deliver_at_time if entry.metadata.HasField("deliver_at_time") else None
