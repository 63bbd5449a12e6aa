"""The pump moves ranges as the gateway moves lanes, and sees to it that each is complete; new topics wait for their targets."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from mqbridge.adapter.cluster import Cluster
from mqbridge.adapter.outbound import OutboundSpec
from mqbridge.config.load import from_dict
from mqbridge.config.options.config import Config
from mqbridge.errors import ConfigError, GapError
from mqbridge.memory.adapter.cluster import MemoryCluster
from mqbridge.memory.adapter.config import MemoryConfig
from mqbridge.memory.broker import forget
from mqbridge.message import Batch, Message, Partition, Share
from mqbridge.spark.cluster_ref import ClusterRef
from mqbridge.spark.mirror import targets
from mqbridge.spark.mirror.targets import TargetKeeper, prepare
from mqbridge.spark.ranges.mover import Pump
from mqbridge.spark.ranges.rows import RangeRow
from mqbridge.spark.transfer.spec import Replay, TargetsSpec

ROUTE: dict[str, Any] = {
    "name": "orders",
    "from": {"cluster": "there", "topics": ["~eu_(?P<name>.+)"], "group": "g"},
    "to": {"cluster": "here", "topic": "copy_{name}"},
}


class World:
    """Two clusters in memory, and a route between them."""

    def __init__(self, **route: Any) -> None:
        data = {"clusters": {name: {"system": "memory"} for name in ("there", "here")}, "routes": [ROUTE | route]}
        self.config: Config = from_dict(data)
        self.route = self.config.routes[0]
        self.refs = {name: ClusterRef(name, one.system, one.settings) for name, one in self.config.clusters.items()}
        self.clusters = {name: MemoryCluster(name, MemoryConfig(batch_messages=7)) for name in self.refs}

    @asynccontextmanager
    async def find(self, ref: ClusterRef) -> AsyncIterator[Cluster]:
        """As `BackgroundLoop.cluster`."""
        yield self.clusters[ref.name]

    def pump(self) -> Pump:
        return Pump(TargetsSpec.of_route(self.route, self.refs), self.refs, "job")

    async def fill(self, topic: str, partitions: int, count: int) -> None:
        cluster = self.clusters["there"]
        await cluster.create(topic, partitions)
        outbound = await cluster.outbound(OutboundSpec(topic, stamp_origin=False))
        for partition in range(partitions):
            made = [Message(b"%d" % n, key=f"k{n % 3}") for n in range(count)]
            await outbound.send(partition, Share(Batch.of(made)))
        await outbound.close()

    def stored(self, topic: str) -> list[list[bytes | None]]:
        return [[one.payload for one in stored.messages] for stored in self.clusters["here"].broker.topics[topic]]


@pytest.fixture(autouse=True)
def _forget() -> Any:
    yield
    forget("there")
    forget("here")


def row(partition: int, begin: int, end: int, topic: str = "eu_a") -> RangeRow:
    return RangeRow(Partition("there", topic, str(partition), partition), (begin,), (end,))


def numbers(begin: int, end: int) -> list[bytes]:
    return [b"%d" % n for n in range(begin, end)]


async def test_ranges_of_a_task_are_moved_completely_and_in_order() -> None:
    world = World()
    await world.fill("eu_a", 3, 50)
    await prepare([world.route], world.clusters)
    counts = await world.pump().move([row(0, 10, 40), row(2, 0, 50), row(1, 49, 50)], world.find)
    assert world.stored("copy_a") == [numbers(10, 40), numbers(49, 50), numbers(0, 50)]
    assert (counts.received, counts.stored, counts.skipped) == (81, 81, 0)


async def test_what_a_first_attempt_has_stored_is_left_out_of_the_second() -> None:
    world = World()
    await world.fill("eu_a", 2, 50)
    await prepare([world.route], world.clusters)
    await world.pump().move([row(0, 0, 20)], world.find)
    counts = await world.pump().move([row(0, 0, 50), row(1, 0, 50)], world.find, Replay())
    assert world.stored("copy_a") == [numbers(0, 50), numbers(0, 50)]
    assert (counts.stored, counts.skipped) == (80, 20)


async def test_filters_edits_and_partition_rules_are_those_of_the_route() -> None:
    to = {"cluster": "here", "topic": "copy_{name}", "partitions": {"by": "key"}, "edit": {"set": {"seen": "yes"}}}
    world = World(filter={"exclude": {"key": {"equals": "k0"}}}, to=to)
    await world.fill("eu_a", 2, 30)
    await prepare([world.route], world.clusters)
    counts = await world.pump().move([row(0, 0, 30), row(1, 0, 30)], world.find)
    assert (counts.received, counts.stored, counts.filtered) == (60, 40, 20)
    stored = [one for part in world.clusters["here"].broker.topics["copy_a"] for one in part.messages]
    assert {one.property("seen") for one in stored} == {"yes"}
    for part in world.clusters["here"].broker.topics["copy_a"]:
        for key in {one.key for one in part.messages}:
            assert all(key not in {one.key for one in other.messages}
                       for other in world.clusters["here"].broker.topics["copy_a"] if other is not part)  # fmt: skip


async def test_a_range_that_is_not_there_any_more_is_a_gap() -> None:
    world = World()
    await world.fill("eu_a", 1, 20)
    await prepare([world.route], world.clusters)
    with pytest.raises(GapError, match="ends before 30"):
        await world.pump().move([row(0, 0, 30)], world.find)
    counts = await World(delivery={"on_gap": "continue"}).pump().move([row(0, 0, 30)], world.find, Replay())
    assert (counts.stored, counts.skipped) == (0, 20)
    assert world.stored("copy_a") == [numbers(0, 20)]


async def test_ranges_of_an_unknown_cluster_are_refused() -> None:
    world = World()
    with pytest.raises(ConfigError, match="ranges come from cluster 'elsewhere'"):
        await world.pump().move([RangeRow(Partition("elsewhere", "eu_a", "0", 0), (0,), (1,))], world.find)


async def test_new_topics_wait_until_their_targets_are_made(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()

    @asynccontextmanager
    async def lent(refs: Any) -> AsyncIterator[dict[str, Any]]:
        yield {name: world.clusters[name] for name in refs}

    monkeypatch.setattr(targets, "lent", lent)
    monkeypatch.setattr(targets, "RETRY_S", 0.0)
    await world.fill("eu_a", 1, 1)
    keeper = TargetKeeper(world.route, world.refs)
    assert await keeper.waiting({("eu_a", "0")}) == set()
    assert (await world.clusters["here"].describe("copy_a")) is not None

    await world.clusters["there"].create("eu_b", 2)
    refusing = world.clusters.pop("here")
    new = {("eu_b", "0"), ("eu_b", "1")}
    world.clusters["here"] = _Refusing("here", MemoryConfig())
    assert await keeper.waiting(new) == new, "it cannot be made, and nothing else stops"
    assert await keeper.waiting({("eu_a", "0")}) == set()
    world.clusters["here"] = refusing
    assert await keeper.waiting(new) == set()
    described = await refusing.describe("copy_b")
    assert described is not None
    assert len(described.partitions) == 2


class _Refusing(MemoryCluster):
    async def check_create(self, topic: str, partitions: int) -> None:
        raise ConfigError("no more topics here")
