"""Retention that deletes unread messages is reported at the start, and groups are created with topics where that helps."""

import logging
from collections.abc import Collection
from typing import Any

import httpx
import pytest

from mqbridge.config.load import from_dict
from mqbridge.errors import ClusterError, ConfigError, Failure
from mqbridge.gateway.clusters import connected_clusters
from mqbridge.routes import retention_warnings
from mqbridge.routes.plan import Planner
from mqbridge.routes.retention_warnings import warnings_about
from mqbridge.testing.memory.adapter.cluster import MemoryCluster
from mqbridge.testing.memory.adapter.operations import MemoryOperations
from tests.gateway.world import ADAPTERS, World, end, everything, fill, route, run, running, until
from tests.kit.process import free_ports

WarningRequests = list[tuple[str, str | None, tuple[str, ...]]]


@pytest.fixture
def requests(monkeypatch: pytest.MonkeyPatch) -> WarningRequests:
    """Record the requests for warnings; memory clusters warn about topics and groups whose names begin with `bad`."""
    requests: WarningRequests = []

    async def warnings(self: Any, topic: str, group: str | None = None, planned: Collection[str] = ()) -> list[str]:
        requests.append((topic, group, tuple(planned)))
        return [f"{name} is in danger; do something" for name in (topic, group) if name is not None and name.startswith("bad")]

    monkeypatch.setattr(MemoryOperations, "warnings", warnings)
    return requests


class Groups:
    """The created groups, each with its topic and the number of messages that the topic had then."""

    def __init__(self) -> None:
        self.created: list[tuple[str, str, int]] = []
        self.refused = False


@pytest.fixture
def groups(world: World, monkeypatch: pytest.MonkeyPatch) -> Groups:
    """Let memory clusters keep messages for groups."""
    groups = Groups()

    class KeepingOperations(MemoryOperations):  # a new class: `isinstance` caches the protocols of a class
        async def create_group(self, topic: str, group: str) -> None:
            groups.created.append((topic, group, len(everything(world.b, topic))))

        def check_create_group(self) -> None:
            if groups.refused:
                raise ClusterError("groups cannot be created here", Failure.FATAL)

    monkeypatch.setattr(MemoryCluster, "operations", property(KeepingOperations))
    return groups


def warned(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Return the logged retention warnings."""
    return [
        one.getMessage() for one in caplog.records if one.levelno == logging.WARNING and one.name == retention_warnings.__name__
    ]


async def check_route(world: World, route_config: dict[str, Any]) -> tuple[list[str], list[str]]:
    """Return problems and warnings, as `check --connect` shows them."""
    config = from_dict(world.config(route_config), adapters=ADAPTERS)
    async with connected_clusters(config, ADAPTERS) as clusters:
        plan = await Planner(clusters).plan(config.routes[0])
        return [str(problem) for problem in plan.problems], await warnings_about(plan.topic_uses, clusters)


# --- warnings ---------------------------------------------------------------------------------------------------------


async def test_running_warns_about_targets_dead_letters_and_the_group(world: World, requests: WarningRequests, caplog) -> None:
    fill(world.a, "t", 1, 0)
    made = route("r", "a/t", "b/bad-target", source_={"group": "bad-group"})
    made["delivery"] = {"dead_letter": {"cluster": "c", "topic": "bad-letters"}}
    (port,) = free_ports(1)
    async with running(world.config(made, http={"listen": f"127.0.0.1:{port}"})) as gateway:
        await until(lambda: gateway.routes[0].warnings.current)
        told = [f"cluster {where} is in danger; do something" for where in ("a: bad-group", "b: bad-target", "c: bad-letters")]
        assert warned(caplog) == [f"route r, retention warning: {text}" for text in told]
        async with httpx.AsyncClient(trust_env=False) as web:
            (row,) = (await web.get(f"http://127.0.0.1:{port}/routes")).json()
        assert row["warnings"] == told


async def test_a_warning_is_logged_once_and_again_when_it_returns(
    world: World, requests: WarningRequests, caplog, monkeypatch
) -> None:
    monkeypatch.setattr(retention_warnings, "CHECK_INTERVAL_S", 0.001)
    fill(world.a, "t", 1, 0)
    async with running(world.config(route("r", "a/t", "b/bad"))):
        await until(lambda: len(requests) > 10)
        assert len(warned(caplog)) == 1
        with monkeypatch.context() as patch:
            patch.setattr(MemoryOperations, "warnings", no_warnings)
            seen = len(requests)
            await until(lambda: len(NOTHING) > 2)
            assert len(requests) == seen
        await until(lambda: len(warned(caplog)) == 2)


NOTHING: list[str] = []


async def no_warnings(self: Any, topic: str, group: str | None = None, planned: Collection[str] = ()) -> list[str]:
    NOTHING.append(topic)
    return []


@pytest.mark.parametrize(("failure", "count"), [(Failure.FATAL, 3), (Failure.RETRY, 0)])
async def test_a_failed_warnings_request_stops_no_route(world: World, caplog, monkeypatch, failure, count) -> None:
    """A permanent failure is logged, since messages may be unsafe; a transient one is retried later."""
    requests: list[str] = []

    async def refuse(self: Any, topic: str, group: str | None = None, planned: Collection[str] = ()) -> list[str]:
        requests.append(topic)
        raise ClusterError("not for you", failure)

    monkeypatch.setattr(MemoryOperations, "warnings", refuse)
    fill(world.a, "t", 1, 20)
    async with running(world.config(route("r", "a/t", "b/t", "c/t"))):
        await until(lambda: len(everything(world.b, "t")) == len(everything(world.c, "t")) == 20)
        await until(lambda: len(requests) == 3 and len(warned(caplog)) == count)
    assert all("the retention of topic t cannot be checked: not for you" in text for text in warned(caplog))


async def test_check_warns_about_topics_that_do_not_exist_yet(world: World, requests: WarningRequests) -> None:
    fill(world.a, "t", 1, 0)
    assert await check_route(world, route("r", "a/t", "b/bad")) == ([], ["cluster b: bad is in danger; do something"])
    assert "bad" not in world.b.topics


# --- creating ---------------------------------------------------------------------------------------------------------


async def test_groups_are_created_with_a_topic_before_anything_is_written(world: World, groups: Groups) -> None:
    fill(world.a, "t", 2, 50)
    target = end("b/t", create={"partitions": 5, "subscriptions": ["billing", "audit"]})
    await run(world.config(route("r", "a/t", target)))
    assert groups.created == [("t", "billing", 0), ("t", "audit", 0)]
    assert len(world.b.topics["t"]) == 5
    assert everything(world.b, "t") == list(range(50))


async def test_a_target_with_a_configured_size_does_not_grow_with_its_source(world: World, groups: Groups) -> None:
    fill(world.a, "t", 3, 9)
    await run(world.config(route("r", "a/t", end("b/t", create={"partitions": 2}))))
    assert (len(world.b.topics["t"]), groups.created) == (2, [])


async def test_check_passes_planned_groups_to_warnings(world: World, requests: WarningRequests, groups: Groups) -> None:
    fill(world.a, "t", 1, 0)
    problems, _ = await check_route(world, route("r", "a/t", end("b/t", create={"subscriptions": "billing"})))
    assert (problems, requests) == ([], [("t", "g-r", ()), ("t", None, ("billing",))])
    assert groups.created == []


async def test_a_cluster_that_cannot_create_groups_is_refused_before_anything_is_created(world: World, groups: Groups) -> None:
    fill(world.a, "t", 1, 5)
    groups.refused = True
    made = route("r", "a/t", end("b/t", create={"subscriptions": ["billing"]}))
    with pytest.raises(ClusterError, match="groups cannot be created here"):
        await run(world.config(made))
    assert "t" not in world.b.topics
    problems, _ = await check_route(world, made)
    assert problems == ["groups cannot be created here"]


async def test_warnings_of_hundreds_of_topics_are_limited(world: World, requests: WarningRequests, caplog) -> None:
    for number in range(30):
        fill(world.a, f"bad{number:02}", 1, 0)
    async with running(world.config(route("r", "a/~bad.*", "b/good", source_={"group": "g"}))) as gateway:
        await until(lambda: len(gateway.routes[0].warnings.current) == 30)
        lines = warned(caplog)
        assert len(lines) == retention_warnings.MAX_LOGGED_WARNINGS + 1
        assert lines[-1].startswith(f"route r: {30 - retention_warnings.MAX_LOGGED_WARNINGS} more retention warnings")


async def test_subscriptions_are_refused_if_they_have_no_effect(world: World) -> None:
    fill(world.a, "t", 1, 5)
    made = route("r", "a/t", end("b/t", create={"subscriptions": ["billing"]}))
    with pytest.raises(ConfigError, match=r"cluster 'b' keeps messages with or without subscriptions.* Remove `subscriptions`"):
        await run(world.config(made))
    assert "t" not in world.b.topics, "nothing was made"
    (problem,), _ = await check_route(world, made)
    assert "`create.subscriptions` has no effect there" in problem
