"""A route writes nothing to a topic whose cluster deletes messages before anybody has read them, unless that is wanted."""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Collection
from typing import Any

import httpx
import pytest
from prometheus_client import generate_latest

from mqbridge.config.load import from_dict
from mqbridge.errors import ClusterError, Failure, RequestTimeout
from mqbridge.gateway.clusters import connected_clusters
from mqbridge.gateway.metrics.collector import make_registry
from mqbridge.gateway.run import Gateway
from mqbridge.routes.plan import Planner
from mqbridge.routes.unprotected import add_unprotected_problems
from mqbridge.testing.memory.adapter.cluster import MemoryCluster
from mqbridge.testing.memory.adapter.operations import MemoryOperations
from tests.gateway.world import ADAPTERS, World, committed, end, everything, fill, named, put, route, run, running, until
from tests.kit.process import free_ports


class Subscriptions:
    """The groups of each topic of all memory clusters, which delete messages of topics without a group."""

    def __init__(self) -> None:
        self.of: dict[str, set[str]] = {}
        self.failure: Failure | None = None
        """The failure of every check; None if checks succeed."""
        self.checks: list[str] = []


@pytest.fixture(autouse=True)
def subscriptions(monkeypatch: pytest.MonkeyPatch) -> Subscriptions:
    subscriptions = Subscriptions()

    class DeletingOperations(MemoryOperations):
        async def create_group(self, topic: str, group: str) -> None:
            subscriptions.of.setdefault(topic, set()).add(group)

        def check_create_group(self) -> None:
            """Every group can be created."""

        async def why_unprotected(self, topic: str, planned: Collection[str] = ()) -> str | None:
            subscriptions.checks.append(topic)
            if subscriptions.failure is not None:
                raise RequestTimeout("no answer", subscriptions.failure)
            groups = await self.groups(topic) if topic in self._cluster.broker.topics else ()
            return None if planned or groups or subscriptions.of.get(topic) else f"{topic} has no group; create one"

    monkeypatch.setattr(MemoryCluster, "operations", property(DeletingOperations))
    monkeypatch.setattr("mqbridge.routes.route.PROTECTION_CHECK_S", 0.01)
    monkeypatch.setattr("mqbridge.routes.route.UNPROTECTED_CHECK_S", 0.01)
    monkeypatch.setattr("mqbridge.routes.membership.GROWTH_CHECK_S", 0.001)
    return subscriptions


@contextlib.asynccontextmanager
async def observed(world: World, *routes: dict[str, Any]) -> AsyncIterator[tuple[Gateway, httpx.AsyncClient]]:
    """Run a gateway, and a client of its HTTP endpoints."""
    (port,) = free_ports(1)
    async with (
        running(world.config(*routes, http={"listen": f"127.0.0.1:{port}"})) as gateway,
        httpx.AsyncClient(trust_env=False, base_url=f"http://127.0.0.1:{port}") as web,
    ):
        yield gateway, web


async def check(world: World, *routes: dict[str, Any]) -> list[list[str]]:
    """Return the problems of each route, as `check --connect` shows them."""
    config = from_dict(world.config(*routes), adapters=ADAPTERS)
    async with connected_clusters(config, ADAPTERS) as clusters:
        planner = Planner(clusters)
        plans = [await planner.plan(each) for each in config.routes]
        await add_unprotected_problems(plans, clusters)
        return [[str(problem) for problem in plan.problems] for plan in plans]


WHY = (
    "target b/t would lose messages: t has no group; create one. If unread messages may be deleted, set `unread: may_be_deleted`"
)


async def test_nothing_is_sent_before_the_first_subscription(world: World, subscriptions: Subscriptions, caplog: Any) -> None:
    fill(world.a, "t", 2, 50)
    async with observed(world, route("r", "a/t", "b/t")) as (gateway, web):
        health = await web.get("/health/ready")  # at once: the gateway is never ready before the first check
        assert (health.status_code, health.json()["unprotected"]) == (503, {"r b/t": "t has no group; create one"})
        assert len(world.b.topics["t"]) == 2, "the topic exists, so that consumers can subscribe to it"
        await until(lambda: len(named(gateway, "r").state.stopped) == 2)
        assert set((await web.get("/health/ready")).json()["stopped"].values()) == {WHY}
        [shown] = (await web.get("/routes")).json()
        assert shown["unprotected"] == {"b/t": "t has no group; create one"}
        assert b'mqbridge_unprotected_targets{route="r"} 1.0' in generate_latest(make_registry(gateway))
        seen = len(subscriptions.checks)
        await until(lambda: len(subscriptions.checks) > seen + 5)
        assert (everything(world.b, "t"), committed(world.a, "g-r")) == ([], 0)
        subscriptions.of["t"] = {"billing"}
        await until(lambda: committed(world.a, "g-r") == 50)
        assert (await web.get("/health/ready")).status_code == 200
        assert b'mqbridge_unprotected_targets{route="r"} 0.0' in generate_latest(make_registry(gateway))
    assert everything(world.b, "t") == list(range(50))
    errors = [one.getMessage() for one in caplog.records if "would lose messages, so" in one.getMessage()]
    assert len(errors) == 1, "it is logged once, not at every check"


async def test_messages_may_be_deleted_if_the_option_allows_it(world: World, subscriptions: Subscriptions) -> None:
    fill(world.a, "t", 1, 20)
    made = route("r", "a/t", end("b/t", unread="may_be_deleted"))
    async with observed(world, made) as (_, web):
        await until(lambda: committed(world.a, "g-r") == 20)
        assert (await web.get("/health/ready")).status_code == 200
    assert await check(world, made) == [[]]
    assert subscriptions.checks == []


async def test_the_route_pauses_when_the_last_subscription_is_deleted(world: World, subscriptions: Subscriptions) -> None:
    fill(world.a, "t", 1, 10)
    subscriptions.of["t"] = {"billing"}
    async with observed(world, route("r", "a/t", "b/t")) as (gateway, web):
        await until(lambda: committed(world.a, "g-r") == 10)
        subscriptions.of["t"].clear()
        await until(lambda: named(gateway, "r").state.stopped)
        assert (await web.get("/health/ready")).status_code == 503
        put(world.a, "t", 0, b"10")
        seen = len(subscriptions.checks)
        await until(lambda: len(subscriptions.checks) > seen + 5)
        assert everything(world.b, "t") == list(range(10))
        subscriptions.of["t"].add("audit")
        await until(lambda: committed(world.a, "g-r") == 11)
        assert (await web.get("/health/ready")).status_code == 200
    assert everything(world.b, "t") == list(range(11))


async def test_only_the_partitions_of_an_unprotected_topic_wait(world: World, subscriptions: Subscriptions) -> None:
    fill(world.a, "t1", 1, 10)
    fill(world.a, "t2", 1, 10)
    subscriptions.of["t1"] = {"billing"}
    async with running(world.config(route("r", "a/~t[12]", "b/{topic}"))) as gateway:
        await until(lambda: committed(world.a, "g-r") == 10 and named(gateway, "r").state.stopped)
        assert [str(partition) for partition in named(gateway, "r").state.stopped] == ["a/t2/0"]
        assert (everything(world.b, "t1"), everything(world.b, "t2")) == (list(range(10)), [])


@pytest.mark.parametrize("unread", ["kept", "may_be_deleted"])
async def test_a_dead_letter_topic_is_a_target(world: World, subscriptions: Subscriptions, unread: str) -> None:
    fill(world.a, "t", 1, 10)
    subscriptions.of["t"] = {"billing"}
    made = route("r", "a/t", "b/t", delivery={"dead_letter": {"cluster": "c", "topic": "dead", "unread": unread}})
    async with running(world.config(made)) as gateway:
        if unread == "kept":
            await until(lambda: named(gateway, "r").state.stopped)
            assert list(named(gateway, "r").state.unprotected) == ["c/dead"]
            subscriptions.of["dead"] = {"operator"}
        await until(lambda: committed(world.a, "g-r") == 10)


async def test_a_dead_letter_topic_is_created_with_subscriptions(world: World, subscriptions: Subscriptions) -> None:
    fill(world.a, "t", 1, 10)
    letters = {"cluster": "c", "topic": "dead", "create": {"partitions": 2, "subscriptions": ["operator"]}}
    made = route("r", "a/t", end("b/t", create={"subscriptions": ["billing"]}), delivery={"dead_letter": letters})
    assert (await run(world.config(made))).clean
    assert subscriptions.of == {"t": {"billing"}, "dead": {"operator"}}
    assert len(world.c.topics["dead"]) == 2
    assert everything(world.b, "t") == list(range(10))


async def test_with_until_idle_it_is_an_error_before_anything_is_created(world: World) -> None:
    fill(world.a, "t", 1, 10)
    with pytest.raises(ClusterError, match="target b/t would lose messages: t has no group"):
        await run(world.config(route("r", "a/t", "b/t")))
    assert "t" not in world.b.topics


async def test_check_names_each_target_that_loses_messages(world: World) -> None:
    fill(world.a, "t", 1, 0)
    kept = end("c/kept", create={"subscriptions": ["billing"]})
    lost = route("lost", "a/t", "b/t", kept, delivery={"dead_letter": {"cluster": "c", "topic": "dead"}})
    [problems] = await check(world, lost)
    assert len(problems) == 1
    assert "target b/t would lose messages: t has no group" in problems[0]
    assert "target c/dead would lose messages: dead has no group" in problems[0]
    assert "kept" not in problems[0].replace("unread", "")


async def test_groups_of_other_routes_count(world: World, subscriptions: Subscriptions, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second route reads the topic that the first one writes: its group keeps the messages."""
    fill(world.a, "t", 1, 10)
    subscriptions.of["end"] = {"billing"}
    chain = [route("first", "a/t", "b/middle"), route("second", "b/middle", "c/end")]
    assert await check(world, *chain) == [[], []]
    monkeypatch.setattr("mqbridge.routes.route.UNPROTECTED_CHECK_S", 0.5)  # longer than the gateway is idle at its end
    assert (await run(world.config(*chain))).clean
    assert everything(world.c, "end") == list(range(10))


async def test_a_topic_with_several_targets_is_kept_if_one_of_them_needs_it(world: World) -> None:
    fill(world.a, "t", 1, 0)
    both = route("r", "a/t", end("b/t", unread="may_be_deleted"), end("b/t", partitions={"by": "key"}))
    [[problem]] = await check(world, both)
    assert "target b/t would lose messages" in problem


async def test_a_reload_rejects_an_unprotected_target(world: World, subscriptions: Subscriptions) -> None:
    fill(world.a, "t", 1, 10)
    subscriptions.of["t"] = {"billing"}
    before = route("r", "a/t", "b/t")
    async with running(world.config(before)) as gateway:
        await until(lambda: committed(world.a, "g-r") == 10)
        with pytest.raises(ClusterError, match="target c/other would lose messages"):
            await gateway.apply(from_dict(world.config(before, route("new", "a/t", "c/other")), adapters=ADAPTERS))
        assert [each.name for each in gateway.routes] == ["r"]
        assert "other" not in world.c.topics


async def test_a_route_waits_while_its_targets_cannot_be_checked(world: World, subscriptions: Subscriptions) -> None:
    fill(world.a, "t", 1, 10)
    subscriptions.of["t"] = {"billing"}
    subscriptions.failure = Failure.RETRY
    async with observed(world, route("r", "a/t", "b/t")) as (gateway, web):
        assert (await web.get("/health/ready")).json()["stopped"] == {"r": "no answer"}
        assert named(gateway, "r").state.memberships == 0
        subscriptions.failure = None
        await until(lambda: committed(world.a, "g-r") == 10)
        subscriptions.failure = Failure.RETRY  # while it runs, the last result counts
        seen = len(subscriptions.checks)
        await until(lambda: len(subscriptions.checks) > seen + 2)
        put(world.a, "t", 0, b"10")
        await until(lambda: committed(world.a, "g-r") == 11)


@pytest.mark.parametrize(("is_outage", "warnings_expected"), [(False, True), (True, False)])
async def test_only_repeated_failures_without_an_outage_are_warnings(
    world: World, subscriptions: Subscriptions, caplog: pytest.LogCaptureFixture, is_outage: bool, warnings_expected: bool
) -> None:
    caplog.set_level(logging.DEBUG, "mqbridge.routes.route")
    fill(world.a, "t", 1, 10)
    subscriptions.of["t"] = {"billing"}

    def failures() -> list[int]:
        return [record.levelno for record in caplog.records if "targets keep messages failed" in record.getMessage()]

    async with running(world.config(route("r", "a/t", "b/t"))):
        await until(lambda: committed(world.a, "g-r") == 10)
        if is_outage:
            world.b.disconnect()
        subscriptions.failure = Failure.RETRY
        await until(lambda: len(failures()) >= 3)
        assert failures()[0] == logging.INFO  # the next check follows soon
        assert (logging.WARNING in failures()) is warnings_expected
        subscriptions.failure = None
        if is_outage:
            world.b.reconnect()
        put(world.a, "t", 0, b"10")
        await until(lambda: committed(world.a, "g-r") == 11)


async def test_a_route_runs_if_it_may_not_read_whether_messages_are_kept(world: World, subscriptions: Subscriptions) -> None:
    fill(world.a, "t", 1, 10)
    subscriptions.failure = Failure.FATAL
    async with running(world.config(route("r", "a/t", "b/t"))):
        await until(lambda: committed(world.a, "g-r") == 10)
    assert await check(world, route("r", "a/t", "b/t")) == [[]]


async def test_stopping_a_gateway_that_waits_is_clean_of_tasks(world: World) -> None:
    fill(world.a, "t", 1, 10)
    async with running(world.config(route("r", "a/t", "b/t"))) as gateway:
        await until(lambda: named(gateway, "r").state.stopped)
        await asyncio.sleep(0)
    assert committed(world.a, "g-r") == 0
