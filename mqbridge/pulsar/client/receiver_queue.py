"""Receiver queue of a consumer: received entries before delivery, their permits, and chunks of incomplete messages.

A chunked message has the id of its last chunk, so other messages may lie between its chunks; until it is acknowledged, nothing
from its first chunk on may be acknowledged cumulatively, and a reader that subscribes again must begin there. Other chunked
messages that are acknowledged meanwhile have their remaining chunks acknowledged one by one: a part of them could not be joined
again. The same holds for chunks that were dropped with a connection, until they are redelivered.

A message whose last chunks are missing is given up after a while, and delivered as a defect, mostly after entries that are later
in the topic. It stays open until it is acknowledged itself, or an entry that was delivered after it.
"""

from collections import deque
from collections.abc import Iterable

from mqbridge.pulsar.client.consumer_state import ConsumerState
from mqbridge.pulsar.client.entry_runs import EntryRun
from mqbridge.pulsar.client.flow_permits import FlowPermits, ReceiveBudget, entry_memory
from mqbridge.pulsar.wire import ids
from mqbridge.pulsar.wire.chunk_joiner import ChunkJoiner, ChunkLimits, JoinedMessage
from mqbridge.pulsar.wire.entry import Entry
from mqbridge.pulsar.wire.frame import DEFAULT_MAX_MESSAGE_SIZE
from mqbridge.pulsar.wire.ids import EntryId


class ReceiverQueue:
    """Receiver queue of one consumer; `state` decides which entries are new. `acknowledges` is False for readers."""

    def __init__(self, state: ConsumerState, acknowledges: bool, budget: ReceiveBudget, chunk_limits: ChunkLimits) -> None:
        self.permits = FlowPermits(budget, DEFAULT_MAX_MESSAGE_SIZE)
        self.chunks = ChunkJoiner(chunk_limits)
        self._state, self._acknowledges = state, acknowledges
        self._queue: deque[tuple[Entry, int]] = deque()
        self._chunks_of: dict[EntryId, tuple[EntryId, ...]] = {}
        """Last chunk -> all chunks, of each chunked message that is queued or not acknowledged."""
        self._given_up: dict[EntryId, EntryId] = {}
        """Last chunk -> last entry delivered before, of messages that were given up, in order; LATEST while queued."""
        self._dropped: list[EntryId] = []
        """First chunks of messages that were received over an earlier connection and are not redelivered yet."""
        self._overflowed_at: EntryId | None = None
        """The last entry that was queued at an overflow, until a later one is delivered."""

    def __len__(self) -> int:
        return len(self._queue)

    @property
    def awaits_chunks(self) -> bool:
        """True while chunks that were dropped with an earlier connection are not redelivered yet."""
        return bool(self._dropped)

    # --- in and out -------------------------------------------------------------------------------------------------

    def add(self, entry: Entry, size: int, now: float) -> tuple[EntryId, ...]:
        """Add an entry that is charged already. Return the entries to acknowledge because they will not be delivered (again)."""
        entry_id = entry.ledger, entry.entry
        if self._dropped:
            self._dropped = [first for first in self._dropped if first > entry_id]
        if entry.is_chunk:
            self.permits.release(size)
            return self.add_joined(self.chunks.add(entry, now))
        if self._state.is_new(entry_id):
            self._queue.append((entry, size))
            return ()
        self.permits.release(size)
        return (entry_id,) if self._state.needs_ack(entry_id) else ()

    def add_run(self, run: EntryRun) -> None:
        """Add new entries without chunks that are charged already."""
        self._queue.extend(zip(run.entries, run.charges, strict=True))

    def add_joined(self, joined: Iterable[JoinedMessage]) -> tuple[EntryId, ...]:
        """Add messages joined from chunks, or given up. Return the entries to acknowledge because they will not be delivered."""
        undelivered: tuple[EntryId, ...] = ()
        for entry, chunks, given_up in joined:
            if entry is None:
                undelivered += chunks
                self._state.skip(chunks[-1])
            elif self._state.is_new(entry.place) or (given_up and entry.place not in self._chunks_of):
                entry.first_chunk = chunks[0]
                self._chunks_of[entry.place] = chunks
                if given_up:
                    self._given_up[entry.place] = ids.LATEST
                size = entry_memory(entry, len(entry.payload))
                self.permits.charge(size)
                self._queue.append((entry, size))
            elif self._acknowledges and entry.place not in self._chunks_of:
                undelivered += chunks  # acknowledged before, but the acknowledgement was lost with its connection
        return undelivered

    def take(self) -> Entry | None:
        """Take the next entry, not unpacked; None if the queue is empty."""
        if not self._queue:
            return None
        entry, size = self._queue.popleft()
        self.permits.release(size)
        self._deliver(entry)
        return entry

    def lend(self, max_bytes: int, max_memory: int, max_entries: int) -> list[Entry]:
        """Take the next entries, not unpacked, up to these limits of bytes, memory and number, but at least one if there is one.

        They stay charged to the permits until these release the charge.
        """
        entries: list[Entry] = []
        queue, size, memory = self._queue, 0, 0
        while queue and not (entries and (size >= max_bytes or memory >= max_memory or len(entries) >= max_entries)):
            entry, held = queue.popleft()
            entries.append(entry)
            size += entry.size
            memory += held
        self.permits.defer_release(memory)
        if self._chunks_of:
            for entry in entries:
                self._deliver(entry)
        elif entries:
            self._deliver(entries[0])
            self._state.deliver(max(entry.place for entry in entries))
            self._check_overflow()
        return entries

    def _deliver(self, entry: Entry) -> None:
        self._state.deliver(entry.place, entry.first_chunk)
        self._check_overflow()
        if self._chunks_of:
            if not self._acknowledges:
                self.settle(entry.place)
            elif entry.place in self._given_up:
                self._given_up[entry.place] = self._state.delivered

    def _check_overflow(self) -> None:
        if self._overflowed_at is not None and self._state.delivered > self._overflowed_at:
            self._overflowed_at = None
            self.permits.reset_decay()

    def drop(self) -> None:
        """Drop everything: the broker will redeliver it."""
        self._dropped += self.chunks.first_chunk_ids()
        for entry, size in self._queue:
            self.permits.release(size)
            self._dropped += self.settle(entry.place)[:1] if entry.place in self._chunks_of else ()
        self._queue.clear()
        self.chunks.clear()

    def overflow(self) -> None:
        """Note that the queue holds too much, so that all of it is to be redelivered."""
        self._overflowed_at = max(entry.place for entry, _ in self._queue)
        self.permits.slow_decay()

    def rewind(self) -> None:
        """Drop everything, because all unacknowledged entries will be redelivered."""
        self.drop()
        self._dropped += [chunks[0] for chunks in self._chunks_of.values()]
        self._chunks_of.clear()
        self._given_up.clear()

    def forget(self) -> None:
        """Drop everything, because all positions are discarded."""
        self.rewind()
        self._dropped.clear()

    # --- chunked messages -------------------------------------------------------------------------------------------

    def chunks_of(self, entry_id: EntryId) -> tuple[EntryId, ...]:
        """Return the ids of all chunks of the message with this id; only itself if it is not chunked."""
        return self._chunks_of.get(entry_id, (entry_id,)) if self._chunks_of else (entry_id,)

    def settle(self, entry_id: EntryId) -> tuple[EntryId, ...]:
        """Forget the chunks of an acknowledged message; return them as `chunks_of` does."""
        if not self._chunks_of:
            return (entry_id,)
        self._given_up.pop(entry_id, None)
        return self._chunks_of.pop(entry_id, (entry_id,))

    def _is_covered(self, last: EntryId, up_to: EntryId) -> bool:
        """Return True if the message with this last chunk was delivered before everything up to `up_to` was acknowledged."""
        delivered_before = self._given_up.get(last)
        return last <= up_to if delivered_before is None else delivered_before < up_to

    def settle_up_to(self, up_to: EntryId, given_up: EntryId) -> tuple[EntryId, list[EntryId]]:
        """Settle all messages up to `up_to`, and `given_up` if that was given up.

        Return the last entry that may be acknowledged cumulatively, and the chunks after it to acknowledge one by one.
        """
        settled = []
        while given_up in self._given_up:
            settled.append(self.settle(next(iter(self._given_up))))  # also those that were delivered before it
        settled += [self.settle(last) for last in list(self._chunks_of) if self._is_covered(last, up_to)]
        ledger, entry = first = self.first_open(up_to)
        if first > up_to:
            return up_to, []
        safe = ledger, entry - 1
        return safe, [chunk for chunks in settled for chunk in chunks if chunk > safe]

    def first_open(self, up_to: EntryId) -> EntryId:
        """Return the first chunk of all messages that begin up to here and end later or were given up; `LATEST` if none."""
        firsts = [
            chunks[0]
            for last, chunks in self._chunks_of.items()
            if chunks[0] <= up_to and (up_to < last or last in self._given_up)
        ]
        return min(
            [each for each in (*self.chunks.first_chunk_ids(), *self._dropped) if each <= up_to] + firsts, default=ids.LATEST
        )
