"""The pump moves complete ranges as the gateway moves lanes, and new topics are deferred until their targets exist."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from mqbridge.adapter.cluster import Cluster
from mqbridge.adapter.outbound import OutboundSpec
from mqbridge.config.load import from_dict
from mqbridge.config.options.config import Config
from mqbridge.errors import ConfigError, GapError
from mqbridge.message import Batch, Message, Partition, Share
from mqbridge.net.tasks import spawn
from mqbridge.spark.cluster_ref import ClusterRef
from mqbridge.spark.mirror import targets
from mqbridge.spark.mirror.targets import NewTargetCreator, prepare_targets
from mqbridge.spark.ranges.mover import Pump
from mqbridge.spark.ranges.rows import RangeRow
from mqbridge.spark.transfer.spec import Replay, TargetsSpec
from mqbridge.testing.memory.adapter.cluster import MemoryCluster
from mqbridge.testing.memory.adapter.config import MemoryConfig
from mqbridge.testing.memory.adapter.reader import MemoryReader
from mqbridge.testing.memory.broker import delete_broker
from tests.spark.transfer.flaky import run_in_virtual_time

ROUTE: dict[str, Any] = {
    "name": "orders",
    "from": {"cluster": "there", "topics": ["~eu_(?P<name>.+)"], "group": "g"},
    "to": {"cluster": "here", "topic": "copy_{name}"},
}


class RouteSetup:
    """Two in-memory clusters, and a route between them."""

    def __init__(self, **route: Any) -> None:
        data = {"clusters": {name: {"system": "memory"} for name in ("there", "here")}, "routes": [ROUTE | route]}
        self.config: Config = from_dict(data)
        self.route = self.config.routes[0]
        self.refs = {name: ClusterRef(name, config.system, config.settings) for name, config in self.config.clusters.items()}
        self.clusters = {name: MemoryCluster(name, MemoryConfig(batch_messages=7)) for name in self.refs}

    @asynccontextmanager
    async def find(self, ref: ClusterRef) -> AsyncIterator[Cluster]:
        """Replace `BackgroundLoop.cluster`."""
        yield self.clusters[ref.name]

    def pump(self) -> Pump:
        return Pump(TargetsSpec.of_route(self.route, self.refs), self.refs, "job")

    async def fill(self, topic: str, partitions: int, count: int, message: Message | None = None) -> None:
        cluster = self.clusters["there"]
        await cluster.create(topic, partitions)
        outbound = await cluster.outbound(OutboundSpec(topic, stamp_origin=False))
        for partition in range(partitions):
            messages = [message or Message(b"%d" % n, key=f"k{n % 3}") for n in range(count)]
            await outbound.send(partition, Share(Batch.of(messages)))
        await outbound.close()

    def stored(self, topic: str) -> list[list[bytes | None]]:
        partitions = self.clusters["here"].broker.topics[topic]
        return [[message.payload for message in partition.messages] for partition in partitions]


@pytest.fixture(autouse=True)
def _forget() -> Any:
    yield
    delete_broker("there")
    delete_broker("here")


def row(partition: int, begin: int, end: int, topic: str = "eu_a") -> RangeRow:
    return RangeRow(Partition("there", topic, str(partition), partition), (begin,), (end,))


def payloads(begin: int, end: int) -> list[bytes]:
    return [b"%d" % n for n in range(begin, end)]


async def test_ranges_of_a_task_are_moved_completely_and_in_order() -> None:
    setup = RouteSetup()
    await setup.fill("eu_a", 3, 50)
    await prepare_targets([setup.route], setup.clusters)
    counts = await setup.pump().move([row(0, 10, 40), row(2, 0, 50), row(1, 49, 50)], setup.find)
    assert setup.stored("copy_a") == [payloads(10, 40), payloads(49, 50), payloads(0, 50)]
    assert (counts.received, counts.stored, counts.skipped) == (81, 81, 0)


async def test_messages_that_a_first_attempt_stored_are_skipped_by_the_second() -> None:
    setup = RouteSetup()
    await setup.fill("eu_a", 2, 50)
    await prepare_targets([setup.route], setup.clusters)
    await setup.pump().move([row(0, 0, 20)], setup.find)
    counts = await setup.pump().move([row(0, 0, 50), row(1, 0, 50)], setup.find, Replay())
    assert setup.stored("copy_a") == [payloads(0, 50), payloads(0, 50)]
    assert (counts.stored, counts.skipped) == (80, 20)


async def test_the_pump_applies_the_filter_edit_and_partition_rule_of_the_route() -> None:
    to = {"cluster": "here", "topic": "copy_{name}", "partitions": {"by": "key"}, "edit": {"set": {"seen": "yes"}}}
    setup = RouteSetup(filter={"exclude": {"key": {"equals": "k0"}}}, to=to)
    await setup.fill("eu_a", 2, 30)
    await prepare_targets([setup.route], setup.clusters)
    counts = await setup.pump().move([row(0, 0, 30), row(1, 0, 30)], setup.find)
    assert (counts.received, counts.stored, counts.filtered) == (60, 40, 20)
    partitions = [partition.messages for partition in setup.clusters["here"].broker.topics["copy_a"]]
    assert {message.property("seen") for messages in partitions for message in messages} == {"yes"}
    first_keys, second_keys = ({message.key for message in messages} for messages in partitions)
    assert not first_keys & second_keys


async def test_a_range_whose_messages_are_deleted_is_a_gap() -> None:
    setup = RouteSetup()
    await setup.fill("eu_a", 1, 20)
    await prepare_targets([setup.route], setup.clusters)
    with pytest.raises(GapError, match="ends before 30"):
        await setup.pump().move([row(0, 0, 30)], setup.find)
    counts = await RouteSetup(delivery={"on_gap": "continue"}).pump().move([row(0, 0, 30)], setup.find, Replay())
    assert (counts.stored, counts.skipped) == (0, 20)
    assert setup.stored("copy_a") == [payloads(0, 20)]


def test_a_task_holds_at_most_the_in_flight_bytes_of_its_route(monkeypatch: pytest.MonkeyPatch) -> None:
    """The target confirms nothing for a while: the task then stops reading, however many ranges it moves."""

    async def run() -> None:
        limit, size, ranges, count = 512 << 10, 8_000, 20, 70
        setup = RouteSetup(delivery={"in_flight_bytes": limit})
        await setup.fill("eu_a", ranges, count, Message(bytes(size)))
        await prepare_targets([setup.route], setup.clusters)
        target = setup.clusters["here"]
        read_bytes = 0
        receive = MemoryReader.receive

        async def counted(reader: MemoryReader) -> Batch | None:
            nonlocal read_bytes
            batch = await receive(reader)
            read_bytes += 0 if batch is None else batch.size
            return batch

        monkeypatch.setattr(MemoryReader, "receive", counted)
        target.broker.faults.hold_receipts = True
        rows = [row(partition, 0, count) for partition in range(ranges)]
        moving = spawn(setup.pump().move(rows, setup.find), "moving", log_errors=False)
        await asyncio.sleep(60)  # in virtual time: until nothing more happens
        assert limit // 4 < read_bytes <= limit
        target.broker.release_receipts()
        assert (await moving).stored == ranges * count

    run_in_virtual_time(run)


async def test_ranges_of_an_unknown_cluster_are_an_error() -> None:
    setup = RouteSetup()
    with pytest.raises(ConfigError, match="ranges come from cluster 'elsewhere'"):
        await setup.pump().move([RangeRow(Partition("elsewhere", "eu_a", "0", 0), (0,), (1,))], setup.find)


async def test_new_topics_have_no_target_until_it_can_be_created(monkeypatch: pytest.MonkeyPatch) -> None:
    setup = RouteSetup()

    @asynccontextmanager
    async def connected_clusters(refs: Any) -> AsyncIterator[dict[str, Any]]:
        yield {name: setup.clusters[name] for name in refs}

    monkeypatch.setattr(targets, "connected_clusters", connected_clusters)
    monkeypatch.setattr(targets, "RETRY_INTERVAL_S", 0.0)
    await setup.fill("eu_a", 1, 1)
    creator = NewTargetCreator(setup.route, setup.refs)
    assert await creator.create({("eu_a", "0")}) == set()
    assert (await setup.clusters["here"].describe("copy_a")) is not None

    await setup.clusters["there"].create("eu_b", 2)
    cluster = setup.clusters.pop("here")
    new = {("eu_b", "0"), ("eu_b", "1")}
    setup.clusters["here"] = FullCluster("here", MemoryConfig())
    assert await creator.create(new) == new, "the target cannot be created"
    assert await creator.create({("eu_a", "0")}) == set(), "other targets are not affected"
    setup.clusters["here"] = cluster
    assert await creator.create(new) == set()
    described = await cluster.describe("copy_b")
    assert described is not None
    assert len(described.partitions) == 2


class FullCluster(MemoryCluster):
    """A cluster that creates no more topics."""

    async def check_create(self, topic: str, partitions: int) -> None:
        raise ConfigError("no more topics here")
