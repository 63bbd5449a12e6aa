"""The lane of one topic out of a retry queue; what feeds it, and gives the queue back, is `retry_queue`."""

import asyncio
from collections import deque
from collections.abc import Sequence
from functools import partial
from typing import Protocol

from mqbridge.adapter.deadlines import deadline_of
from mqbridge.adapter.receipt import MessageFailure, Receipt
from mqbridge.errors import LaneRevoked, LocalProtocolError, MqbridgeError
from mqbridge.message import Batch, Partition, Position
from mqbridge.rocketmq.client.pulled import RECORD_BYTES
from mqbridge.rocketmq.mapping.stored import decode
from mqbridge.rocketmq.wire.record import Record


class Portion:
    """Messages in a row of one topic, out of one run of a retry queue; `counted` bytes of their pull are on its account."""

    __slots__ = ("counted", "done", "next", "records", "run", "size")

    def __init__(self, records: Sequence[Record], next_: int, size: int, counted: int, run: int) -> None:
        self.records, self.next, self.size, self.counted, self.run = records, next_, size, counted, run
        self.done = False

    @property
    def held_bytes(self) -> int:
        """What it takes in memory."""
        return self.size + RECORD_BYTES * len(self.records)


class RetrySource(Protocol):
    """What a lane needs of its retry queue."""

    ended: MqbridgeError | None

    @property
    def caught_up(self) -> bool:
        """Nothing more at the Broker, and nothing waits for any lane."""

    @property
    def over(self) -> asyncio.Event:
        """Set at once when the queue is taken away, lost or given back."""

    def taken(self, portion: Portion) -> None:
        """A lane handed it out."""

    def give_back(self, portion: Portion) -> None:
        """It is on somebody else's account, or nobody's."""

    def put_back(self, portion: Portion) -> None:
        """A lane will hand it out again."""

    def done(self, portion: Portion) -> None:
        """All of it is stored."""

    async def release(self, deadline: float | None = None) -> None:
        """Give the queue back."""


class RetryLane:
    """What a retry queue holds of one topic."""

    def __init__(self, partition: Partition, queue: RetrySource) -> None:
        self.partition = partition
        self._queue = queue
        self._waiting: deque[Portion] = deque()
        self._out: deque[Portion] = deque()
        self._last: Portion | None = None
        """Handed out last, and perhaps on nobody's account yet."""
        self._changed = asyncio.Event()
        self.revoked = queue.over

    @property
    def caught_up(self) -> bool:
        """Nothing waits, here or at the Broker."""
        return self._queue.caught_up

    def put(self, portion: Portion) -> None:
        """It is this lane's."""
        self._waiting.append(portion)
        self._changed.set()

    def wake(self) -> None:
        """Something about the queue changed."""
        self._changed.set()

    async def receive(self) -> Batch:
        """The next messages of this topic. Raises what ended the queue."""
        if self._last is not None:
            self._queue.give_back(self._last)
            self._last = None
        while not self._waiting or self.revoked.is_set():
            if self.revoked.is_set():
                raise LaneRevoked(f"{self.partition} was taken away or given back")
            if self._queue.ended is not None:
                raise self._queue.ended
            self._changed.clear()
            await self._changed.wait()
        portion = self._last = self._waiting.popleft()
        self._out.append(portion)
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
        """Stored."""
        portion: Portion = batch.handle
        self._queue.give_back(portion)
        if portion in self._out:
            self._out.remove(portion)
            self._queue.done(portion)

    def reject(self, batch: Batch, failures: Sequence[MessageFailure] = (), delay_s: float = 0.0) -> None:
        """Again, with all that was handed out after it."""
        self._queue.give_back(batch.handle)
        if delay_s > 0:
            asyncio.get_running_loop().call_later(delay_s, self.reject, batch)
            return
        portion: Portion = batch.handle
        while portion in self._out and not self.revoked.is_set():
            again = self._out.pop()
            self._waiting.appendleft(again)
            self._queue.put_back(again)
        self._changed.set()

    async def seek(self, position: Position) -> None:
        """A retry queue is shared by all topics of its group."""
        raise LocalProtocolError(f"a lane of messages that were sent back cannot be moved to {position}")

    async def release(self, deadline: float | None = None) -> None:
        """Give the whole retry queue back; what is not acknowledged keeps its offset where it is, and comes again."""
        await self._queue.release(deadline_of(deadline))
