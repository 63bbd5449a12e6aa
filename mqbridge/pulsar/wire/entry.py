"""Entries: one SEND stores an entry, one MESSAGE delivers it; the unit of acknowledgement, deduplication and checksums.

    [0x0e02 uint32 size BrokerEntryMetadata] [0x0e01 CRC32C] uint32 metadataSize MessageMetadata payload

The checksum covers everything after itself. A damaged entry is decoded as an `Entry` with a `defect` and its raw bytes; it never
raises, because one bad entry must not close a connection that carries others.
"""

import struct

from crc32c import crc32c
from google.protobuf.message import DecodeError

from mqbridge.errors import RemoteProtocolError
from mqbridge.pulsar.wire.chunks import is_chunk
from mqbridge.pulsar.wire.compression import decompress
from mqbridge.pulsar.wire.frame import encode_frame_prefix
from mqbridge.pulsar.wire.pb.PulsarApi_pb2 import BaseCommand, MessageMetadata

MAGIC_CHECKSUM = 0x0E01
MAGIC_BROKER_METADATA = 0x0E02

MIN_MESSAGE_BYTES = 6
"""Minimum size of a message in a batch: four bytes for the size of its metadata, at least two for the metadata (payload size).
So the bit mask of a batch's messages is never larger than the payload, which is in memory anyway."""

ENTRY_BYTES, PROPERTY_BYTES = 1700, 270
"""Memory of an entry besides its payload, and of each property in its own metadata; measured as resident memory."""

_SHORT = struct.Struct(">H")
_SIZE = struct.Struct(">I")
_MAGIC_AND_SUM = struct.Struct(">HI")
_BROKER_PREFIX = struct.Struct(">HI")
_SUM_AND_SIZE = struct.Struct(">HII")


class Entry:
    """An entry as received by a consumer.

    payload        after `unpack`: decompressed, still with batch framing if the metadata has `num_messages_in_batch`; with a
                   `defect`: the bytes as received
    ack_set        words of the messages to deliver; empty for all messages
    first_chunk    id of the first chunk of a chunked message, whose own id is that of its last chunk
    chunks_before  number of its chunks that lie before the start of reading

    The compiled module's `PulsarEntry` has the same attributes, for whole and uncompressed entries (see `client/entry_runs.py`).
    """

    __slots__ = (
        "_packed",
        "ack_set",
        "chunks_before",
        "defect",
        "entry",
        "first_chunk",
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
    ) -> None:
        self.metadata, self.payload, self.defect = metadata, payload, defect
        self.ledger, self.entry, self.partition = ledger, entry, partition
        self.redelivery_count, self.ack_set = redelivery_count, ack_set
        self.first_chunk: tuple[int, int] | None = None
        self.chunks_before = 0
        self._packed = defect is None and bool(
            metadata.compression
            or metadata.encryption_keys
            or metadata.num_chunks_from_msg > 1
            or metadata.num_messages_in_batch > 1
        )

    @property
    def count(self) -> int:
        """Number of messages, delivered or not; 1 for a damaged entry.

        Until `unpack` this is the producer's unchecked value.
        """
        return 1 if self.defect is not None else max(1, self.metadata.num_messages_in_batch)

    @property
    def size(self) -> int:
        """Size of the payload after decompression, in bytes."""
        return max(len(self.payload), self.metadata.uncompressed_size)

    @property
    def held_bytes(self) -> int:
        """Current memory use, in bytes."""
        return len(self.payload) + ENTRY_BYTES + PROPERTY_BYTES * len(self.metadata.properties)

    @property
    def publish_time(self) -> int:
        """Publish time in ms since the epoch; 0 for a damaged entry."""
        return self.metadata.publish_time

    @property
    def is_batch(self) -> bool:
        """True if the payload has batch framing, decided by presence: C++ and Go frame a single message as a batch of one."""
        return self.metadata.HasField("num_messages_in_batch")

    @property
    def is_chunk(self) -> bool:
        """True if the entry is only a part of its message, also if its chunk fields are invalid."""
        return self.defect is None and is_chunk(self.metadata)

    def is_due(self, index: int) -> bool:
        """Return True if the message at this index of the batch is to be delivered (not acknowledged yet)."""
        word, bit = divmod(index, 64)
        return not self.ack_set or (word < len(self.ack_set) and bool(self.ack_set[word] >> bit & 1))

    @property
    def id(self) -> tuple[int, int]:
        """The entry's id: (ledger, entry)."""
        return self.ledger, self.entry

    def unpack(self) -> None:
        """Decompress the payload and check its size against the message count; a failure sets `defect`. Runs once."""
        if not self._packed:
            return
        self._packed = False
        metadata = self.metadata
        if metadata.encryption_keys:
            self.defect = "the entry is encrypted, and the gateway has no keys"
            return
        if metadata.num_chunks_from_msg > 1:
            total = metadata.num_chunks_from_msg
            self.defect = f"chunk {metadata.chunk_id} of {total} of {metadata.uuid} is not joined with the other chunks"
            return
        try:
            if metadata.compression:
                self.payload = decompress(metadata.compression, self.payload, metadata.uncompressed_size)
        except RemoteProtocolError as error:
            self.defect = str(error)
            return
        size = len(self.payload)
        if self.is_batch and self.count * MIN_MESSAGE_BYTES > size:
            self.defect = f"invalid batch: {self.count} messages do not fit into {size} bytes"


def decode_entry(data: bytes, at: int = 0) -> Entry:
    """Decode the entry at `at` and verify its checksum, without unpacking the payload. Never raises: see `Entry.defect`."""
    size = len(data)
    if size - at >= 6 and _SHORT.unpack_from(data, at)[0] == MAGIC_BROKER_METADATA:
        at += 6 + _BROKER_PREFIX.unpack_from(data, at)[1]
    if size - at >= 6 and _SHORT.unpack_from(data, at)[0] == MAGIC_CHECKSUM:
        stored = _MAGIC_AND_SUM.unpack_from(data, at)[1]
        at += 6
        computed = crc32c(memoryview(data)[at:])
        if computed != stored:
            return Entry(MessageMetadata(), data[at:], defect=f"CRC32C mismatch: computed {computed:08x}, stored {stored:08x}")
    if size - at < 4:
        return Entry(MessageMetadata(), data[at:], defect="the entry ends before its metadata")
    end = at + 4 + _SIZE.unpack_from(data, at)[0]
    if end > size:
        return Entry(MessageMetadata(), data[at:], defect=f"metadata of {end - at - 4} bytes exceeds the entry")
    try:
        return Entry(MessageMetadata.FromString(data[at + 4 : end]), data[end:])
    except DecodeError:
        return Entry(MessageMetadata(), data[at:], defect=f"metadata of {end - at - 4} bytes cannot be parsed")


def has_valid_checksum(data: bytes, at: int = 0) -> bool:
    """Return True if the entry (without broker metadata) matches its checksum, or has none."""
    if len(data) - at < 6 or _SHORT.unpack_from(data, at)[0] != MAGIC_CHECKSUM:
        return True
    return bool(crc32c(memoryview(data)[at + 6 :]) == _MAGIC_AND_SUM.unpack_from(data, at)[1])


def encode_entry_prefix(metadata: MessageMetadata, payload: bytes) -> bytes:
    """Return the entry up to its payload: magic, checksum and metadata. The payload is read once and not copied."""
    data = metadata.SerializeToString()
    length = _SIZE.pack(len(data))
    checksum = crc32c(payload, crc32c(length + data))
    return _SUM_AND_SIZE.pack(MAGIC_CHECKSUM, checksum, len(data)) + data


class SendEncoder:
    """Encodes SEND frames of one producer; reuses one command object."""

    __slots__ = ("_command", "_send")

    def __init__(self, producer_id: int) -> None:
        self._command = BaseCommand(type=BaseCommand.SEND)
        self._send = self._command.send
        self._send.producer_id = producer_id

    def encode(
        self, sequence_id: int, highest: int, count: int, metadata: MessageMetadata, payload: bytes, is_chunk: bool = False
    ) -> bytes:
        """Return the frame up to its payload. `highest` equals `sequence_id` if the entry has a single sequence id."""
        send = self._send
        send.sequence_id = sequence_id
        send.num_messages = count
        if highest > sequence_id:
            send.highest_sequence_id = highest
        else:
            send.ClearField("highest_sequence_id")
        if is_chunk:
            send.is_chunk = True
        else:
            send.ClearField("is_chunk")
        prefix = encode_entry_prefix(metadata, payload)
        return encode_frame_prefix(self._command, len(prefix) + len(payload)) + prefix
