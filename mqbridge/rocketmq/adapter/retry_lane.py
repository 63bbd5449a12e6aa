"""The lane of one topic of a retry queue; `retry_queue` feeds it and releases the queue."""

import asyncio
from collections import deque
from collections.abc import Sequence
from functools import partial
from typing import Protocol

from mqbridge.adapter.deadlines import resolve_deadline
from mqbridge.adapter.receipt import MessageFailure, Receipt
from mqbridge.errors import LaneRevoked, LocalProtocolError, MqbridgeError
from mqbridge.message import Batch, Partition, Position
from mqbridge.rocketmq.client.pulled_records import RECORD_BYTES
from mqbridge.rocketmq.mapping.stored import decode
from mqbridge.rocketmq.wire.record import Record


class Portion:
    """Consecutive messages of one topic, from one run of a retry queue; `counted` is the pull's bytes on the budget."""

    __slots__ = ("counted", "done", "next", "records", "run", "size")

    def __init__(self, records: Sequence[Record], next_: int, size: int, counted: int, run: int) -> None:
        self.records, self.next, self.size, self.counted, self.run = records, next_, size, counted, run
        self.done = False

    @property
    def held_bytes(self) -> int:
        """Its bytes in memory."""
        return self.size + RECORD_BYTES * len(self.records)


class RetrySource(Protocol):
    """The retry queue, as a lane needs it."""

    ended: MqbridgeError | None

    @property
    def caught_up(self) -> bool:
        """True if the Broker has nothing more, and nothing waits for any lane."""

    @property
    def over(self) -> asyncio.Event:
        """Set as soon as the queue is revoked, lost or released."""

    def taken(self, portion: Portion) -> None:
        """A lane delivered it."""

    def release_budget(self, portion: Portion) -> None:
        """Release its bytes from the budget: another account holds them, or none."""

    def put_back(self, portion: Portion) -> None:
        """A lane will deliver it again."""

    def done(self, portion: Portion) -> None:
        """All its messages are stored."""

    async def release(self, deadline: float | None = None) -> None:
        """Release the queue."""


class RetryLane:
    """The messages of one topic in a retry queue."""

    def __init__(self, partition: Partition, queue: RetrySource) -> None:
        self.partition = partition
        self._queue = queue
        self._waiting: deque[Portion] = deque()
        self._in_flight: deque[Portion] = deque()
        self._last: Portion | None = None
        """The last one delivered, which may still count on the budget."""
        self._changed = asyncio.Event()
        self.revoked = queue.over

    @property
    def caught_up(self) -> bool:
        """True if nothing waits, here or at the Broker."""
        return self._queue.caught_up

    def put(self, portion: Portion) -> None:
        """Add a portion."""
        self._waiting.append(portion)
        self._changed.set()

    def wake(self) -> None:
        """Wake `receive`: the queue changed."""
        self._changed.set()

    async def receive(self) -> Batch:
        """Return the next messages of this topic. Raises the error that ended the queue."""
        if self._last is not None:
            self._queue.release_budget(self._last)
            self._last = None
        while not self._waiting or self.revoked.is_set():
            if self.revoked.is_set():
                raise LaneRevoked(f"{self.partition} was revoked or released")
            if self._queue.ended is not None:
                raise self._queue.ended
            self._changed.clear()
            await self._changed.wait()
        portion = self._last = self._waiting.popleft()
        self._in_flight.append(portion)
        self._queue.taken(portion)
        records = portion.records
        return Batch(
            self.partition,
            partial(decode, records),
            count=len(records),
            size=portion.size,
            first=(records[0].queue_offset,),
            next=(portion.next,),
            handle=portion,
            held_bytes=portion.held_bytes,
        )

    def acknowledge(
        self,
        batch: Batch,
        indexes: Sequence[int] | None = None,
        receipt: Receipt | None = None,
    ) -> None:
        """Mark the batch as stored."""
        portion: Portion = batch.handle
        self._queue.release_budget(portion)
        if portion in self._in_flight:
            self._in_flight.remove(portion)
            self._queue.done(portion)

    def reject(self, batch: Batch, failures: Sequence[MessageFailure] = (), delay_s: float = 0.0) -> None:
        """Deliver it again, with all batches delivered after it."""
        self._queue.release_budget(batch.handle)
        if delay_s > 0:
            asyncio.get_running_loop().call_later(delay_s, self.reject, batch)
            return
        portion: Portion = batch.handle
        while portion in self._in_flight and not self.revoked.is_set():
            again = self._in_flight.pop()
            self._waiting.appendleft(again)
            self._queue.put_back(again)
        self._changed.set()

    async def seek(self, position: Position) -> None:
        """Always raises LocalProtocolError: all topics of the group share the retry queue."""
        raise LocalProtocolError(f"a lane of messages that were sent back cannot be moved to {position}")

    async def release(self, deadline: float | None = None) -> None:
        """Release the whole retry queue; messages that are not acknowledged stay uncommitted and come again."""
        await self._queue.release(resolve_deadline(deadline))
