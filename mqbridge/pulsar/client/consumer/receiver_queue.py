"""Receiver queue of a consumer: received entries before delivery, their permits, and chunks of incomplete messages.

A chunked message has the id of its last chunk, and other messages may lie between its chunks. Two rules hold until a chunked
message M is acknowledged:

- No cumulative acknowledgement may include M's first chunk, and a reader that subscribes again must begin at that chunk.
- If a chunked message after M's first chunk is acknowledged, its chunks are acknowledged one by one, all of them: if only some of
  them were redelivered, the message could not be joined again.

The same rules hold for chunks that were dropped with a lost connection, until they are redelivered.

So entries may be delivered and acknowledged by the application that no cumulative acknowledgement includes. Their ids are stored
(`withheld_acks`), for a consumer that leaves the subscription: it acknowledges them one by one, and they are not delivered again.

A message expires if its remaining chunks do not arrive in time, or if `ChunkJoiner` abandons it earlier, for example to stay
within its limits. An expired message is delivered as a defective entry, usually after entries with later ids. It counts as
unacknowledged until the application acknowledges it, or acknowledges an entry that was delivered after it.
"""

from collections import deque
from collections.abc import Iterable

from mqbridge.pulsar.client.connection.entry_runs import EntryRun
from mqbridge.pulsar.client.consumer.consumer_state import ConsumerState, State
from mqbridge.pulsar.client.consumer.flow_permits import FlowPermits, ReceiveBudget, entry_memory
from mqbridge.pulsar.client.consumer.id_ranges import IdRanges
from mqbridge.pulsar.wire import ids
from mqbridge.pulsar.wire.chunk_joiner import ChunkJoiner, ChunkLimits, JoinedMessage
from mqbridge.pulsar.wire.entry import Entry
from mqbridge.pulsar.wire.frame import DEFAULT_MAX_MESSAGE_SIZE
from mqbridge.pulsar.wire.ids import EntryId


class ReceiverQueue:
    """Receiver queue of one consumer.

    `state` decides which entries are new. `acknowledges` is False for readers, which never acknowledge. With `joins_chunks` False
    each chunk is an entry of its own.
    """

    def __init__(
        self,
        state: ConsumerState,
        acknowledges: bool,
        budget: ReceiveBudget,
        chunk_limits: ChunkLimits,
        *,
        joins_chunks: bool = True,
    ) -> None:
        self.permits = FlowPermits(budget, DEFAULT_MAX_MESSAGE_SIZE)
        self.chunks = ChunkJoiner(chunk_limits, begins_inside=not acknowledges)
        self.last_chunk: EntryId = ids.EARLIEST
        """The last chunk that was received; EARLIEST if there is none, and when entries were dropped since then."""
        self._joins_chunks = joins_chunks
        self._state, self._acknowledges = state, acknowledges
        self._queue: deque[tuple[Entry, int]] = deque()
        """Each entry with the bytes of memory that the permits are charged for it."""
        self._chunks_of: dict[EntryId, tuple[EntryId, ...]] = {}
        """Last chunk -> all chunks, for each chunked message that is queued or unacknowledged."""
        self._expired: dict[EntryId, EntryId] = {}
        """Last chunk -> last entry delivered before it, for each expired message, in the order of the queue.

        The value is LATEST while the message is queued.
        """
        self._dropped: list[EntryId] = []
        """First chunks of the messages whose chunks were dropped with an earlier connection and are not redelivered yet."""
        self._withheld = IdRanges()
        """The entries, except chunks, that were delivered behind an open chunked message, as far as they may need to be
        acknowledged one by one. Only on ordered subscriptions."""
        self._overflowed_at: EntryId | None = None
        """The last entry in the queue when it overflowed; None without an overflow, or once a later entry was delivered."""

    def __len__(self) -> int:
        return len(self._queue)

    @property
    def awaits_chunks(self) -> bool:
        """True while chunks that were dropped with an earlier connection are not redelivered yet."""
        return bool(self._dropped)

    # --- adding and taking ------------------------------------------------------------------------------------------

    def add(self, entry: Entry, size: int, now: float) -> tuple[EntryId, ...]:
        """Add an entry; `size` is its memory in bytes, already charged to the permits, and `now` the loop time.

        Return the entries that the caller must acknowledge, because they will not be delivered (again).
        """
        entry_id = entry.ledger, entry.entry
        if self._dropped:
            # Redelivery is in ascending order: the chunks up to this entry have arrived again.
            self._dropped = [first for first in self._dropped if first > entry_id]
        if entry.is_chunk and self._joins_chunks:
            self.last_chunk = max(self.last_chunk, entry_id)
            self.permits.release(size)  # `ChunkLimits` limit incomplete messages; `add_joined` charges the joined ones
            return self.add_joined(self.chunks.add(entry, now))
        if self._state.is_new(entry_id):
            self._queue.append((entry, size))
            return ()
        self.permits.release(size)
        return (entry_id,) if self._state.needs_ack(entry_id) else ()

    def add_run(self, run: EntryRun) -> None:
        """Add new entries, none of them a chunk, whose memory is already charged to the permits."""
        self._queue.extend(zip(run.entries, run.charges, strict=True))

    def add_joined(self, joined: Iterable[JoinedMessage]) -> tuple[EntryId, ...]:
        """Add messages that were joined from chunks, and messages that have expired.

        Return the entries that the caller must acknowledge, because they will not be delivered.
        """
        undelivered: tuple[EntryId, ...] = ()
        for entry, chunks, is_expired in joined:
            if entry is None:  # a repeated chunk of a message that was joined before, acknowledged by the caller
                undelivered += chunks
                self._state.record_skip(chunks[-1])
            # An expired message usually has an earlier id than delivered entries, so `is_new` cannot tell whether it is new.
            elif self._state.is_new(entry.id) or (is_expired and entry.id not in self._chunks_of):
                entry.first_chunk = chunks[0]
                self._chunks_of[entry.id] = chunks
                if is_expired:
                    self._expired[entry.id] = ids.LATEST
                size = entry_memory(entry, len(entry.payload))
                self.permits.charge(size)
                self._queue.append((entry, size))
            elif self._acknowledges and entry.id not in self._chunks_of:
                # The application has acknowledged the message, but the connection was lost before the broker learned of it.
                undelivered += chunks
            # Any other message is dropped: the application has it already, or will get it from the queue.
        return undelivered

    def take(self) -> Entry | None:
        """Take the next entry without unpacking it; None if the queue is empty."""
        if not self._queue:
            return None
        entry, size = self._queue.popleft()
        self.permits.release(size)
        self._deliver(entry)
        return entry

    def take_many(self, max_bytes: int, max_memory: int, max_entries: int) -> list[Entry]:
        """Take the next entries without unpacking them, until one of the three limits is reached.

        `max_bytes` limits their size as received, `max_memory` their memory when unpacked. At least one entry is taken unless
        the queue is empty. A message that was joined from chunks is taken alone: it cannot be stored as one entry. The memory
        stays charged until `FlowPermits.release_deferred`.
        """
        entries: list[Entry] = []
        queue = self._queue
        has_chunks = bool(self._chunks_of)
        size = memory = 0
        while queue and not (entries and (size >= max_bytes or memory >= max_memory or len(entries) >= max_entries)):
            if has_chunks and entries and (queue[0][0].first_chunk or entries[-1].first_chunk):
                break
            entry, charge = queue.popleft()
            entries.append(entry)
            size += entry.size
            memory += charge
        self.permits.defer_release(memory)
        if self._chunks_of:
            for entry in entries:
                self._deliver(entry)
        elif entries:  # without chunks, `state` needs only the first entry (where reading began) and the latest one
            self._deliver(entries[0])
            self._state.record_delivery(max(entry.id for entry in entries))
            self._check_overflow()
            if self._withholds_acks:
                for entry in entries:
                    self._withheld.add(entry.id)
        return entries

    def _deliver(self, entry: Entry) -> None:
        """Record the delivery of an entry. Readers drop its chunk ids now; other consumers when it is acknowledged."""
        first = entry.first_chunk
        if self._state.progress is State.AT_START:  # the broker's cursor stays before an open chunk
            first = min(first or entry.id, self.earliest_open_chunk(entry.id))
        self._state.record_delivery(entry.id, first)
        self._check_overflow()
        if entry.first_chunk is None and self._withholds_acks:
            self._withheld.add(entry.id)
        if self._chunks_of:
            if not self._acknowledges:
                self.pop_chunks(entry.id)
            elif entry.id in self._expired:
                self._expired[entry.id] = self._state.delivered

    @property
    def _withholds_acks(self) -> bool:
        """True if a chunked message may be open, so that a cumulative acknowledgement may have to stop before it."""
        return self._acknowledges and self._state.in_order and bool(self._chunks_of or self._dropped or self.chunks)

    def withheld_acks(self) -> list[EntryId]:
        """Return the entries acknowledged by the application that no cumulative acknowledgement may include; forget them.

        The chunks of acknowledged messages are not among them: they are acknowledged one by one at once.
        """
        self._withheld.discard_after(self._state.acked_up_to)
        withheld = list(self._withheld)
        self._withheld.clear()
        return withheld

    def _check_overflow(self) -> None:
        """Once all entries that an overflow dropped were delivered, let the estimated entry size fall at normal speed again."""
        if self._overflowed_at is not None and self._state.delivered > self._overflowed_at:
            self._overflowed_at = None
            self.permits.reset_decay()

    def drop(self) -> None:
        """Drop the queued entries and the incomplete messages, which the broker will redeliver."""
        self._dropped += self.chunks.first_chunk_ids()
        for entry, size in self._queue:
            self.permits.release(size)
            self._dropped += self.pop_chunks(entry.id)[:1] if entry.id in self._chunks_of else ()
        self._queue.clear()
        self.chunks.clear()
        self.last_chunk = ids.EARLIEST

    def record_overflow(self) -> None:
        """Record that the queue exceeds its budget; afterwards the caller drops all queued entries and subscribes again."""
        self._overflowed_at = max(entry.id for entry, _ in self._queue)
        self.permits.slow_decay()

    def rewind(self) -> None:
        """Drop everything as `drop` does, and also the chunk ids of delivered messages: they will be redelivered."""
        self.drop()
        self._dropped += [chunks[0] for chunks in self._chunks_of.values()]
        self._chunks_of.clear()
        self._expired.clear()
        self._withheld.discard_after(self._state.acked_up_to)

    def forget(self) -> None:
        """Drop everything as `rewind` does, and expect no redelivery: the consumer was reset, migrated or deactivated."""
        self.rewind()
        self._dropped.clear()
        self._withheld.clear()

    # --- chunked messages -------------------------------------------------------------------------------------------

    def chunks_of(self, entry_id: EntryId) -> tuple[EntryId, ...]:
        """Return the ids of all chunks of the message with this id; only the id itself if the message is not chunked."""
        return self._chunks_of.get(entry_id, (entry_id,)) if self._chunks_of else (entry_id,)

    def pop_chunks(self, entry_id: EntryId) -> tuple[EntryId, ...]:
        """Remove the chunks of an acknowledged message; return their ids as `chunks_of` does."""
        if not self._chunks_of:
            return (entry_id,)
        self._expired.pop(entry_id, None)
        return self._chunks_of.pop(entry_id, (entry_id,))

    def _is_covered(self, last: EntryId, up_to: EntryId) -> bool:
        """Return True if a cumulative acknowledgement up to `up_to` includes the chunked message whose last chunk is `last`."""
        delivered_before = self._expired.get(last)
        return last <= up_to if delivered_before is None else delivered_before < up_to

    def pop_chunks_up_to(self, up_to: EntryId, acknowledged: EntryId) -> tuple[EntryId, list[EntryId]]:
        """Remove the chunks of the messages that a cumulative acknowledgement of the entry `acknowledged` includes.

        It includes the messages up to `up_to`. If `acknowledged` is an expired message, it also includes this message and the
        expired messages that were delivered before it. Return the last entry that may be acknowledged cumulatively, and the
        chunks after it that the caller must acknowledge one by one.
        """
        removed = []
        while acknowledged in self._expired:  # up to this message, in the order of delivery
            removed.append(self.pop_chunks(next(iter(self._expired))))
        removed += [self.pop_chunks(last) for last in list(self._chunks_of) if self._is_covered(last, up_to)]
        ledger, entry = first = self.earliest_open_chunk(up_to)
        if first > up_to:
            self._withheld.discard_up_to(up_to)
            return up_to, []
        safe = ledger, entry - 1
        self._withheld.discard_up_to(safe)
        return safe, [chunk for chunks in removed for chunk in chunks if chunk > safe]

    def earliest_open_chunk(self, up_to: EntryId) -> EntryId:
        """Return the earliest first chunk of the open chunked messages that begin at or before `up_to`; LATEST if there is none.

        A chunked message is open if it ends after `up_to`, is expired and unacknowledged, is incomplete, or has dropped chunks.
        """
        firsts = [
            chunks[0]
            for last, chunks in self._chunks_of.items()
            if chunks[0] <= up_to and (up_to < last or last in self._expired)
        ]
        return min(
            [each for each in (*self.chunks.first_chunk_ids(), *self._dropped) if each <= up_to] + firsts, default=ids.LATEST
        )
