"""Clusters that are not reachable when the gateway starts, or when it applies a new configuration."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import httpx
import pytest

from mqbridge.adapter.topics import Topic
from mqbridge.config.load import from_dict
from mqbridge.errors import ClusterError, Unreachable
from mqbridge.gateway.route import Route
from mqbridge.gateway.run import Gateway
from mqbridge.gateway.run_result import RunResult
from mqbridge.memory.adapter.cluster import MemoryCluster
from mqbridge.memory.adapter.outbound import MemoryOutbound
from tests.core.world import ADAPTERS, World, end, everything, fill, named, route, until
from tests.kit.process import free_ports
from tests.patience import PATIENCE_S


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mqbridge.gateway.clusters.MIN_CONNECT_PAUSE_S", 0.01)
    monkeypatch.setattr("mqbridge.gateway.clusters.MAX_CONNECT_PAUSE_S", 0.05)
    monkeypatch.setattr("mqbridge.gateway.route.MIN_REJOIN_PAUSE_S", 0.01)


@contextlib.asynccontextmanager
async def started(config: dict[str, Any], **how: Any) -> AsyncIterator[tuple[Gateway, "asyncio.Task[RunResult]"]]:
    """Start a gateway without waiting until it is ready; stop it at the end."""
    gateway = Gateway(from_dict(config, adapters=ADAPTERS), ADAPTERS, **how)
    task = asyncio.ensure_future(gateway.run())
    try:
        yield gateway, task
    finally:
        gateway.stop()
        await asyncio.wait_for(asyncio.gather(task, return_exceptions=True), PATIENCE_S)
    assert {one for one in asyncio.all_tasks() if not one.done()} == {asyncio.current_task()}


async def test_a_late_cluster_starts_its_routes(world: World, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG")
    fill(world.a, "t", 2, 40)
    fill(world.c, "u", 1, 10)
    world.b.disconnect()
    config = world.config(route("late", "a/t", "b/t"), route("here", "c/u", "a/u"))
    async with started(config) as (gateway, _):
        await until(lambda: everything(world.a, "u") == list(range(10)))  # others run meanwhile
        late = named(gateway, "late")
        assert (late.memberships, str(late.retry_reason)) == (0, "memory cluster 'b' is disconnected")
        await until(lambda: caplog.text.count("cluster b cannot be reached, trying again in ") > 2)  # at debug level
        world.b.reconnect()
        await until(lambda: everything(world.b, "t") == list(range(40)))
        assert late.retry_reason is None
        assert [r.getMessage() for r in caplog.records if r.levelname == "WARNING" and "cluster b" in r.getMessage()] == [
            "cluster b cannot be reached, trying again with pauses of up to 15 s: memory cluster 'b' is disconnected"
        ]
        assert "cluster b can be reached again after" in caplog.text


async def test_a_bug_while_connecting_does_not_end_the_attempts(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    fill(world.a, "t", 1, 5)
    connect, outcomes = MemoryCluster.connect, [ValueError("a bug"), Unreachable("not yet")]

    async def buggy(self: MemoryCluster) -> None:
        if self.name == "b" and outcomes:
            raise outcomes.pop()
        await connect(self)

    monkeypatch.setattr(MemoryCluster, "connect", buggy)
    monkeypatch.setattr("mqbridge.gateway.clusters.MIN_CONNECT_PAUSE_S", 0.2)
    async with started(world.config(route("r", "a/t", "b/t"))) as (gateway, _):
        await until(lambda: gateway.routes and "ValueError('a bug')" in str(named(gateway, "r").retry_reason))
        await until(lambda: everything(world.b, "t") == list(range(5)))
    assert "cluster b: connecting failed with an unexpected error" in caplog.text


async def test_it_is_not_ready_while_it_waits(world: World) -> None:
    fill(world.a, "t", 2, 40)
    world.a.disconnect()
    (port,) = free_ports(1)
    config = world.config(route("r", "a/t", "b/t")) | {"http": {"listen": f"127.0.0.1:{port}"}}
    async with started(config) as (gateway, _), httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}") as client:
        await until(lambda: gateway.ready)
        ready = await client.get("/health/ready")
        assert (ready.status_code, ready.json()["stopped"]) == (503, {"r": "memory cluster 'a' is disconnected"})
        assert (await client.get("/health/live")).status_code == 200
        world.a.reconnect()
        await until(lambda: everything(world.b, "t") == list(range(40)))
        assert (await client.get("/health/ready")).status_code == 200


async def test_a_page_is_served_while_the_first_attempt_lasts(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A liveness probe must not kill a gateway that waits for an unresponsive cluster."""
    hangs = asyncio.Event()
    monkeypatch.setattr("mqbridge.memory.adapter.cluster.MemoryCluster.connect", lambda _: hangs.wait())
    (port,) = free_ports(1)
    config = world.config(route("r", "a/t", "b/t")) | {"http": {"listen": f"127.0.0.1:{port}"}}
    async with started(config) as (gateway, task), httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}") as client:
        while True:
            with contextlib.suppress(httpx.ConnectError):
                assert (await client.get("/health/live")).status_code == 200
                break
        assert (await client.get("/health/ready")).status_code == 503
        gateway.stop()  # ends it at once, though nobody answers
        assert (await asyncio.wait_for(task, PATIENCE_S)).clean


@pytest.mark.parametrize("how", [{"fail_fast": True}, {"until_idle_s": 0.1}], ids=["fail fast", "until idle"])
async def test_fail_fast_is_explicit_or_the_default_of_a_job(world: World, how: dict[str, Any]) -> None:
    fill(world.a, "t", 1, 1)
    world.b.disconnect()
    idle = how.pop("until_idle_s", None)
    with pytest.raises(Unreachable, match="disconnected"):
        await Gateway(from_dict(world.config(route("r", "a/t", "b/t")), adapters=ADAPTERS), ADAPTERS, **how).run(idle)


async def test_a_job_may_wait_too(world: World) -> None:
    fill(world.a, "t", 1, 5)
    world.b.disconnect()
    gateway = Gateway(from_dict(world.config(route("r", "a/t", "b/t")), adapters=ADAPTERS), ADAPTERS, fail_fast=False)
    task = asyncio.ensure_future(gateway.run(0.1))
    await until(lambda: gateway.ready)
    world.b.reconnect()
    assert (await asyncio.wait_for(task, PATIENCE_S)).clean
    assert everything(world.b, "t") == list(range(5))


async def test_permanent_errors_are_not_waited_for(world: World) -> None:
    """What is wrong with a route whose clusters are there is not waited with."""
    fill(world.a, "t", 1, 1)
    world.c.disconnect()
    config = world.config(route("late", "a/t", "c/t"), route("wrong", "a/missing", "b/t"))
    with pytest.raises(ClusterError, match="the topic 'missing' does not exist"):
        await Gateway(from_dict(config, adapters=ADAPTERS), ADAPTERS).run()
    assert not world.b.topics


async def test_a_cluster_that_has_just_come_may_miss_topics_for_a_while(world: World) -> None:
    """Its first server answers before the one that has the topic."""
    world.a.disconnect()
    async with started(world.config(route("r", "a/t", "b/t"))) as (gateway, _):
        await until(lambda: gateway.ready)
        world.a.reconnect()
        await until(
            lambda: (
                "does not exist in cluster 'a' (a cluster of the route was reached only recently)"
                in str(named(gateway, "r").retry_reason)
            )
        )
        fill(world.a, "t", 1, 5)
        await until(lambda: everything(world.b, "t") == list(range(5)))


async def test_a_cluster_that_cannot_tell_its_topics_yet_is_waited_for(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """It lets us in, but is still coming up."""
    fill(world.a, "t", 1, 5)
    describe, coming_up = MemoryCluster.describe, [True]

    async def not_yet(self: MemoryCluster, topic: str) -> Topic | None:
        if coming_up:
            raise ClusterError("no leader yet")
        return await describe(self, topic)

    monkeypatch.setattr(MemoryCluster, "describe", not_yet)
    monkeypatch.setattr("mqbridge.gateway.route.Route.run", hold(run := asyncio.Event(), Route.run))
    async with started(world.config(route("r", "a/t", "b/t"))) as (gateway, _):
        await until(lambda: gateway.ready)
        assert str(named(gateway, "r").retry_reason) == "no leader yet"  # before it has begun to run
        run.set()
        coming_up.clear()
        await until(lambda: everything(world.b, "t") == list(range(5)))
        coming_up.append(True)
        with pytest.raises(ClusterError, match="no leader yet"):
            await Gateway(gateway.config, ADAPTERS, fail_fast=True).run()


def hold(until_set: asyncio.Event, run: Callable[[Route], Awaitable[None]]) -> Callable[[Route], Awaitable[None]]:
    async def held(self: Route) -> None:
        await until_set.wait()
        await run(self)

    return held


async def test_a_late_route_that_is_refused_stops_alone(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mqbridge.gateway.clusters.SETTLE_S", 0.0)
    fill(world.a, "t", 1, 5)
    world.c.disconnect()
    config = world.config(route("late", "c/missing", "b/late"), route("here", "a/t", "b/t"))
    async with started(config) as (gateway, _):
        await until(lambda: everything(world.b, "t") == list(range(5)))
        world.c.reconnect()
        await until(lambda: named(gateway, "late").error is not None)
        assert str(named(gateway, "late").error) == "route 'late': the topic 'missing' does not exist in cluster 'c'"
        assert named(gateway, "here").error is None
        assert "late" not in world.b.topics


@pytest.mark.parametrize("source", ["b/middle", "b/~mid.*"], ids=["named", "pattern"])
@pytest.mark.parametrize(
    "maker", [("a/t", "b/middle"), ("a/~t", "b/{topic}ddle"), ("a/t", "c/t")], ids=["named", "template", "letters"]
)
async def test_a_route_waits_for_the_topic_that_a_late_route_makes(world: World, source: str, maker: tuple[str, str]) -> None:
    """The cluster of the topic is there; that of the route which makes it is not."""
    first = route("first", *maker, delivery={"dead_letter": {"cluster": "b", "topic": "middle"}} if maker[1] == "c/t" else {})
    if "{" in maker[1]:
        first["from"]["topic"] = "~(?P<topic>mi)"
    world.a.disconnect()
    async with started(world.config(first, route("second", source, "c/u"))) as (gateway, task):
        await until(lambda: gateway.ready or task.done())
        second = named(gateway, "second")
        wanted = source.partition("/")[2]
        missing = f"the topic {wanted!r} does not exist in cluster 'b' yet"
        why = f"route 'second': {missing}: route 'first', which creates it, is not open"
        assert str(second.retry_reason) == why
        await until(lambda: second._rejoin_backoff.has_failed)  # it has tried for itself, too
        assert (second.error, str(second.retry_reason)) == (None, why)
        fill(world.a, "mi" if "{" in maker[1] else "t", 1, 5)
        world.a.reconnect()
        await until(lambda: second.memberships and second.retry_reason is None)
        assert "middle" in world.b.topics


async def test_a_route_waits_for_the_topic_of_one_whose_targets_cannot_be_opened_yet(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its plan was good; making the topic is what fails."""
    create, coming_up = MemoryCluster.create, [True]

    async def not_yet(self: MemoryCluster, topic: str, partitions: int) -> None:
        if coming_up:
            raise ClusterError("no leader yet")
        await create(self, topic, partitions)

    monkeypatch.setattr(MemoryCluster, "create", not_yet)
    fill(world.a, "t", 1, 5)
    async with started(world.config(route("first", "a/t", "b/t"), route("second", "b/t", "c/t"))) as (gateway, task):
        await until(lambda: gateway.ready or task.done())
        assert "route 'first', which creates it, is not open" in str(named(gateway, "second").retry_reason)
        coming_up.clear()
        await until(lambda: everything(world.c, "t") == list(range(5)))


async def test_a_route_waits_while_a_target_that_grew_is_not_open_for_all_partitions(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its cluster says 3 partitions, and who opens it is told of 2."""
    partitions, coming_up = MemoryOutbound.partitions, [True]
    few = property(lambda self: 2 if coming_up else partitions.fget(self))
    monkeypatch.setattr(MemoryOutbound, "partitions", few)
    fill(world.a, "t", 3, 5)
    async with started(world.config(route("r", "a/t", end("b/t", partitions={"by": "identity"})))) as (gateway, task):
        await until(lambda: task.done() or (gateway.routes and named(gateway, "r").retry_reason is not None))
        assert "accepts messages in 2 of its partitions so far, and 3 are needed" in str(named(gateway, "r").retry_reason)
        coming_up.clear()
        await until(lambda: everything(world.b, "t") == everything(world.a, "t"))


@pytest.mark.parametrize("away", [True, False], ids=["cluster", "create"])
async def test_a_topic_of_several_routes_is_made_by_who_is_there_first(
    world: World, monkeypatch: pytest.MonkeyPatch, away: bool
) -> None:
    """The route that would make it has to wait for another cluster, or could not make it just then."""
    create, refusals = MemoryCluster.create, [] if away else ["no leader yet"]

    async def refused_once(self: MemoryCluster, topic: str, partitions: int) -> None:
        if refusals:
            raise ClusterError(refusals.pop())
        await create(self, topic, partitions)

    monkeypatch.setattr(MemoryCluster, "create", refused_once)
    fill(world.a, "t", 2, 5)
    fill(world.a, "u", 1, 5, first=5)
    if away:
        world.c.disconnect()
    config = world.config(route("first", "a/t", "b/both", "c/t"), route("second", "a/u", "b/both"))
    async with started(config) as (gateway, task):
        await until(lambda: task.done() or set(everything(world.b, "both")) >= set(range(5, 10)))
        assert named(gateway, "second").error is None
        world.c.reconnect()
        await until(lambda: everything(world.b, "both") == list(range(10)))
        assert len(world.b.topics["both"]) == 2


async def test_nobody_waits_for_a_topic_that_no_late_route_makes(world: World) -> None:
    world.a.disconnect()
    config = world.config(
        route("other", "a/t", "b/t"),
        route("no create", "a/t", end("b/u", create=False)),
        route("elsewhere", "a/t", "c/u"),
        route("second", "b/u", "c/v"),
        route("behind", "a/t", "b/u"),
    )
    with pytest.raises(ClusterError, match=r"route 'second': the topic 'u' does not exist in cluster 'b'$"):
        await Gateway(from_dict(config, adapters=ADAPTERS), ADAPTERS).run()


async def test_stopping_while_it_waits(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mqbridge.gateway.clusters.MIN_CONNECT_PAUSE_S", 600.0)
    fill(world.a, "t", 1, 5)
    world.b.disconnect()
    async with started(world.config(route("r", "a/t", "b/t"))) as (gateway, task):
        await until(lambda: gateway.ready)
        assert str(named(gateway, "r").retry_reason) == "memory cluster 'b' is disconnected"  # from the first attempt on
        gateway.stop()
        outcome = await asyncio.wait_for(task, PATIENCE_S)
        assert outcome.clean


async def test_a_reload_replaces_a_cluster_that_never_came(world: World) -> None:
    fill(world.a, "t", 1, 5)
    world.c.disconnect()
    async with started(world.config(route("r", "a/t", "c/t"))) as (gateway, _):
        await until(lambda: gateway.ready)
        right = world.config(route("r", "a/t", "c/t"), c={"broker": f"{world.name}-b"})
        await gateway.apply(from_dict(right, adapters=ADAPTERS))
        await until(lambda: everything(world.b, "t") == list(range(5)))
        assert not gateway.initial_connections.connect_errors
