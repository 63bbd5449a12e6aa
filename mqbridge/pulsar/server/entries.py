"""Entries that the server sends and receives: the bytes after the command of MESSAGE and SEND.

A unit is sent as it was stored. A message that was stored without a unit becomes an entry of its own, without batch framing:
clients acknowledge whole entries, so messages that were not sent together must not be in one.
"""

import re
import time
from collections.abc import Sequence
from typing import NamedTuple

from mqbridge.adapter.formats import MAX_UNIT_MESSAGES, batch_of_units
from mqbridge.errors import RemoteProtocolError
from mqbridge.listener.delivered import Delivered
from mqbridge.listener.publishers import SENDER_CLUSTER
from mqbridge.mapping.raw_form import RAW_FORM
from mqbridge.message import NO_SOURCE, Batch, Message, Pair, Partition, Position, Unit
from mqbridge.pulsar.mapping.keys import decode_key
from mqbridge.pulsar.mapping.raw_entry import FORM
from mqbridge.pulsar.mapping.request import encode_alone
from mqbridge.pulsar.mapping.unit_format import EntryFormat
from mqbridge.pulsar.wire.chunks import describes_chunk
from mqbridge.pulsar.wire.entry import MAGIC_CHECKSUM, read_metadata, stored_entry
from mqbridge.pulsar.wire.pb.PulsarApi_pb2 import MessageMetadata

SENT_BY = "mqbridge.pulsar.sent_by"
"""The property of `SentBy`; clients of the listener do not see it."""
_SENT_BY = re.compile(r"([0-9]{1,20}):((?:[0-9a-f]{2})*):(.*)", re.DOTALL)
PRODUCER_NAME = "mqbridge"
"""Producer name of messages that no Pulsar client has sent; a client requires one."""
_DELIVER_AT_TAG = b"\x98\x01"
"""Tag of `MessageMetadata.deliver_at_time`. Metadata without these bytes has no such field, and need not be parsed."""
_METADATA_OFFSET = 10
"""Offset of the metadata in an entry with a checksum: magic, checksum and size come before."""
_CHECKSUM_MAGIC, _CHECKSUM_BYTES = MAGIC_CHECKSUM.to_bytes(2), 6
"""How an entry with a checksum begins, and the bytes that one without a checksum does not have."""
OWN_ORIGIN = f"{SENDER_CLUSTER}|"
"""The beginning of origins that the listener has stamped itself."""


class SentEntry:
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


def receive_entry(data: bytes, at: int) -> SentEntry:
    """Parse the entry of a SEND at this offset, and verify its checksum. Raises RemoteProtocolError."""
    metadata, _ = read_metadata(data, at)
    count = max(1, metadata.num_messages_in_batch)
    is_opaque = bool(metadata.encryption_keys) or describes_chunk(metadata) or count > MAX_UNIT_MESSAGES
    return SentEntry(Unit(data[at:], 1 if is_opaque else count, metadata.publish_time), metadata, count, is_opaque)


class OpaqueFormat(EntryFormat):
    """The format of entries whose messages cannot be read here: each is one raw message, which is stored as it is.

    So an entry that is encrypted, or is a chunk, passes through a backing that stores only messages.
    """

    def decode(self, unit: Unit, positions: Sequence[Position]) -> Sequence[Message]:
        """Return the raw message of the entry."""
        return [message.replace(defect=None) for message in super().decode(unit, positions)]


class NamedFormat(EntryFormat):
    """The format of entries whose messages get what a `Message` cannot hold as a property, for clients that read them again.

    A backing that stores entries as they are does not decode them.
    """

    def decode(self, unit: Unit, positions: Sequence[Position]) -> Sequence[Message]:
        """Return the messages with the name of their producer, their sequence ids, and the version of their schema."""
        messages = super().decode(unit, positions)
        metadata, _ = read_metadata(unit.data)
        source = SentBy(metadata.producer_name, metadata.sequence_id, metadata.schema_version)
        return [
            message if message.defect is not None else message.replace(properties=(*message.properties, source.at(index)))
            for index, message in enumerate(messages)
        ]


class SentBy(NamedTuple):
    """What the metadata of an entry say about its producer. It travels as one property: `sequence:version:name`."""

    name: str
    sequence: int
    schema_version: bytes

    def at(self, index: int) -> Pair:
        """Return the property for the message at this index of the entry."""
        return SENT_BY, f"{self.sequence + index}:{self.schema_version.hex()}:{self.name}"

    @classmethod
    def parse(cls, text: str) -> "SentBy | None":
        """Parse the value of the property; None if it is another text."""
        match = _SENT_BY.fullmatch(text)
        return None if match is None else cls(match[3], int(match[1]), bytes.fromhex(match[2]))


_FORMAT, _OPAQUE_FORMAT = NamedFormat(), OpaqueFormat()


def make_batch(received: SentEntry, source: Partition | None, last_sequence: int) -> Batch:
    """Make the batch that stores an entry. With a `source`, it is numbered: its last message has this sequence id."""
    unit, unit_format = received.unit, received.format
    if source is None:
        return batch_of_units(unit_format, [unit], NO_SOURCE)
    return batch_of_units(unit_format, [unit._replace(position=(last_sequence - unit.message_count + 1,))], source)


def batch_of(units: Sequence[Unit]) -> Batch:
    """Make the batch that stores several entries, none of which is opaque; they are not numbered."""
    return batch_of_units(_FORMAT, units, NO_SOURCE)


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
    sent_by = None
    if (value := message.property(SENT_BY)) is not None and (sent_by := SentBy.parse(value)) is not None:
        message = message.replace(properties=tuple(pair for pair in message.properties if pair != (SENT_BY, value)))
    entry = encode_alone(message, None, 0)
    metadata = entry.metadata
    if message.deliver_at is None:
        metadata.ClearField("deliver_at_time")
    metadata.producer_name, metadata.sequence_id = PRODUCER_NAME, number
    if sent_by is not None:
        metadata.producer_name, metadata.sequence_id = sent_by.name, sent_by.sequence
        if sent_by.schema_version:
            metadata.schema_version = sent_by.schema_version
    metadata.publish_time = max(0, message.publish_time or 0)
    return stored_entry(metadata, entry.payload)


def defect_of(delivered: Delivered) -> str | None:
    """Return why a message cannot be sent as an entry; None if it can."""
    return None if delivered.message is None else delivered.message.defect


def _may_contain(tag: bytes, data: bytes) -> bool:
    """Return False if the metadata of an entry have no field with this tag."""
    offset = _METADATA_OFFSET if data.startswith(_CHECKSUM_MAGIC) else _METADATA_OFFSET - _CHECKSUM_BYTES
    end = offset + int.from_bytes(data[offset - 4 : offset], "big")
    return data.find(tag, offset, end) >= 0


def metadata_of(delivered: Delivered) -> MessageMetadata:
    """Return the metadata of a unit's entry. Raises RemoteProtocolError if it is damaged."""
    return read_metadata(entry_of(delivered))[0]


def delay_of(delivered: Delivered) -> float:
    """Return the seconds until the messages of a unit are due; 0 without a delay, or when it is over."""
    deliver_at = _deliver_at(delivered) if delivered.message is None else delivered.message.deliver_at
    return 0.0 if not deliver_at else max(0.0, deliver_at / 1000 - time.time())


def _deliver_at(delivered: Delivered) -> int | None:
    assert delivered.unit is not None  # noqa: S101 - the caller's condition
    if not _may_contain(_DELIVER_AT_TAG, delivered.unit.data):
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


_CHUNKS_TAG = b"\xd8\x01"
"""Tag of `MessageMetadata.num_chunks_from_msg`; metadata without these bytes are not those of a chunk."""


class Chunk(NamedTuple):
    """A part of a chunked message: the uuid that all parts have, the size of all of them, and whether it is the last one."""

    uuid: str
    total_bytes: int
    is_last: bool


def chunk_of(entry: bytes) -> Chunk | None:
    """Return what an entry says about the chunked message to which it belongs; None if it is a whole message, or damaged."""
    end = _METADATA_OFFSET + int.from_bytes(entry[_METADATA_OFFSET - 4 : _METADATA_OFFSET], "big")
    if entry.find(_CHUNKS_TAG, _METADATA_OFFSET, end) < 0:
        return None
    try:
        metadata, _ = read_metadata(entry)
    except RemoteProtocolError:
        return None
    if not describes_chunk(metadata):
        return None
    is_last = metadata.chunk_id >= metadata.num_chunks_from_msg - 1
    return Chunk(metadata.uuid, max(0, metadata.total_chunk_msg_size), is_last)


_ENCRYPTION_TAG = b"\x6a"
"""Tag of `MessageMetadata.encryption_keys`; other bytes may be equal, so metadata with it are parsed."""


def permits_of(delivered: Delivered) -> int:
    """Return how many permits a unit costs: the number of messages that the client counts when it has handled them."""
    if delivered.count > 1:
        return delivered.remaining.bit_count()
    if delivered.unit is not None:
        try:
            if _may_contain(_ENCRYPTION_TAG, delivered.unit.data):
                return max(1, metadata_of(delivered).num_messages_in_batch)
        except RemoteProtocolError:  # the client finds out that it is damaged
            pass
    return delivered.remaining
