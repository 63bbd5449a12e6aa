"""What members of a group sent back: one retry queue holds messages of all the group's topics.

A retry queue is read here and divided among lanes, one per topic, made when its first message comes. The queue's offset moves
over a message only when it and all before it are stored, whichever lanes they went to.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial
from itertools import groupby, pairwise

from mqbridge.adapter import MessageFailure, Receipt
from mqbridge.errors import LaneRevoked, LocalProtocolError, MqbridgeError
from mqbridge.message import Batch, Partition, Position
from mqbridge.net.tasks import cancel, spawn
from mqbridge.rocketmq.client.pulled import Pulled
from mqbridge.rocketmq.client.stream import QueueStream
from mqbridge.rocketmq.mapping.stored import decode
from mqbridge.rocketmq.wire.properties import Name
from mqbridge.rocketmq.wire.properties import decode as decode_properties
from mqbridge.rocketmq.wire.record import Record

MAX_WAITING_BYTES = 8 << 20
"""Read ahead of the lanes, all of them together."""

SendBack = Callable[[Record], Awaitable[None]]
"""Sends a message back once more, so that it comes again later or ends in the group's dead letters."""


def topic_of(record: Record) -> str | None:
    """The topic that a message had before it was sent back."""
    return next((value for name, value in decode_properties(record.properties) if name == Name.RETRY_TOPIC), None)


class Portion:
    """Messages in a row of one topic, out of one retry queue."""

    __slots__ = ("done", "next", "records", "size")

    def __init__(self, records: Sequence[Record], next_: int, size: int) -> None:
        self.records, self.next, self.size = records, next_, size
        self.done = False


class RetryQueue:
    """One retry queue while it is ours; hands every new lane to `found`."""

    def __init__(
        self,
        stream: QueueStream,
        cluster: str,
        topics: Iterable[str],
        found: "Callable[[RetryLane], None]",
        send_back: SendBack,
    ) -> None:
        self.stream = stream
        self._cluster, self._topics, self._found, self._send_back = cluster, frozenset(topics), found, send_back
        self._lanes: dict[str, RetryLane] = {}
        self._portions: deque[Portion] = deque()
        """Read and not yet committed, in the queue's order."""
        self._waiting_bytes = 0
        self._room = asyncio.Event()
        self.ended: MqbridgeError | None = None
        self._task = spawn(self._read(), f"retries of {stream.queue}")

    @property
    def caught_up(self) -> bool:
        """Nothing more at the Broker, and nothing waits here."""
        return self.stream.caught_up and not self._waiting_bytes

    async def _read(self) -> None:
        try:
            while True:
                await self._divide(await self.stream.receive())
                while self._waiting_bytes >= MAX_WAITING_BYTES:
                    self._room.clear()
                    await self._room.wait()
        except MqbridgeError as error:
            self.ended = error
        for lane in self._lanes.values():
            lane.wake()

    async def _divide(self, pulled: Pulled) -> None:
        records = pulled.records
        end = {record.queue_offset: after.queue_offset for record, after in pairwise(records)}
        for topic, group in groupby(records, topic_of):
            run = list(group)
            portion = Portion(run, end.get(run[-1].queue_offset, pulled.next), sum(len(record.body) for record in run))
            self._portions.append(portion)
            if topic is not None and topic in self._topics:
                self._waiting_bytes += portion.size
                self._lane(topic).put(portion)
            else:
                for record in run:
                    await self._send_back(record)
                self.done(portion)
        if not records:
            self._commit(pulled.next)

    def _lane(self, topic: str) -> "RetryLane":
        lane = self._lanes.get(topic)
        if lane is None:
            queue = self.stream.queue
            partition = Partition(self._cluster, topic, f"{queue.topic}:{queue.broker}:{queue.id}", 0)
            lane = self._lanes[topic] = RetryLane(partition, self)
            self._found(lane)
        return lane

    def taken(self, portion: Portion) -> None:
        """A lane handed it out."""
        self._waiting_bytes -= portion.size
        self._room.set()

    def put_back(self, portion: Portion) -> None:
        """A lane will hand it out again."""
        self._waiting_bytes += portion.size

    def done(self, portion: Portion) -> None:
        """All of it is stored."""
        portion.done = True
        reached = None
        while self._portions and self._portions[0].done:
            reached = self._portions.popleft().next
        if reached is not None:
            self.stream.commit(reached)

    def _commit(self, offset: int) -> None:
        if not self._portions:
            self.stream.commit(offset)

    async def release(self, deadline: float | None = None) -> None:
        """Give the queue back."""
        await cancel(self._task)
        self.ended = self.ended or LaneRevoked(f"{self.stream.queue} was given back")
        for lane in self._lanes.values():
            lane.wake()
        await self.stream.release()


class RetryLane:
    """What a retry queue holds of one topic."""

    def __init__(self, partition: Partition, queue: RetryQueue) -> None:
        self.partition = partition
        self._queue = queue
        self._waiting: deque[Portion] = deque()
        self._out: deque[Portion] = deque()
        self._changed = asyncio.Event()
        self.revoked = asyncio.Event()

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
        while not self._waiting or self.revoked.is_set():
            if self.revoked.is_set():
                raise LaneRevoked(f"{self.partition} was given back")
            if self._queue.ended is not None:
                raise self._queue.ended
            self._changed.clear()
            await self._changed.wait()
        portion = self._waiting.popleft()
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
        )

    def acknowledge(
        self,
        batch: Batch,
        indexes: Sequence[int] | None = None,
        receipt: Receipt | None = None,
    ) -> None:
        """Stored."""
        portion: Portion = batch.handle
        if portion in self._out and not self.revoked.is_set():
            self._out.remove(portion)
            self._queue.done(portion)

    def reject(self, batch: Batch, failures: Sequence[MessageFailure] = (), delay_s: float = 0.0) -> None:
        """Again, with all that was handed out after it."""
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
        """Hand out no more; what is not acknowledged keeps the queue's offset where it is, and comes again."""
        self.revoked.set()
        self._changed.set()
