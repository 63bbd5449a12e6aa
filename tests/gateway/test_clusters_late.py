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
from mqbridge.gateway.run import Gateway
from mqbridge.gateway.run_result import RunResult
from mqbridge.routes.route import Route
from mqbridge.testing.memory.adapter.cluster import MemoryCluster
from mqbridge.testing.memory.adapter.outbound import MemoryOutbound
from tests.gateway.world import ADAPTERS, World, end, everything, fill, named, route, until
from tests.kit.process import free_ports
from tests.patience import PATIENCE_S


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mqbridge.gateway.clusters.MIN_CONNECT_PAUSE_S", 0.01)
    monkeypatch.setattr("mqbridge.gateway.clusters.MAX_CONNECT_PAUSE_S", 0.05)
    monkeypatch.setattr("mqbridge.routes.route.MIN_REJOIN_PAUSE_S", 0.01)


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
        await until(lambda: everything(world.a, "u") == list(range(10)))  # the other route runs meanwhile
        late = named(gateway, "late")
        assert (late.state.memberships, str(late.state.retry_reason)) == (0, "memory cluster 'b' is disconnected")
        await until(lambda: caplog.text.count("cluster b cannot be reached, trying again in ") > 2)  # at debug level
        world.b.reconnect()
        await until(lambda: everything(world.b, "t") == list(range(40)))
        assert late.state.retry_reason is None
        assert [r.getMessage() for r in caplog.records if r.levelname == "WARNING" and "cluster b" in r.getMessage()] == [
            "cluster b cannot be reached, trying again with pauses of up to 15 s: memory cluster 'b' is disconnected"
        ]
        assert "cluster b can be reached again after" in caplog.text


async def test_a_bug_while_connecting_does_not_end_the_attempts(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    fill(world.a, "t", 1, 5)
    connect, outcomes = MemoryCluster.connect, [ValueError("a bug"), Unreachable("not yet")]

    async def fail_twice(self: MemoryCluster) -> None:
        if self.name == "b" and outcomes:
            raise outcomes.pop()
        await connect(self)

    monkeypatch.setattr(MemoryCluster, "connect", fail_twice)
    monkeypatch.setattr("mqbridge.gateway.clusters.MIN_CONNECT_PAUSE_S", 0.2)
    async with started(world.config(route("r", "a/t", "b/t"))) as (gateway, _):
        await until(lambda: gateway.routes and "ValueError('a bug')" in str(named(gateway, "r").state.retry_reason))
        await until(lambda: everything(world.b, "t") == list(range(5)))
    assert "cluster b: connecting failed with an unexpected error" in caplog.text


async def test_a_gateway_is_not_ready_while_it_waits_for_a_cluster(world: World) -> None:
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
    monkeypatch.setattr("mqbridge.testing.memory.adapter.cluster.MemoryCluster.connect", lambda _: hangs.wait())
    (port,) = free_ports(1)
    config = world.config(route("r", "a/t", "b/t")) | {"http": {"listen": f"127.0.0.1:{port}"}}
    async with started(config) as (gateway, task), httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}") as client:
        while True:
            with contextlib.suppress(httpx.ConnectError):
                assert (await client.get("/health/live")).status_code == 200
                break
        assert (await client.get("/health/ready")).status_code == 503
        gateway.stop()  # ends at once, although the cluster does not respond
        assert (await asyncio.wait_for(task, PATIENCE_S)).clean


@pytest.mark.parametrize("how", [{"fail_fast": True}, {"until_idle_s": 0.1}], ids=["fail fast", "until idle"])
async def test_fail_fast_is_explicit_or_the_default_of_a_job(world: World, how: dict[str, Any]) -> None:
    fill(world.a, "t", 1, 1)
    world.b.disconnect()
    idle = how.pop("until_idle_s", None)
    with pytest.raises(Unreachable, match="disconnected"):
        await Gateway(from_dict(world.config(route("r", "a/t", "b/t")), adapters=ADAPTERS), ADAPTERS, **how).run(idle)


async def test_a_job_waits_for_clusters_without_fail_fast(world: World) -> None:
    fill(world.a, "t", 1, 5)
    world.b.disconnect()
    gateway = Gateway(from_dict(world.config(route("r", "a/t", "b/t")), adapters=ADAPTERS), ADAPTERS, fail_fast=False)
    task = asyncio.ensure_future(gateway.run(0.1))
    await until(lambda: gateway.ready)
    world.b.reconnect()
    assert (await asyncio.wait_for(task, PATIENCE_S)).clean
    assert everything(world.b, "t") == list(range(5))


async def test_permanent_errors_end_the_start_at_once(world: World) -> None:
    """An error of a route whose clusters are reachable is reported although another cluster is missing."""
    fill(world.a, "t", 1, 1)
    world.c.disconnect()
    config = world.config(route("late", "a/t", "c/t"), route("wrong", "a/missing", "b/t"))
    with pytest.raises(ClusterError, match="the topic 'missing' does not exist"):
        await Gateway(from_dict(config, adapters=ADAPTERS), ADAPTERS).run()
    assert not world.b.topics


async def test_a_topic_may_be_missing_for_a_while_after_its_cluster_was_reached(world: World) -> None:
    """The cluster's first server responds before the server that has the topic."""
    world.a.disconnect()
    async with started(world.config(route("r", "a/t", "b/t"))) as (gateway, _):
        await until(lambda: gateway.ready)
        world.a.reconnect()
        await until(
            lambda: (
                "does not exist in cluster 'a' (retrying, because a cluster of the route was connected only recently)"
                in str(named(gateway, "r").state.retry_reason)
            )
        )
        fill(world.a, "t", 1, 5)
        await until(lambda: everything(world.b, "t") == list(range(5)))


async def test_a_route_waits_for_a_cluster_that_cannot_describe_topics_yet(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The cluster accepts connections, but is still starting."""
    fill(world.a, "t", 1, 5)
    describe, starting = MemoryCluster.describe, [True]

    async def fail_while_starting(self: MemoryCluster, topic: str) -> Topic | None:
        if starting:
            raise ClusterError("no leader yet")
        return await describe(self, topic)

    monkeypatch.setattr(MemoryCluster, "describe", fail_while_starting)
    monkeypatch.setattr("mqbridge.routes.route.Route.run", hold(run := asyncio.Event(), Route.run))
    async with started(world.config(route("r", "a/t", "b/t"))) as (gateway, _):
        await until(lambda: gateway.ready)
        assert str(named(gateway, "r").state.retry_reason) == "no leader yet"  # before it has begun to run
        run.set()
        starting.clear()
        await until(lambda: everything(world.b, "t") == list(range(5)))
        starting.append(True)
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
        await until(lambda: named(gateway, "late").state.error is not None)
        assert str(named(gateway, "late").state.error) == "route 'late': the topic 'missing' does not exist in cluster 'c'"
        assert named(gateway, "here").state.error is None
        assert "late" not in world.b.topics


@pytest.mark.parametrize("source", ["b/middle", "b/~mid.*"], ids=["named", "pattern"])
@pytest.mark.parametrize(
    "maker", [("a/t", "b/middle"), ("a/~t", "b/{topic}ddle"), ("a/t", "c/t")], ids=["named", "template", "letters"]
)
async def test_a_route_waits_for_the_topic_that_a_late_route_creates(world: World, source: str, maker: tuple[str, str]) -> None:
    """The topic's cluster is reachable; the source cluster of the route that creates the topic is not."""
    first = route("first", *maker, delivery={"dead_letter": {"cluster": "b", "topic": "middle"}} if maker[1] == "c/t" else {})
    if "{" in maker[1]:
        first["from"]["topic"] = "~(?P<topic>mi)"
    world.a.disconnect()
    async with started(world.config(first, route("second", source, "c/u"))) as (gateway, task):
        await until(lambda: gateway.ready or task.done())
        second = named(gateway, "second")
        wanted = source.partition("/")[2]
        if wanted.startswith("~"):
            missing, creation = f"no topic of cluster 'b' matches {wanted!r} yet", "may create one"
        else:
            missing, creation = f"the topic {wanted!r} does not exist in cluster 'b' yet", "creates it"
        why = f"route 'second': {missing}: route 'first', which {creation}, is not open yet"
        assert str(second.state.retry_reason) == why
        await until(lambda: second._rejoin_backoff.has_failed)  # the route has also tried to open by itself
        assert (second.state.error, str(second.state.retry_reason)) == (None, why)
        fill(world.a, "mi" if "{" in maker[1] else "t", 1, 5)
        world.a.reconnect()
        await until(lambda: second.state.memberships and second.state.retry_reason is None)
        assert "middle" in world.b.topics


async def test_a_route_waits_for_a_topic_that_another_route_cannot_create_yet(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The plan of the other route succeeded, but its target topic cannot be created yet."""
    create, starting = MemoryCluster.create, [True]

    async def fail_while_starting(self: MemoryCluster, topic: str, partitions: int) -> None:
        if starting:
            raise ClusterError("no leader yet")
        await create(self, topic, partitions)

    monkeypatch.setattr(MemoryCluster, "create", fail_while_starting)
    fill(world.a, "t", 1, 5)
    async with started(world.config(route("first", "a/t", "b/t"), route("second", "b/t", "c/t"))) as (gateway, task):
        await until(lambda: gateway.ready or task.done())
        assert "route 'first', which creates it, is not open yet" in str(named(gateway, "second").state.retry_reason)
        starting.clear()
        await until(lambda: everything(world.c, "t") == list(range(5)))


async def test_a_route_waits_until_the_outbound_of_a_grown_topic_has_all_partitions(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The cluster describes the topic with 3 partitions, while its outbound still has 2."""
    partitions, starting = MemoryOutbound.partitions, [True]
    few = property(lambda self: 2 if starting else partitions.fget(self))
    monkeypatch.setattr(MemoryOutbound, "partitions", few)
    fill(world.a, "t", 3, 5)
    async with started(world.config(route("r", "a/t", end("b/t", partitions={"by": "identity"})))) as (gateway, task):
        await until(lambda: task.done() or (gateway.routes and named(gateway, "r").state.retry_reason is not None))
        reason = str(named(gateway, "r").state.retry_reason)
        assert "accepts messages in only 2 partitions so far, but the route needs 3" in reason
        starting.clear()
        await until(lambda: everything(world.b, "t") == everything(world.a, "t"))


@pytest.mark.parametrize("away", [True, False], ids=["cluster", "create"])
async def test_the_first_route_that_can_open_creates_a_shared_target_topic(
    world: World, monkeypatch: pytest.MonkeyPatch, away: bool
) -> None:
    """The first route waits for another of its clusters, or its attempt to create the topic fails."""
    create, refusals = MemoryCluster.create, [] if away else ["no leader yet"]

    async def fail_once(self: MemoryCluster, topic: str, partitions: int) -> None:
        if refusals:
            raise ClusterError(refusals.pop())
        await create(self, topic, partitions)

    monkeypatch.setattr(MemoryCluster, "create", fail_once)
    fill(world.a, "t", 2, 5)
    fill(world.a, "u", 1, 5, first=5)
    if away:
        world.c.disconnect()
    config = world.config(route("first", "a/t", "b/both", "c/t"), route("second", "a/u", "b/both"))
    async with started(config) as (gateway, task):
        await until(lambda: task.done() or set(everything(world.b, "both")) >= set(range(5, 10)))
        assert named(gateway, "second").state.error is None
        world.c.reconnect()
        await until(lambda: everything(world.b, "both") == list(range(10)))
        assert len(world.b.topics["both"]) == 2


async def test_no_route_waits_for_a_topic_that_no_late_route_creates(world: World) -> None:
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


async def test_a_gateway_stops_at_once_while_it_waits_for_a_cluster(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mqbridge.gateway.clusters.MIN_CONNECT_PAUSE_S", 600.0)
    fill(world.a, "t", 1, 5)
    world.b.disconnect()
    async with started(world.config(route("r", "a/t", "b/t"))) as (gateway, task):
        await until(lambda: gateway.ready)
        assert str(named(gateway, "r").state.retry_reason) == "memory cluster 'b' is disconnected"  # from the first attempt on
        gateway.stop()
        outcome = await asyncio.wait_for(task, PATIENCE_S)
        assert outcome.clean


async def test_a_reload_replaces_a_cluster_that_was_never_reached(world: World) -> None:
    fill(world.a, "t", 1, 5)
    world.c.disconnect()
    async with started(world.config(route("r", "a/t", "c/t"))) as (gateway, _):
        await until(lambda: gateway.ready)
        right = world.config(route("r", "a/t", "c/t"), c={"broker": f"{world.name}-b"})
        await gateway.apply(from_dict(right, adapters=ADAPTERS))
        await until(lambda: everything(world.b, "t") == list(range(5)))
        assert not gateway.initial_connections.connect_errors
