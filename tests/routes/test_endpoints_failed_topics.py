"""A topic of a pattern that cannot be copied fails alone, visibly: the other topics and routes go on, also after a restart."""

import logging
from typing import Any

import pytest

from mqbridge.errors import ClusterError, ConfigError, Failure
from mqbridge.gateway.health import route_failures
from mqbridge.gateway.metrics.collector import make_registry
from mqbridge.testing.memory.adapter.cluster import MemoryCluster
from tests.gateway.world import World, end, everything, fill, named, put, route, run, running, until

EARLY_AND_OFTEN = {"refresh": "100ms"}


@pytest.fixture
def refused(monkeypatch: pytest.MonkeyPatch) -> dict[str, set[str]]:
    """Words by the step that refuses topics which contain them: `check_create`, `create`, `outbound` or `check_inbound`."""
    words: dict[str, set[str]] = {step: set() for step in ("check_create", "create", "outbound", "check_inbound")}

    def refuse(step: str) -> None:
        original = getattr(MemoryCluster, step)

        async def checked(self: MemoryCluster, *arguments: Any) -> Any:
            subject = getattr(arguments[0], "topic", getattr(arguments[0], "topics", arguments[0]))
            if any(word in topic for topic in ([subject] if isinstance(subject, str) else subject) for word in words[step]):
                if step == "check_create":
                    raise ConfigError(f"{subject!r} cannot be a topic", hint="Use letters")
                raise ClusterError(f"{step} of {subject!r} is not permitted", Failure.FATAL)
            return await original(self, *arguments)

        monkeypatch.setattr(MemoryCluster, step, checked)

    for step in words:
        refuse(step)
    return words


@pytest.mark.parametrize("step", ["check_create", "create", "outbound", "check_inbound"])
async def test_a_bad_topic_fails_alone(
    world: World, refused: dict[str, set[str]], caplog: pytest.LogCaptureFixture, step: str
) -> None:
    caplog.set_level(logging.INFO, "mqbridge.routes")
    refused[step].add(".")
    fill(world.a, "t1", 2, 10)
    routes = route("r", "a/~t.*", "b/{topic}", source_=EARLY_AND_OFTEN), route("other", "a/t1", "c/{topic}")
    async with running(world.config(*routes)) as gateway:
        bad, state = named(gateway, "r"), named(gateway, "r").state
        await until(lambda: everything(world.b, "t1") == list(range(10)))
        fill(world.a, "t.bad", 1, 1)
        memberships = 2 if step in ("create", "outbound") else 1  # found while the route opens again, or before that
        await until(lambda: state.failed_topics and state.memberships == memberships)
        fill(world.a, "t2", 1, 10)
        await until(lambda: everything(world.b, "t2") == list(range(10)))
        put(world.a, "t1", 0, b"10")
        await until(lambda: everything(world.b, "t1") == everything(world.c, "t1") == list(range(11)))
        assert state.memberships == memberships + 1  # only the good topic opens the route again
        [(topic, why)] = state.failed_topics.items()
        assert topic == "a/t.bad"
        assert "t.bad" in why
        assert route_failures(bad) == {"r a/t.bad": why}
        assert make_registry(gateway).get_sample_value("mqbridge_failed_topics", {"route": "r"}) == 1
        warned = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
        assert warned == [f"route r: topic a/t.bad is not read, the route continues with the other known topics: {why}"]
        assert "t.bad" not in world.b.topics or step == "outbound"
        refused[step].clear()
        await until(lambda: everything(world.b, "t.bad") == [0])
        assert (state.failed_topics, route_failures(bad)) == ({}, {})
        assert "route r: topic a/t.bad does not fail any more" in caplog.text


@pytest.mark.parametrize("step", ["check_create", "create", "outbound", "check_inbound"])
async def test_a_bad_topic_does_not_prevent_a_start(world: World, refused: dict[str, set[str]], step: str) -> None:
    refused[step].add(".")
    for name in ("t.bad", "t1"):
        fill(world.a, name, 1, 1)
    outcome = await run(world.config(route("r", "a/~t.*", "b/{topic}"), route("other", "a/t1", "c/{topic}")))
    assert everything(world.b, "t1") == everything(world.c, "t1") == [0]
    first, second = outcome.routes
    assert list(first.stopped) == ["a/t.bad"]
    assert not second.stopped
    assert not outcome.clean  # a migration has not copied everything


@pytest.mark.parametrize("step", ["check_create", "create", "outbound", "check_inbound"])
async def test_a_route_whose_topics_all_fail_or_are_named_does_not_start(
    world: World, refused: dict[str, set[str]], step: str
) -> None:
    refused[step].add(".")
    for name in ("t.bad", "t.worse", "t1"):
        fill(world.a, name, 1, 1)
    with pytest.raises((ConfigError, ClusterError), match=r"t\.bad|t\.worse"):
        await run(world.config(route("r", r"a/~t\..*", "b/{topic}")))
    with pytest.raises((ConfigError, ClusterError), match=r"t\.bad"):
        await run(world.config(route("r", "a/t.bad", "b/{topic}")))


async def test_a_failed_topic_does_not_change_the_plan_of_others(world: World, refused: dict[str, set[str]]) -> None:
    """Of two targets of the topic one is good; another topic is written to the same."""
    refused["check_create"].add(".")
    fill(world.a, "t1", 1, 1)
    fill(world.a, "t.bad", 4, 4)
    await run(world.config(route("r", "a/~t.*", "b/all", end("c/{topic}"))))
    assert everything(world.b, "all") == [0]
    assert len(world.b.topics["all"]) == 1


async def test_a_named_topic_beside_a_pattern_is_a_problem_of_its_route(world: World, refused: dict[str, set[str]]) -> None:
    refused["check_create"].add(".")
    for name in ("t.bad", "t1"):
        fill(world.a, name, 1, 1)
    with pytest.raises(ConfigError, match=r"t\.bad"):
        await run(world.config(route("r", "a/~t.", "b/{topic}", source_={"topic": None, "topics": ["~t.", "t.bad"]})))
