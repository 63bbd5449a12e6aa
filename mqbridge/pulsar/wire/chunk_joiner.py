"""Joins the chunks of messages that are larger than an entry.

What is joined looks like any other entry and has the place of its last chunk; a message whose chunks do not all come is one
entry with a `defect`. Chunks of several messages may be mixed. A chunk that comes twice is kept once: producers repeat what they
have no receipt for, and deduplication at the broker looks at the last chunk only.
"""

from collections import OrderedDict
from typing import NamedTuple

from mqbridge.pulsar.wire.chunks import CHUNK_FIELDS, why_no_chunk
from mqbridge.pulsar.wire.compression import MAX_UNCOMPRESSED_BYTES
from mqbridge.pulsar.wire.entry import Entry
from mqbridge.pulsar.wire.ids import EntryId
from mqbridge.pulsar.wire.pb.PulsarApi_pb2 import MessageMetadata

MAX_CHUNKS = 10_000
"""Of one message; what says more is damaged."""
MAX_REPEATED = 1000
"""Chunks of one message that came before; what repeats more is not a producer that starts over."""
COMPLETED_MEMO = 256
"""Messages that were joined and are remembered, so that a repetition of theirs is known as such."""


class ChunkLimits(NamedTuple):
    """What may wait for its remaining chunks."""

    messages: int = 10
    max_bytes: int = MAX_UNCOMPRESSED_BYTES
    """Of all of them together, as promised by their first chunks."""
    expiry_s: float = 60.0
    """Without a further chunk."""


class Joined(NamedTuple):
    """What became of chunks: an entry, or None where they only repeated a message that was joined before."""

    entry: Entry | None
    places: tuple[EntryId, ...]
    """Of all chunks, in the order in which they came; to acknowledge the entry is to acknowledge them all."""
    given_up: bool = False
    """Its last chunk did not come: the entry has the place of the last one that did, which may lie far behind by now."""


class _Open:
    """A message that waits for chunks."""

    __slots__ = ("chunks", "defect", "first", "have", "metadata", "next", "pieces", "places", "promised", "since")

    def __init__(self, entry: Entry) -> None:
        self.metadata = entry.metadata
        self.first = entry
        self.chunks = entry.metadata.num_chunks_from_msg
        self.promised = entry.metadata.total_chunk_msg_size
        self.pieces: list[bytes] = []
        self.have = self.next = 0
        self.places: list[EntryId] = []
        self.since = 0.0
        self.defect: str | None = None
        if self.chunks > MAX_CHUNKS:
            self.spoil(f"it says that it has {self.chunks} chunks, where {MAX_CHUNKS} are allowed")

    def add(self, entry: Entry) -> None:
        """One more chunk, or one that came before."""
        number = entry.metadata.chunk_id
        self.places.append((entry.ledger, entry.entry))
        if self.defect is not None or number < self.next:
            return
        if number != self.next:
            self.spoil(f"chunk {self.next} of the {self.chunks} of {self.metadata.uuid} is missing, chunk {number} came")
            return
        self.pieces.append(entry.payload)
        self.have += len(entry.payload)
        self.next += 1
        if self.have > self.promised:
            self.spoil(f"the chunks of {self.metadata.uuid} hold more than the {self.promised} bytes that they promise")

    def spoil(self, why: str) -> None:
        """It cannot be read any more: what was kept is let go."""
        self.defect = why
        self.pieces.clear()
        self.promised = 0

    def is_same(self, metadata: MessageMetadata) -> bool:
        """A named producer that starts anew may use a uuid again, but not within the same millisecond."""
        return metadata.publish_time == self.metadata.publish_time and metadata.num_chunks_from_msg == self.chunks

    def finish(self, *, given_up: bool = False) -> Joined:
        """As one entry."""
        if self.defect is None and (self.next != self.chunks or self.have != self.promised):
            self.defect = f"only {self.next} of the {self.chunks} chunks of {self.metadata.uuid} came ({self.have} bytes)"
        metadata = MessageMetadata()
        metadata.CopyFrom(self.metadata)
        for field in CHUNK_FIELDS:
            metadata.ClearField(field)
        ledger, number = self.places[-1]
        entry = Entry(
            metadata,
            b"".join(self.pieces),
            ledger=ledger,
            entry=number,
            partition=self.first.partition,
            redelivery_count=self.first.redelivery_count,
            defect=self.defect,
        )
        entry.chunks_before = self.first.metadata.chunk_id
        return Joined(entry, tuple(self.places), given_up)


class ChunkJoiner:
    """Joins the chunks that one consumer receives; the caller brings the clock."""

    __slots__ = ("_completed", "_limits", "_open")

    def __init__(self, limits: ChunkLimits) -> None:
        self._limits = limits
        self._open: OrderedDict[str, _Open] = OrderedDict()
        self._completed: OrderedDict[tuple[str, int], EntryId] = OrderedDict()

    def __len__(self) -> int:
        return len(self._open)

    @property
    def held_bytes(self) -> int:
        """Of the chunks that wait."""
        return sum(each.have for each in self._open.values() if each.defect is None)

    def firsts(self) -> list[EntryId]:
        """The place of the first chunk of every message that is not complete."""
        return [each.places[0] for each in self._open.values()]

    def clear(self) -> None:
        """All chunks will be delivered again."""
        self._open.clear()

    def add(self, entry: Entry, now: float) -> list[Joined]:
        """A chunk; what is finished by it: nothing, the message, or others that had to give way."""
        metadata = entry.metadata
        uuid, place = metadata.uuid, (entry.ledger, entry.entry)
        if (why := why_no_chunk(metadata)) is not None:
            entry.defect = why
            return [Joined(entry, (place,))]
        completed = self._completed.get((uuid, metadata.publish_time))
        if completed is not None and place > completed and uuid not in self._open:
            return [Joined(None, (place,))]  # sent once more, after the whole of it was there
        finished: list[Joined] = []
        found = self._open.get(uuid)
        if found is not None and not found.is_same(metadata):
            found.spoil(f"another message came under the id {uuid} before it was complete")
            finished.append(self._open.pop(uuid).finish(given_up=True))
            found = None
        if found is None:
            found = self._open[uuid] = _Open(entry)
            finished += self._make_room()
        found.add(entry)
        found.since = now
        if uuid not in self._open:
            return finished
        if metadata.chunk_id >= found.chunks - 1:
            finished.append(self._complete(uuid))
        elif len(found.places) > min(found.chunks, MAX_CHUNKS) + MAX_REPEATED:
            found.spoil(f"its chunks came {len(found.places)} times, and the last one never")
            finished.append(self._open.pop(uuid).finish(given_up=True))
        return finished

    def _complete(self, uuid: str) -> Joined:
        found = self._open.pop(uuid)
        joined = found.finish()
        if found.defect is None:
            key = (uuid, found.metadata.publish_time)
            self._completed[key] = max(found.places[-1], self._completed.get(key, found.places[-1]))
            if len(self._completed) > COMPLETED_MEMO:
                self._completed.popitem(last=False)
        return joined

    def _make_room(self) -> list[Joined]:
        """Give up the oldest while there are too many; a message that is too large by itself is spoilt and waits for its end."""
        finished = []
        while len(self._open) > self._limits.messages or (len(self._open) > 1 and self._promised > self._limits.max_bytes):
            uuid = next(iter(self._open))
            self._open[uuid].spoil(f"too many chunked messages at a time: those of {uuid} did not come together soon enough")
            finished.append(self._open.pop(uuid).finish(given_up=True))
        for each in self._open.values():
            if each.promised > self._limits.max_bytes:
                each.spoil(f"{each.promised} bytes of {each.metadata.uuid} are more than the {self._limits.max_bytes} allowed")
        return finished

    @property
    def _promised(self) -> int:
        return sum(each.promised for each in self._open.values())

    def touch(self, now: float) -> None:
        """No chunk could come in the meantime: let all wait anew."""
        for each in self._open.values():
            each.since = now

    def expire(self, now: float) -> list[Joined]:
        """What has waited too long, as it is."""
        late = [uuid for uuid, each in self._open.items() if each.since + self._limits.expiry_s <= now]
        return [self._open.pop(uuid).finish(given_up=True) for uuid in late]
