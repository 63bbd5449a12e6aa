"""Entries of a producer that have no receipt yet, and the chunks of such entries.

A message above the broker's limit is split when it is about to be sent, because only then the limit is that of the broker that
stores it. A batch cannot be split, so the framing of a batch of one message is removed before.
"""

import asyncio
from collections.abc import Iterable
from typing import NamedTuple

from google.protobuf.message import EncodeError

from mqbridge.errors import ClusterError, Failure, MqbridgeError, RemoteProtocolError
from mqbridge.net.waiting_sends import Caller
from mqbridge.pulsar.client.producer.producer_settings import ProducerSettings
from mqbridge.pulsar.wire.batch import unframe
from mqbridge.pulsar.wire.chunks import describes_chunk, max_chunk_payload, split_payload
from mqbridge.pulsar.wire.compression import compress, decompress
from mqbridge.pulsar.wire.entry import SendEncoder
from mqbridge.pulsar.wire.frame import FRAME_PADDING
from mqbridge.pulsar.wire.ids import EntryId
from mqbridge.pulsar.wire.pb.PulsarApi_pb2 import MessageMetadata

MAX_SEQUENCE = (1 << 63) - 1
"""Maximum sequence id: brokers compare them as signed numbers, so a larger one would sort before all others."""
COMMAND_RESERVE_BYTES = 2 << 10
"""Part of FRAME_PADDING (the bytes by which a frame may exceed the maximum message size) that is reserved for the command. The
rest of the padding is for the metadata."""
MAX_COMMAND_BYTES = 100
"""Maximum size of the command of a `StoredEntry`, with the frame's sizes: at most five numbers of up to ten bytes."""
CHUNKS_TOGETHER_S = 30.0
"""Time from the sending of the first chunk of a message after which a new connection gets all its chunks again: by default, Java
consumers drop a message that is incomplete 60 s after its first chunk."""


class SendResult(NamedTuple):
    """Receipt of an entry: the id under which the broker stored it.

    If the broker had already stored the entry, it reports no id: `duplicate` is True, and ledger and entry are -1. A chunked
    message has the id of its last chunk; `first_chunk` is the id of its first chunk, (-1, -1) if the broker had already stored
    that one, and None if the message is not chunked.
    """

    ledger: int
    entry: int
    duplicate: bool
    first_chunk: EntryId | None = None


class PendingEntry:
    """An entry that is queued or in flight; after a reconnection it is sent again with the same bytes.

    The producer's queue assigns its sequence ids once, just before `encode`, unless the caller gave them. All chunks of a message
    have the message's sequence id.
    """

    __slots__ = (
        "added_at",
        "attempts",
        "caller",
        "chunked",
        "codec",
        "count",
        "divisible",
        "future",
        "highest",
        "metadata",
        "payload",
        "prefix",
        "sequence",
        "size",
        "withdrawn",
    )

    def __init__(
        self,
        metadata: MessageMetadata,
        payload: bytes | memoryview,
        count: int,
        sequence: int | None,
        future: "asyncio.Future[SendResult]",
        caller: Caller,
        highest: int | None = None,
        *,
        divisible: bool = True,
    ) -> None:
        self.metadata, self.payload = metadata, payload
        self.count = count
        """Number of messages."""
        self.divisible = divisible and count > 1
        """True if the caller can send the messages in smaller entries."""
        self.sequence = -1 if sequence is None else sequence
        """Sequence id of the first message; -1 until it is assigned."""
        self.highest = -1 if highest is None else highest
        """Sequence id of the last message; -1 until it is assigned."""
        self.prefix = b""
        """The encoded frame up to the payload; empty until `encode`."""
        self.size = len(payload)
        """Bytes of the whole frame; until `encode`, of the uncompressed payload."""
        self.added_at = 0.0
        """Loop time of `EntryProducer.send`; only set if entries can expire."""
        self.future = future
        """Future for the receipt; the chunks of a message share the future of the message."""
        self.caller = caller
        self.withdrawn = False
        """True if the caller has withdrawn the entry in flight: it must not be sent again after the loss of its connection."""
        self.codec = 0
        """The codec by which `compress_payload` has compressed the payload; 0 if it has not."""
        self.attempts = 0
        """How often the message was split into chunks."""
        self.chunked: ChunkedMessage | None = None
        """State of the chunked message that this entry is a chunk of; None if it is no chunk."""

    def set_producer(self, name: str, schema_version: bytes) -> None:
        """Set the metadata that say which producer sends the entry, and by which schema; its sequence ids must be assigned."""
        metadata = self.metadata
        metadata.producer_name = name
        metadata.sequence_id = self.sequence
        if self.highest > self.sequence:
            metadata.highest_sequence_id = self.highest
        if schema_version and not metadata.HasField("schema_version"):
            metadata.schema_version = schema_version

    def unframe_payload(self, chunk_bytes: int | None, max_message_size: int) -> None:
        """Remove the batch framing of a single message that `chunks` would split otherwise.

        What the caller has compressed or encrypted stays as it is, and so does what cannot be read.
        """
        metadata, payload = self.metadata, bytes(self.payload)
        if metadata.num_messages_in_batch != 1 or len(payload) <= self._chunk_size(chunk_bytes, max_message_size):
            return
        if metadata.encryption_keys or metadata.uuid or metadata.compression != self.codec:
            return
        try:
            if self.codec:
                payload = decompress(self.codec, payload, metadata.uncompressed_size, metadata.uncompressed_size)
            self.payload = unframe(metadata, payload)
        except RemoteProtocolError:
            return
        self.codec = 0
        metadata.ClearField("compression")
        metadata.ClearField("uncompressed_size")

    def compress_payload(self, codec: int) -> None:
        """Compress the payload unless `codec` is NONE (0), or the payload is compressed already or would not become smaller.

        Payloads are compressed before they are encrypted or split, so an encrypted one and a chunk stay as they are.
        """
        metadata = self.metadata
        if codec and self.payload and not (metadata.compression or metadata.encryption_keys or metadata.uuid):
            payload = bytes(self.payload)
            compressed = compress(codec, payload)
            if len(compressed) < len(payload):
                metadata.compression = self.codec = codec
                metadata.uncompressed_size = len(payload)
                self.payload = compressed

    def encode(self, encoder: SendEncoder, max_message_size: int, settings: ProducerSettings) -> None:
        """Encode the frame up to the payload. Raises ClusterError, see `too_large_error`, if it is too large for the broker."""
        payload = self.payload
        if len(payload) > max_message_size:
            raise too_large_error(self, len(payload), max_message_size, settings)
        is_chunk = self.chunked is not None or describes_chunk(self.metadata)
        prefix = encoder.encode(self.sequence, self.highest, self.count, self.metadata, payload, is_chunk)
        if exceeds_limit(len(prefix), len(payload), max_message_size):
            raise too_large_error(self, len(prefix) + len(payload), max_message_size, settings)
        self.prefix, self.size = prefix, len(prefix) + len(payload)

    def chunks(self, chunk_bytes: int | None, max_message_size: int) -> "list[PendingEntry]":
        """Return the chunks of this entry, each at most `chunk_bytes` long; None: as long as the broker allows.

        Return only the entry itself if it is small enough, if it is a batch, encrypted or a chunk already, or if its metadata
        leaves no room for a payload. In all cases but the first `encode` fails if the entry is too large.
        """
        chunk_size = self._chunk_size(chunk_bytes, max_message_size)
        if len(self.payload) <= chunk_size or self._is_indivisible or chunk_size <= 0:
            return [self]
        message = ChunkedMessage(self)
        chunks = []
        for metadata, payload in split_payload(self.metadata, memoryview(self.payload), chunk_size, self.attempts):
            chunk = PendingEntry(metadata, payload, count=1, sequence=self.sequence, future=self.future, caller=self.caller)
            chunk.highest, chunk.added_at = self.highest, self.added_at
            chunk.chunked = message
            chunks.append(chunk)
        self.attempts += 1
        message.pending = len(chunks)
        return chunks

    def _chunk_size(self, chunk_bytes: int | None, max_message_size: int) -> int:
        return min(chunk_bytes or max_message_size, max_chunk_payload(self.metadata, max_message_size))

    @property
    def _is_indivisible(self) -> bool:
        """True for a batch, a chunk and an encrypted message."""
        metadata = self.metadata
        return bool(metadata.HasField("num_messages_in_batch") or metadata.encryption_keys or metadata.uuid)

    @property
    def has_failed_chunk(self) -> bool:
        """True if another chunk of the same message has failed; a future that the caller cancelled is no failure.

        Valid only before the receipt of this chunk: until then the message is incomplete, so a future that is done has failed.
        """
        return self.chunked is not None and self.future.done() and not self.future.cancelled()

    def on_receipt(self, ledger: int, entry: int) -> None:
        """Process the receipt of this entry; both ids are -1 if the broker had already stored it.

        A chunked message is complete with the receipt of its last chunk.
        """
        duplicate = ledger == entry == -1
        first_chunk = None
        if self.chunked is not None:
            first_chunk = self.chunked.first = self.chunked.first or (ledger, entry)
            self.chunked.pending -= 1
            if self.chunked.pending:
                return
        if not self.future.done():
            self.future.set_result(SendResult(ledger, entry, duplicate, first_chunk))

    def fail(self, error: MqbridgeError) -> None:
        """Fail the entry's future."""
        if not self.future.done():
            self.future.set_exception(error)


class StoredEntry(PendingEntry):
    """An entry that is sent as it is: `payload` is the whole entry (see `wire.entry.stored_entry`).

    Only the command has the sequence ids that the producer assigns. The chunks of a message may have ids of their own, because
    brokers and consumers find out by the metadata which chunks belong together.
    """

    __slots__ = ("_payload_size",)

    def __init__(
        self,
        data: bytes,
        metadata: MessageMetadata,
        payload_size: int,
        sequence: int | None,
        future: "asyncio.Future[SendResult]",
        caller: Caller,
        highest: int | None = None,
    ) -> None:
        """`metadata` are those of `data`, whose last `payload_size` bytes are the payload."""
        super().__init__(metadata, data, message_count(metadata), sequence, future, caller, highest, divisible=False)
        self._payload_size = payload_size

    def set_producer(self, name: str, schema_version: bytes) -> None:
        """Change nothing."""

    def unframe_payload(self, chunk_bytes: int | None, max_message_size: int) -> None:
        """Change nothing."""

    def compress_payload(self, codec: int) -> None:
        """Change nothing."""

    def chunks(self, chunk_bytes: int | None, max_message_size: int) -> list[PendingEntry]:  # noqa: ARG002 - as in the base class
        """Return only the entry itself."""
        return [self]

    def encode(self, encoder: SendEncoder, max_message_size: int, settings: ProducerSettings) -> None:
        """Encode the frame up to the entry. Raises ClusterError, see `too_large_error`, if it is too large for the broker."""
        size = len(self.payload)
        prefix = encoder.encode_command(self.sequence, self.highest, self.count, size, describes_chunk(self.metadata))
        before_payload = len(prefix) + size - self._payload_size
        if exceeds_limit(before_payload, self._payload_size, max_message_size):
            raise too_large_error(self, self._payload_size, max_message_size, settings)
        self.prefix, self.size = prefix, len(prefix) + size


def message_count(metadata: MessageMetadata) -> int:
    """Return the number of messages that a broker counts for an entry."""
    return max(1, metadata.num_messages_in_batch)


def stored_exceeds_limit(size: int, payload_size: int, max_message_size: int) -> bool:
    """Return True if a broker with this limit may not take an entry of `size` bytes that is sent as it is (see `StoredEntry`)."""
    return exceeds_limit(MAX_COMMAND_BYTES + size - payload_size, payload_size, max_message_size)


def exceeds_limit(before_payload: int, payload_size: int, max_message_size: int) -> bool:
    """Return True if a broker with this limit does not take an entry.

    `before_payload` is the size of the command and the metadata. If they are longer than their part of the padding, the whole
    frame must not exceed the limit.
    """
    if payload_size > max_message_size:
        return True
    return before_payload > FRAME_PADDING - COMMAND_RESERVE_BYTES and before_payload + payload_size > max_message_size


class ChunkedMessage:
    """State shared by the chunks of a message; their payloads are views of the payload of `whole`, the entry that was split."""

    __slots__ = ("begun_at", "first", "pending", "whole")

    def __init__(self, whole: PendingEntry) -> None:
        self.whole = whole
        self.begun_at: float | None = None
        """Loop time at which the first chunk was sent; None before that."""
        self.first: EntryId | None = None
        """Id of the first chunk; None before its receipt."""
        self.pending = 0
        """Number of chunks without a receipt."""


def refusal_before_sending(entry: PendingEntry, max_message_size: int, settings: ProducerSettings) -> ClusterError | None:
    """Return why a producer with these settings cannot send an entry to a broker with this limit; None if it can.

    This does what the send queue does, but the result of the broker is left out. `entry` must not be sent afterwards.
    """
    entry.sequence = entry.highest = MAX_SEQUENCE
    try:
        entry.set_producer(settings.name or "", b"")
        if len(entry.payload) + entry.metadata.ByteSize() + COMMAND_RESERVE_BYTES <= max_message_size:
            return None
        if settings.chunking:
            entry.unframe_payload(settings.chunk_bytes, max_message_size)
        entry.compress_payload(settings.codec)
        encoder = SendEncoder(0)
        for each in entry.chunks(settings.chunk_bytes, max_message_size) if settings.chunking else [entry]:
            each.encode(encoder, max_message_size, settings)
    except ClusterError as error:
        return error
    except (EncodeError, ValueError) as error:
        return ClusterError(f"the entry cannot be encoded: {error}", Failure.REFUSED)
    return None


def entries_to_resend(entries: Iterable[PendingEntry], now: float, max_message_size: int, stored: int) -> list[PendingEntry]:
    """Return the entries to send over a new connection to a broker with this limit, instead of `entries`, which all wait.

    Chunks without a receipt are sent again. The whole message is split again if it was begun so long ago that consumers may
    have dropped its first chunks, or if a chunk is above the limit; consumers then receive an incomplete message before. If
    the broker reports its sequence id as `stored`, only its receipt is missing. Other entries above the limit are encoded again.
    `now` is the loop time.
    """
    resent: list[PendingEntry] = []
    split_again: set[ChunkedMessage] = set()
    for entry in entries:
        message, is_too_large = entry.chunked, len(entry.payload) > max_message_size
        if message is None:
            if is_too_large:
                entry.prefix = b""
            resent.append(entry)
        elif message not in split_again:
            is_late = message.begun_at is not None and now > message.begun_at + CHUNKS_TOGETHER_S and entry.sequence > stored
            if (is_late or is_too_large) and not entry.has_failed_chunk:
                split_again.add(message)
                resent.append(message.whole)
            else:
                resent.append(entry)
    return resent


def too_large_error(entry: PendingEntry, size: int, limit: int, settings: ProducerSettings) -> ClusterError:
    """Return the error for an entry that exceeds the broker's limit with its `size`.

    It is RETRY if the entry is divisible: each of its messages may be small enough, and they can be sent in smaller entries. It
    is REFUSED for one message, and for several that the caller has only as this entry, such as an encrypted batch.
    """
    if entry.divisible:
        problem = f"an entry of {entry.count} messages and {size} bytes exceeds the broker's limit of {limit}"
        return ClusterError(f"{problem}: send them in smaller entries", Failure.RETRY)
    metadata = entry.metadata
    problem = f"an entry of {size} bytes exceeds the broker's limit of {limit}"
    advice = "raise maxMessageSize at the broker (and its bookies)"
    if metadata.encryption_keys:
        problem += ", and it is encrypted, so only its consumers could divide it"
    elif metadata.uuid:
        problem += ", and it is a chunk, whose size its producer has chosen"
    elif metadata.num_messages_in_batch > 1 or (settings.chunking and metadata.HasField("num_messages_in_batch")):
        problem += f", and it is a batch of {metadata.num_messages_in_batch} that is stored as it was received"
    elif settings.chunking:
        problem += f"; its key and properties, which each chunk repeats, have {metadata.ByteSize()} bytes"
    elif settings.unchunked_reason:
        problem += f", and it is not sent in chunks, because {settings.unchunked_reason}"
        advice += ", or send it compressed (`compression`)"
    else:
        advice += ", or send it in chunks (`chunking`) or compressed (`compression`)"
    return ClusterError(f"{problem}: {advice}", Failure.REFUSED)
