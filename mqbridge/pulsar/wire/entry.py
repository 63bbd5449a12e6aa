"""Entries: what one SEND stores and one MESSAGE brings; the unit of acknowledgement, deduplication and checksums.

    [0x0e02 uint32 size BrokerEntryMetadata] [0x0e01 CRC32C] uint32 metadataSize MessageMetadata payload

The checksum covers everything after itself. A damaged entry is still an entry: it says so in `defect`, keeps its raw bytes, and
never raises, because one bad entry must not end a connection that carries others.
"""

import struct

from crc32c import crc32c
from google.protobuf.message import DecodeError

from mqbridge.errors import RemoteProtocolError
from mqbridge.pulsar.wire.chunks import is_chunk
from mqbridge.pulsar.wire.compression import decompress
from mqbridge.pulsar.wire.frame import encode_head
from mqbridge.pulsar.wire.pb.PulsarApi_pb2 import BaseCommand, MessageMetadata

MAGIC_CHECKSUM = 0x0E01
MAGIC_BROKER_METADATA = 0x0E02

MIN_MESSAGE_BYTES = 6
"""Of a message in a batch: four bytes are the size of its metadata, two at least its metadata, which has the size of its payload.
So the mask of a batch's messages is smaller than what is in memory anyway."""

ENTRY_BYTES, PROPERTY_BYTES = 1700, 270
"""What an entry holds besides its payload, and each property of its own metadata; measured as resident memory."""

_SHORT = struct.Struct(">H")
_SIZE = struct.Struct(">I")
_MAGIC_AND_SUM = struct.Struct(">HI")
_BROKER_HEAD = struct.Struct(">HI")
_SUM_AND_SIZE = struct.Struct(">HII")


class Entry:
    """An entry as a consumer received it.

    `payload` is decompressed, with the batch's framing still in it where the metadata has `num_messages_in_batch`. With a
    `defect` it holds the bytes as they came. `ack_set` is empty when all messages of a batch are to be delivered.
    `first_chunk` is where a message in chunks begins, whose id is that of its last chunk; `chunks_before` counts those that came
    before who reads it began to.

    The compiled module's `PulsarEntry` has the same attributes, for entries that came whole and unpacked (see `client/runs.py`).
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
        """Messages in it, whether or not they are to be delivered; a damaged entry is one.

        Until it is unpacked this is what its producer says, who can write anything there.
        """
        return 1 if self.defect is not None else max(1, self.metadata.num_messages_in_batch)

    @property
    def size(self) -> int:
        """Bytes of its messages: its payload as it is once it is unpacked."""
        return max(len(self.payload), self.metadata.uncompressed_size)

    @property
    def held_bytes(self) -> int:
        """What it takes in memory, as it is now."""
        return len(self.payload) + ENTRY_BYTES + PROPERTY_BYTES * len(self.metadata.properties)

    @property
    def publish_time(self) -> int:
        """Ms since the epoch; 0 for a damaged entry."""
        return self.metadata.publish_time

    @property
    def is_batch(self) -> bool:
        """Presence decides: C++ and Go frame a single message as a batch of one, Java does not."""
        return self.metadata.HasField("num_messages_in_batch")

    @property
    def is_chunk(self) -> bool:
        """Whether it is only a part of its message, or says so."""
        return self.defect is None and is_chunk(self.metadata)

    def is_due(self, index: int) -> bool:
        """Whether a message of the batch is to be delivered: it is not acknowledged yet."""
        word, bit = divmod(index, 64)
        return not self.ack_set or (word < len(self.ack_set) and bool(self.ack_set[word] >> bit & 1))

    @property
    def place(self) -> tuple[int, int]:
        """Ledger and entry."""
        return self.ledger, self.entry

    def unpack(self) -> None:
        """Decompress the payload and see that its messages can be in it; a failure becomes the `defect`. Once is enough."""
        if not self._packed:
            return
        self._packed = False
        metadata = self.metadata
        if metadata.encryption_keys:
            self.defect = "it is encrypted, and the gateway has no keys"
            return
        if metadata.num_chunks_from_msg > 1:
            self.defect = (
                f"it is chunk {metadata.chunk_id} of {metadata.num_chunks_from_msg} of {metadata.uuid}, not joined with the rest"
            )
            return
        try:
            if metadata.compression:
                self.payload = decompress(metadata.compression, self.payload, metadata.uncompressed_size)
        except RemoteProtocolError as error:
            self.defect = str(error)
            return
        size = len(self.payload)
        if self.is_batch and self.count * MIN_MESSAGE_BYTES > size:
            self.defect = f"it says that it is a batch of {self.count} messages, which {size} bytes cannot be"


def decode_entry(data: bytes, at: int = 0) -> Entry:
    """Read what lies behind `at`, checksum verified, payload not yet unpacked. Never raises: see `Entry.defect`."""
    size = len(data)
    if size - at >= 6 and _SHORT.unpack_from(data, at)[0] == MAGIC_BROKER_METADATA:
        at += 6 + _BROKER_HEAD.unpack_from(data, at)[1]
    if size - at >= 6 and _SHORT.unpack_from(data, at)[0] == MAGIC_CHECKSUM:
        told = _MAGIC_AND_SUM.unpack_from(data, at)[1]
        at += 6
        found = crc32c(memoryview(data)[at:])
        if found != told:
            return Entry(MessageMetadata(), data[at:], defect=f"its CRC32C is {found:08x} where {told:08x} was stored")
    if size - at < 4:
        return Entry(MessageMetadata(), data[at:], defect="it ends before its metadata")
    end = at + 4 + _SIZE.unpack_from(data, at)[0]
    if end > size:
        return Entry(MessageMetadata(), data[at:], defect=f"its metadata of {end - at - 4} bytes does not fit")
    try:
        return Entry(MessageMetadata.FromString(data[at + 4 : end]), data[end:])
    except DecodeError:
        return Entry(MessageMetadata(), data[at:], defect=f"its {end - at - 4} bytes of metadata cannot be read")


def has_valid_checksum(data: bytes, at: int = 0) -> bool:
    """Whether the entry without broker metadata is what its checksum says; an entry without one is."""
    if len(data) - at < 6 or _SHORT.unpack_from(data, at)[0] != MAGIC_CHECKSUM:
        return True
    return bool(crc32c(memoryview(data)[at + 6 :]) == _MAGIC_AND_SUM.unpack_from(data, at)[1])


def encode_entry_head(metadata: MessageMetadata, payload: bytes) -> bytes:
    """The entry up to its payload: magic, checksum and metadata. The payload is read once and not copied."""
    data = metadata.SerializeToString()
    length = _SIZE.pack(len(data))
    checksum = crc32c(payload, crc32c(length + data))
    return _SUM_AND_SIZE.pack(MAGIC_CHECKSUM, checksum, len(data)) + data


class SendEncoder:
    """Encodes SEND frames of one producer, with a command object that is made once."""

    __slots__ = ("_command", "_send")

    def __init__(self, producer_id: int) -> None:
        self._command = BaseCommand(type=BaseCommand.SEND)
        self._send = self._command.send
        self._send.producer_id = producer_id

    def encode(
        self, sequence_id: int, highest: int, count: int, metadata: MessageMetadata, payload: bytes, is_chunk: bool = False
    ) -> bytes:
        """The frame up to its payload. `highest` equals `sequence_id` when the whole entry counts as one."""
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
        head = encode_entry_head(metadata, payload)
        return encode_head(self._command, len(head) + len(payload)) + head
