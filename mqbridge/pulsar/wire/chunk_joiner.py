"""Joins the chunks of messages that are larger than an entry (see `chunks`).

A joined message becomes an ordinary entry with the id of its last chunk; a message with missing chunks becomes an entry with a
`defect`, which has all chunks that were received. Some chunks can never be joined: those of a message above the limits, and
encrypted ones, because each chunk is encrypted by itself. Each of them becomes an entry of its own, with a `defect`.

Chunks of several messages may be interleaved. A producer sends chunks without a receipt again, and a deduplicating broker checks
only the last chunk of a message; so a chunk may arrive twice, and its repetition is dropped.

All that a producer chooses may lie or repeat. So a message is identified by everything that its chunks have in common
(`Identity`), its memory is counted as received, not as announced, and only chunk 0 begins a message: a later chunk without an
incomplete message is delivered by itself, with a `defect`. If the incomplete messages exceed the limits, the newest is abandoned:
so the others become complete. If it were the oldest, interleaved messages would abandon one another until none is left.
"""

from collections import OrderedDict
from typing import NamedTuple

from mqbridge.pulsar.wire.chunks import CHUNK_FIELDS, chunk_defect
from mqbridge.pulsar.wire.compression import MAX_UNCOMPRESSED_BYTES
from mqbridge.pulsar.wire.entry import ENCRYPTED, ENTRY_BYTES, PROPERTY_BYTES, Entry
from mqbridge.pulsar.wire.ids import EntryId
from mqbridge.pulsar.wire.pb.PulsarApi_pb2 import MessageMetadata

MAX_CHUNKS = 10_000
"""Maximum number of chunks of one message; a message that announces more is damaged."""
MAX_REPEATED_CHUNKS = 1000
"""Maximum number of repeated chunks of one message, beyond which it is abandoned; a reconnecting producer repeats fewer."""
MAX_COMPLETED = 2000
"""Maximum number of joined messages that are remembered to recognise repetitions of their chunks."""
MAX_NAME_CHARS = 1000
"""Maximum length of a uuid with the producer's name, which are kept for each remembered message. Producers make the uuid of their
name and a number."""
MAX_OVERHEAD_BYTES = 64 << 20
"""Maximum memory of one consumer's incomplete messages besides their payloads: each chunk has all the metadata of its message."""
CHUNK_ID_BYTES = 120
"""Bytes of memory of a chunk's id."""

Identity = tuple[str, str, int, int, int]
"""What all chunks of a message have in common: uuid, producer name, publish time, number of chunks and total size. The uuid alone
may repeat: a producer may use it again after a restart, and so may a producer of the same name in another cluster."""


class ChunkLimits(NamedTuple):
    """Limits of messages that wait for their remaining chunks."""

    messages: int = 1000
    """Maximum number of incomplete messages of one consumer, at least 1; beyond it the newest is abandoned."""
    max_bytes: int = 2 * MAX_UNCOMPRESSED_BYTES
    """Maximum size of the received chunks of all incomplete messages in bytes; beyond it the newest message is abandoned."""
    expiry_s: float = 60.0
    """Maximum time that a message waits for its next chunk, in seconds; then it is abandoned."""
    max_message_bytes: int = MAX_UNCOMPRESSED_BYTES
    """Maximum size of a message as announced, in bytes, at most `max_bytes`; the chunks of a larger one are not joined."""


class JoinedMessage(NamedTuple):
    """A complete or abandoned message as an entry; `entry` is None for a repeated chunk of a message that was joined before."""

    entry: Entry | None
    chunk_ids: tuple[EntryId, ...]
    """Ids of all chunks in the order received; to acknowledge the message is to acknowledge all of them."""
    lacks_last_chunk: bool = False
    """True if the last chunk is missing, or chunks before this one. Then the entry has the id of the last chunk received, and
    later entries may have been delivered before it."""


class _IncompleteMessage:
    """A message that waits for chunks; `waiting_since` is the time of its latest chunk by the clock of `ChunkJoiner`'s caller."""

    __slots__ = (
        "_numbers",
        "announced_bytes",
        "chunk_count",
        "chunk_ids",
        "chunks",
        "defect",
        "first_entry",
        "metadata",
        "next_chunk_id",
        "overhead_bytes",
        "parts",
        "received_bytes",
        "waiting_since",
    )

    def __init__(self, entry: Entry) -> None:
        self.metadata = entry.metadata
        self.first_entry = entry
        """The first chunk received; not chunk 0 if a reader began inside the message."""
        self.chunk_count = entry.metadata.num_chunks_from_msg
        self.announced_bytes = entry.metadata.total_chunk_msg_size
        self.parts: list[bytes] = []
        self.chunks: list[tuple[MessageMetadata, int]] = []
        """Metadata and payload size of each part."""
        self._numbers: set[int] = set()
        """The chunk id of each part."""
        self.received_bytes = self.overhead_bytes = self.next_chunk_id = 0
        self.chunk_ids: list[EntryId] = []
        self.waiting_since = 0.0
        self.defect: str | None = None

    def add(self, entry: Entry) -> None:
        """Add a chunk of this message. A repeated chunk only adds its id. After a missing chunk, the message gets a defect.

        The missing chunk may come later, on a shared subscription: it is kept like the others, for the dead letters.
        """
        chunk_id = entry.metadata.chunk_id
        self.chunk_ids.append((entry.ledger, entry.entry))
        self.overhead_bytes += CHUNK_ID_BYTES
        if chunk_id < self.next_chunk_id and (self.defect is None or chunk_id in self._numbers):
            return
        if chunk_id != self.next_chunk_id:
            self.set_defect(_missing_reason(entry.metadata, self.next_chunk_id))
        self._numbers.add(chunk_id)
        self.parts.append(entry.payload)
        self.chunks.append((entry.metadata, len(entry.payload)))
        self.received_bytes += len(entry.payload)
        self.overhead_bytes += _memory(entry.metadata)
        self.next_chunk_id = max(self.next_chunk_id, chunk_id + 1)
        if self.received_bytes > self.announced_bytes:
            self.set_defect(f"the chunks of {self.metadata.uuid} hold more than the announced {self.announced_bytes} bytes")

    def set_defect(self, reason: str) -> None:
        """Mark the message as unreadable, unless it is. It keeps its chunks, because the entry that it becomes has them."""
        self.defect = self.defect or reason

    @property
    def is_overfull(self) -> bool:
        """True if the chunks hold more bytes than announced: the message can never become complete."""
        return self.received_bytes > self.announced_bytes

    def finish(self, *, lacks_last_chunk: bool = False) -> JoinedMessage:
        """Return the message as one entry, with a defect unless all chunks were received."""
        if self.defect is None and (self.next_chunk_id != self.chunk_count or self.received_bytes != self.announced_bytes):
            received = f"{len(self.chunks)} of {self.chunk_count} chunks of {self.metadata.uuid} received"
            self.defect = f"only {received} ({self.received_bytes} of {self.announced_bytes} bytes)"
        if self.defect is not None:  # dead letters are put back in this order, and only ascending chunks can be joined
            order = sorted(range(len(self.chunks)), key=lambda index: self.chunks[index][0].chunk_id)
            self.chunks, self.parts = [self.chunks[index] for index in order], [self.parts[index] for index in order]
        metadata = MessageMetadata()
        metadata.CopyFrom(self.metadata)
        for field in CHUNK_FIELDS:
            metadata.ClearField(field)
        ledger, entry_id = self.chunk_ids[-1]
        entry = Entry(
            metadata,
            b"".join(self.parts),
            ledger=ledger,
            entry=entry_id,
            partition=self.first_entry.partition,
            redelivery_count=self.first_entry.redelivery_count,
            defect=self.defect,
        )
        entry.chunks = tuple(self.chunks)
        # Above 0 if reading started inside the message. Without the last chunk, nothing is gained by reading it from its start.
        entry.chunks_before = 0 if lacks_last_chunk else self.first_entry.metadata.chunk_id
        return JoinedMessage(entry, tuple(self.chunk_ids), lacks_last_chunk)


class ChunkJoiner:
    """Joins the chunks that one consumer receives. `now` is the caller's clock, in seconds.

    With `begins_inside`, as for a reader, a message may begin with any chunk: the earlier ones may lie before the position where
    reading began, and the caller may read them there (see `Entry.chunks_before`). Such a message has a defect.
    """

    __slots__ = ("_begins_inside", "_completed", "_incomplete", "_limits", "overhead_bytes", "payload_bytes")

    def __init__(self, limits: ChunkLimits, *, begins_inside: bool = False) -> None:
        """Raises ValueError if the limits allow no incomplete message."""
        if limits.messages < 1:
            raise ValueError(f"ChunkLimits.messages must be at least 1, not {limits.messages}")
        self._limits, self._begins_inside = limits, begins_inside
        self._incomplete: OrderedDict[Identity, _IncompleteMessage] = OrderedDict()
        """The incomplete messages; the one that began last is the last."""
        self._completed: OrderedDict[Identity, EntryId] = OrderedDict()
        """Joined message -> id of its last chunk; oldest first."""
        self.payload_bytes = self.overhead_bytes = 0
        """Bytes of the chunks in incomplete messages, and bytes of memory that they take besides."""

    def __len__(self) -> int:
        return len(self._incomplete)

    @property
    def held_bytes(self) -> int:
        """Bytes of memory of the incomplete messages."""
        return self.payload_bytes + self.overhead_bytes

    def first_chunk_ids(self) -> list[EntryId]:
        """Return the id of the first chunk of every incomplete message."""
        return [message.chunk_ids[0] for message in self._incomplete.values()]

    def last_publish_time(self) -> int:
        """Return the latest publish time of the incomplete messages, in ms since the epoch; 0 if there is none."""
        return max((message.metadata.publish_time for message in self._incomplete.values()), default=0)

    def clear(self) -> None:
        """Drop all incomplete messages, whose chunks the broker will deliver again."""
        self._incomplete.clear()
        self.payload_bytes = self.overhead_bytes = 0

    def forget_completed(self) -> None:
        """Forget the messages that were joined, because the topic's entries get other ids and are all delivered again."""
        self._completed.clear()

    def add(self, entry: Entry, now: float) -> list[JoinedMessage]:
        """Add a chunk; return the message that it completes, and all messages that are abandoned.

        A message is abandoned to stay within the limits, or if its chunks are repeated too often. A chunk that can never be
        joined, that comes without those before it, or of a message that was joined before, is a result of its own.
        """
        metadata, entry_id = entry.metadata, (entry.ledger, entry.entry)
        if (defect := self._unjoinable_reason(metadata)) is not None:
            entry.defect = defect
            return [JoinedMessage(entry, (entry_id,))]
        identity = identity_of(metadata)
        message = self._incomplete.get(identity)
        if message is None:
            completed = self._completed.get(identity)
            if completed is not None and entry_id > completed:
                # Sent again after the whole message was received. A chunk that the broker redelivers has an id up to `completed`.
                return [JoinedMessage(None, (entry_id,))]
            if metadata.chunk_id > 0 and not self._begins_inside:
                entry.defect = _missing_reason(metadata, 0)
                return [JoinedMessage(entry, (entry_id,), lacks_last_chunk=True)]
            message = self._incomplete[identity] = _IncompleteMessage(entry)
        self._add_to(message, entry)
        message.waiting_since = now
        if metadata.chunk_id == message.chunk_count - 1:
            return [self._complete(identity)]
        if len(message.chunk_ids) > message.chunk_count + MAX_REPEATED_CHUNKS:
            message.set_defect(f"received {len(message.chunk_ids)} chunks, but never the last one")
            return [self._abandon(identity)]
        return [self._abandon(identity)] if message.is_overfull else self._enforce_limits()

    def _unjoinable_reason(self, metadata: MessageMetadata) -> str | None:
        """Return why a chunk with this metadata can never be joined with others; None if it can.

        All chunks of a message announce the same sizes, so either all of them can be joined or none.
        """
        if (length := len(metadata.uuid) + len(metadata.producer_name)) > MAX_NAME_CHARS:
            return f"the chunk's uuid and producer name have {length} characters, more than the limit of {MAX_NAME_CHARS}"
        if (defect := chunk_defect(metadata)) is not None:
            return defect
        if metadata.encryption_keys:
            return ENCRYPTED
        if metadata.num_chunks_from_msg > MAX_CHUNKS:
            return f"the message announces {metadata.num_chunks_from_msg} chunks, more than the limit of {MAX_CHUNKS}"
        limit = min(self._limits.max_bytes, self._limits.max_message_bytes)
        if metadata.total_chunk_msg_size > limit:
            return f"{metadata.total_chunk_msg_size} bytes of {metadata.uuid} exceed the limit of {limit}"
        return None

    def _add_to(self, message: _IncompleteMessage, entry: Entry) -> None:
        """Add a chunk to an incomplete message, and count its memory."""
        payload_bytes, overhead_bytes = message.received_bytes, message.overhead_bytes
        message.add(entry)
        self.payload_bytes += message.received_bytes - payload_bytes
        self.overhead_bytes += message.overhead_bytes - overhead_bytes

    def _remove(self, identity: Identity) -> _IncompleteMessage:
        message = self._incomplete.pop(identity)
        self.payload_bytes -= message.received_bytes
        self.overhead_bytes -= message.overhead_bytes
        return message

    def _abandon(self, identity: Identity) -> JoinedMessage:
        return self._remove(identity).finish(lacks_last_chunk=True)

    def _complete(self, identity: Identity) -> JoinedMessage:
        """Finish a message after its last chunk, and remember it if it is readable."""
        message = self._remove(identity)
        joined = message.finish()
        if message.defect is None:
            self._completed[identity] = max(message.chunk_ids[-1], self._completed.get(identity, message.chunk_ids[-1]))
            if len(self._completed) > MAX_COMPLETED:
                self._completed.popitem(last=False)
        return joined

    def _enforce_limits(self) -> list[JoinedMessage]:
        """Abandon the newest messages beyond the limits, and return them.

        A single message never exceeds `max_bytes`, because its announced size does not.
        """
        abandoned, limits = [], self._limits
        while (
            len(self._incomplete) > limits.messages
            or self.payload_bytes > limits.max_bytes
            or self.overhead_bytes > MAX_OVERHEAD_BYTES
        ):
            identity = next(reversed(self._incomplete))
            self._incomplete[identity].set_defect(
                f"too many incomplete chunked messages (limits: {limits.messages} messages, {limits.max_bytes} bytes, and "
                f"{MAX_OVERHEAD_BYTES} bytes of metadata): abandoned {identity[0]}, the newest"
            )
            abandoned.append(self._abandon(identity))
        return abandoned

    def restart_timers(self, now: float) -> None:
        """Start the waiting time of all messages again; for a caller that could not receive chunks until now."""
        for message in self._incomplete.values():
            message.waiting_since = now

    def expire(self, now: float) -> list[JoinedMessage]:
        """Abandon and return the messages that have waited longer than `expiry_s` for a chunk."""
        waits = self._limits.expiry_s
        expired = [identity for identity, message in self._incomplete.items() if message.waiting_since + waits <= now]
        return [self._abandon(identity) for identity in expired]


def identity_of(metadata: MessageMetadata) -> Identity:
    """Return what all chunks of the message have in common."""
    return (
        metadata.uuid,
        metadata.producer_name,
        metadata.publish_time,
        metadata.num_chunks_from_msg,
        metadata.total_chunk_msg_size,
    )


def _memory(metadata: MessageMetadata) -> int:
    """Return the bytes of memory that a chunk takes besides its payload."""
    return ENTRY_BYTES + len(metadata.SerializePartialToString()) + PROPERTY_BYTES * len(metadata.properties)


def _missing_reason(metadata: MessageMetadata, missing: int) -> str:
    """Return the defect of a message of which this chunk was received instead of the chunk with the number `missing`."""
    chunk = f"chunk {missing} of {metadata.num_chunks_from_msg} of {metadata.uuid}"
    return f"{chunk} is missing: received chunk {metadata.chunk_id}"
