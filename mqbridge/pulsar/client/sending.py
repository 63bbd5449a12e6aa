"""What a producer is asked to send: an entry that waits for its receipt, or the chunks of one."""

import asyncio
from typing import NamedTuple

from mqbridge.errors import ClusterError, Failure
from mqbridge.pulsar.wire.chunks import chunk_room, cut
from mqbridge.pulsar.wire.compression import compress
from mqbridge.pulsar.wire.entry import SendEncoder
from mqbridge.pulsar.wire.frame import FRAME_PADDING
from mqbridge.pulsar.wire.ids import EntryId
from mqbridge.pulsar.wire.pb.PulsarApi_pb2 import MessageMetadata

HEAD_RESERVE = 2 << 10
"""Of the frame's padding, what the command may take; the rest is the metadata's."""


class SendReceipt(NamedTuple):
    """Where an entry was stored. A duplicate was stored before, and the broker does not say where: ledger and entry are -1.

    Of a message in chunks it is the place of the last one, which stands for the message; `first_chunk` is where it begins.
    """

    ledger: int
    entry: int
    duplicate: bool
    first_chunk: EntryId | None = None


class Sending:
    """An entry on its way: waiting, in flight, or both again after a reconnection, with the same bytes each time.

    Sequence ids are given when it is encoded, which happens once, before it is sent first. The chunks of a message share its
    sequence id and its future.
    """

    __slots__ = (
        "chunked",
        "count",
        "future",
        "head",
        "highest",
        "metadata",
        "owner",
        "payload",
        "sequence",
        "since",
        "size",
        "withdrawn",
    )

    def __init__(
        self,
        metadata: MessageMetadata,
        payload: bytes,
        count: int,
        sequence: int | None,
        future: "asyncio.Future[SendReceipt]",
        owner: object = None,
        highest: int | None = None,
    ) -> None:
        self.metadata, self.payload, self.count = metadata, payload, count
        self.sequence = -1 if sequence is None else sequence
        self.highest = -1 if highest is None else highest
        self.head = b""
        self.size = len(payload)
        self.since = 0.0
        self.future = future
        self.owner = owner
        """Who may withdraw it."""
        self.withdrawn = False
        """When its session ends without an answer it is not sent again."""
        self.chunked: Chunked | None = None

    def compress(self, codec: int) -> None:
        """The payload as it will be stored; as it was when compression does not make it smaller."""
        metadata, payload = self.metadata, self.payload
        if codec and payload and not metadata.compression:
            packed = compress(codec, payload)
            if len(packed) < len(payload):
                metadata.compression = codec
                metadata.uncompressed_size = len(payload)
                self.payload = packed

    def encode(self, encoder: SendEncoder, max_message_size: int) -> None:
        """Write the frame up to the payload. Raises ClusterError (REFUSED) when the broker would not take it."""
        payload = self.payload
        if len(payload) > max_message_size:
            raise too_large(len(payload), max_message_size)
        head = encoder.encode(self.sequence, self.highest, self.count, self.metadata, payload, self.chunked is not None)
        if len(head) > FRAME_PADDING - HEAD_RESERVE and len(head) + len(payload) > max_message_size:
            raise too_large(len(head) + len(payload), max_message_size)
        self.head, self.size = head, len(head) + len(payload)

    def chunks(self, chunk_bytes: int | None, max_message_size: int) -> "list[Sending]":
        """Itself, or as many as a broker with this limit takes it in. A batch is never cut."""
        room = min(chunk_bytes or max_message_size, chunk_room(self.metadata, max_message_size))
        if len(self.payload) <= room or self.metadata.HasField("num_messages_in_batch") or room <= 0:
            return [self]
        shared = Chunked()
        parts = []
        for metadata, piece in cut(self.metadata, self.payload, room):
            part = Sending(metadata, piece, 1, self.sequence, self.future, self.owner)
            part.highest, part.since, part.chunked = self.highest, self.since, shared
            parts.append(part)
        shared.left = len(parts)
        return parts

    @property
    def given_up(self) -> bool:
        """A chunk of a message of which another chunk has failed."""
        return self.chunked is not None and self.future.done() and not self.future.cancelled()

    def stored(self, ledger: int, entry: int) -> None:
        """Its receipt has come; that of a message in chunks is the one of its last chunk."""
        duplicate = ledger == entry == -1
        first = None
        if self.chunked is not None:
            first = self.chunked.first = self.chunked.first or (ledger, entry)
            self.chunked.left -= 1
            if self.chunked.left:
                return
        if not self.future.done():
            self.future.set_result(SendReceipt(ledger, entry, duplicate, first))

    def fail(self, error: Exception) -> None:
        """It will not be stored."""
        if not self.future.done():
            self.future.set_exception(error)


class Chunked:
    """What the chunks of a message share."""

    __slots__ = ("first", "left")

    def __init__(self) -> None:
        self.first: EntryId | None = None
        self.left = 0


def too_large(size: int, limit: int) -> ClusterError:
    """The failure of an entry beyond the broker's limit."""
    hint = "raise maxMessageSize at the broker (and its bookies), use compression, or let the producer send chunks"
    return ClusterError(f"an entry of {size} bytes where the broker takes {limit}: {hint}", Failure.REFUSED)
