"""Lane of a log: one partition while this member has its lease, and some time longer while its messages are in flight.

Nothing is read before `receive` is called. A receive reads up to RECEIVE_BYTES of rows, if the read-ahead budget has room, and
does not decode them. It reads many rows at once, because passing a query to the reading thread takes about 100 us. Any number of
batches may be unacknowledged.
"""

import asyncio
from collections.abc import Sequence
from typing import Protocol

from mqbridge.adapter.receipt import MessageFailure, Receipt
from mqbridge.errors import LaneRevoked
from mqbridge.log.adapter.batches import make_batch
from mqbridge.log.adapter.unit_formats import prepare_formats
from mqbridge.log.store import read
from mqbridge.log.store.database import Store
from mqbridge.message import Batch, Partition, Position
from mqbridge.net.budget import Budget
from mqbridge.net.read_ahead import ReadAheadAccount

RECEIVE_BYTES = 512 << 10
RECEIVE_MESSAGES = 1000
"""Maximum bytes and messages of the batch that one `receive` returns; a single row above these is returned whole."""


class LaneOwner(Protocol):
    """Methods of the inbound that its lanes call."""

    def schedule_commit(self, lane: "LogLane", offset: int, /) -> None:
        """Commit the lane's acknowledged offset in the background, together with those of other lanes."""

    async def release_lane(self, lane: "LogLane", deadline: float | None, /) -> None:
        """Commit the lane's offset and end its lease. `deadline` is an event loop time; None: CLOSE_S (30 s) from now."""

    def give_up(self, lane: "LogLane", /) -> None:
        """Release the lane in the background: another member has waited for its partition for long enough."""


class LogLane:
    """A leased partition; its positions are (offset,).

    A reject or a seek starts a new run of deliveries: all messages from its start offset on are delivered again. So the
    acknowledgement of a batch of an earlier run counts only if the batch ends before them. The handle of a batch is its run.
    """

    def __init__(self, owner: LaneOwner, store: Store, id_: int, partition: Partition, offset: int, budget: Budget) -> None:
        """`offset` is the first one to read; `budget` is the read-ahead budget of the inbound."""
        self.partition = partition
        self.id = id_
        """Row id of the partition in the file."""
        self.acknowledged: int | None = None
        """The offset to commit; None until the first acknowledgement."""
        self.revoked = asyncio.Event()
        self.releasing = asyncio.Event()
        self._give_up_timer: asyncio.TimerHandle | None = None
        """The timer that gives the partition up; None if nobody waits for it."""
        self._owner, self._store = owner, store
        self._read_ahead = ReadAheadAccount(budget, self.revoked)
        self._next = offset
        """Offset of the next message to receive."""
        self._caught_up = False
        """See `caught_up`."""
        self._run = 0
        """Number of the current run of deliveries."""
        self._run_start = offset
        """Start offset of the current run."""
        self._first_run = 0
        """Number of the run that the last seek began: batches of earlier runs do not count."""
        self._wake = asyncio.Event()
        """Set when the partition may have grown, and when a new run starts or the lane ends."""
        store.tails.watch(id_, self._wake)

    @property
    def caught_up(self) -> bool:
        """True if the last read reached the end of the partition."""
        return self._caught_up

    async def confirm_caught_up(self) -> bool:
        """Read at the next offset; return True if there is no row. Raises ClusterError if the file cannot be read."""
        run, offset = self._run, self._next
        found = await self._store.rows(self.id, offset, 1, 1)
        return not found.rows and (run, offset) == (self._run, self._next)

    async def receive(self) -> Batch:
        """Return the next rows as a batch; waits for new messages and for read-ahead budget. Raises LaneRevoked, GapError."""
        return await self._read_ahead.receive(self._receive())

    async def _receive(self) -> Batch:
        """Read rows from `_next` on until there are some.

        Rows that exceed the reserved bytes are read again with a larger reservation. Rows of an earlier run are discarded.
        """
        max_bytes = min(RECEIVE_BYTES, max(1, self._read_ahead.limit // 4))  # a quarter: several batches are in flight at once
        while True:
            if self.revoked.is_set():
                raise LaneRevoked(f"{self.partition} now belongs to another member of the group, or was released")
            if self.releasing.is_set():  # no more messages: the partition is given up soon
                self._read_ahead.release()
                await self.revoked.wait()
                continue
            run, offset = self._run, self._next
            self._wake.clear()
            await self._read_ahead.reserve(max_bytes)
            found = await self._store.rows(self.id, offset, min(max_bytes, RECEIVE_BYTES), RECEIVE_MESSAGES)
            if found.format is not None:
                await prepare_formats()
            size, tail = read.held_bytes(found.rows), found.tail
            if found.rows and size <= max_bytes and run == self._run and not self.releasing.is_set():
                return self._make_batch(found, size)
            del found  # free the memory before waiting for its budget
            self._read_ahead.release()
            if size > max_bytes:
                max_bytes = size  # a single large row: wait until the budget has room for all of it
            elif not size and run == self._run:  # there were no rows
                self._caught_up = True
                self._next = tail  # beyond `offset` only behind the jump of a restored file
                await self._wake.wait()  # set if the partition has grown since the read

    def _make_batch(self, found: read.Rows, size: int) -> Batch:
        base, count, _ = found.rows[-1]
        self._next = base + count
        self._caught_up = self._next >= found.tail
        self._read_ahead.record_batch(size, (self._next,))
        return make_batch(self.partition, found, self._next, self._run)

    def acknowledge(
        self,
        batch: Batch,
        indexes: Sequence[int] | None = None,
        receipt: Receipt | None = None,
    ) -> None:
        """Acknowledge everything up to the end of the batch, or with `indexes`, a `range(n)`, up to its message n.

        `receipt` is not used. `range(0)` changes nothing: a group's offset never goes back.
        """
        if indexes is None:
            self._read_ahead.release_batch(batch.next)
            next_offset = batch.next[0]
        elif indexes:
            next_offset = batch.first[0] + len(indexes)
        else:
            return
        is_stale = batch.handle < self._first_run or (batch.handle != self._run and next_offset > self._run_start)
        if self.revoked.is_set() or is_stale:
            return
        if self.acknowledged is None or next_offset > self.acknowledged:
            self.acknowledged = next_offset
            self._owner.schedule_commit(self, next_offset)

    def counted(self, batch: Batch) -> None:
        """Release the bytes of the batch from the read-ahead budget."""
        self._read_ahead.release_batch(batch.next)

    def reject(self, batch: Batch, failures: Sequence[MessageFailure] = (), delay_s: float = 0.0) -> None:
        """Deliver again from the first message of the batch that is not acknowledged, after the delay.

        Does nothing if a newer run will do so anyway. `failures` are not used, because the messages after a failed one are
        delivered again in any case.
        """
        self._read_ahead.release_batch(batch.next)
        if delay_s:
            asyncio.get_running_loop().call_later(delay_s, self.reject, batch)
            return
        offset = min(max(batch.first[0], self.acknowledged or 0), batch.next[0])
        is_pending = batch.handle == self._run or offset <= self._run_start
        if is_pending and batch.handle >= self._first_run and not self.revoked.is_set():
            self._restart(offset)

    async def seek(self, position: Position) -> None:
        """Continue from this offset, and commit it: after a seek back, the group's offset would otherwise remain too high.

        Raises ClusterError for an offset that no message can have.
        """
        if self.revoked.is_set():
            raise LaneRevoked(f"cannot seek in {self.partition}: it belongs to another member of the group, or was released")
        (offset,) = position
        read.check_offset(offset)
        self._restart(offset)
        self._first_run = self._run
        self.acknowledged = offset
        self._owner.schedule_commit(self, offset)

    def _restart(self, offset: int) -> None:
        """Start a new run of deliveries at this offset."""
        self._run += 1
        self._run_start = self._next = offset
        self._caught_up = False
        self._wake.set()

    def announce_release(self, wait_s: float) -> None:
        """Announce that another member is to get the partition, and give it up after `wait_s`; a second call does nothing."""
        if not self.releasing.is_set():
            self.releasing.set()
            self._wake.set()
            self._give_up_timer = asyncio.get_running_loop().call_later(wait_s, self._owner.give_up, self)

    def end(self) -> None:
        """Revoke the lane: the partition no longer belongs to this member."""
        if self._give_up_timer is not None:
            self._give_up_timer.cancel()
            self._give_up_timer = None
        self.revoked.set()
        self.releasing.set()
        self._read_ahead.release()
        self._store.tails.unwatch(self.id, self._wake)
        self._wake.set()

    async def release(self, deadline: float | None = None) -> None:
        """Commit the acknowledged offset and end the lease; see `LaneOwner.release_lane`."""
        await self._owner.release_lane(self, deadline)
