"""What a consumer has received and not yet handed out: the queue, its credit, chunks that wait for the rest of their message.

A message in chunks has the id of its last one, so other messages may lie between its chunks; until it is acknowledged, nothing
from its first chunk on may be acknowledged cumulatively, and a reader that subscribes anew must begin there. Other messages in
chunks that are acknowledged meanwhile have the rest of their chunks acknowledged one by one: a part of them alone could not be
joined again. That holds also for chunks that were dropped with a session, until they have come again.

A message whose last chunks do not come is given up in the end, and handed out as a defect, mostly behind entries that are later
in the topic. It stays open until it is acknowledged itself, or anything that was handed out after it.
"""

from collections import deque
from collections.abc import Iterable

from mqbridge.pulsar.client.consumer_state import ConsumerState
from mqbridge.pulsar.client.credit import Credit, CreditPool, memory_of
from mqbridge.pulsar.client.runs import Run
from mqbridge.pulsar.wire import ids
from mqbridge.pulsar.wire.chunk_joiner import ChunkJoiner, ChunkLimits, Joined
from mqbridge.pulsar.wire.entry import Entry
from mqbridge.pulsar.wire.frame import DEFAULT_MAX_MESSAGE_SIZE
from mqbridge.pulsar.wire.ids import EntryId


class Inbox:
    """Of one consumer, whose `state` says what is new. `keeps_spans` is False for readers, which acknowledge nothing."""

    def __init__(self, state: ConsumerState, keeps_spans: bool, pool: CreditPool, chunk_limits: ChunkLimits) -> None:
        self.credit = Credit(pool, DEFAULT_MAX_MESSAGE_SIZE)
        self.chunks = ChunkJoiner(chunk_limits)
        self._state, self._keeps_spans = state, keeps_spans
        self._queue: deque[tuple[Entry, int]] = deque()
        self._spans: dict[EntryId, tuple[EntryId, ...]] = {}
        """By its last chunk, the chunks of each message in chunks that is queued or not acknowledged."""
        self._late: dict[EntryId, EntryId] = {}
        """Those that were given up, in order, with the furthest entry that was handed out before; LATEST while queued."""
        self._dropped: list[EntryId] = []
        """The first chunks of messages that were here in an earlier session, and that the broker has not come to again."""
        self._shed_at: EntryId | None = None
        """The furthest entry that was here when too much was, until it is passed."""

    def __len__(self) -> int:
        return len(self._queue)

    @property
    def awaits_chunks(self) -> bool:
        """Whether an entry that comes may be one that a message in chunks waits for since an earlier session."""
        return bool(self._dropped)

    # --- in and out -------------------------------------------------------------------------------------------------

    def add(self, entry: Entry, size: int, now: float) -> tuple[EntryId, ...]:
        """An entry that the credit has been charged with. Gives entries to acknowledge that nobody will see (again)."""
        place = entry.ledger, entry.entry
        if self._dropped:
            self._dropped = [first for first in self._dropped if first > place]
        if entry.is_chunk:
            self.credit.handed_over(size)
            return self.add_joined(self.chunks.add(entry, now))
        if self._state.is_new(place):
            self._queue.append((entry, size))
            return ()
        self.credit.handed_over(size)
        return (place,) if self._state.is_untold(place) else ()

    def add_run(self, run: Run) -> None:
        """Entries that are new and no chunks, which the credit has been charged with."""
        self._queue.extend(zip(run.entries, run.charges, strict=True))

    def add_joined(self, joined: Iterable[Joined]) -> tuple[EntryId, ...]:
        """Messages that were joined from chunks, or could not be."""
        unseen: tuple[EntryId, ...] = ()
        for entry, chunks, given_up in joined:
            if entry is None:
                unseen += chunks
                self._state.skip(chunks[-1])
            elif self._state.is_new(entry.place) or (given_up and entry.place not in self._spans):
                entry.first_chunk = chunks[0]
                self._spans[entry.place] = chunks
                if given_up:
                    self._late[entry.place] = ids.LATEST
                size = memory_of(entry, len(entry.payload))
                self.credit.hold(size)
                self._queue.append((entry, size))
            elif self._keeps_spans and entry.place not in self._spans:
                unseen += chunks  # acknowledged before; the connection that was to tell it was lost
        return unseen

    def take(self) -> Entry | None:
        """The next entry, not unpacked, if there is one."""
        if not self._queue:
            return None
        entry, size = self._queue.popleft()
        self.credit.handed_over(size)
        self._hand_out(entry)
        return entry

    def lend(self, max_bytes: int, max_memory: int, most: int) -> list[Entry]:
        """The next entries, not unpacked, until they have so many bytes, take so many, or are so many; one, if there is one.

        The credit counts them until it has them back.
        """
        entries: list[Entry] = []
        queue, size, lent = self._queue, 0, 0
        while queue and not (entries and (size >= max_bytes or lent >= max_memory or len(entries) >= most)):
            entry, held = queue.popleft()
            entries.append(entry)
            size += entry.size
            lent += held
        self.credit.lend(lent)
        if self._spans:
            for entry in entries:
                self._hand_out(entry)
        elif entries:
            self._hand_out(entries[0])
            self._state.handed_out(max(entry.place for entry in entries))
            self._pass_shed()
        return entries

    def _hand_out(self, entry: Entry) -> None:
        self._state.handed_out(entry.place, entry.first_chunk)
        self._pass_shed()
        if self._spans:
            if not self._keeps_spans:
                self.settle(entry.place)
            elif entry.place in self._late:
                self._late[entry.place] = self._state.handed

    def _pass_shed(self) -> None:
        if self._shed_at is not None and self._state.handed > self._shed_at:
            self._shed_at = None
            self.credit.calm()

    def drop(self) -> None:
        """Everything here will be delivered again."""
        self._dropped += self.chunks.firsts()
        for entry, size in self._queue:
            self.credit.handed_over(size)
            self._dropped += self.settle(entry.place)[:1] if entry.place in self._spans else ()
        self._queue.clear()
        self.chunks.clear()

    def shed(self) -> None:
        """So much is here that all of it is to be delivered again."""
        self._shed_at = max(entry.place for entry, _ in self._queue)
        self.credit.shed()

    def rewind(self) -> None:
        """All that is not acknowledged will be delivered again."""
        self.drop()
        self._dropped += [chunks[0] for chunks in self._spans.values()]
        self._spans.clear()
        self._late.clear()

    def forget(self) -> None:
        """The positions have lost their meaning."""
        self.rewind()
        self._dropped.clear()

    # --- messages in chunks -----------------------------------------------------------------------------------------

    def chunks_of(self, place: EntryId) -> tuple[EntryId, ...]:
        """All entries that the message at this place consists of."""
        return self._spans.get(place, (place,)) if self._spans else (place,)

    def settle(self, place: EntryId) -> tuple[EntryId, ...]:
        """The same, of a message that is acknowledged."""
        if not self._spans:
            return (place,)
        self._late.pop(place, None)
        return self._spans.pop(place, (place,))

    def _is_covered(self, last: EntryId, place: EntryId) -> bool:
        """Whether who acknowledges all up to a place has seen the message with this last chunk."""
        before = self._late.get(last)
        return last <= place if before is None else before < place

    def settle_up_to(self, place: EntryId, late: EntryId) -> tuple[EntryId, list[EntryId]]:
        """All up to `place` are acknowledged, and `late` if it was given up.

        Gives up to where that may be said cumulatively, and the chunks behind it.
        """
        settled = []
        while late in self._late:
            settled.append(self.settle(next(iter(self._late))))  # what was handed out before it, too
        settled += [self.settle(last) for last in list(self._spans) if self._is_covered(last, place)]
        ledger, entry = first = self.first_open(place)
        if first > place:
            return place, []
        safe = ledger, entry - 1
        return safe, [chunk for chunks in settled for chunk in chunks if chunk > safe]

    def first_open(self, place: EntryId) -> EntryId:
        """The first chunk of all messages that begin up to this place and end behind it or late; `LATEST` when there is none."""
        firsts = [
            places[0] for last, places in self._spans.items() if places[0] <= place and (place < last or last in self._late)
        ]
        return min([each for each in (*self.chunks.firsts(), *self._dropped) if each <= place] + firsts, default=ids.LATEST)
