"""Partitions of a group without a cluster: what is stored, and which of them this gateway holds, is decided by the test."""

import asyncio
from collections.abc import Iterable
from typing import Any

from mqbridge.adapter.numbering import OffsetNumbering
from mqbridge.errors import ClusterError
from mqbridge.listener.feed import FeedLimits
from mqbridge.listener.limits import UnacknowledgedBytes
from mqbridge.listener.number_reader import NumberReader
from mqbridge.listener.queue_feed import QueueFeed, QueueFeedState
from mqbridge.listener.topics import ListenedTopic
from mqbridge.message import Batch
from mqbridge.tubemq.server.lanes import LaneStart, PartitionId
from mqbridge.tubemq.server.refusals import CodedRefusal
from tests.listener.scripted_lane import FORMAT, KEY, PARTITION, ScriptedLane, ScriptedQueue, make_batch

BATCH = 3
"""Messages of a batch."""


class ScriptedReader:
    """Reads a queue by position, and moves no group."""

    def __init__(self, queue: ScriptedQueue, number: int, opening_s: float) -> None:
        self.partition, self.lost = PARTITION, asyncio.Event()
        self._queue, self._next, self._opening_s, self._is_open = queue, number, opening_s, False

    async def receive(self) -> Batch:
        if not self._is_open:  # as a reader whose server takes a while; it is opened anew if that is cancelled
            await asyncio.sleep(self._opening_s)
            self._is_open = True
        while not (numbers := self._queue.between(self._next, self._queue.end)[:BATCH]):
            self._queue.wake.clear()
            await self._queue.wake.wait()
        self._next = numbers[-1] + 1
        return make_batch(numbers)

    async def seek(self, position: tuple[int, ...]) -> None:
        (self._next,) = position

    async def release(self, deadline: float | None = None) -> None:
        self.lost.set()


class ScriptedBroker:
    """The parts of a `ServedBroker` that partitions and groups use, for one topic."""

    def __init__(self, topic: str = "demo", partitions: int = 1) -> None:
        self.numbering = OffsetNumbering()
        self.queues: dict[PartitionId, ScriptedQueue] = {}
        self.topic: ListenedTopic
        self.opening_s = 0.0
        """How long it takes to open a reader."""
        self.bounds_gate = asyncio.Event()
        self.bounds_gate.set()
        self.bounds_asked = 0
        self.grow(partitions, topic)

    def grow(self, partitions: int, topic: str = "demo") -> None:
        self.topic = ListenedTopic(topic, topic, {index: str(index) for index in range(partitions)}, is_partitioned=True)
        for index in range(partitions):
            self.queues.setdefault(PartitionId(topic, index), ScriptedQueue())

    def known_topic(self, name: str) -> ListenedTopic | None:
        return self.topic if name == self.topic.name else None

    async def bounds_of(self, topic: ListenedTopic, index: int) -> tuple[int, int]:
        self.bounds_asked += 1
        await asyncio.sleep(0)
        await self.bounds_gate.wait()
        queue = self.queues[PartitionId(topic.name, index)]
        return queue.first, queue.end

    def position(self, number: int) -> tuple[int]:
        return (number,)

    def open_reader(self, topic: ListenedTopic, index: int) -> NumberReader:
        queue = self.queues[PartitionId(topic.name, index)]

        def source(position: tuple[int, ...]) -> Any:
            return ScriptedReader(queue, position[0], self.opening_s)

        return NumberReader(source, self.numbering, FORMAT, UnacknowledgedBytes(1 << 20))


class ScriptedLanes:
    """Lanes that come and go as the test says, as those of a group of the cluster."""

    problem = None

    def __init__(self, broker: ScriptedBroker) -> None:
        self._broker = broker
        self.feeds: dict[PartitionId, QueueFeed] = {}
        self.sources: dict[PartitionId, ScriptedLane] = {}
        self.closed: list[QueueFeed] = []
        self.open_gate = asyncio.Event()
        self.open_gate.set()
        self.begin_s = 0.0
        """How long a feed has to ask for the committed number of the group."""
        self.error: Exception | None = None
        """What the next `open` raises."""
        self.topics: frozenset[str] = frozenset()

    def hold(self, each: PartitionId) -> ScriptedLane:
        """Get a partition."""
        queue = self._broker.queues[each]

        async def find_begin() -> int | None:
            await asyncio.sleep(self.begin_s)
            return queue.committed

        async def find_bounds() -> tuple[int, int]:
            return queue.first, queue.end

        if each not in self.feeds:
            limits = FeedLimits(UnacknowledgedBytes(1 << 20), 10_000)
            self.feeds[each] = QueueFeed(KEY, FORMAT, self._broker.numbering, limits, find_begin, find_bounds)
        lane = self.sources[each] = ScriptedLane(queue, batch_messages=BATCH)
        self.feeds[each].attach(lane)
        return lane

    def want(self, topics: Iterable[str]) -> None:
        self.topics = frozenset(topics)

    def available(self) -> set[PartitionId]:
        return {each for each, feed in self.feeds.items() if feed.state is QueueFeedState.HELD}

    async def wait_ready(self) -> None:
        pass

    async def open(self, topic: ListenedTopic, index: int, start: LaneStart) -> tuple[QueueFeed, int]:
        each = PartitionId(topic.name, index)
        feed = self.feeds.get(each)
        if feed is None or feed.state is not QueueFeedState.HELD:
            raise CodedRefusal("another gateway has it", 410)
        await asyncio.sleep(0)
        await self.open_gate.wait()
        error, self.error = self.error, None
        if error is not None:
            raise error
        committed = feed.committed if feed.committed is not None else self._broker.queues[each].committed
        number = committed or 0
        if start.number is not None and start.number != number:
            number = start.number
            await feed.seek((number,))
        return feed, number

    async def move(self, topic: ListenedTopic, index: int, feed: QueueFeed, number: int) -> None:
        await feed.seek((number,))

    def commit(self, topic: ListenedTopic, index: int, feed: QueueFeed, number: int) -> None:
        if not feed.commit(number):
            raise ClusterError("a commit of what was never received")

    async def close(self, feed: QueueFeed) -> None:
        self.closed.append(feed)

    async def finish(self, deadline: float) -> None:
        await asyncio.gather(*(feed.finish(deadline) for feed in self.feeds.values()))

    async def end(self) -> None:
        await asyncio.gather(*(feed.detach() for feed in self.feeds.values()))
