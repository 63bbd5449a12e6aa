"""When a run until idle ends: the source has to confirm the end, and must not stay silent."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from mqbridge.config.load import from_dict
from mqbridge.errors import ClusterError, Unreachable
from mqbridge.gateway import idle_watch
from mqbridge.gateway.run import Gateway
from mqbridge.gateway.run_result import RunResult
from mqbridge.routes import route_state
from mqbridge.testing.memory.adapter.cluster import MemoryCluster
from mqbridge.testing.memory.adapter.inbound import MemoryLane
from tests.gateway.world import ADAPTERS, World, committed, everything, fill, put, route, until
from tests.patience import PATIENCE_S

IDLE_S = 0.1


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(idle_watch, "UNKNOWN_PATIENCE_S", 0.5)
    monkeypatch.setattr(idle_watch, "SOURCE_CHECK_S", 0.05)
    monkeypatch.setattr(idle_watch, "CONFIRM_TIMEOUT_S", 0.2)


class Answers:
    """Answers of memory clusters to lanes that confirm their end: `by_partition`, True for the others."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.by_partition: dict[str, bool | Exception | None] = {}
        """None: no answer."""
        self.questions = 0

        async def confirm(lane: MemoryLane) -> bool:
            self.questions += 1
            answer = self.by_partition.get(lane.partition.name, True)
            if isinstance(answer, Exception):
                raise answer
            if answer is None:
                await asyncio.Event().wait()
            return bool(answer)

        monkeypatch.setattr(MemoryLane, "confirm_caught_up", confirm)


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> Answers:
    return Answers(monkeypatch)


def start(config: dict[str, Any]) -> asyncio.Task[RunResult]:
    return asyncio.ensure_future(Gateway(from_dict(config, adapters=ADAPTERS), ADAPTERS).run(IDLE_S))


async def end_of(task: asyncio.Task[RunResult]) -> RunResult:
    return await asyncio.wait_for(task, PATIENCE_S)


async def test_a_run_waits_until_the_source_confirms_the_end(world: World, answers: Answers) -> None:
    fill(world.a, "t", 2, 10)
    answers.by_partition["1"] = False
    task = start(world.config(route("r", "a/t", "b/t")))
    await until(lambda: answers.questions > 6)
    assert not task.done()
    put(world.a, "t", 1, b"10")
    await until(lambda: committed(world.a, "g-r") == 11)
    answers.by_partition.clear()
    outcome = await end_of(task)
    assert outcome.clean
    assert outcome.routes[0].unread == {}
    assert everything(world.b, "t") == list(range(11))


@pytest.mark.parametrize("answer", [Unreachable("nobody listens"), None], ids=["error", "silence"])
async def test_a_run_ends_with_the_partitions_whose_source_cannot_be_asked(
    world: World, answers: Answers, answer: Exception | None
) -> None:
    fill(world.a, "t", 2, 10)
    answers.by_partition["1"] = answer
    outcome = await end_of(start(world.config(route("r", "a/t", "b/t"), route("other", "a/t", "c/t"))))
    assert not outcome.clean
    assert not outcome.has_stopped
    reason = "nobody listens" if answer is not None else "its source has not responded for 0.2 s"
    assert [each.unread for each in outcome.routes] == [{"a/t/1": reason}] * 2
    assert outcome.as_json()["routes"][0]["unread"] == {"a/t/1": reason}


async def test_a_short_outage_of_the_source_does_not_end_a_run(
    world: World, answers: Answers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(idle_watch, "UNKNOWN_PATIENCE_S", PATIENCE_S)
    fill(world.a, "t", 1, 10)
    answers.by_partition["0"] = Unreachable("restarting")
    task = start(world.config(route("r", "a/t", "b/t")))
    await until(lambda: answers.questions > 5)
    put(world.a, "t", 0, b"10")
    answers.by_partition.clear()
    assert (await end_of(task)).clean
    assert everything(world.b, "t") == list(range(11))


async def test_a_run_ends_although_lanes_know_their_end_only_if_they_are_asked(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A Pulsar lane sends no request for the end of its topic unless it is asked."""
    read: set[MemoryLane] = set()
    confirm = MemoryLane.confirm_caught_up

    async def ask(lane: MemoryLane) -> bool:
        if is_read := await confirm(lane):
            read.add(lane)
        return is_read

    monkeypatch.setattr(MemoryLane, "confirm_caught_up", ask)
    monkeypatch.setattr(MemoryLane, "caught_up", property(read.__contains__))
    fill(world.a, "t", 2, 10)
    outcome = await end_of(start(world.config(route("r", "a/t", "b/t"))))
    assert outcome.clean
    assert len(read) == 2
    assert everything(world.b, "t") == list(range(10))


def fails(error: Exception) -> Callable[..., Any]:
    async def method(*_: Any) -> Any:
        raise error

    return method


async def test_a_run_does_not_end_well_if_its_route_cannot_join_again(
    world: World, answers: Answers, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(world.a, "t", 1, 10)
    monkeypatch.setattr(MemoryCluster, "inbound", fails(Unreachable("no coordinator")))
    outcome = await end_of(start(world.config(route("r", "a/t", "b/t"))))
    assert not outcome.clean
    assert outcome.routes[0].unread == {"a/t/0": "no coordinator"}


async def test_a_partition_that_no_server_offers_is_named(
    world: World, answers: Answers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(route_state, "ASSIGNMENT_PATIENCE_S", 0.1)
    fill(world.a, "t", 3, 30)
    world.b.create("t", 3)
    real_lanes = MemoryCluster.inbound

    async def without_one(self: MemoryCluster, spec: Any) -> Any:
        del world.a.topics["t"][2]  # its server goes away after the route was opened
        return await real_lanes(self, spec)

    monkeypatch.setattr(MemoryCluster, "inbound", without_one)
    outcome = await end_of(start(world.config(route("r", "a/t", "b/t"))))
    assert not outcome.clean
    assert outcome.routes[0].unread == {"a/t/2": "no server of the cluster offers it any more"}


async def test_partitions_of_other_members_do_not_keep_a_run_up(
    world: World, answers: Answers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(route_state, "ASSIGNMENT_PATIENCE_S", 0.1)
    fill(world.a, "t", 2, 20)
    config = world.config(route("r", "a/t", "b/t"))
    first = start(config | {"routes": [config["routes"][0]]})
    second = start(config)
    outcomes = await asyncio.gather(end_of(first), end_of(second))
    assert all(outcome.clean for outcome in outcomes)
    assert set(everything(world.b, "t")) == set(range(20))


async def test_topics_of_a_pattern_that_cannot_be_listed_are_named(
    world: World, answers: Answers, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(world.a, "t1", 1, 10)
    task = start(world.config(route("r", "a/~t.", "b/{topic}")))
    await until(lambda: committed(world.a, "g-r") == 10)
    monkeypatch.setattr(MemoryCluster, "topics", fails(ClusterError("no list")))
    outcome = await end_of(task)
    assert outcome.routes[0].unread == {"~t.": "the topics cannot be listed: no list"}


async def test_a_new_topic_of_a_pattern_is_read_before_the_end(world: World, answers: Answers) -> None:
    fill(world.a, "t1", 1, 10)
    answers.by_partition["0"] = False
    task = start(world.config(route("r", "a/~t.", "b/{topic}")))
    await until(lambda: committed(world.a, "g-r") == 10)
    fill(world.a, "t2", 1, 5)
    answers.by_partition.clear()
    assert (await end_of(task)).clean
    assert everything(world.b, "t2") == list(range(5))
