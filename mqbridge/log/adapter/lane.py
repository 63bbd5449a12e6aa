"""One partition of a log while it is leased to us.

Nothing is read ahead: a receive reads up to RECEIVE_BYTES of rows, undecoded, in a thread hop of some 100 us, when there is room
for them. What a lane holds is what its caller has not let go of. Any number of batches may be outstanding.
"""

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import Protocol

from mqbridge.adapter.receipt import MessageFailure, Receipt
from mqbridge.errors import LaneRevoked
from mqbridge.log.store import read
from mqbridge.log.store.database import Store
from mqbridge.log.wire.records import decode_rows
from mqbridge.message import Batch, Partition, Position
from mqbridge.net.budget import Budget
from mqbridge.net.read_ahead import ReadAheadAccount

RECEIVE_BYTES = 512 << 10
RECEIVE_MESSAGES = 1000


class Owner(Protocol):
    """What a lane needs of its inbound."""

    def moved(self, lane: "LogLane", offset: int, /) -> None:
        """The lane's acknowledged offset is to be committed."""

    async def give_back(self, lane: "LogLane", deadline: float | None, /) -> None:
        """The lane is released."""


class LogLane:
    """Positions are (offset,).

    A reject or a seek begins a new run. Acknowledgements from a run before it only count up to where it begins, as everything
    after that is delivered again.
    """

    def __init__(self, owner: Owner, store: Store, id_: int, partition: Partition, offset: int, room: Budget) -> None:
        self.partition = partition
        self.id = id_
        self.acknowledged: int | None = None
        """The offset to commit; None until something was acknowledged."""
        self.revoked = asyncio.Event()
        self._owner, self._store = owner, store
        self._read_ahead = ReadAheadAccount(room, self.revoked)
        self._next = offset
        self._caught_up = False
        self._run = 0
        self._run_start = offset
        self._wake = asyncio.Event()
        store.watch(id_, self._wake)

    @property
    def caught_up(self) -> bool:
        """The last read reached the end of the partition."""
        return self._caught_up

    async def receive(self) -> Batch:
        """The next rows as a batch; waits for one, and for room."""
        return await self._read_ahead.receive(self._receive())

    async def _receive(self) -> Batch:
        room = min(RECEIVE_BYTES, max(1, self._read_ahead.limit // 4))  # several are on their way to the targets at once
        while True:
            if self.revoked.is_set():
                raise LaneRevoked(f"{self.partition} now belongs to another member of the group, or was released")
            run, offset = self._run, self._next
            self._wake.clear()
            await self._read_ahead.take(room)
            rows, tail = await self._store.rows(self.id, offset, min(room, RECEIVE_BYTES), RECEIVE_MESSAGES)
            size = read.held_bytes(rows)
            if rows and size <= room and run == self._run and not self.revoked.is_set():
                return self._batch(rows, size, offset, tail)
            del rows  # what nobody has room for is not held either
            self._read_ahead.give_back()
            if size > room:
                room = size  # a single row: it comes alone, when there is room for all of it
            elif not size and run == self._run:
                self._caught_up = True
                if self._store.tails.get(self.id, 0) <= offset:
                    await self._wake.wait()

    def _batch(self, rows: list[read.Row], size: int, offset: int, tail: int) -> Batch:
        base, count, _ = rows[-1]
        self._next = base + count
        self._caught_up = self._next >= tail
        self._read_ahead.hand_out(size, (self._next,))
        return make_batch(self.partition, rows, offset, self._next, self._run)

    def acknowledge(
        self,
        batch: Batch,
        indexes: Sequence[int] | None = None,
        receipt: Receipt | None = None,
    ) -> None:
        """Everything up to the end of the batch is stored."""
        self._read_ahead.settled(batch.next)
        after = batch.next[0]
        if self.revoked.is_set() or (batch.handle != self._run and after > self._run_start):
            return
        if self.acknowledged is None or after > self.acknowledged:
            self.acknowledged = after
            self._owner.moved(self, after)

    def reject(self, batch: Batch, failures: Sequence[MessageFailure] = (), delay_s: float = 0.0) -> None:
        """Go back to the beginning of the batch, after the delay."""
        self._read_ahead.settled(batch.next)
        if delay_s:
            asyncio.get_running_loop().call_later(delay_s, self.reject, batch)
        elif not self.revoked.is_set() and (batch.handle == self._run or batch.first[0] <= self._run_start):
            self._restart(batch.first[0])

    async def seek(self, position: Position) -> None:
        """Continue from this offset; the group's position moves there too, as it would otherwise keep what is behind it."""
        if self.revoked.is_set():
            raise LaneRevoked(f"{self.partition} cannot be moved: it belongs to another member of the group, or was released")
        (offset,) = position
        self._restart(offset)
        self._run_start = -1  # nothing from before the seek counts any more
        self.acknowledged = offset
        self._owner.moved(self, offset)

    def _restart(self, offset: int) -> None:
        self._run += 1
        self._run_start = self._next = offset
        self._caught_up = False
        self._wake.set()

    def end(self) -> None:
        """The partition is no longer ours."""
        self.revoked.set()
        self._read_ahead.give_back()
        self._store.unwatch(self.id, self._wake)
        self._wake.set()

    async def release(self, deadline: float | None = None) -> None:
        """Commit what is acknowledged, give the partition back."""
        await self._owner.give_back(self, deadline)


def make_batch(partition: Partition, rows: list[read.Row], first: int, end: int, run: int = 0) -> Batch:
    """The batch of the messages between two offsets that some rows hold; `run` is the run of its lane.

    Of a row that is cut, its size has as much as of its messages: who estimates by a few messages is not told of the whole row.
    Rows may lie behind the end.
    """
    size = sum(len(records) * max(0, min(end, base + count) - max(first, base)) // count for base, count, records in rows)
    decode = partial(decode_rows, rows, first, end)
    return Batch(
        partition,
        decode,
        count=end - first,
        size=size,
        first=(first,),
        next=(end,),
        held_bytes=read.held_bytes(rows),
        format="log.rows",
        data=rows,
        handle=run,
    )
