"""One deadline for everything that stops, whatever hangs; and nothing that passes by itself ends a route."""

import asyncio
from typing import Any

import pytest

from mqbridge.errors import ClusterError
from mqbridge.memory.adapter.cluster import MemoryCluster
from mqbridge.memory.adapter.inbound import MemoryInbound, MemoryLane
from mqbridge.memory.adapter.outbound import MemoryOutbound
from tests.core.world import World, committed, everything, fill, named, put, route, running, until

SOON = {"refresh": "100ms"}


async def hang(*_: Any) -> None:
    await asyncio.Event().wait()


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever waits for a deadline of his own waits longer than this test."""
    monkeypatch.setattr("mqbridge.adapter.CLOSE_S", 3600.0)
    monkeypatch.setattr("mqbridge.delivery.lane.DRAIN_S", 3600.0)
    monkeypatch.setattr("mqbridge.gateway.route.REJOIN_FIRST_S", 0.01)


@pytest.mark.parametrize("what", [MemoryOutbound, MemoryInbound, MemoryCluster, MemoryLane])
async def test_stopping_ends_by_the_deadline_whatever_hangs(
    world: World, quick: None, what: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    fill(world.a, "t", 1, 20)
    real_close = MemoryOutbound.close
    async with running(world.config(route("r", "a/t", "b/t"), shutdown_timeout="200ms"), alone=False) as gateway:
        await until(lambda: committed(world.a, "g-r") == 20)
        outbound = gateway.routes[0]._ends.targets["t"][0].outbound
        world.b.connected.clear()
        put(world.a, "t", 0, b"20")
        await until(lambda: named(gateway, "r").in_flight)
        monkeypatch.setattr(what, "release" if what is MemoryLane else "close", hang)
    assert gateway.routes[0].error is None
    assert "is left behind" in caplog.text
    await real_close(outbound, 0.0)  # type: ignore[arg-type]


async def test_stopping_with_a_target_that_is_away_takes_as_long_as_is_configured(world: World, quick: None) -> None:
    fill(world.a, "t", 1, 20)
    async with running(world.config(route("r", "a/t", "b/t"), shutdown_timeout="200ms")) as gateway:
        await until(lambda: committed(world.a, "g-r") == 20)
        world.b.connected.clear()
        put(world.a, "t", 0, b"20")
        await until(lambda: named(gateway, "r").in_flight)
    assert committed(world.a, "g-r") == 20
    assert everything(world.b, "t") == list(range(20)), "what was not on its way is taken back"


async def test_a_join_that_fails_once_is_tried_again(world: World, quick: None, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(world.a, "t", 1, 20)
    fill(world.a, "u", 1, 20)
    real, failures = MemoryCluster.inbound, [ClusterError("the master is busy, try again")]

    async def once(self: MemoryCluster, spec: Any) -> Any:
        if failures:
            raise failures.pop()
        return await real(self, spec)

    monkeypatch.setattr(MemoryCluster, "inbound", once)
    async with running(world.config(route("r", "a/t", "b/t"), route("s", "a/u", "b/u"))) as gateway:
        await until(lambda: committed(world.a, "g-r") == committed(world.a, "g-s") == 20)
        assert [one.error for one in gateway.routes] == [None, None]
        assert sorted(one.sessions for one in gateway.routes) == [1, 2]


@pytest.mark.parametrize("what", [MemoryLane, MemoryInbound])
async def test_giving_back_that_fails_once_at_a_new_topic_ends_nothing(
    world: World, quick: None, what: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(world.a, "t0", 1, 20)
    name = "release" if what is MemoryLane else "close"
    real, failures = getattr(what, name), [ClusterError("the file is locked")]

    async def once(self: Any, deadline: float | None = None) -> None:
        await real(self, deadline)
        if failures:
            raise failures.pop()

    monkeypatch.setattr(what, name, once)
    async with running(world.config(route("r", "a/~t.", "b/{topic}", source_=SOON))) as gateway:
        await until(lambda: committed(world.a, "g-r") == 20)
        fill(world.a, "t1", 1, 20)
        await until(lambda: committed(world.a, "g-r") == 40)
        assert not failures
        assert named(gateway, "r").error is None


async def test_an_idle_gateway_waits_for_what_waits_for_its_rate(world: World) -> None:
    fill(world.a, "t", 1, 60)
    config = world.config(route("r", "a/t", "b/t", delivery={"rate": 20}))
    async with running(config) as gateway:
        found = named(gateway, "r")
        await until(lambda: found.counters.received and found.deliveries and found.in_flight)
        await until(lambda: all(one.lane.caught_up for one in found.deliveries.values()))
        assert found.counters.received != 60
        assert found.idle_for(asyncio.get_running_loop().time() + 3600) == 0
