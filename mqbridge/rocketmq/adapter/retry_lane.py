"""Lane of one topic of a retry queue.

A retry queue holds messages of all topics that members of the group sent back to be delivered again. `RetryQueue` reads it, puts
the messages into the lanes of their topics, and commits and releases the queue.
"""

import asyncio
from collections import deque
from collections.abc import Sequence
from functools import partial
from typing import Protocol

from mqbridge.adapter.receipt import MessageFailure, Receipt
from mqbridge.adapter.tools.deadlines import resolve_deadline
from mqbridge.errors import LaneRevoked, LocalProtocolError, MqbridgeError
from mqbridge.message import Batch, Partition, Position
from mqbridge.rocketmq.client.consumer.pulled_records import RECORD_BYTES
from mqbridge.rocketmq.mapping.stored import decode
from mqbridge.rocketmq.wire.record import Record


class Portion:
    """Consecutive messages of one topic in a retry queue, which a lane delivers as one batch.

    records        the messages that are not acknowledged yet
    next           offset after the last message, in the retry queue
    acknowledged   offset below which its messages are acknowledged; None if none is
    size           bytes of the message bodies
    budget_bytes   bytes that count against the consumer's budget for this portion; 0 once they are released
    run            number of the queue's run in which the portion was pulled: every seek or reset of the queue begins a new run
    is_stored      True once all its messages are acknowledged, or sent back again
    """

    __slots__ = ("acknowledged", "budget_bytes", "is_stored", "next", "records", "run", "size")

    def __init__(self, records: Sequence[Record], next_: int, size: int, budget_bytes: int, run: int) -> None:
        self.records, self.next = records, next_
        self.size, self.budget_bytes, self.run = size, budget_bytes, run
        self.acknowledged: int | None = None
        self.is_stored = False

    def drop_acknowledged(self) -> None:
        """Drop the records that are acknowledged, before the others are delivered again."""
        if self.acknowledged is not None:
            self.records = [record for record in self.records if record.queue_offset >= (self.acknowledged or 0)]
            self.size = sum(len(record.body) for record in self.records)

    @property
    def held_bytes(self) -> int:
        """Bytes that the messages take in memory."""
        return self.size + RECORD_BYTES * len(self.records)


class SharedRetryQueue(Protocol):
    """The methods of a RetryQueue that its lanes use."""

    error: MqbridgeError | None
    """The error that ended the reading; None if none did. Each lane raises it after its buffered messages."""

    @property
    def caught_up(self) -> bool:
        """True if the Broker has no more messages, and no lane has buffered ones."""

    async def confirm_caught_up(self) -> bool:
        """Ask the Broker for the end of the queue; return True if it is reached, and no lane has buffered messages."""

    @property
    def ended(self) -> asyncio.Event:
        """Set as soon as the queue is revoked, lost or released."""

    @property
    def releasing(self) -> asyncio.Event:
        """Set when the queue is going to be released for another member, and as soon as it is revoked, lost or released."""

    def on_delivered(self, portion: Portion) -> None:
        """Record that a lane delivered the portion."""

    def on_requeued(self, portion: Portion) -> None:
        """Record that a lane will deliver the portion again."""

    def on_stored(self, portion: Portion) -> None:
        """Record that all messages of the portion are stored in a target, or sent back again.

        Commits the offset below which all messages are stored or sent back.
        """

    def on_acknowledged(self, portion: Portion) -> None:
        """Record that the portion's messages below `portion.acknowledged` are stored in a target; the others are not yet."""

    def release_budget(self, portion: Portion) -> None:
        """Release the portion's bytes from the consumer's budget; further calls have no effect."""

    async def release(self, deadline: float | None = None) -> None:
        """Commit the acknowledged messages, and release the queue with all its lanes."""


class RetryLane:
    """Lane of one topic in a retry queue: delivers the topic's messages that members of the group sent back."""

    def __init__(self, partition: Partition, queue: SharedRetryQueue) -> None:
        self.partition = partition
        self._queue = queue
        self._buffered: deque[Portion] = deque()
        """Portions that are not delivered yet, or must be delivered again."""
        self._in_flight: deque[Portion] = deque()
        """Portions that are delivered and not yet acknowledged, oldest first."""
        self._last: Portion | None = None
        """The portion delivered last. Its bytes count against the consumer's budget until `acknowledge` or the next `receive`."""
        self._changed = asyncio.Event()
        """Set when `receive` must check the buffer and the state of the queue again."""
        self.revoked, self.releasing = queue.ended, queue.releasing
        """Set as soon as the queue is revoked, lost or released; `releasing` also when it is going to be."""

    @property
    def caught_up(self) -> bool:
        """True if the Broker has no more messages, and no lane has buffered ones."""
        return self._queue.caught_up

    async def confirm_caught_up(self) -> bool:
        """Ask the Broker for the end of the queue; return True if it is reached, and no lane has buffered messages."""
        return await self._queue.confirm_caught_up()

    def put(self, portion: Portion) -> None:
        """Buffer a portion for `receive`."""
        self._buffered.append(portion)
        self._changed.set()

    def wake(self) -> None:
        """Make `receive` check the state of the queue again."""
        self._changed.set()

    async def receive(self) -> Batch:
        """Wait for the next portion of this topic and return it as a batch.

        Raises LaneRevoked once the queue is revoked, lost or released. Raises the error that ended the reading once no portion is
        buffered.
        """
        if self._last is not None:
            self._queue.release_budget(self._last)
            self._last = None
        while not self._buffered or self.releasing.is_set():
            if self.revoked.is_set():
                raise LaneRevoked(f"partition {self.partition} was released, or may now belong to another member of the group")
            if self._queue.error is not None and not self._buffered:
                raise self._queue.error
            self._changed.clear()
            await self._changed.wait()
        portion = self._last = self._buffered.popleft()
        self._in_flight.append(portion)
        self._queue.on_delivered(portion)
        # The batch has no units: stored in another topic as they are, its messages would count as redelivered there.
        records = portion.records
        return Batch(
            self.partition,
            partial(decode, records),
            count=len(records),
            size=portion.size,
            first=(records[0].queue_offset,),
            next=(portion.next,),
            data=records,
            handle=portion,
            held_bytes=portion.held_bytes,
        )

    def acknowledge(
        self,
        batch: Batch,
        indexes: Sequence[int] | None = None,
        receipt: Receipt | None = None,
    ) -> None:
        """Acknowledge the batch, or with a `range(n)` what is before its message n. `receipt` is not used.

        The committed offset passes a message once all earlier messages of the queue are acknowledged, too.
        """
        portion: Portion = batch.handle
        if indexes is not None:
            if portion in self._in_flight and indexes:
                self._acknowledge_before(portion, batch, len(indexes))
            return
        self._queue.release_budget(portion)
        if portion in self._in_flight:
            self._in_flight.remove(portion)
            self._queue.on_stored(portion)

    def _acknowledge_before(self, portion: Portion, batch: Batch, index: int) -> None:
        """Acknowledge what is before the message at this index. An earlier message than before changes nothing."""
        records: Sequence[Record] = batch.data
        offset = records[index].queue_offset if index < len(records) else portion.next
        if portion.acknowledged is None or offset > portion.acknowledged:
            portion.acknowledged = offset
            self._queue.on_acknowledged(portion)

    def reject(self, batch: Batch, failures: Sequence[MessageFailure] = (), delay_s: float = 0.0) -> None:
        """Deliver what is not acknowledged of the batch again after the delay, and all later batches that are not.

        `receive` continues with further batches during the delay. `failures` is not used.
        """
        self._queue.release_budget(batch.handle)
        if delay_s > 0:
            asyncio.get_running_loop().call_later(delay_s, self.reject, batch)
            return
        portion: Portion = batch.handle
        # Move the portions back from the newest to this one, so that the buffer begins with this one, in the order of the queue.
        while portion in self._in_flight and not self.revoked.is_set():
            newest = self._in_flight.pop()
            newest.drop_acknowledged()
            if newest.records:
                self._buffered.appendleft(newest)
                self._queue.on_requeued(newest)
            else:  # all of them one by one
                self._queue.on_stored(newest)
        self._changed.set()

    async def seek(self, position: Position) -> None:
        """Raise LocalProtocolError: a seek would move the retry queue for all topics that share it."""
        raise LocalProtocolError(
            f"partition {self.partition} cannot seek to {position}: all topics of the group share the retry queue"
        )

    async def release(self, deadline: float | None = None) -> None:
        """Release the whole retry queue; messages that are not acknowledged stay uncommitted and are redelivered.

        `deadline` is a loop time; None: 30 s (CLOSE_S) from now.
        """
        await self._queue.release(resolve_deadline(deadline))
