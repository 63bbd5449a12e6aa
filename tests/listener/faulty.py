"""A memory cluster whose requests fail or hang on demand, and what listeners of tests make of it."""

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path

from mqbridge.adapter.inbound import Inbound, InboundSpec, Sharing, Start
from mqbridge.adapter.operations import Operations
from mqbridge.adapter.outbound import Outbound, OutboundSpec
from mqbridge.adapter.reader import READ_BYTES, PartitionReader
from mqbridge.adapter.topics import Bounds, Topic
from mqbridge.groups.store import GroupStore
from mqbridge.listener.delivered import Delivered
from mqbridge.listener.feed import Feed, FeedLimits
from mqbridge.listener.groups import GroupNames, GroupStart, Partitions
from mqbridge.listener.limits import UnacknowledgedBytes
from mqbridge.listener.topics import ListenedTopic, ListenedTopics, TopicTemplate
from mqbridge.message import Message, Position
from mqbridge.testing.memory.adapter.cluster import MemoryCluster
from mqbridge.testing.memory.adapter.config import MemoryConfig
from mqbridge.testing.memory.adapter.operations import MemoryOperations
from mqbridge.testing.memory.broker import delete_broker
from tests.listener.feeds import numbers
from tests.patience import PATIENCE_S

FORMAT = "pulsar.entry"


class RequestFaults:
    """Requests by name: which hang, which fail, and how many there were."""

    def __init__(self) -> None:
        self.gates: dict[str, asyncio.Event] = {}
        """A request whose gate is not set waits for it."""
        self.errors: dict[str, Exception] = {}
        self.calls: Counter[str] = Counter()
        self.waiting: Counter[str] = Counter()

    def release(self) -> None:
        """Let all requests pass."""
        for gate in self.gates.values():
            gate.set()
        self.gates.clear()
        self.errors.clear()

    def hang(self, name: str) -> asyncio.Event:
        """Make requests of this name wait for the event that is returned."""
        gate = self.gates[name] = asyncio.Event()
        return gate

    async def pass_(self, name: str) -> None:
        self.calls[name] += 1
        if (gate := self.gates.get(name)) is not None:
            self.waiting[name] += 1
            try:
                await gate.wait()
            finally:
                self.waiting[name] -= 1
        if (error := self.errors.get(name)) is not None:
            raise error

    async def until_waiting(self, name: str, count: int = 1) -> None:
        await until(lambda: self.waiting[name] >= count)


class FaultyOperations(MemoryOperations):
    def __init__(self, cluster: "FaultyCluster") -> None:
        super().__init__(cluster)
        self.requests = cluster.requests
        self._times = cluster.times

    async def move(self, topic: str, group: str, positions: Mapping[str, Position]) -> None:
        await self.requests.pass_("move")
        await super().move(topic, group, positions)

    async def delete_group(self, topic: str, group: str) -> None:
        await self.requests.pass_("delete_group")
        await super().delete_group(topic, group)

    async def position_at(self, topic: str, time_ms: int) -> Mapping[str, Position]:
        await self.requests.pass_("position_at")
        return self._times if self._times is not None else await super().position_at(topic, time_ms)


class FaultyCluster(MemoryCluster):
    """See the module."""

    def __init__(self, name: str, config: MemoryConfig) -> None:
        super().__init__(name, config)
        self.requests = RequestFaults()
        self.times: Mapping[str, Position] | None = None
        """What `position_at` returns; None: it fails."""
        self.has_operations = True
        self.inbound_specs: list[InboundSpec] = []
        self.outbounds: list[Outbound] = []

    @property
    def operations(self) -> Operations | None:  # type: ignore[override]
        return FaultyOperations(self) if self.has_operations else None

    async def describe(self, topic: str) -> Topic | None:
        found = await super().describe(topic)
        await self.requests.pass_("describe")
        return found

    async def bounds(self, topic: str, partition: str | None = None) -> Mapping[str, Bounds]:
        await self.requests.pass_("bounds")
        return await super().bounds(topic, partition)

    async def committed(self, topic: str, group: str) -> Mapping[str, Position]:
        await self.requests.pass_("committed")
        return await super().committed(topic, group)

    async def reader(
        self, topic: str, partition: str, begin: Position, end: Position | None = None, *, max_bytes: int = READ_BYTES
    ) -> PartitionReader:
        await self.requests.pass_("reader")
        return await super().reader(topic, partition, begin, end, max_bytes=max_bytes)

    async def inbound(self, spec: InboundSpec) -> Inbound:
        await self.requests.pass_("inbound")
        self.inbound_specs.append(spec)
        return await super().inbound(spec)

    async def outbound(self, spec: OutboundSpec) -> Outbound:
        await self.requests.pass_("outbound")
        opened = await super().outbound(spec)
        self.outbounds.append(opened)
        return opened

    @property
    def open_outbounds(self) -> int:
        return sum(not each._closed for each in self.outbounds)  # type: ignore[attr-defined]

    def members(self, group: str) -> int:
        return len(self.broker._members.get(group, ()))


class Listened:
    """The topics of a listener over a memory cluster, and what its groups need."""

    def __init__(self, name: str, path: Path | None = None, *, partitions: int | None = 1, config: MemoryConfig | None = None):
        self.name, self.path = name, path
        self.cluster = FaultyCluster(name, config or MemoryConfig(broker=name))
        self.requests = self.cluster.requests
        self.topics = ListenedTopics(
            self.cluster,
            TopicTemplate("{topic}"),
            create_partitions=partitions,
            is_reserved=lambda name: name.startswith("reserved"),
        )
        self.unacknowledged = UnacknowledgedBytes(1 << 20)
        self.partitions = Partitions(self.cluster, "app", FORMAT, FeedLimits(self.unacknowledged, 10_000))
        self.names = GroupNames("{group}", self.cluster.capabilities.group_name)
        self.store = None if path is None else GroupStore(path)

    async def topic(self, partitions: int = 1, name: str = "t") -> ListenedTopic:
        """Create a topic, or grow it."""
        await self.cluster.create(name, partitions)
        found = await self.topics.find(name, fresh=True)
        assert found is not None
        return found

    def send(self, *payloads: int, partition: int = 0, topic: str = "t") -> None:
        stored = self.cluster.broker.topics[topic][partition]
        stored.append([Message(b"%d" % payload, position=(stored.next + index,)) for index, payload in enumerate(payloads)])

    def readers(self, topic: str = "t") -> int:
        return sum(len(partition.readers) for partition in self.cluster.broker.topics.get(topic, ()))

    async def close(self) -> None:
        if self.store is not None:
            await self.store.close()
        delete_broker(self.name)
        assert self.unacknowledged.used == 0


async def until(condition: Callable[[], bool]) -> None:
    """Wait for a condition."""
    async with asyncio.timeout(PATIENCE_S):
        while not condition():
            await asyncio.sleep(0.001)


def payload_of(delivered: Delivered) -> int:
    assert delivered.message is not None
    return int(delivered.message.payload or b"")


async def take_some(feed: Feed, count: int) -> list[Delivered]:
    """Take exactly this many messages, waiting for them."""
    taken: list[Delivered] = []
    async with asyncio.timeout(PATIENCE_S):
        while len(taken) < count:
            found = feed.take(count - len(taken), 1 << 20)
            taken += found
            if not found:
                await asyncio.sleep(0.001)
    return taken


async def taken_numbers(feed: Feed, count: int) -> list[int]:
    return [number for each in await take_some(feed, count) for number in numbers(each)]


START: GroupStart = Start.EARLIEST
SHARED = Sharing.SHARED
