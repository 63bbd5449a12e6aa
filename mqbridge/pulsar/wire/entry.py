"""Encodes and decodes entries. One SEND command stores an entry, and one MESSAGE command delivers it.

Brokers acknowledge, deduplicate and checksum whole entries. The parts in brackets are optional:

    [0x0e02 uint32 size BrokerEntryMetadata] [0x0e01 CRC32C] uint32 metadataSize MessageMetadata payload

The checksum covers everything after itself. Decoding a damaged entry returns an `Entry` with a `defect` and the raw bytes. It
raises nothing, because an error would close the connection, which also carries other entries.
"""

import struct

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
                   `defect`: as received, or decompressed if only the number of messages is wrong
    defect         the reason why the entry cannot be read; None if it can
    partition      partition index, -1 for an unpartitioned topic
    ack_set        bit set of the messages to deliver, as 64-bit words (see `ids.py`); empty for all messages
    first_chunk    id of a chunked message's first chunk (the entry has the id of the last chunk); None for other entries
    chunks_before  number of a chunked message's chunks that lie before the start of reading

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
        # True while `unpack` has something to do.
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
        """Size of the payload after decompression, in bytes; until `unpack` as the producer's metadata states it."""
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

        An encrypted entry, and a chunk that is not joined, get a `defect` as well. Further calls do nothing.
        """
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
    """Decode the entry at offset `at` and verify its checksum; the payload is not unpacked. Never raises, see `Entry.defect`."""
    size = len(data)
    if size - at >= 6 and _UINT16.unpack_from(data, at)[0] == MAGIC_BROKER_METADATA:
        at += 6 + _BROKER_PREFIX.unpack_from(data, at)[1]
    if size - at >= 6 and _UINT16.unpack_from(data, at)[0] == MAGIC_CHECKSUM:
        stored = _MAGIC_AND_SUM.unpack_from(data, at)[1]
        at += 6
        computed = crc32c(memoryview(data)[at:])
        if computed != stored:
            return Entry(MessageMetadata(), data[at:], defect=f"CRC32C mismatch: computed {computed:08x}, stored {stored:08x}")
    if size - at < 4:
        return Entry(MessageMetadata(), data[at:], defect="the entry ends before its metadata")
    end = at + 4 + _UINT32.unpack_from(data, at)[0]
    if end > size:
        return Entry(MessageMetadata(), data[at:], defect=f"metadata of {end - at - 4} bytes exceeds the entry")
    try:
        return Entry(MessageMetadata.FromString(data[at + 4 : end]), data[end:])
    except DecodeError:
        return Entry(MessageMetadata(), data[at:], defect=f"metadata of {end - at - 4} bytes cannot be parsed")


def has_valid_checksum(data: bytes, at: int = 0) -> bool:
    """Return True if the entry (without broker metadata) matches its checksum, or has none."""
    if len(data) - at < 6 or _UINT16.unpack_from(data, at)[0] != MAGIC_CHECKSUM:
        return True
    return bool(crc32c(memoryview(data)[at + 6 :]) == _MAGIC_AND_SUM.unpack_from(data, at)[1])


def encode_entry_prefix(metadata: MessageMetadata, payload: bytes) -> bytes:
    """Return the bytes of the entry before its payload: magic, checksum and metadata. The payload is not copied."""
    data = metadata.SerializeToString()
    length = _UINT32.pack(len(data))
    checksum = crc32c(payload, crc32c(length + data))
    return _SUM_AND_SIZE.pack(MAGIC_CHECKSUM, checksum, len(data)) + data


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
        payload: bytes,
        is_chunk: bool = False,
    ) -> bytes:
        """Return the bytes of the frame before its payload, which the caller sends after them.

        `sequence_id` is that of the first message and `highest_sequence_id` that of the last; they are equal if the entry has
        only one message. `count` is the number of messages.
        """
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
        prefix = encode_entry_prefix(metadata, payload)
        return encode_frame_prefix(self._command, len(prefix) + len(payload)) + prefix
