"""What a consumer has received and not yet handed out: the queue, its credit, chunks that wait for the rest of their message.

A message in chunks has the id of its last one, so other messages may lie between its chunks; until it is acknowledged, nothing
from its first chunk on may be acknowledged cumulatively, and a reader that subscribes anew must begin there. Other messages in
chunks that are acknowledged meanwhile have the rest of their chunks acknowledged one by one: a part of them alone could not be
joined again.
"""

from collections import deque
from collections.abc import Iterable

from mqbridge.pulsar.client.consumer_state import ConsumerState
from mqbridge.pulsar.client.credit import Credit
from mqbridge.pulsar.wire import ids
from mqbridge.pulsar.wire.chunk_joiner import ChunkJoiner, ChunkLimits, Joined
from mqbridge.pulsar.wire.chunks import is_chunk
from mqbridge.pulsar.wire.entry import Entry
from mqbridge.pulsar.wire.frame import DEFAULT_MAX_MESSAGE_SIZE
from mqbridge.pulsar.wire.ids import EntryId


class Inbox:
    """Of one consumer, whose `state` says what is new. `keeps_spans` is False for readers, which acknowledge nothing."""

    def __init__(self, state: ConsumerState, keeps_spans: bool, max_bytes: int, chunk_limits: ChunkLimits) -> None:
        self.credit = Credit(max_bytes, DEFAULT_MAX_MESSAGE_SIZE)
        self.chunks = ChunkJoiner(chunk_limits)
        self._state, self._keeps_spans = state, keeps_spans
        self._queue: deque[tuple[Entry, int]] = deque()
        self._spans: dict[EntryId, tuple[EntryId, ...]] = {}
        """By its last chunk, the chunks of each message in chunks that is queued or not acknowledged."""

    def __len__(self) -> int:
        return len(self._queue)

    # --- in and out -------------------------------------------------------------------------------------------------

    def add(self, entry: Entry, size: int, now: float) -> tuple[EntryId, ...]:
        """An entry that the credit has been charged with. Gives entries to acknowledge, of chunks that nobody will see."""
        if entry.defect is None and is_chunk(entry.metadata):
            self.credit.handed_over(size)
            return self.add_joined(self.chunks.add(entry, now))
        if self._state.is_new(entry.place):
            self._queue.append((entry, size))
        else:
            self.credit.handed_over(size)
        return ()

    def add_joined(self, joined: Iterable[Joined]) -> tuple[EntryId, ...]:
        """Messages that were joined from chunks, or could not be."""
        unseen: tuple[EntryId, ...] = ()
        for entry, chunks in joined:
            if entry is None:
                unseen += chunks
                self._state.skip(chunks[-1])
            elif self._state.is_new(entry.place):
                entry.first_chunk = chunks[0]
                self._spans[entry.place] = chunks
                self.credit.hold(len(entry.payload))
                self._queue.append((entry, len(entry.payload)))
            elif self._keeps_spans and entry.place not in self._spans:
                unseen += chunks  # acknowledged before; the connection that was to tell it was lost
        return unseen

    def take(self) -> Entry | None:
        """The next entry, not unpacked, if there is one."""
        if not self._queue:
            return None
        entry, size = self._queue.popleft()
        self.credit.handed_over(size)
        self._state.handed_out(entry.place, entry.first_chunk)
        if not self._keeps_spans and self._spans:
            self._spans.pop(entry.place, None)
        return entry

    def drop(self) -> None:
        """Everything here will be delivered again."""
        for entry, size in self._queue:
            self.credit.handed_over(size)
            self._spans.pop(entry.place, None)
        self._queue.clear()
        self.chunks.clear()

    def forget(self) -> None:
        """The positions have lost their meaning: nothing was handed out."""
        self.drop()
        self._spans.clear()

    # --- messages in chunks -----------------------------------------------------------------------------------------

    def chunks_of(self, place: EntryId) -> tuple[EntryId, ...]:
        """All entries that the message at this place consists of."""
        return self._spans.get(place, (place,)) if self._spans else (place,)

    def settle(self, place: EntryId) -> tuple[EntryId, ...]:
        """The same, of a message that is acknowledged."""
        return self._spans.pop(place, (place,)) if self._spans else (place,)

    def settle_up_to(self, place: EntryId) -> tuple[EntryId, list[EntryId]]:
        """All up to this place are acknowledged: up to where that may be said cumulatively, and the chunks behind it."""
        settled = [self._spans.pop(last) for last in [last for last in self._spans if last <= place]]
        ledger, entry = first = self.first_open(place)
        if first > place:
            return place, []
        safe = ledger, entry - 1
        return safe, [chunk for chunks in settled for chunk in chunks if chunk > safe]

    def first_open(self, place: EntryId) -> EntryId:
        """The first chunk of all messages that begin up to this place and end behind it; `LATEST` when there is none."""
        firsts = [places[0] for last, places in self._spans.items() if places[0] <= place < last]
        return min([each for each in self.chunks.firsts() if each <= place] + firsts, default=ids.LATEST)
