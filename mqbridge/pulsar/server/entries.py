"""Entries that the server sends and receives: the bytes after the command of MESSAGE and SEND.

A unit is sent as it was stored. A message that was stored without a unit becomes an entry of its own, without batch framing:
clients acknowledge whole entries, so messages that were not sent together must not be in one.
"""

import time
from collections.abc import Sequence

from mqbridge.adapter.formats import MAX_UNIT_MESSAGES, batch_of_units
from mqbridge.listener.delivered import Delivered
from mqbridge.listener.publishers import SENDER_CLUSTER
from mqbridge.mapping.raw_form import RAW_FORM
from mqbridge.message import NO_SOURCE, Batch, Message, Partition, Position, Unit
from mqbridge.pulsar.mapping.keys import decode_key
from mqbridge.pulsar.mapping.raw_entry import FORM
from mqbridge.pulsar.mapping.request import encode_alone
from mqbridge.pulsar.mapping.unit_format import EntryFormat
from mqbridge.pulsar.wire.chunks import describes_chunk
from mqbridge.pulsar.wire.entry import read_metadata, stored_entry
from mqbridge.pulsar.wire.pb.PulsarApi_pb2 import MessageMetadata

PRODUCER_NAME = "mqbridge"
"""Producer name of messages that no Pulsar client has sent; a client requires one."""
_DELIVER_AT_TAG = b"\x98\x01"
"""Tag of `MessageMetadata.deliver_at_time`. Metadata without these bytes has no such field, and need not be parsed."""
_METADATA_OFFSET = 10
"""Offset of the metadata in an entry with a checksum: magic, checksum and size come before."""
OWN_ORIGIN = f"{SENDER_CLUSTER}|"
"""The beginning of origins that the listener has stamped itself."""


class ReceivedEntry:
    """An entry of a SEND, as a unit.

    count      number of its messages, as clients count them
    is_opaque  True if its messages cannot be told apart here, or it is only a part of one: it counts as one message
    """

    __slots__ = ("count", "is_opaque", "metadata", "unit")

    def __init__(self, unit: Unit, metadata: MessageMetadata, count: int, is_opaque: bool) -> None:
        self.unit, self.metadata, self.count, self.is_opaque = unit, metadata, count, is_opaque

    @property
    def format(self) -> EntryFormat:
        """The format of the unit."""
        return _OPAQUE_FORMAT if self.is_opaque else _FORMAT


def receive_entry(data: bytes, at: int) -> ReceivedEntry:
    """Parse the entry of a SEND at this offset, and verify its checksum. Raises RemoteProtocolError."""
    metadata, _ = read_metadata(data, at)
    count = max(1, metadata.num_messages_in_batch)
    is_opaque = bool(metadata.encryption_keys) or describes_chunk(metadata) or count > MAX_UNIT_MESSAGES
    return ReceivedEntry(Unit(data[at:], 1 if is_opaque else count, metadata.publish_time), metadata, count, is_opaque)


class OpaqueFormat(EntryFormat):
    """The format of entries whose messages cannot be read here: each is one raw message, which is stored as it is.

    So an entry that is encrypted, or is a chunk, passes through a backing that stores only messages.
    """

    def decode(self, unit: Unit, positions: Sequence[Position]) -> Sequence[Message]:
        """Return the raw message of the entry."""
        return [message.replace(defect=None) for message in super().decode(unit, positions)]


_FORMAT, _OPAQUE_FORMAT = EntryFormat(), OpaqueFormat()


def make_batch(received: ReceivedEntry, source: Partition | None, last_sequence: int) -> Batch:
    """Make the batch that stores an entry. With a `source`, it is numbered: its last message has this sequence id."""
    unit, unit_format = received.unit, received.format
    if source is None:
        return batch_of_units(unit_format, [unit], NO_SOURCE)
    return batch_of_units(unit_format, [unit._replace(position=(last_sequence - unit.message_count + 1,))], source)


def batch_of(received: Sequence[ReceivedEntry]) -> Batch:
    """Make the batch that stores several entries of one format, which are not numbered."""
    return batch_of_units(received[0].format, [each.unit for each in received], NO_SOURCE)


def entry_of(delivered: Delivered) -> bytes:
    """Return the bytes of the entry to send."""
    if delivered.unit is not None:
        return delivered.unit.data
    message = delivered.message
    assert message is not None  # noqa: S101 - only units that are DONE have neither
    if message.property(RAW_FORM) == FORM:
        return message.payload or b""
    return _encode(message, delivered.number)


def _encode(message: Message, number: int) -> bytes:
    if message.origin is not None and message.origin.startswith(OWN_ORIGIN):
        message = message.replace(origin=None, hops=max(0, message.hops - 1))
    entry = encode_alone(message, None, 0)
    metadata = entry.metadata
    if message.deliver_at is None:
        metadata.ClearField("deliver_at_time")
    metadata.producer_name, metadata.sequence_id = PRODUCER_NAME, number
    metadata.publish_time = max(0, message.publish_time or 0)
    return stored_entry(metadata, entry.payload)


def defect_of(delivered: Delivered) -> str | None:
    """Return why a message cannot be sent as an entry; None if it can."""
    return None if delivered.message is None else delivered.message.defect


def metadata_of(delivered: Delivered) -> MessageMetadata:
    """Return the metadata of a unit's entry. Raises RemoteProtocolError if it is damaged."""
    return read_metadata(entry_of(delivered))[0]


def delay_of(delivered: Delivered) -> float:
    """Return the seconds until the messages of a unit are due; 0 without a delay, or when it is over."""
    deliver_at = _deliver_at(delivered) if delivered.message is None else delivered.message.deliver_at
    return 0.0 if not deliver_at else max(0.0, deliver_at / 1000 - time.time())


def _deliver_at(delivered: Delivered) -> int | None:
    assert delivered.unit is not None  # noqa: S101 - the caller's condition
    data = delivered.unit.data
    end = _METADATA_OFFSET + int.from_bytes(data[_METADATA_OFFSET - 4 : _METADATA_OFFSET], "big")
    if data.find(_DELIVER_AT_TAG, _METADATA_OFFSET, end) < 0:
        return None
    metadata = metadata_of(delivered)
    return metadata.deliver_at_time if metadata.HasField("deliver_at_time") else None


def sticky_key_of(delivered: Delivered) -> bytes:
    """Return the key by which a Key_Shared subscription chooses the consumer: that of the first message, as brokers do."""
    if (message := delivered.message) is not None and message.property(RAW_FORM) != FORM:
        if message.ordering_key is not None:
            return message.ordering_key
        key = message.key
        if key is not None:
            return key.encode() if isinstance(key, str) else key
        return f"{PRODUCER_NAME}-{delivered.number}".encode()
    return _sticky_key(metadata_of(delivered))


def _sticky_key(metadata: MessageMetadata) -> bytes:
    if metadata.HasField("ordering_key"):
        return metadata.ordering_key
    if metadata.HasField("partition_key"):
        key = decode_key(metadata.partition_key, metadata.partition_key_b64_encoded)
        return key.encode() if isinstance(key, str) else key
    return f"{metadata.producer_name}-{metadata.sequence_id}".encode()


_ENCRYPTION_TAG = b"\x6a"
"""Tag of `MessageMetadata.encryption_keys`; other bytes may be equal, so metadata with it are parsed."""


def permits_of(delivered: Delivered) -> int:
    """Return how many permits a unit costs: the number of messages that the client counts when it has handled them."""
    if delivered.count > 1:
        return delivered.remaining.bit_count()
    if delivered.unit is not None:
        data = delivered.unit.data
        end = _METADATA_OFFSET + int.from_bytes(data[_METADATA_OFFSET - 4 : _METADATA_OFFSET], "big")
        if data.find(_ENCRYPTION_TAG, _METADATA_OFFSET, end) >= 0:
            return max(1, metadata_of(delivered).num_messages_in_batch)
    return delivered.remaining
