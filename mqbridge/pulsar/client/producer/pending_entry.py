"""Entries of a producer that have no receipt yet, and the chunks of such entries."""

import asyncio
from typing import NamedTuple

from mqbridge.errors import ClusterError, Failure, MqbridgeError
from mqbridge.net.waiting_sends import Caller
from mqbridge.pulsar.wire.chunks import describes_chunk, max_chunk_payload, split_payload
from mqbridge.pulsar.wire.compression import compress
from mqbridge.pulsar.wire.entry import SendEncoder
from mqbridge.pulsar.wire.frame import FRAME_PADDING
from mqbridge.pulsar.wire.ids import EntryId
from mqbridge.pulsar.wire.pb.PulsarApi_pb2 import MessageMetadata

COMMAND_RESERVE_BYTES = 2 << 10
"""Part of FRAME_PADDING (the bytes by which a frame may exceed the maximum message size) that is reserved for the command. The
rest of the padding is for the metadata."""


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
        "caller",
        "chunked",
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
        payload: bytes,
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
        self.chunked: ChunkedMessage | None = None
        """State of the chunked message that this entry is a chunk of; None if it is no chunk."""

    def compress_payload(self, codec: int) -> None:
        """Compress the payload unless `codec` is NONE (0), or the payload is compressed already or would not become smaller.

        Payloads are compressed before they are encrypted or split, so an encrypted one and a chunk stay as they are.
        """
        metadata, payload = self.metadata, self.payload
        if codec and payload and not (metadata.compression or metadata.encryption_keys or metadata.uuid):
            compressed = compress(codec, payload)
            if len(compressed) < len(payload):
                metadata.compression = codec
                metadata.uncompressed_size = len(payload)
                self.payload = compressed

    def encode(self, encoder: SendEncoder, max_message_size: int) -> None:
        """Encode the frame up to the payload. Raises ClusterError, see `too_large_error`, if it is too large for the broker."""
        payload = self.payload
        if len(payload) > max_message_size:
            raise too_large_error(len(payload), max_message_size, self)
        is_chunk = self.chunked is not None or describes_chunk(self.metadata)
        prefix = encoder.encode(self.sequence, self.highest, self.count, self.metadata, payload, is_chunk)
        # The prefix is the command and the metadata. If it is longer than the metadata's part of the padding, the whole frame
        # must not exceed the limit.
        if len(prefix) > FRAME_PADDING - COMMAND_RESERVE_BYTES and len(prefix) + len(payload) > max_message_size:
            raise too_large_error(len(prefix) + len(payload), max_message_size, self)
        self.prefix, self.size = prefix, len(prefix) + len(payload)

    def chunks(self, chunk_bytes: int | None, max_message_size: int) -> "list[PendingEntry]":
        """Return the chunks of this entry, each at most `chunk_bytes` long; None: as long as the broker allows.

        Return only the entry itself if it is small enough, if it is a batch, encrypted or a chunk already, or if its metadata
        leaves no room for a payload. In all cases but the first `encode` fails if the entry is too large.
        """
        chunk_size = min(chunk_bytes or max_message_size, max_chunk_payload(self.metadata, max_message_size))
        is_indivisible = self.metadata.HasField("num_messages_in_batch") or self.metadata.encryption_keys or self.metadata.uuid
        if len(self.payload) <= chunk_size or is_indivisible or chunk_size <= 0:
            return [self]
        message = ChunkedMessage()
        chunks = []
        for metadata, payload in split_payload(self.metadata, self.payload, chunk_size):
            chunk = PendingEntry(metadata, payload, count=1, sequence=self.sequence, future=self.future, caller=self.caller)
            chunk.highest, chunk.added_at = self.highest, self.added_at
            chunk.chunked = message
            chunks.append(chunk)
        message.pending = len(chunks)
        return chunks

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


class ChunkedMessage:
    """State shared by the chunks of a message."""

    __slots__ = ("first", "pending")

    def __init__(self) -> None:
        self.first: EntryId | None = None
        """Id of the first chunk; None before its receipt."""
        self.pending = 0
        """Number of chunks without a receipt."""


def too_large_error(size: int, limit: int, entry: PendingEntry) -> ClusterError:
    """Return the error for an entry that exceeds the broker's limit with its `size`.

    It is RETRY if the entry is divisible: each of its messages may be small enough, and they can be sent in smaller entries. It
    is REFUSED for one message, and for several that the caller has only as this entry, such as an encrypted batch.
    """
    if entry.divisible:
        problem = f"an entry of {entry.count} messages and {size} bytes exceeds the broker's limit of {limit}"
        return ClusterError(f"{problem}: send them in smaller entries", Failure.RETRY)
    hint = "raise maxMessageSize at the broker (and its bookies), use compression, or let the producer send chunks"
    return ClusterError(f"an entry of {size} bytes exceeds the broker's limit of {limit}: {hint}", Failure.REFUSED)
