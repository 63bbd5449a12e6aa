"""Reader of one queue by offset, without a group: nothing is created or changed at the Brokers.

The queue is pulled as a consumer's assigned queue is. Its pull budget is the reader's `max_bytes`: pulls that are buffered, and
the bytes that the pull in flight is expected to return, count against it. A seek moves the assigned queue, which stays assigned.
"""

from mqbridge.adapter.tools.deadlines import resolve_deadline
from mqbridge.errors import ClusterError, Failure
from mqbridge.message import Batch, Partition, Position
from mqbridge.rocketmq.adapter.lane import BATCH_BYTES, join_pulls, make_batch
from mqbridge.rocketmq.client.cluster_client import ClusterClient
from mqbridge.rocketmq.client.consumer.assigned_queue import AssignedQueue
from mqbridge.rocketmq.client.consumer.consumer_settings import ConsumerSettings, MessageModel
from mqbridge.rocketmq.client.consumer.pull_consumer import PullConsumer, join
from mqbridge.rocketmq.client.consumer.subscription import everything
from mqbridge.rocketmq.wire.bodies.queue import Queue

WAIT_S = 60.0
"""Timeout of a wait for the next pull. A pull or a seek ends the wait at once, and a timeout only starts the next wait."""


class RangeReader:
    """Reads a queue from offset `begin` up to, not including, `end`; without `end`, it continues with new messages.

    `open` begins to read. The range ends at the end of the queue as it is at `open`, or at the last `seek`: messages that are
    stored later are not waited for.
    """

    def __init__(
        self, client: ClusterClient, partition: Partition, queue: Queue, begin: Position, end: Position | None, max_bytes: int
    ) -> None:
        self.partition = partition
        self._client, self._queue, self._max_bytes = client, queue, max_bytes
        (self._offset,) = begin
        self._end = None if end is None else end[0]
        self._limit: int | None = None
        """The offset at which the range ends now; None: it has no end."""
        self._consumer: PullConsumer | None = None
        """The consumer that pulls the queue; None before the first offset that is to be read, and after `close`."""
        self._closed = False

    async def open(self) -> None:
        """Begin to read. Raises ClusterError."""
        await self._find_limit()
        await self._start()

    @property
    def position(self) -> Position:
        """Offset of the next message."""
        return (self._offset,)

    @property
    def caught_up(self) -> bool:
        """True if the last pull was answered and reached the end of the queue, and no pull is buffered."""
        assigned = self._assigned
        return assigned is not None and assigned.caught_up

    async def confirm_caught_up(self) -> bool:
        """Ask the Broker for the end of the queue; return True if it is reached. Raises ClusterError."""
        if (assigned := self._assigned) is not None:
            return await assigned.confirm_caught_up()
        return self._offset >= await self._client.positions.next(self._queue)

    async def receive(self) -> Batch | None:
        """Wait for the next batch; None at the end of the range. Raises ClusterError, and GapError if messages were deleted."""
        while self._limit is None or self._offset < self._limit:
            assigned = self._assigned
            self._check_open()
            if assigned is None or assigned.revoked:
                raise ClusterError(f"the reader of {self.partition} has lost its queue; open another one", Failure.RETRY)
            # From here to the return there is no wait, so a cancelled call loses nothing.
            if (pulled := assigned.take()) is None:
                if self._limit is not None and assigned.position >= self._limit:
                    break  # compaction has removed the last messages of the range
                await assigned.wait_for_change(WAIT_S)
                continue
            pulls = join_pulls(assigned, pulled, min(BATCH_BYTES, self._max_bytes))
            if self._limit is not None:
                pulls = [pull.until(self._limit) for pull in pulls if pull.first < self._limit]
                if not pulls:
                    break  # compaction has removed all messages between the last pull and the end of the range
            self._offset = pulls[-1].next
            if (batch := make_batch(self.partition, pulls)) is not None:  # None: no message of these pulls is in the range
                return batch
        self._check_open()
        return None

    async def seek(self, position: Position) -> None:
        """Continue at this offset, also after the queue was lost. Raises ClusterError, FATAL after `close`."""
        self._check_open()
        await self._find_limit()
        self._check_open()
        (self._offset,) = position
        if (assigned := self._assigned) is None or assigned.revoked:
            await self._start()
        else:
            await assigned.seek(self._offset)

    async def close(self, deadline: float | None = None) -> None:
        """Stop reading; a waiting `receive` fails. `deadline` is a loop time; None: CLOSE_S from now."""
        self._closed = True
        await self._close_consumer(resolve_deadline(deadline))

    async def _close_consumer(self, deadline: float) -> None:
        if (consumer := self._consumer) is not None:
            await consumer.close(deadline)
            if self._consumer is consumer:
                self._consumer = None

    def _check_open(self) -> None:
        if self._closed:
            raise ClusterError(f"the reader of {self.partition} is closed", Failure.FATAL)

    @property
    def _assigned(self) -> AssignedQueue | None:
        return None if self._consumer is None else self._consumer.held.get(self._queue)

    async def _find_limit(self) -> None:
        """Find where the range ends: not behind the last message, so that no message is waited for."""
        if self._end is not None:
            self._limit = min(self._end, await self._client.positions.next(self._queue))

    async def _start(self) -> None:
        """Begin to pull at the current offset, unless the range is empty; an earlier consumer has lost its queue, and is closed.

        Raises ClusterError, FATAL if the reader is closed meanwhile.
        """
        await self._close_consumer(resolve_deadline(None))
        if self._limit is not None and self._offset >= self._limit:
            return
        settings = ConsumerSettings(
            group="",
            subscriptions=(everything(self._queue.topic),),
            model=MessageModel.ASSIGNED,
            queues=(self._queue,),
            offsets={self._queue: self._offset},
            max_bytes=self._max_bytes,
        )
        consumer = await join(self._client, settings)
        if self._closed:  # meanwhile
            await consumer.close()
            self._check_open()
        if consumer.held.get(self._queue) is None:
            await consumer.close()
            raise ClusterError(
                f"partition {self.partition} cannot be read now: reading could not begin at offset {self._offset}; the log has"
                " the cause",
                Failure.RETRY,
            )
        self._consumer = consumer
