"""Encodes and decodes entries. One SEND command stores an entry, and one MESSAGE command delivers it.

Brokers acknowledge, deduplicate and checksum whole entries. The parts in brackets are optional:

    [0x0e02 uint32 size BrokerEntryMetadata] [0x0e01 CRC32C] uint32 metadataSize MessageMetadata payload

The checksum covers everything after itself. Decoding a damaged entry returns an `Entry` with a `defect` and the raw bytes. It
raises nothing, because an error would close the connection, which also carries other entries. `stored_entry` returns an entry as
bytes of this layout again, without the first bracket, so that nothing of an entry that cannot be read is lost.
"""

import struct
from collections.abc import Sequence
from itertools import accumulate

from crc32c import crc32c
from google.protobuf.message import DecodeError

from mqbridge.errors import RemoteProtocolError
from mqbridge.pulsar.wire.chunks import describes_chunk
from mqbridge.pulsar.wire.compression import decompress
from mqbridge.pulsar.wire.frame import encode_frame_prefix
from mqbridge.pulsar.wire.pb.PulsarApi_pb2 import BaseCommand, MessageMetadata

MAGIC_CHECKSUM = 0x0E01
MAGIC_BROKER_METADATA = 0x0E02

MIN_MESSAGE_BYTES = 6
"""Minimum size of a message in a batch: four bytes for the size of its metadata, and at least two for the metadata, whose
payload size is required. A batch that announces more messages than fit is damaged. So an acknowledgement mask, with one bit per
message, is always smaller than the payload."""

MAX_BATCH_MESSAGES = 100_000
"""Maximum number of messages in a batch; one with more is not unpacked. A message without payload takes 360 bytes of memory while
it is decoded and encoded again (measured), so a compressed batch of a few KB could take gigabytes. By default clients put at most
1000 messages into a batch."""
MESSAGE_BYTES = 64
"""Bytes of memory that a message in a batch takes at least: those of its copy, encoded with an origin. A message without payload
has only 6 bytes in the batch. Decoded messages take more, but only while their batch is encoded, one batch at a time."""

KEPT_RATIO = 16
"""If decompression makes a payload this much larger, the compressed one is kept, too, which takes little memory. So the dead
letter is small if the batch turns out to be unreadable. Otherwise the dead letter has the decompressed payload."""

ENCRYPTED = "the entry is encrypted, and the gateway has no keys"
"""The `defect` of an encrypted entry."""

ENTRY_BYTES, PROPERTY_BYTES = 1700, 270
"""Bytes of memory that an entry takes besides its payload, and that each property in its own metadata adds. They were measured as
growth of the process's resident memory."""

_UINT16 = struct.Struct(">H")
_UINT32 = struct.Struct(">I")
_MAGIC_AND_SUM = struct.Struct(">HI")
_BROKER_PREFIX = struct.Struct(">HI")
_SUM_AND_SIZE = struct.Struct(">HII")


class Entry:
    """An entry as received by a consumer.

    payload        after `unpack`: decompressed, still with batch framing if the metadata has `num_messages_in_batch`; with a
                   `defect`: as received, or decompressed if the framing of the batch is wrong
    defect         the reason why the entry cannot be read; None if it can
    is_parsed      False if the metadata cannot be read: `payload` then has all bytes of the entry, from the checksum on
    keeps_packed   True to keep the compressed payload, too, when the payload is unpacked: see `stored_bytes`
    chunks         metadata and payload size of each received chunk, whose payloads are joined in `payload`; empty for an entry
                   that is not chunked, and after the payload was decompressed
    acked_chunks   mask of the chunks of an unreadable message that are acknowledged; they are acknowledged at the broker together
    partition      partition index, -1 for an unpartitioned topic
    ack_set        bit set of the messages to deliver, as 64-bit words (see `ids.py`); empty for all messages
    first_chunk    id of a chunked message's first chunk (the entry has the id of the last chunk); None for other entries
    chunks_before  number of a chunked message's chunks that lie before the start of reading

    The compiled module's `PulsarEntry` has the same attributes, for whole and uncompressed entries (see `client/entry_runs.py`).
    """

    __slots__ = (
        "_decompressed",
        "_packed",
        "_packed_payload",
        "ack_set",
        "acked_chunks",
        "chunks",
        "chunks_before",
        "defect",
        "entry",
        "first_chunk",
        "is_parsed",
        "keeps_packed",
        "ledger",
        "metadata",
        "partition",
        "payload",
        "redelivery_count",
    )

    def __init__(
        self,
        metadata: MessageMetadata,
        payload: bytes,
        *,
        ledger: int = 0,
        entry: int = 0,
        partition: int = -1,
        redelivery_count: int = 0,
        ack_set: tuple[int, ...] = (),
        defect: str | None = None,
        is_parsed: bool = True,
    ) -> None:
        self.metadata, self.payload, self.defect = metadata, payload, defect
        self.is_parsed = is_parsed
        self.ledger, self.entry, self.partition = ledger, entry, partition
        self.redelivery_count, self.ack_set = redelivery_count, ack_set
        self.first_chunk: tuple[int, int] | None = None
        self.chunks_before = self.acked_chunks = 0
        self.keeps_packed = False
        self.chunks: Sequence[tuple[MessageMetadata, int]] = ()
        self._decompressed = False
        self._packed_payload: bytes | None = None
        # True while `unpack` has something to do.
        self._packed = defect is None and bool(
            metadata.compression
            or metadata.encryption_keys
            or metadata.num_chunks_from_msg > 1
            or metadata.num_messages_in_batch > 1
        )

    @property
    def count(self) -> int:
        """Number of messages, delivered or not; for a damaged entry 1, or the number of its chunks.

        Until `unpack` this is the producer's unchecked value.
        """
        return (len(self.chunks) or 1) if self.defect is not None else max(1, self.metadata.num_messages_in_batch)

    @property
    def size(self) -> int:
        """Size of the payload after decompression, in bytes; until `unpack` as the producer's metadata states it."""
        return max(len(self.payload), self.metadata.uncompressed_size)

    @property
    def held_bytes(self) -> int:
        """Current memory use, in bytes."""
        size = max(len(self.payload), self.min_bytes) + (0 if self._packed_payload is None else len(self._packed_payload))
        return size + ENTRY_BYTES + PROPERTY_BYTES * len(self.metadata.properties)

    @property
    def min_bytes(self) -> int:
        """Bytes of memory that the messages of a batch take at least; 0 for an entry that is not unpacked, or of one message."""
        count = self.count
        return count * MESSAGE_BYTES if 1 < count <= MAX_BATCH_MESSAGES else 0

    @property
    def publish_time(self) -> int:
        """Publish time in ms since the epoch; 0 for a damaged entry."""
        return self.metadata.publish_time

    @property
    def is_batch(self) -> bool:
        """True if the payload has batch framing, even for one message: the C++ and Go clients send batches of one message."""
        return self.metadata.HasField("num_messages_in_batch")

    @property
    def is_chunk(self) -> bool:
        """True if the entry is only a part of its message, or if its chunk fields are invalid."""
        return self.defect is None and describes_chunk(self.metadata)

    def is_due(self, index: int) -> bool:
        """Return True if the message at this index of the batch is to be delivered, because it is not acknowledged."""
        word, bit = divmod(index, 64)
        return not self.ack_set or (word < len(self.ack_set) and bool(self.ack_set[word] >> bit & 1))

    @property
    def id(self) -> tuple[int, int]:
        """The entry's id: (ledger, entry)."""
        return self.ledger, self.entry

    def unpack(self) -> None:
        """Decompress the payload and check that it can hold the announced number of messages; a failure sets `defect`.

        An encrypted entry, and a chunk that is not joined, get a `defect` as well. Further calls do nothing. With a `defect`, the
        payload stays as received.
        """
        if not self._packed or self.defect is not None:
            return
        self._packed = False
        metadata = self.metadata
        if metadata.encryption_keys:
            self.defect = ENCRYPTED
            return
        if metadata.num_chunks_from_msg > 1:
            total = metadata.num_chunks_from_msg
            self.defect = f"chunk {metadata.chunk_id} of {total} of {metadata.uuid} is not joined with the other chunks"
            return
        if self.is_batch and self.count > MAX_BATCH_MESSAGES:
            self.defect = f"the batch has {self.count} messages, more than the limit of {MAX_BATCH_MESSAGES}"
            return
        payload = self.payload
        try:
            if metadata.compression:
                payload = decompress(metadata.compression, payload, metadata.uncompressed_size)
        except RemoteProtocolError as error:
            self.defect = str(error)
            return
        size = len(payload)
        if self.is_batch and self.count * MIN_MESSAGE_BYTES > size:
            self.defect = f"invalid batch: {self.count} messages do not fit into {size} bytes"
            return
        if payload is not self.payload:
            self._decompressed = True
            if (self.keeps_packed and not self.chunks) or len(self.payload) * KEPT_RATIO <= size:
                self._packed_payload = self.payload
        self.payload, self.chunks = payload, ()

    def payload_metadata(self) -> MessageMetadata:
        """Return the metadata as they describe the present payload: after decompression, without a codec."""
        if not self._decompressed:
            return self.metadata
        metadata = MessageMetadata()
        metadata.CopyFrom(self.metadata)
        metadata.ClearField("compression")
        return metadata

    def stored_parts(self) -> list[tuple[MessageMetadata, bytes]]:
        """Return metadata and payload of each stored entry that this one consists of: one, or several chunks."""
        if self._packed_payload is not None:
            return [(self.metadata, self._packed_payload)]
        if not self.chunks:
            return [(self.payload_metadata(), self.payload)]
        ends = list(accumulate(size for _, size in self.chunks))
        return [(metadata, self.payload[end - size : end]) for (metadata, size), end in zip(self.chunks, ends, strict=True)]


def decode_entry(data: bytes, at: int = 0) -> Entry:
    """Decode the entry at offset `at` and verify its checksum; the payload is not unpacked. Never raises, see `Entry.defect`."""
    if len(data) - at >= 6 and _UINT16.unpack_from(data, at)[0] == MAGIC_BROKER_METADATA:
        at += 6 + _BROKER_PREFIX.unpack_from(data, at)[1]
    try:
        metadata, end = read_metadata(data, at)
    except RemoteProtocolError as error:
        return Entry(MessageMetadata(), data[at:], defect=str(error), is_parsed=False)
    return Entry(metadata, data[end:])


def read_metadata(data: bytes, at: int = 0) -> tuple[MessageMetadata, int]:
    """Verify the checksum of the entry at offset `at`; return its metadata, and where its payload begins.

    The entry must not begin with broker metadata. Raises RemoteProtocolError.
    """
    size = len(data)
    if size - at >= 6 and _UINT16.unpack_from(data, at)[0] == MAGIC_CHECKSUM:
        stored = _MAGIC_AND_SUM.unpack_from(data, at)[1]
        at += 6
        computed = crc32c(memoryview(data)[at:])
        if computed != stored:
            raise RemoteProtocolError(f"CRC32C mismatch: computed {computed:08x}, stored {stored:08x}")
    if size - at < 4:
        raise RemoteProtocolError("the entry ends before its metadata")
    end = at + 4 + _UINT32.unpack_from(data, at)[0]
    if end > size:
        raise RemoteProtocolError(f"metadata of {end - at - 4} bytes exceeds the entry")
    try:
        return MessageMetadata.FromString(data[at + 4 : end]), end
    except DecodeError as error:
        raise RemoteProtocolError(f"metadata of {end - at - 4} bytes cannot be parsed") from error


def stored_bytes(entry: Entry) -> bytes:
    """Return an entry that is not joined from chunks as it is stored, without the broker's metadata.

    An entry of compressed messages that was unpacked without `keeps_packed` may be returned uncompressed. The compiled module's
    entries are never compressed.
    """
    if not isinstance(entry, Entry):
        return stored_entry(entry.metadata, entry.payload)
    if not entry.is_parsed:
        return entry.payload
    ((metadata, payload),) = entry.stored_parts()
    return stored_entry(metadata, payload)


def has_valid_checksum(data: bytes, at: int = 0) -> bool:
    """Return True if the entry (without broker metadata) matches its checksum, or has none."""
    if len(data) - at < 6 or _UINT16.unpack_from(data, at)[0] != MAGIC_CHECKSUM:
        return True
    return bool(crc32c(memoryview(data)[at + 6 :]) == _MAGIC_AND_SUM.unpack_from(data, at)[1])


def encode_entry_prefix(metadata: MessageMetadata, payload: bytes | memoryview) -> bytes:
    """Return the bytes of the entry before its payload: magic, checksum and metadata. The payload is not copied."""
    return _prefix(metadata.SerializeToString(), payload)


def stored_entry(metadata: MessageMetadata, payload: bytes) -> bytes:
    """Return the bytes of an entry as a broker stores it, also with metadata that lack required fields."""
    return _prefix(metadata.SerializePartialToString(), payload) + payload


def _prefix(metadata: bytes, payload: bytes | memoryview) -> bytes:
    length = _UINT32.pack(len(metadata))
    checksum = crc32c(payload, crc32c(length + metadata))
    return _SUM_AND_SIZE.pack(MAGIC_CHECKSUM, checksum, len(metadata)) + metadata


class SendEncoder:
    """Encodes the SEND frames of one producer, with a command object that is reused."""

    __slots__ = ("_command", "_send")

    def __init__(self, producer_id: int) -> None:
        self._command = BaseCommand(type=BaseCommand.SEND)
        self._send = self._command.send
        self._send.producer_id = producer_id

    def encode(
        self,
        sequence_id: int,
        highest_sequence_id: int,
        count: int,
        metadata: MessageMetadata,
        payload: bytes | memoryview,
        is_chunk: bool = False,
    ) -> bytes:
        """Return the bytes of the frame before its payload, which the caller sends after them.

        `sequence_id` is that of the first message and `highest_sequence_id` that of the last; they are equal if the entry has
        only one message. `count` is the number of messages.
        """
        prefix = encode_entry_prefix(metadata, payload)
        return self.encode_command(sequence_id, highest_sequence_id, count, len(prefix) + len(payload), is_chunk) + prefix

    def encode_command(
        self, sequence_id: int, highest_sequence_id: int, count: int, entry_size: int, is_chunk: bool = False
    ) -> bytes:
        """Return the bytes of the frame before the entry, which has `entry_size` bytes. See `encode`."""
        send = self._send
        send.sequence_id = sequence_id
        send.num_messages = count
        if highest_sequence_id > sequence_id:
            send.highest_sequence_id = highest_sequence_id
        else:
            send.ClearField("highest_sequence_id")
        if is_chunk:
            send.is_chunk = True
        else:
            send.ClearField("is_chunk")
        return encode_frame_prefix(self._command, entry_size)
