"""Plans of routes: `mqbridge check --connect` shows them, and `run` checks them before it creates anything."""

from typing import Any

import pytest

from mqbridge.config.load import from_dict
from mqbridge.config.topic_graph import TopicGraph
from mqbridge.errors import ClusterError, ConfigError, Failure
from mqbridge.gateway.clusters import connected_clusters
from mqbridge.routes.plan import Plan, Planner
from tests.gateway.world import ADAPTERS, World, end, everything, fill, route, run, set_capabilities


async def plans(world: World, *made: dict[str, Any], without: tuple[str, ...] = ()) -> list[Plan]:
    config = from_dict(world.config(*made), adapters=ADAPTERS)
    async with connected_clusters(config, ADAPTERS) as clusters:
        planner = Planner({name: one for name, one in clusters.items() if name not in without}, graph=TopicGraph.of(config))
        return [await planner.plan(each) for each in config.routes]


async def problems(world: World, *made: dict[str, Any], without: tuple[str, ...] = ()) -> list[str]:
    return [str(problem) for plan in await plans(world, *made, without=without) for problem in plan.problems]


async def test_a_plan_lists_existing_and_new_topics(world: World) -> None:
    fill(world.a, "t1", 3, 0)
    fill(world.a, "t2", 4, 0)
    world.b.create("t1", 2)
    world.c.create("t2", 9)
    [plan] = await plans(world, route("r", "a/~t.", "b/{topic}", end("c/t2", partitions={"by": "identity"})))
    assert plan.problems == []
    assert [(one.topic.name, len(one.topic.partitions), [target.topic for target in one.targets]) for one in plan.sources] == [
        ("t1", 3, ["t1", "t2"]),
        ("t2", 4, ["t2", "t2"]),
    ]
    assert plan.change_notes == ["topic b/t1 grows from 2 to 3 partitions", "topic b/t2 is created with 4 partitions"]
    assert sorted(world.b.topics) == ["t1"]  # looking changes nothing
    assert len(world.b.topics["t1"]) == 2


async def test_a_plan_lists_the_problems_that_prevent_a_start(world: World) -> None:
    fill(world.a, "t", 3, 0)
    world.b.create("t", 2)
    identity = end("b/t", partitions={"by": "identity"}, create=False)
    table = end("c/t", partitions={"by": "table", "table": {"0": 0}})
    found = await problems(world, route("r", "a/t", identity, table, end("c/none", create=False)))
    first, second, third = found
    assert first == (
        "route 'r': target b/t has no partition for partition '2' of source a/t: `by: identity` needs target partition 2, but "
        "the target has 2 partitions (0 to 1). Grow the target topic to 3 partitions, set `create: true`, or use `by: modulo`"
    )
    assert second == (
        "route 'r': target c/t has no partition for partition '1' of source a/t: the table of `partitions` does not contain this "
        "source partition. Add '1', '2' to the table of `partitions`, or use `by: modulo`"
    )
    assert third == (
        "route 'r': the topic c/none does not exist and cannot be created: `create` is off; switch it on, or create topic 'none'"
    )


async def test_missing_topics_and_clusters(world: World) -> None:
    world.a.create("t", 1)
    several = route("r", "a/t", "b/t", source_={"topic": None, "topics": ["t", "no", "nor"]})
    assert await problems(world, several) == ["route 'r': the topics 'no', 'nor' do not exist in cluster 'a'"]
    for name in ("orders_eu", "orders_us", "payments"):
        world.a.create(name, 1)
    [none] = await problems(world, route("r", "a/~persistent://.*/orders_.*", "b/t"))
    assert none == (
        "route 'r': no topic of cluster 'a' matches ~persistent://.*/orders_.*. "
        "A pattern must match a whole topic name; existing topics are, for example, orders_us, orders_eu, payments"
    )
    [empty] = await problems(world, route("r", "b/~x.*", "c/t"))
    assert empty == "route 'r': no topic of cluster 'b' matches ~x.*. The cluster has no topics at all"
    for name in ("a", "b"):
        gone = await problems(world, route("r", "a/t", "b/t"), without=(name,))
        assert gone == [f"route 'r': cluster '{name}' cannot be reached"]


async def test_a_cluster_that_cannot_create_topics(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    set_capabilities(monkeypatch, create_topics=False)
    world.a.create("t", 1)
    world.b.faults.create_error = "set its admin_url"
    [problem] = await problems(world, route("r", "a/t", "b/t"))
    assert problem == "route 'r': the topic b/t does not exist and cannot be created: set its admin_url"


async def test_more_topics_than_a_group_may_read(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    set_capabilities(monkeypatch, group_topics=3)
    for number in range(4):
        world.a.create(f"t{number}", 1)
    [problem] = await problems(world, route("r", "a/~t.*", "b/t"))
    assert problem == (
        "route 'r' selects 4 topics, but a group of 'a' may read at most 3. Split it into several routes, each with a part of "
        "the topics and its own group; half of them sort before t2"
    )
    assert await problems(world, route("r", "a/~t[^0]", "b/t")) == []


async def test_growth_because_of_a_table_is_logged(world: World, caplog: pytest.LogCaptureFixture) -> None:
    fill(world.a, "t", 2, 4)
    world.c.create("t", 1)
    table = {"by": "table", "table": {"0": 0, "1": 30}}
    enlarging = route("r", "a/t", end("b/t", partitions=table), end("c/t", partitions=table))
    [plan] = await plans(world, enlarging)
    why = "because the table of `partitions` contains partition 30 (the source topic has 2 partitions)"
    assert plan.change_notes == [
        f"topic b/t is created with 31 partitions, {why}",
        f"topic c/t grows from 1 to 31 partitions, {why}",
    ]
    await run(world.config(enlarging))
    warned = [record.message for record in caplog.records if record.levelname == "WARNING"]
    assert warned == [f"route r prepares its targets: {note}" for note in plan.change_notes]


async def test_a_refused_configuration_leaves_nothing_behind(world: World) -> None:
    """Neither topics of the refused route nor of earlier routes are created."""
    fill(world.a, "t", 3, 0)
    good = route("good", "a/t", "b/good")
    bad = route("bad", "a/t", "c/made", end("b/t", partitions={"by": "table", "table": {"0": 30}}))
    with pytest.raises(ConfigError, match="no partition for partition '1'"):
        await run(world.config(good, bad))
    assert not world.b.topics
    assert not world.c.topics


async def test_every_problem_of_every_route_is_reported_together(world: World) -> None:
    fill(world.a, "t", 1, 0)
    with pytest.raises(ClusterError) as raised:
        await run(world.config(route("r", "a/no", "b/t"), route("s", "a/t", end("b/t", create=False))))
    assert str(raised.value).splitlines() == [
        "route 'r': the topic 'no' does not exist in cluster 'a'",
        "route 's': the topic b/t does not exist and cannot be created: `create` is off; switch it on, or create topic 't'",
    ]
    assert raised.value.failure is Failure.FATAL


async def test_a_route_may_read_a_topic_that_another_creates(world: World) -> None:
    fill(world.a, "t", 3, 30)
    chain = [route("one", "a/t", "b/t"), route("two", "b/t", "c/{topic}"), route("three", "b/~t.*", "c/all")]
    first, *others = await plans(world, *chain)
    assert (first.change_notes, first.is_provisional) == (["topic b/t is created with 3 partitions"], False)
    assert [(plan.problems, plan.is_provisional) for plan in others] == [([], True)] * 2
    assert (await run(world.config(*chain))).clean
    assert everything(world.c, "t") == everything(world.c, "all") == list(range(30))


def no_source(world: World) -> dict[str, Any]:
    return route("r", "a/missing", "b/t")


def no_match(world: World) -> dict[str, Any]:
    return route("r", "a/~x.*", "b/t")


def no_target(world: World) -> dict[str, Any]:
    return route("r", "a/t", end("b/t", create=False))


def no_partition(world: World) -> dict[str, Any]:
    world.b.create("t", 2)
    return route("r", "a/t", end("b/t", partitions={"by": "identity"}, create=False))


def no_row_in_the_table(world: World) -> dict[str, Any]:
    return route("r", "a/t", end("b/t", partitions={"by": "table", "table": {"0": 1}}))


def no_topic_can_be_made(world: World) -> dict[str, Any]:
    world.b.faults.create_error = "no rights to make one"
    return route("r", "a/t", "b/t")


def no_topic_can_grow(world: World) -> dict[str, Any]:
    world.b.create("t", 1)
    world.b.faults.create_error = "no rights to grow it"
    return route("r", "a/t", "b/t")


def no_dead_letters(world: World) -> dict[str, Any]:
    world.c.faults.create_error = "no rights to make one"
    return route("r", "a/t", "b/t", delivery={"dead_letter": {"cluster": "c", "topic": "dead"}})


def no_group(world: World) -> dict[str, Any]:
    world.a.faults.join_error = "no rights to join"
    return route("r", "a/t", "b/t")


REFUSALS = [
    no_source,
    no_match,
    no_target,
    no_partition,
    no_row_in_the_table,
    no_topic_can_be_made,
    no_topic_can_grow,
    no_dead_letters,
    no_group,
]


@pytest.mark.parametrize("cause", REFUSALS, ids=lambda cause: cause.__name__)
async def test_run_and_check_refuse_with_the_same_text(world: World, cause: Any) -> None:
    fill(world.a, "t", 3, 0)
    made = cause(world)
    before = [dict(each.topics) for each in (world.b, world.c)]
    [told] = await problems(world, made)
    with pytest.raises((ClusterError, ConfigError)) as raised:
        await run(world.config(made))
    assert str(raised.value) == told
    assert [dict(each.topics) for each in (world.b, world.c)] == before
