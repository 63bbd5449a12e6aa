"""Lane of one queue, from which the gateway receives: joins the queue's pulls to batches.

A pull has 32 messages at most unless the Broker's limits are raised, and a batch costs the gateway about the same whether it
holds one message or thousands. So all pulls that are buffered become one batch. They are decoded to messages only on demand.
"""

import asyncio
from collections.abc import Sequence
from functools import partial

from mqbridge.adapter.receipt import MessageFailure, Receipt
from mqbridge.adapter.tools.deadlines import resolve_deadline
from mqbridge.errors import LaneRevoked
from mqbridge.message import Batch, Partition, Position
from mqbridge.native import compiled
from mqbridge.rocketmq.client.consumer.assigned_queue import AssignedQueue
from mqbridge.rocketmq.client.consumer.pulled_records import PulledRecords
from mqbridge.rocketmq.mapping import unit_format
from mqbridge.rocketmq.mapping.stored import decode_pulls
from mqbridge.rocketmq.wire.record import MAX_UNPACKED_BYTES

BATCH_BYTES = 1 << 20
"""No further pull is joined to a batch of at least this size."""


class RocketMQLane:
    """Lane of one assigned queue; acknowledging a batch advances the group's offset.

    The `handle` of a batch is the run in which it was pulled. Every rejection, seek and reset of offsets begins a new run of
    the queue, and `queue_state` decides if an acknowledgement of an older run still counts.
    """

    def __init__(self, partition: Partition, assigned: AssignedQueue) -> None:
        self.partition = partition
        self.revoked = assigned.ended
        """Set as soon as the queue is revoked, lost or released."""
        self.releasing = assigned.releasing
        """Set when the queue is going to be released for another member, and as soon as it is revoked, lost or released."""
        self._assigned = assigned
        assigned.holds_budget = True  # pulled bytes count against the consumer's budget until `release_budget`
        self._budgeted: tuple[Batch | None, int] = None, 0
        """The last batch and its bytes, including filtered messages, while they count against the consumer's budget.

        They count until the batch is acknowledged or rejected, or `receive` is called again; then the route's budget counts them.
        """
        self._run = -1
        """The run of the last pulls; -1 before the first."""
        self._delivered_to = 0
        """The offset after the last batch of this run; before its first batch, the offset at which the run began."""

    @property
    def caught_up(self) -> bool:
        """True if the last pull was answered and reached the end of the queue, and no pull is buffered."""
        return self._assigned.caught_up

    async def confirm_caught_up(self) -> bool:
        """Ask the Broker, which may hold our pull, for the end of the queue; return True if it is reached."""
        return await self._assigned.confirm_caught_up()

    async def receive(self) -> Batch:
        """Wait for the next batch and return it. Raises LaneRevoked, GapError, or the ClusterError that ended the queue."""
        while True:
            self._release_budget()
            pulls = join_pulls(self._assigned, await self._assigned.receive())
            if (run := self._assigned.state.run) != self._run:  # after a rejection, a seek or a reset of offsets
                self._run, self._delivered_to = run, pulls[0].first
            batch = make_batch(self.partition, pulls, run)
            self._budgeted = batch, sum(pulled.size for pulled in pulls)
            if batch is not None:
                (self._delivered_to,) = batch.next
                return batch
            # The filter removed every message, so no acknowledgement will advance the offset. While earlier messages are in
            # flight, a commit would acknowledge them too.
            if self._assigned.acknowledged >= self._delivered_to:
                self._assigned.commit(pulls[-1].next)

    def acknowledge(
        self,
        batch: Batch,
        indexes: Sequence[int] | None = None,
        receipt: Receipt | None = None,
    ) -> None:
        """Commit the offset after this batch, or with a `range(n)` that of message n. All before it are acknowledged.

        `receipt` is not used.
        """
        if indexes is None:
            self._release_budget(batch)
            self._assigned.commit(batch.next[0], batch.handle)
        elif indexes and (offset := _offset_of(batch, len(indexes))) is not None:
            self._assigned.commit(offset, batch.handle)

    def counted(self, batch: Batch) -> None:
        """Release the bytes of the batch from the consumer's budget."""
        self._release_budget(batch)

    def reject(self, batch: Batch, failures: Sequence[MessageFailure] = (), delay_s: float = 0.0) -> None:
        """Deliver again from the first message of the batch that is not acknowledged, after the delay. `failures` is not used.

        Has no effect if the whole batch is acknowledged already, or a seek or a reset of offsets began a new run.
        """
        self._release_budget(batch)
        if delay_s > 0:
            asyncio.get_running_loop().call_later(delay_s, self.reject, batch)
            return
        offset = max(batch.first[0], self._assigned.acknowledged)
        if offset < batch.next[0]:
            self._assigned.rewind(offset, batch.handle)

    def _release_budget(self, batch: Batch | None = None) -> None:
        """Release the bytes of the last batch from the consumer's budget; with `batch`, only if it is the last batch."""
        last, size = self._budgeted
        if size and (batch is None or batch is last):
            self._budgeted = None, 0
            self._assigned.release_budget(size)

    async def seek(self, position: Position) -> None:
        """Continue at this offset, and commit it unless its message was delivered and is not acknowledged.

        Raises LaneRevoked if the queue is no longer assigned.
        """
        if self.revoked.is_set():
            raise LaneRevoked(f"partition {self.partition} was released, or may now belong to another member of the group")
        await self._assigned.seek(position[0])

    async def release(self, deadline: float | None = None) -> None:
        """Commit acknowledged messages and release the queue, by the deadline (loop time; None: CLOSE_S (30 s) from now)."""
        await self._assigned.release(resolve_deadline(deadline))


def join_pulls(assigned: AssignedQueue, first: PulledRecords, max_bytes: int = BATCH_BYTES) -> list[PulledRecords]:
    """Return `first` and the buffered pulls after it, up to about `max_bytes`, or MAX_UNPACKED_BYTES when decompressed."""
    pulls = [first]
    size_bytes = first.size
    unpacked_bytes = first.max_unpacked_bytes
    while size_bytes < max_bytes and unpacked_bytes < MAX_UNPACKED_BYTES and (pulled := assigned.take()) is not None:
        pulls.append(pulled)
        size_bytes += pulled.size
        unpacked_bytes += pulled.max_unpacked_bytes
    return pulls


def _offset_of(batch: Batch, index: int) -> int | None:
    """Return the offset of a message of a batch; for `index` equal to its count, the offset after the batch.

    None if it is not known any more, because the contents were dropped: the commit waits for the rest of the batch.
    """
    (first,), (next_,) = batch.first, batch.next
    if index >= batch.count:
        return next_
    # Offsets are consecutive, unless a filter or compaction removed some.
    if next_ - first == batch.count:
        return first + index
    return batch.messages[index].position[0] if batch.messages else None


def make_batch(partition: Partition, pulls: Sequence[PulledRecords], run: int | None = None) -> Batch | None:
    """Return one batch for consecutive pulls; None if the filter removed all messages.

    `run` becomes the handle of the batch; None for a reader, which acknowledges nothing.
    """
    nonempty = [pulled for pulled in pulls if pulled.count]
    if not nonempty:
        return None
    size, count = sum(pulled.size for pulled in nonempty), sum(pulled.count for pulled in nonempty)
    return Batch(
        partition,
        partial(decode_pulls, nonempty),
        count=count,
        size=size,
        first=(nonempty[0].first_record_offset,),
        next=(pulls[-1].next,),
        format=unit_format.NAME,
        data=nonempty,
        handle=run,
        held_bytes=sum(pulled.held_bytes for pulled in nonempty),
        # With the compiled module every batch is decoded anyway, so searching the undecoded records would save nothing.
        may_contain=None if compiled is not None else lambda text: any(pulled.may_contain(text) for pulled in nonempty),
        published_ms=nonempty[0].published_ms,
        units=partial(unit_format.units_of, nonempty),
        messages_replace_data=not any(pulled.is_packed for pulled in nonempty),
    )
