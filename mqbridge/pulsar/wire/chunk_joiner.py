"""Joins the chunks of messages that are larger than an entry (see `chunks`).

A joined message becomes an ordinary entry with the id of its last chunk; a message with missing chunks becomes an entry with a
`defect`, which has all chunks that were received. Some chunks can never be joined: those of a message above the limits, and
encrypted ones, because each chunk is encrypted by itself. Each of them becomes an entry of its own, with a `defect`.

Chunks of several messages may be interleaved. A producer sends chunks without a receipt again, and a deduplicating broker checks
only the last chunk of a message; so a chunk may arrive twice, and its repetition is dropped.
"""

from collections import OrderedDict
from typing import NamedTuple

from mqbridge.pulsar.wire.chunks import CHUNK_FIELDS, chunk_defect
from mqbridge.pulsar.wire.compression import MAX_UNCOMPRESSED_BYTES
from mqbridge.pulsar.wire.entry import ENCRYPTED, Entry
from mqbridge.pulsar.wire.ids import EntryId
from mqbridge.pulsar.wire.pb.PulsarApi_pb2 import MessageMetadata

MAX_CHUNKS = 10_000
"""Maximum number of chunks of one message; a message that announces more is damaged."""
MAX_REPEATED_CHUNKS = 1000
"""Maximum number of repeated chunks of one message, beyond which it is abandoned; a reconnecting producer repeats fewer."""
MAX_UUID_CHARS = 1024
"""Maximum length of a message's uuid, which is the producer's name and a number; a longer one is damaged."""
MAX_METADATA_BYTES = 64 << 20
"""Maximum memory of the metadata of all chunks of the incomplete messages; each chunk has all properties of its message."""
PROPERTY_BYTES = 270
"""Memory of a property in metadata, which may have no bytes of its own in it (see `Entry.held_bytes`)."""
MAX_COMPLETED = 256
"""Maximum number of joined messages that are remembered to recognise repetitions of their chunks."""


class ChunkLimits(NamedTuple):
    """Limits of messages that wait for their remaining chunks."""

    messages: int = 10
    """Maximum number of incomplete messages of one consumer, at least 1; beyond it the oldest is abandoned."""
    max_bytes: int = MAX_UNCOMPRESSED_BYTES
    """Maximum total size of the incomplete messages in bytes, as announced by their first chunks."""
    expiry_s: float = 60.0
    """Maximum time that a message waits for its next chunk, in seconds; then it is abandoned."""


class JoinedMessage(NamedTuple):
    """A complete or abandoned message as an entry; `entry` is None for a repeated chunk of a message that was joined before."""

    entry: Entry | None
    chunk_ids: tuple[EntryId, ...]
    """Ids of all chunks in the order received; to acknowledge the message is to acknowledge all of them."""
    lacks_last_chunk: bool = False
    """True if the last chunk is missing. Then the entry has the id of the last chunk received, and later entries may have been
    delivered before it."""


class _IncompleteMessage:
    """A message that waits for chunks; `waiting_since` is the time of its latest chunk by the clock of `ChunkJoiner`'s caller."""

    __slots__ = (
        "announced_bytes",
        "chunk_count",
        "chunk_ids",
        "chunks",
        "defect",
        "first_entry",
        "metadata",
        "metadata_bytes",
        "next_chunk_id",
        "parts",
        "received_bytes",
        "waiting_since",
    )

    def __init__(self, entry: Entry) -> None:
        self.metadata = entry.metadata
        self.first_entry = entry
        """The first chunk received; not chunk 0 if reading started inside the message."""
        self.chunk_count = entry.metadata.num_chunks_from_msg
        self.announced_bytes = entry.metadata.total_chunk_msg_size
        self.parts: list[bytes] = []
        self.chunks: list[tuple[MessageMetadata, int]] = []
        """Metadata and payload size of each part."""
        self.received_bytes = self.metadata_bytes = self.next_chunk_id = 0
        self.chunk_ids: list[EntryId] = []
        self.waiting_since = 0.0
        self.defect: str | None = None

    def add(self, entry: Entry) -> None:
        """Add a chunk of this message. A repeated chunk only adds its id. After a missing chunk, the message gets a defect.

        The missing chunk may come later, on a shared subscription: it is kept like the others, for the dead letters.
        """
        chunk_id = entry.metadata.chunk_id
        self.chunk_ids.append((entry.ledger, entry.entry))
        if chunk_id < self.next_chunk_id and (self.defect is None or self._has(chunk_id)):
            return
        if chunk_id != self.next_chunk_id:
            self.set_defect(
                f"chunk {self.next_chunk_id} of {self.chunk_count} of {self.metadata.uuid} is missing: received chunk {chunk_id}"
            )
        self.parts.append(entry.payload)
        self.chunks.append((entry.metadata, len(entry.payload)))
        self.received_bytes += len(entry.payload)
        self.metadata_bytes += entry.metadata.ByteSize() + PROPERTY_BYTES * len(entry.metadata.properties)
        self.next_chunk_id = max(self.next_chunk_id, chunk_id + 1)
        if self.received_bytes > self.announced_bytes:
            self.set_defect(f"the chunks of {self.metadata.uuid} hold more than the announced {self.announced_bytes} bytes")
        if self.metadata_bytes > MAX_METADATA_BYTES:
            self.set_defect(f"the metadata of the chunks of {self.metadata.uuid} takes more than {MAX_METADATA_BYTES >> 20} MiB")

    def _has(self, chunk_id: int) -> bool:
        return any(metadata.chunk_id == chunk_id for metadata, _ in self.chunks)

    def set_defect(self, reason: str) -> None:
        """Mark the message as unreadable, unless it is. It keeps its chunks, because the entry that it becomes has them."""
        self.defect = self.defect or reason

    @property
    def is_overfull(self) -> bool:
        """True if the chunks hold more bytes than announced, by which the joiner limits its memory, or too much metadata."""
        return self.received_bytes > self.announced_bytes or self.metadata_bytes > MAX_METADATA_BYTES

    def owns_chunk(self, metadata: MessageMetadata) -> bool:
        """Return True if the chunk with this metadata, which has our uuid, belongs to this message.

        A named producer may reuse a uuid after a restart, but not with the publish time of the earlier message.
        """
        return metadata.publish_time == self.metadata.publish_time and metadata.num_chunks_from_msg == self.chunk_count

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
        entry.chunks_before = self.first_entry.metadata.chunk_id  # above 0 if reading started inside the message
        return JoinedMessage(entry, tuple(self.chunk_ids), lacks_last_chunk)


class ChunkJoiner:
    """Joins the chunks that one consumer receives. `now` is the caller's clock, in seconds."""

    __slots__ = ("_completed", "_incomplete", "_limits")

    def __init__(self, limits: ChunkLimits) -> None:
        """Raises ValueError if the limits allow no incomplete message."""
        if limits.messages < 1:
            raise ValueError(f"ChunkLimits.messages must be at least 1, not {limits.messages}")
        self._limits = limits
        self._incomplete: OrderedDict[str, _IncompleteMessage] = OrderedDict()
        self._completed: OrderedDict[tuple[str, int], EntryId] = OrderedDict()
        """(uuid, publish time) of a joined message -> id of its last chunk; oldest first."""

    def __len__(self) -> int:
        return len(self._incomplete)

    @property
    def held_bytes(self) -> int:
        """Bytes of the chunks in incomplete messages, with their metadata."""
        return sum(message.received_bytes + message.metadata_bytes for message in self._incomplete.values())

    def first_chunk_ids(self) -> list[EntryId]:
        """Return the id of the first chunk of every incomplete message."""
        return [message.chunk_ids[0] for message in self._incomplete.values()]

    def clear(self) -> None:
        """Drop all incomplete messages, whose chunks the broker will deliver again."""
        self._incomplete.clear()

    def add(self, entry: Entry, now: float) -> list[JoinedMessage]:
        """Add a chunk; return the message that it completes, and all messages that are abandoned.

        A message is abandoned to stay within the limits, if another message with its uuid begins, or if its chunks are repeated
        too often. A chunk that can never be joined, or of a message that was joined before, is a result of its own.
        """
        metadata = entry.metadata
        uuid, entry_id = metadata.uuid, (entry.ledger, entry.entry)
        if (defect := self._unjoinable_reason(metadata)) is not None:
            entry.defect = defect
            return [JoinedMessage(entry, (entry_id,))]
        completed = self._completed.get((uuid, metadata.publish_time))
        if completed is not None and entry_id > completed and uuid not in self._incomplete:
            # Sent again after the whole message was received. A chunk that the broker redelivers has an id up to `completed`.
            return [JoinedMessage(None, (entry_id,))]
        finished: list[JoinedMessage] = []
        message = self._incomplete.get(uuid)
        if message is not None and not message.owns_chunk(metadata):
            message.set_defect(f"another message with the uuid {uuid} arrived before the message was complete")
            finished.append(self._incomplete.pop(uuid).finish(lacks_last_chunk=True))
            message = None
        if message is None:
            message = self._incomplete[uuid] = _IncompleteMessage(entry)
            finished += self._enforce_limits()
        message.add(entry)
        message.waiting_since = now
        if metadata.chunk_id >= message.chunk_count - 1:
            finished.append(self._complete(uuid))
        elif message.is_overfull:
            finished.append(self._incomplete.pop(uuid).finish(lacks_last_chunk=True))
        elif len(message.chunk_ids) > min(message.chunk_count, MAX_CHUNKS) + MAX_REPEATED_CHUNKS:
            message.set_defect(f"received {len(message.chunk_ids)} chunks, but never the last one")
            finished.append(self._incomplete.pop(uuid).finish(lacks_last_chunk=True))
        return finished + self._enforce_limits()

    def _unjoinable_reason(self, metadata: MessageMetadata) -> str | None:
        """Return why a chunk with this metadata can never be joined with others; None if it can.

        All chunks of a message announce the same sizes, so either all of them can be joined or none.
        """
        if len(metadata.uuid) > MAX_UUID_CHARS:
            return f"its uuid has {len(metadata.uuid)} characters, more than the limit of {MAX_UUID_CHARS}"
        if (defect := chunk_defect(metadata)) is not None:
            return defect
        if metadata.encryption_keys:
            return ENCRYPTED
        if metadata.num_chunks_from_msg > MAX_CHUNKS:
            return f"the message announces {metadata.num_chunks_from_msg} chunks, more than the limit of {MAX_CHUNKS}"
        if metadata.total_chunk_msg_size > self._limits.max_bytes:
            return f"{metadata.total_chunk_msg_size} bytes of {metadata.uuid} exceed the limit of {self._limits.max_bytes}"
        return None

    def _complete(self, uuid: str) -> JoinedMessage:
        """Finish a message after its last chunk, and remember it if it is readable."""
        message = self._incomplete.pop(uuid)
        joined = message.finish()
        if message.defect is None:
            key = (uuid, message.metadata.publish_time)
            self._completed[key] = max(message.chunk_ids[-1], self._completed.get(key, message.chunk_ids[-1]))
            if len(self._completed) > MAX_COMPLETED:
                self._completed.popitem(last=False)
        return joined

    def _enforce_limits(self) -> list[JoinedMessage]:
        """Abandon the oldest messages beyond the limits, and return them; the newest message is never abandoned."""
        finished = []
        while len(self._incomplete) > self._limits.messages or (
            len(self._incomplete) > 1
            and (self._total_announced_bytes > self._limits.max_bytes or self._total_metadata_bytes > MAX_METADATA_BYTES)
        ):
            uuid = next(iter(self._incomplete))
            limits = f"{self._limits.messages} messages, {self._limits.max_bytes} bytes"
            self._incomplete[uuid].set_defect(
                f"too many incomplete chunked messages (limits: {limits}): abandoned {uuid}, the oldest"
            )
            finished.append(self._incomplete.pop(uuid).finish(lacks_last_chunk=True))
        return finished

    @property
    def _total_announced_bytes(self) -> int:
        return sum(message.announced_bytes for message in self._incomplete.values())

    @property
    def _total_metadata_bytes(self) -> int:
        return sum(message.metadata_bytes for message in self._incomplete.values())

    def restart_timers(self, now: float) -> None:
        """Start the waiting time of all messages again; for a caller that could not receive chunks until now."""
        for message in self._incomplete.values():
            message.waiting_since = now

    def expire(self, now: float) -> list[JoinedMessage]:
        """Abandon and return the messages that have waited longer than `expiry_s` for a chunk."""
        expired = [uuid for uuid, message in self._incomplete.items() if message.waiting_since + self._limits.expiry_s <= now]
        return [self._incomplete.pop(uuid).finish(lacks_last_chunk=True) for uuid in expired]
