"""One deadline for everything that stops, whatever hangs; and transient failures do not end a route."""

import asyncio
import contextlib
from pathlib import Path
from typing import Any

import pytest
import yaml

from mqbridge.adapter.tools.deadlines import seconds_until
from mqbridge.config.load import from_dict
from mqbridge.delivery.checkpoint import Checkpoints
from mqbridge.errors import ClusterError
from mqbridge.gateway.run import Gateway
from mqbridge.net.tasks import spawn
from mqbridge.testing.memory.adapter.cluster import MemoryCluster
from mqbridge.testing.memory.adapter.inbound import MemoryInbound, MemoryLane
from mqbridge.testing.memory.adapter.outbound import MemoryOutbound
from tests.gateway.world import ADAPTERS, PATIENCE_S, World, committed, everything, fill, named, put, route, running, until

SOON = {"refresh": "100ms"}


async def hang(*_: Any) -> None:
    await asyncio.Event().wait()


@pytest.fixture
def long_deadlines(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make every other deadline longer than this test."""
    monkeypatch.setattr("mqbridge.adapter.tools.deadlines.CLOSE_S", 3600.0)
    monkeypatch.setattr("mqbridge.delivery.lane.DRAIN_S", 3600.0)
    monkeypatch.setattr("mqbridge.routes.route.MIN_REJOIN_PAUSE_S", 0.01)


@pytest.mark.parametrize("what", [MemoryOutbound, MemoryInbound, MemoryCluster, MemoryLane])
async def test_stopping_ends_by_the_deadline_although_calls_hang(
    world: World, long_deadlines: None, what: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    fill(world.a, "t", 1, 20)
    real_close = MemoryOutbound.close
    async with running(world.config(route("r", "a/t", "b/t"), shutdown_timeout="200ms"), alone=False) as gateway:
        await until(lambda: committed(world.a, "g-r") == 20)
        outbound = gateway.routes[0].state.endpoints.targets["t"][0].outbound
        world.b.connected.clear()
        put(world.a, "t", 0, b"20")
        await until(lambda: named(gateway, "r").state.in_flight_batches)
        monkeypatch.setattr(what, "release" if what is MemoryLane else "close", hang)
    assert gateway.routes[0].state.error is None
    assert "is abandoned" in caplog.text
    await real_close(outbound, 0.0)  # type: ignore[arg-type]


async def test_stopping_with_a_target_that_is_away_takes_as_long_as_is_configured(world: World, long_deadlines: None) -> None:
    fill(world.a, "t", 1, 20)
    async with running(world.config(route("r", "a/t", "b/t"), shutdown_timeout="200ms")) as gateway:
        await until(lambda: committed(world.a, "g-r") == 20)
        world.b.connected.clear()
        put(world.a, "t", 0, b"20")
        await until(lambda: named(gateway, "r").state.in_flight_batches)
    assert committed(world.a, "g-r") == 20
    assert everything(world.b, "t") == list(range(20)), "sends that are not on the wire are withdrawn"


@pytest.mark.parametrize("what", ["connect", "describe", "outbound"])
async def test_a_stop_before_anything_runs_ends_by_the_deadline(
    world: World, long_deadlines: None, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(world.a, "t", 1, 20)
    world.b.create("t", 1)
    began = asyncio.Event()

    async def hangs(*_: Any) -> None:
        began.set()
        await asyncio.Event().wait()

    monkeypatch.setattr(MemoryCluster, what, hangs)
    monkeypatch.setattr(MemoryCluster, "close", hang)
    config = world.config(route("r", "a/t", "b/t"), shutdown_timeout="200ms")
    gateway = Gateway(from_dict(config, adapters=ADAPTERS), ADAPTERS)
    task = spawn(gateway.run(), "gateway", log_errors=False)
    await began.wait()
    gateway.stop()
    await asyncio.wait_for(task, PATIENCE_S)


async def test_a_stop_while_targets_are_opened_does_not_wait_longer_for_those_that_are_open(
    world: World, long_deadlines: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(world.a, "t", 1, 20)
    began, real = asyncio.Event(), MemoryCluster.outbound
    opened: list[Any] = []

    async def second_hangs(self: MemoryCluster, spec: Any) -> Any:
        if not opened:
            opened.append(await real(self, spec))
            return opened[0]
        began.set()
        return await asyncio.Event().wait()

    async def closes_at_its_deadline(_: Any, deadline: float | None = None) -> None:
        await asyncio.sleep(seconds_until(deadline))

    monkeypatch.setattr(MemoryCluster, "outbound", second_hangs)
    monkeypatch.setattr(MemoryOutbound, "close", closes_at_its_deadline)
    config = world.config(route("r", "a/t", "b/t", "c/t"), shutdown_timeout="200ms")
    gateway = Gateway(from_dict(config, adapters=ADAPTERS), ADAPTERS)
    task = spawn(gateway.run(), "gateway", log_errors=False)
    await began.wait()
    gateway.stop()
    await asyncio.wait_for(task, PATIENCE_S)


async def test_a_stop_while_a_reload_waits_for_a_cluster_still_drains(
    world: World, long_deadlines: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Clusters connected for the new configuration are closed by the common deadline, and nothing waits for that."""
    fill(world.a, "t", 1, 20)
    config = world.config(route("r", "a/t", "b/t"), shutdown_timeout="1s")
    file = tmp_path / "mqbridge.yaml"
    file.write_text(yaml.safe_dump(config))
    reached, closing, real_close = asyncio.Event(), asyncio.Event(), MemoryCluster.close

    async def hangs(*_: Any) -> None:
        reached.set()
        await asyncio.Event().wait()

    async def closes_at_its_deadline(self: MemoryCluster, deadline: float | None = None) -> None:
        if self.name == "d":
            closing.set()
            await asyncio.sleep(seconds_until(deadline))
        await real_close(self, deadline)

    async with running(config, file) as gateway:
        await until(lambda: committed(world.a, "g-r") == 20)
        world.b.faults.hold_receipts = True
        put(world.a, "t", 0, b"20")
        await until(lambda: world.b.withheld_receipts)
        monkeypatch.setattr(MemoryCluster, "connect", hangs)
        monkeypatch.setattr(MemoryCluster, "close", closes_at_its_deadline)
        config["clusters"]["d"] = config["clusters"]["c"]
        file.write_text(yaml.safe_dump(config))
        gateway.reloader.request()
        await reached.wait()
        gateway.stop()
        await closing.wait()
        world.b.release_receipts()
    assert committed(world.a, "g-r") == 21


async def test_a_join_that_fails_once_is_tried_again(world: World, long_deadlines: None, monkeypatch: pytest.MonkeyPatch) -> None:
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
        assert [one.state.error for one in gateway.routes] == [None, None]
        assert sorted(one.state.memberships for one in gateway.routes) == [1, 2]


async def test_a_join_that_hangs_is_retried(
    world: World, long_deadlines: None, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    fill(world.a, "t", 2, 20)
    real, hanging = MemoryCluster.inbound, [True]

    async def once(self: MemoryCluster, spec: Any) -> Any:
        if hanging:
            hanging.pop()
            await hang()
        return await real(self, spec)

    monkeypatch.setattr(MemoryCluster, "inbound", once)
    monkeypatch.setattr("mqbridge.routes.membership.JOIN_TIMEOUT_S", 0.05)
    monkeypatch.setattr("mqbridge.routes.membership.JOIN_TIMEOUT_PER_PARTITION_S", 0.1)
    async with running(world.config(route("r", "a/t", "b/t"))) as gateway:
        await until(lambda: committed(world.a, "g-r") == 20)
        assert named(gateway, "r").state.memberships == 2
    assert "joining group 'g-r' in cluster a did not finish within 0.25 s" in caplog.text


async def test_a_route_that_joins_is_not_idle(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(world.a, "t", 1, 20)
    real, lets_in = MemoryCluster.inbound, asyncio.Event()

    async def slow(self: MemoryCluster, spec: Any) -> Any:
        await lets_in.wait()
        return await real(self, spec)

    monkeypatch.setattr(MemoryCluster, "inbound", slow)
    async with running(world.config(route("r", "a/t", "b/t"))) as gateway:
        found = named(gateway, "r")
        await until(lambda: found.state.memberships)
        later = asyncio.get_running_loop().time() + 3600
        assert (found.state.idle_for(later), found.state.unassigned_for(later)) == (0, 0)
        lets_in.set()
        await until(lambda: committed(world.a, "g-r") == 20)


async def test_a_stop_while_the_last_target_opens_starts_no_membership(
    world: World, long_deadlines: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing would stop that membership: a new configuration would wait for it forever."""
    fill(world.a, "t", 1, 20)
    world.b.disconnect()
    real = MemoryCluster.outbound
    async with running(world.config(route("r", "a/t", "b/t"))) as gateway:
        found = named(gateway, "r")

        async def stopped_meanwhile(self: MemoryCluster, spec: Any) -> Any:
            outbound = await real(self, spec)
            found.stop()
            return outbound

        with monkeypatch.context() as patch:
            patch.setattr(MemoryCluster, "outbound", stopped_meanwhile)
            world.b.reconnect()
            await until(gateway._tasks[found].done)
        assert found.state.memberships == 0


@pytest.mark.parametrize("what", ["lanes", "describe", "inbound"])
async def test_an_adapter_that_swallows_a_cancellation_does_not_block_a_route(
    world: World, long_deadlines: None, what: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A route that is replaced by a new configuration ends by the deadline; so does a membership that is replaced."""
    fill(world.a, "t", 1, 20)
    at_it = asyncio.Event()

    async def stubborn(*_: Any) -> Any:
        at_it.set()
        try:
            await hang()
        except asyncio.CancelledError:
            await hang()

    async def no_lanes(self: MemoryInbound) -> Any:
        await stubborn()
        yield

    config = world.config(route("r", "a/t", "b/t", source_=SOON), shutdown_timeout="200ms")
    with monkeypatch.context() as patch:
        if what != "describe":
            patch.setattr(*((MemoryInbound, "lanes", no_lanes) if what == "lanes" else (MemoryCluster, "inbound", stubborn)))
        async with running(config, alone=False) as gateway:
            await until(lambda: what == "describe" or at_it.is_set())
            if what == "describe":
                await until(lambda: committed(world.a, "g-r") == 20)
                patch.setattr(MemoryCluster, "describe", stubborn)
                await at_it.wait()
            patch.undo()
            config["routes"][0]["to"][0]["topic"] = "u"
            await asyncio.wait_for(gateway.apply(from_dict(config, adapters=ADAPTERS)), PATIENCE_S)
            await until(lambda: committed(world.a, "g-r") == 20)
    assert "is abandoned" in caplog.text


async def test_an_abandoned_refresh_is_the_last(world: World, long_deadlines: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """It finds and opens a new topic after its route has ended; then nothing refreshes or stays open for that route."""
    fill(world.a, "t", 1, 20)
    real, at_it, comes = MemoryCluster.topics, asyncio.Event(), asyncio.Event()

    async def stubborn(self: MemoryCluster) -> list[str]:
        at_it.set()
        while not comes.is_set():
            with contextlib.suppress(asyncio.CancelledError):
                await comes.wait()
        return await real(self)

    config = world.config(route("r", "a/~.*", "b/{topic}", source_=SOON), shutdown_timeout="200ms")
    async with running(config) as gateway:
        await until(lambda: committed(world.a, "g-r") == 20)
        with monkeypatch.context() as patch:
            patch.setattr(MemoryCluster, "topics", stubborn)
            await at_it.wait()
            old, (watching,) = named(gateway, "r"), [one for one in asyncio.all_tasks() if one.get_name() == "watch of r"]
            patch.setattr(MemoryCluster, "topics", real)
            config["routes"][0]["to"][0]["topic"] = "u"
            await gateway.apply(from_dict(config, adapters=ADAPTERS))
        fill(world.a, "t2", 1, 0)
        comes.set()
        await until(watching.done)
        await until(lambda: old._next_endpoints is not None and not old._next_endpoints._outbounds)


async def test_targets_that_a_refresh_opened_are_closed_if_the_route_stops_before_it_uses_them(
    world: World, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Their producer names would stay taken, so the route that replaces this one could not open its targets."""
    fill(world.a, "t0", 1, 20)
    config = world.config(route("r", "a/~t.", "b/{topic}", source_=SOON)) | {"state": str(tmp_path / "state.db")}
    is_flushing = asyncio.Event()

    async def flush(self: Checkpoints) -> None:
        is_flushing.set()
        await hang()

    async with running(config):  # which checks that no task is left, such as that of an open outbound
        await until(lambda: committed(world.a, "g-r") == 20)
        monkeypatch.setattr(Checkpoints, "flush", flush)
        fill(world.a, "t1", 1, 20)
        await asyncio.wait_for(is_flushing.wait(), PATIENCE_S)


async def test_lanes_drain_although_the_lane_iterator_hangs(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise they would run until the deadline, without time to drain."""
    fill(world.a, "t", 1, 20)
    real, comes = MemoryInbound.lanes, asyncio.Event()

    async def stubborn(self: MemoryInbound) -> Any:
        yield await anext(aiter(real(self)))
        while not comes.is_set():
            with contextlib.suppress(asyncio.CancelledError):
                await comes.wait()

    monkeypatch.setattr(MemoryInbound, "lanes", stubborn)
    async with running(world.config(route("r", "a/t", "b/t"), shutdown_timeout="1h")) as gateway:
        await until(lambda: committed(world.a, "g-r") == 20)
        gateway.stop()
        await until(lambda: not named(gateway, "r").state.deliveries)
        comes.set()


@pytest.mark.parametrize("what", ["inbound", "outbound"])
async def test_abandoned_joins_and_outbounds_are_closed_when_they_complete(
    world: World, long_deadlines: None, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A member that nothing reads would keep its partitions, an outbound its exclusive access."""
    fill(world.a, "t", 2, 20)
    real, at_it, comes, made, closed = getattr(MemoryCluster, what), asyncio.Event(), asyncio.Event(), list[Any](), list[Any]()

    async def stubborn(self: MemoryCluster, spec: Any) -> Any:
        at_it.set()
        while not comes.is_set():
            with contextlib.suppress(asyncio.CancelledError):
                await comes.wait()
        made.append(await real(self, spec))
        return made[0]

    for kind in MemoryInbound, MemoryOutbound:
        close = kind.close

        async def watched(self: Any, deadline: float | None = None, close: Any = close) -> None:
            closed.append(self)
            await close(self, deadline)

        monkeypatch.setattr(kind, "close", watched)
    config = world.config(route("r", "a/t", "b/t"), shutdown_timeout="200ms")
    if what == "outbound":
        world.b.disconnect()
    async with running(config, alone=False) as gateway:
        with monkeypatch.context() as patch:
            patch.setattr(MemoryCluster, what, stubborn)
            if what == "outbound":
                world.b.reconnect()
            await at_it.wait()
            config["routes"][0]["to"][0]["topic"] = "u"
            patch.setattr(MemoryCluster, what, real)
            await gateway.apply(from_dict(config, adapters=ADAPTERS))
        await until(lambda: committed(world.a, "g-r") == 20)
        comes.set()
        await until(lambda: made and made[0] in closed)
        put(world.a, "t", 0, b"20")
        put(world.a, "t", 1, b"21")
        await until(lambda: everything(world.b, "u") == [*range(22)])


@pytest.mark.parametrize("what", [MemoryLane, MemoryInbound])
async def test_a_failed_release_at_a_new_topic_stops_nothing(
    world: World, long_deadlines: None, what: Any, monkeypatch: pytest.MonkeyPatch
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
        assert named(gateway, "r").state.error is None


async def test_a_batch_waiting_for_its_rate_keeps_an_idle_gateway_running(world: World) -> None:
    fill(world.a, "t", 1, 60)
    config = world.config(route("r", "a/t", "b/t", delivery={"rate": 20}))
    async with running(config) as gateway:
        found = named(gateway, "r")
        await until(lambda: found.state.counters.received and found.state.deliveries and found.state.in_flight_batches)
        await until(lambda: all(one.lane.caught_up for one in found.state.deliveries.values()))
        assert found.state.counters.received != 60
        assert found.state.idle_for(asyncio.get_running_loop().time() + 3600) == 0
