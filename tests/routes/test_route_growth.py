"""Partitions and topics added while a route runs are delivered, and other routes are not disturbed."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mqbridge.adapter.inbound import InboundSpec
from mqbridge.adapter.known_brokers import KnownBrokers
from mqbridge.adapter.outbound import OutboundSpec
from mqbridge.adapter.registry import load_adapters
from mqbridge.adapter.topics import Topic
from mqbridge.config.load import from_dict
from mqbridge.delivery.state_brokers import look_up_brokers
from mqbridge.errors import ClusterError
from mqbridge.gateway.run import Gateway
from mqbridge.message import Batch, Message, Partition, Share
from mqbridge.net.tasks import spawn
from mqbridge.routes.endpoints import RouteEndpoints
from mqbridge.testing.memory.adapter.cluster import MemoryCluster
from mqbridge.testing.memory.adapter.inbound import MemoryInbound, MemoryLane
from tests.gateway.world import (
    World,
    committed,
    end,
    everything,
    fill,
    named,
    put,
    route,
    running,
    set_capabilities,
    stored,
    until,
)

SOON = {"refresh": "100ms"}


@pytest.mark.parametrize("by", ["modulo", "identity", "key"])
@pytest.mark.parametrize("growing", [True, False], ids=["growing", "reopened"])
async def test_a_target_grows_with_its_source(world: World, by: str, growing: bool) -> None:
    fill(world.a, "t", 2, 100)
    config = world.config(
        route("r", "a/t", end("b/t", partitions={"by": by}), source_=SOON),
        route("other", "a/t", "c/t"),
        b={"growing_outbound": growing},
    )
    async with running(config) as gateway:
        await until(lambda: committed(world.a, "g-r") == 100)
        other, membership = named(gateway, "other"), named(gateway, "other").state.membership
        fill(world.a, "t", 5, 400, first=100)
        await until(lambda: committed(world.a, "g-r") == 500)
        await until(lambda: named(gateway, "r").state.target_partitions == {"t": {"b/t": 5}})
        put(world.a, "t", 4, b"500")
        await until(lambda: committed(world.a, "g-r") == 501)
        assert named(gateway, "r").state.memberships == (1 if growing else 2)
        assert named(gateway, "r").state.stopped == {}
        assert other.state.membership is membership
    assert everything(world.b, "t") == list(range(501))
    if by == "identity":
        assert stored(world.b, "t") == stored(world.a, "t")


async def test_without_create_a_new_partition_waits_for_a_target_partition(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    fill(world.a, "t", 2, 100)
    world.b.create("t", 2)
    target = end("b/t", partitions={"by": "identity"}, create=False)
    async with running(world.config(route("r", "a/t", target, source_=SOON), b={"growing_outbound": False})) as gateway:
        await until(lambda: committed(world.a, "g-r") == 100)
        fill(world.a, "t", 3, 90, first=100)
        held = named(gateway, "r")
        await until(lambda: committed(world.a, "g-r") == 160 and held.state.stopped)
        assert {str(at): why for at, why in held.state.stopped.items()} == {
            "a/t/2": "target b/t has no partition for source partition a/t/2: `by: identity` needs "
            "target partition 2, but the target has 2 partitions (0 to 1)"
        }
        assert [str(partition) for partition in held.state.deliveries] == ["a/t/0", "a/t/1"]
        world.b.create("t", 3)
        await until(lambda: committed(world.a, "g-r") == 190)
        assert held.state.stopped == {}
    assert stored(world.b, "t") == stored(world.a, "t")
    assert "a/t/2 waits for its targets: target b/t has no" in caplog.text


async def test_a_partition_that_is_not_in_the_table_waits_alone(world: World) -> None:
    fill(world.a, "t", 2, 100)
    target = end("b/t", partitions={"by": "table", "table": {"0": 1, "1": 0}})
    async with running(world.config(route("r", "a/t", target, source_=SOON))) as gateway:
        await until(lambda: committed(world.a, "g-r") == 100)
        fill(world.a, "t", 3, 90, first=100)
        await until(lambda: committed(world.a, "g-r") == 160 and named(gateway, "r").state.stopped)
        [why] = named(gateway, "r").state.stopped.values()
        assert why == (
            "target b/t has no partition for source partition a/t/2: the table of `partitions` does not contain this source "
            "partition"
        )
        put(world.a, "t", 0, b"200")
        await until(lambda: committed(world.a, "g-r") == 161)
        assert named(gateway, "r").state.error is None
    progress = world.a.progress["g-r", "t", 2]
    assert progress.committed == 0  # not lost: the partition can be added to the table


async def test_a_waiting_partition_that_is_reassigned_is_shown_correctly(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The waiting lane sees the grown target in the loop iteration in which it is revoked and the next lane is assigned."""
    fill(world.a, "t", 1, 20)
    partition = Partition("a", "t", "0", 0)
    lanes: list[MemoryLane] = []
    made = MemoryLane.__init__

    def noted(self: MemoryLane, *arguments: Any) -> None:
        made(self, *arguments)
        lanes.append(self)

    monkeypatch.setattr(MemoryLane, "__init__", noted)
    monkeypatch.setattr("mqbridge.routes.membership.GROWTH_CHECK_S", 0.0)  # checks in every loop iteration

    grown = asyncio.Event()

    def why_not_readable(_: RouteEndpoints, __: Partition) -> str | None:
        if len(lanes) > 1 and partition in found.state.deliveries:
            grown.set()
        return None if grown.is_set() else "no place"

    monkeypatch.setattr(RouteEndpoints, "why_not_readable", why_not_readable)
    async with running(world.config(route("r", "a/t", "b/t"))) as gateway:
        found = named(gateway, "r")
        await until(lambda: found.state.stopped)
        world.a.revoke("t", 0)
        await until(lambda: committed(world.a, "g-r") == 20)
        assert len(lanes) == 2
        assert [delivery.lane for delivery in found.state.deliveries.values()] == [lanes[1]]
        assert found.state.stopped == {}


async def test_a_partition_without_a_target_partition_does_not_keep_an_idle_gateway_up(world: World) -> None:
    fill(world.a, "t", 2, 100)
    world.b.create("t", 2)
    target = end("b/t", partitions={"by": "identity"}, create=False)
    gateway = Gateway(from_dict(world.config(route("r", "a/t", target)), adapters={"memory": load_adapters()["memory"]}))
    real = gateway.run(0.3)
    prepare = gateway._prepare

    async def grown_meanwhile(stack: Any, **more: Any) -> None:
        await prepare(stack, **more)
        fill(world.a, "t", 3, 9, first=100)

    gateway._prepare = grown_meanwhile  # type: ignore[method-assign]
    outcome = await real
    assert not outcome.clean
    assert list(outcome.routes[0].stopped) == ["a/t/2"]


@pytest.mark.parametrize("individual", [False, True])
async def test_new_topics_that_match_a_pattern_are_consumed(world: World, individual: bool) -> None:
    fill(world.a, "t1", 2, 100)
    fill(world.a, "u", 1, 100)
    config = world.config(
        route("r", "a/~t(?P<n>.+)", "b/copy-{n}", source_=SOON),
        route("other", "a/u", "b/u", source_=SOON),
        a={"individual_ack": individual},
    )
    async with running(config) as gateway:
        await until(lambda: committed(world.a, "g-r") == 100)
        membership = named(gateway, "other").state.membership
        world.b.faults.receipt_delay_s = 0.02
        for n in range(2, 5):
            fill(world.a, f"t{n}", 3, 300, first=n * 300)
            put(world.a, "t1", 0, b"%d" % (100 + n))
            await until(lambda n=n: everything(world.b, f"copy-{n}") == list(range(n * 300, n * 300 + 300)))  # type: ignore[misc]
        await until(lambda: committed(world.a, "g-r") == 1003)
        assert 2 <= named(gateway, "r").state.memberships <= 4
        assert (named(gateway, "other").state.membership, named(gateway, "other").state.memberships) == (membership, 1)
        assert named(gateway, "r").state.counters.acknowledged >= 1003
    assert everything(world.b, "copy-1") == [*range(100), 102, 103, 104]


async def test_deleted_topics_are_dropped_from_a_route(world: World) -> None:
    fill(world.a, "t1", 2, 100)
    fill(world.a, "t2", 2, 100)
    async with running(world.config(route("r", "a/~t.", "b/{topic}", source_=SOON))) as gateway:
        await until(lambda: committed(world.a, "g-r") == 200)
        del world.a.topics["t2"]
        await until(lambda: set(named(gateway, "r").state.target_partitions) == {"t1"})
        put(world.a, "t1", 0, b"100")
        await until(lambda: everything(world.b, "t1") == list(range(101)))


async def test_a_failed_refresh_leaves_the_route_unchanged(world: World, caplog: pytest.LogCaptureFixture) -> None:
    fill(world.a, "t1", 2, 100)
    async with running(world.config(route("r", "a/~t.", "b/{topic}", source_=SOON))) as gateway:
        await until(lambda: committed(world.a, "g-r") == 100)

        async def unable() -> list[str]:
            raise ClusterError("the admin address does not answer")

        real, gateway.clusters["a"].topics = gateway.clusters["a"].topics, unable  # type: ignore[method-assign]
        await until(lambda: "the route continues with the known topics: the admin address does not answer" in caplog.text)
        put(world.a, "t1", 0, b"100")
        await until(lambda: committed(world.a, "g-r") == 101)
        fill(world.a, "t2", 1, 10)
        gateway.clusters["a"].topics = real  # type: ignore[method-assign]
        await until(lambda: committed(world.a, "g-r") == 111)


async def test_a_target_that_cannot_be_opened_leaves_the_route_unchanged(world: World, caplog: pytest.LogCaptureFixture) -> None:
    fill(world.a, "t1", 2, 100)
    world.b.create("t1", 2)
    async with running(world.config(route("r", "a/~t.", end("b/{topic}", create=False), source_=SOON))) as gateway:
        fill(world.a, "t2", 1, 10)
        await until(lambda: "known topics: route 'r': the topic b/t2 does not exist and cannot be created" in caplog.text)
        put(world.a, "t1", 0, b"100")
        await until(lambda: committed(world.a, "g-r") == 101)
        assert named(gateway, "r").state.memberships == 1
        world.b.create("t2", 1)
        await until(lambda: committed(world.a, "g-r") == 111)


async def test_a_group_that_cannot_be_joined_again_at_once(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mqbridge.routes.route.MIN_REJOIN_PAUSE_S", 0.01)
    fill(world.a, "t1", 2, 100)
    async with running(world.config(route("r", "a/~t.", "b/{topic}", source_=SOON))) as gateway:
        await until(lambda: committed(world.a, "g-r") == 100)
        cluster, failures = gateway.clusters["a"], iter(range(3))
        real = cluster.inbound

        async def sometimes(spec: InboundSpec) -> Any:
            if next(failures, None) is not None:
                raise ClusterError("not just now")
            return await real(spec)

        cluster.inbound = sometimes  # type: ignore[method-assign]
        fill(world.a, "t2", 1, 10)
        await until(lambda: committed(world.a, "g-r") == 110)
        assert next(failures, None) is None


async def test_refresh_null_disables_the_checks(world: World) -> None:
    fill(world.a, "t1", 2, 100)
    async with running(world.config(route("r", "a/~t.", "b/{topic}", source_={"refresh": None}))) as gateway:
        asked = []
        real = gateway.clusters["a"].topics

        async def topics() -> list[str]:
            asked.append(1)
            return await real()

        gateway.clusters["a"].topics = topics  # type: ignore[method-assign]
        await until(lambda: committed(world.a, "g-r") == 100)
        fill(world.a, "t2", 1, 10)
        put(world.a, "t1", 0, b"100")
        await until(lambda: committed(world.a, "g-r") == 101)
        assert asked == []


async def test_targets_in_the_embedded_log_grow(tmp_path: Path) -> None:
    """The embedded log's outbounds do not see new partitions by themselves."""
    adapters = load_adapters()
    config = {
        "clusters": {name: {"system": "log", "path": str(tmp_path / f"{name}.db"), "poll": "10ms"} for name in ("a", "b")},
        "http": {"enabled": False},
        "routes": [route("r", "a/~t.*", end("b/{topic}", partitions={"by": "identity"}), source_=SOON)],
    }
    gateway = Gateway(from_dict(config, adapters=adapters), adapters)
    writer = adapters["log"].make_cluster("w", adapters["log"].cluster_model(path=tmp_path / "a.db"))
    await writer.connect()

    async def write(topic: str, partitions: int, payload: bytes) -> None:
        await writer.create(topic, partitions)
        outbound = await writer.outbound(OutboundSpec(topic))
        for partition in range(partitions):
            assert not (await outbound.send(partition, Share(Batch.of([Message(payload)] * 10)))).failures
        await outbound.close()

    await write("t1", 2, b"first")
    task = spawn(gateway.run(), "gateway")
    await until(lambda: gateway.ready and named(gateway, "r").state.counters.acknowledged == 20)
    await write("t1", 4, b"second")
    await write("t2", 1, b"third")
    await until(lambda: named(gateway, "r").state.counters.acknowledged == 70)
    bounds = {topic: await gateway.clusters["b"].bounds(topic) for topic in ("t1", "t2")}
    gateway.stop()
    assert (await task).clean
    await writer.close()
    assert {topic: [held[str(n)].next[0] for n in range(len(held))] for topic, held in bounds.items()} == {
        "t1": [20, 20, 10, 10],
        "t2": [10],
    }


async def test_a_topic_beyond_the_limit_of_the_group_is_logged_and_the_others_continue(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    set_capabilities(monkeypatch, group_topics=2)
    for topic in ("t1", "t2"):
        fill(world.a, topic, 1, 100)
    async with running(world.config(route("r", "a/~t.", "b/{topic}", source_=SOON))) as gateway:
        await until(lambda: committed(world.a, "g-r") == 200)
        fill(world.a, "t3", 1, 10)
        await until(lambda: "known topics: route 'r' selects 3 topics, but a group of 'a' may read at most 2" in caplog.text)
        put(world.a, "t1", 0, b"100")
        await until(lambda: committed(world.a, "g-r") == 201)
        assert named(gateway, "r").state.error is None
        assert named(gateway, "r").state.memberships == 1
    assert "t3" not in world.b.topics


@pytest.mark.parametrize("rule", [{"by": "identity"}, {"by": "table", "table": {"0": 1, "1": 0}}], ids=["identity", "table"])
async def test_a_partition_without_a_target_partition_is_not_read_while_its_membership_ends(
    world: World, monkeypatch: pytest.MonkeyPatch, rule: dict[str, Any]
) -> None:
    real = MemoryInbound.lanes

    async def lanes(self: MemoryInbound) -> AsyncIterator[MemoryLane]:
        try:
            async for lane in real(self):
                yield lane
        finally:
            for _ in range(100):  # it takes its time to end
                await asyncio.sleep(0)

    monkeypatch.setattr(MemoryInbound, "lanes", lanes)
    fill(world.a, "t", 2, 100)
    world.b.create("t", 2)
    target = end("b/t", partitions=rule, create=False)
    async with running(world.config(route("r", "a/t", target, source_=SOON))) as gateway:
        await until(lambda: committed(world.a, "g-r") == 100)
        fill(world.a, "t", 3, 90, first=100)
        held = named(gateway, "r")
        await until(lambda: committed(world.a, "g-r") == 160 and held.state.stopped)
    assert held.state.error is None
    assert world.a.progress["g-r", "t", 2].committed == 0


@pytest.mark.parametrize("growing", [True, False], ids=["growing", "reopened"])
async def test_later_partitions_and_topics_are_read_from_their_beginning(world: World, growing: bool) -> None:
    """`start: latest` applies only to partitions and topics that exist at first."""
    fill(world.a, "t0", 1, 10)
    source = SOON | {"start": "latest"}
    by_identity = end("b/{topic}", partitions={"by": "identity"})
    config = world.config(route("r", "a/~t.", by_identity, source_=source), b={"growing_outbound": growing})
    async with running(config) as gateway:
        found = named(gateway, "r")
        await until(lambda: found.state.deliveries)
        fill(world.a, "t1", 1, 20, first=100)
        await until(lambda: everything(world.b, "t1") == list(range(100, 120)))
        fill(world.a, "t0", 2, 20, first=200)
        await until(lambda: everything(world.b, "t0") == list(range(200, 220)))
        assert found.state.memberships >= 2
        world.a.fail("g-r", ClusterError("the coordinator moves"))
        await until(lambda: found.state.memberships >= 3 + (not growing))
        put(world.a, "t0", 0, b"220")
        await until(lambda: everything(world.b, "t0") == list(range(200, 221)))


async def test_later_partitions_of_a_log_are_read_from_their_beginning(tmp_path: Path) -> None:
    adapters = load_adapters()
    config = {
        "clusters": {name: {"system": "log", "path": str(tmp_path / f"{name}.db"), "poll": "10ms"} for name in ("a", "b")},
        "http": {"enabled": False},
        "routes": [route("r", "a/~t.*", end("b/{topic}", partitions={"by": "identity"}), source_=SOON | {"start": "latest"})],
    }
    writer = adapters["log"].make_cluster("w", adapters["log"].cluster_model(path=tmp_path / "a.db"))
    await writer.connect()

    async def write(topic: str, partitions: int, only: int | None = None) -> None:
        await writer.create(topic, partitions)
        outbound = await writer.outbound(OutboundSpec(topic))
        for partition in range(partitions) if only is None else (only,):
            assert not (await outbound.send(partition, Share(Batch.of([Message(b"x")] * 10)))).failures
        await outbound.close()

    await write("t1", 1)
    gateway = Gateway(from_dict(config, adapters=adapters), adapters)
    task = spawn(gateway.run(), "gateway")
    await until(lambda: gateway.ready and named(gateway, "r").state.deliveries)
    await write("t1", 2, only=1)
    await until(lambda: named(gateway, "r").state.counters.acknowledged == 10)
    await write("t2", 2)
    await until(lambda: named(gateway, "r").state.counters.acknowledged == 30)
    gateway.stop()
    assert (await task).clean
    await writer.close()


@pytest.mark.parametrize("failing", ["target", "source"])
async def test_topics_grow_although_an_earlier_one_fails(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, failing: str
) -> None:
    """Each target of each source topic is compared alone: a broker of one target that is down does not concern the others."""
    for topic in ("t1", "t2"):
        fill(world.a, topic, 2, 20)
    async with running(world.config(route("r", "a/~t.", "b/{topic}", "c/{topic}", source_=SOON))) as gateway:
        await until(lambda: committed(world.a, "g-r") == 40)
        if failing == "target":
            world.b.faults.create_error = "a broker of the topic is down"
        else:
            real = gateway.clusters["a"].describe

            async def describe(topic: str) -> Any:
                if topic == "t1":
                    raise ClusterError("a broker of the topic is down")
                return await real(topic)

            monkeypatch.setattr(gateway.clusters["a"], "describe", describe)
        for topic in ("t1", "t2"):
            world.a.create(topic, 4)
        await until(lambda: len(stored(world.c, "t2")) == 4)
        if failing == "target":
            await until(lambda: len(stored(world.c, "t1")) == 4)
            assert len(stored(world.b, "t1")) == len(stored(world.b, "t2")) == 2
            await until(lambda: "a broker of the topic is down (and 1 more)" in caplog.text)
            world.b.faults.create_error = None
        else:
            await until(lambda: len(stored(world.b, "t2")) == 4)
            monkeypatch.setattr(gateway.clusters["a"], "describe", real)
        await until(lambda: [len(stored(world.b, topic)) for topic in ("t1", "t2")] == [4, 4])


async def test_topics_grow_although_a_new_one_has_to_wait(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    real = MemoryCluster.check_create

    async def check_create(self: MemoryCluster, topic: str, partitions: int) -> None:
        if topic == "t2":
            raise ClusterError("a broker is down that may have t2")
        await real(self, topic, partitions)

    fill(world.a, "t1", 2, 20)
    async with running(world.config(route("r", "a/~t.", "b/{topic}", source_=SOON))):
        await until(lambda: committed(world.a, "g-r") == 20)
        monkeypatch.setattr(MemoryCluster, "check_create", check_create)
        fill(world.a, "t2", 1, 10)
        await until(lambda: "known topics: route 'r': the topic b/t2 does not exist and cannot be created" in caplog.text)
        world.a.create("t1", 4)
        await until(lambda: len(stored(world.b, "t1")) == 4)
        monkeypatch.undo()
        await until(lambda: everything(world.b, "t2") == list(range(10)))


async def test_an_unreachable_cluster_fails_once_per_refresh(world: World, caplog: pytest.LogCaptureFixture) -> None:
    for number in range(5):
        fill(world.a, f"t{number}", 1, 4)
    config = world.config(route("r", "a/~t.", "b/{topic}", "c/{topic}", source_=SOON), b={"growing_outbound": False})
    async with running(config):
        await until(lambda: committed(world.a, "g-r") == 20)
        world.b.disconnect()
        for number in range(5):
            world.a.create(f"t{number}", 2)
        await until(lambda: [len(stored(world.c, f"t{number}")) for number in range(5)] == [2] * 5)
        world.b.reconnect()
        await until(lambda: [len(stored(world.b, f"t{number}")) for number in range(5)] == [2] * 5)
    assert "more)" not in caplog.text


@pytest.fixture
def two_brokers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory clusters describe their partitions as those of two brokers."""
    made, describe = MemoryCluster.__init__, MemoryCluster.describe

    def __init__(self: MemoryCluster, *arguments: Any) -> None:  # noqa: N807 - replaces it
        made(self, *arguments)
        self.known_brokers = KnownBrokers()  # type: ignore[attr-defined]

    async def described(self: MemoryCluster, topic: str) -> Topic | None:
        found = await describe(self, topic)
        return found and replace(found, partitions=tuple(f"{'ab'[int(name) % 2]}:{int(name) // 2}" for name in found.partitions))

    async def nothing(*_: Any) -> None:
        pass

    for name, method in (
        ("__init__", __init__),
        ("describe", described),
        ("why_incomplete", nothing),
        ("why_maybe_there", nothing),
    ):
        monkeypatch.setattr(MemoryCluster, name, method, raising=False)


@pytest.mark.usefixtures("two_brokers")
async def test_the_layout_of_a_topic_is_in_the_state_file_before_its_first_message_is_read(
    world: World, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Also when the route is opened again: a kill right after must not leave the next start to guess."""
    monkeypatch.setattr("mqbridge.delivery.checkpoint.WRITE_INTERVAL_S", 1e6)
    state = tmp_path / "state.db"
    config = world.config(route("r", "a/~t.", end("b/{topic}", partitions={"by": "identity"}), source_=SOON), state=str(state))
    world.a.create("t1", 2)
    async with running(config) as gateway:
        for topic in ("t1", "t2"):
            fill(world.a, topic, 2, 10)
            await until(lambda topic=topic: stored(world.b, topic))  # type: ignore[misc]
            await until(lambda topic=topic: everything(world.b, topic))  # type: ignore[misc]
            written = KnownBrokers()
            look_up_brokers(state, "a", written)
            assert {series.broker for series in written.layouts.get(topic, ())} == {"a", "b"}
        assert named(gateway, "r").state.memberships == 2
