"""What `mqbridge check --connect` finds out about routes before they are started."""

from typing import Any

import pytest

from mqbridge.config.load import from_dict
from mqbridge.gateway.clusters import connected
from mqbridge.gateway.survey import Survey, survey
from tests.core.world import ADAPTERS, World, able, end, fill, route


async def look(world: World, made: dict[str, Any], *without: str) -> Survey:
    config = from_dict(world.config(made), adapters=ADAPTERS)
    async with connected(config, ADAPTERS) as clusters:
        return await survey(config.routes[0], {name: one for name, one in clusters.items() if name not in without})


async def test_what_would_be_made_and_what_is_there(world: World) -> None:
    fill(world.a, "t1", 3, 0)
    fill(world.a, "t2", 4, 0)
    world.b.create("t1", 2)
    world.c.create("t2", 9)
    found = await look(world, route("r", "a/~t.", "b/{topic}", end("c/t2", partitions={"by": "identity"})))
    assert found.problems == []
    assert [(one.topic, one.partitions, one.targets) for one in found.topics] == [
        ("t1", 3, ["t1", "t2"]),
        ("t2", 4, ["t2", "t2"]),
    ]
    assert [one.notes for one in found.topics] == [
        ["b/t1 grows from 2 to 3 partitions"],
        ["b/t2 is created with 4 partitions"],
    ]
    assert sorted(world.b.topics) == ["t1"]  # looking changes nothing
    assert len(world.b.topics["t1"]) == 2


async def test_what_would_keep_it_from_starting(world: World) -> None:
    fill(world.a, "t", 3, 0)
    world.b.create("t", 2)
    identity = end("b/t", partitions={"by": "identity"}, create=False)
    table = end("c/t", partitions={"by": "table", "table": {"0": 0}})
    found = await look(world, route("r", "a/t", identity, table, end("c/none", create=False)))
    first, second, third = found.problems
    assert first == (
        "b/t has no place for partition '2' of t: by identity it goes to partition 2, but there are 2 (0 to 1). "
        "Grow the target topic to 3 partitions, set `create: true`, or use `by: modulo`"
    )
    assert second == (
        "c/t has no place for partition '1' of t: it is not in the table of `partitions`. "
        "Add '1', '2' to the table, or use `by: modulo`"
    )
    assert third == "cluster 'c' has no topic 'none', and `create` is off"


async def test_missing_topics_and_clusters(world: World) -> None:
    world.a.create("t", 1)
    several = route("r", "a/t", "b/t", source_={"topic": None, "topics": ["t", "no", "nor"]})
    assert (await look(world, several)).problems == ["cluster 'a' has no topic 'no', 'nor'"]
    for name in ("orders_eu", "orders_us", "payments"):
        world.a.create(name, 1)
    [none] = (await look(world, route("r", "a/~persistent://.*/orders_.*", "b/t"))).problems
    assert none == (
        "route 'r': no topic of cluster 'a' matches ~persistent://.*/orders_.*. "
        "A pattern matches whole names, like orders_us, orders_eu, payments"
    )
    [empty] = (await look(world, route("r", "b/~x.*", "c/t"))).problems
    assert empty == "route 'r': no topic of cluster 'b' matches ~x.*. It has no topics at all"
    assert (await look(world, route("r", "a/t", "b/t"), "a")).problems == ["its source cluster cannot be reached"]
    assert (await look(world, route("r", "a/t", "b/t"), "b")).problems == []


async def test_a_cluster_that_cannot_create_topics(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    able(monkeypatch, create_topics=False)
    world.a.create("t", 1)
    [problem] = (await look(world, route("r", "a/t", "b/t"))).problems
    assert problem == "cluster 'b' has no topic 't', and cannot create it"


async def test_more_topics_than_a_group_may_read(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    able(monkeypatch, group_topics=3)
    for number in range(4):
        world.a.create(f"t{number}", 1)
    [problem] = (await look(world, route("r", "a/~t.*", "b/t"))).problems
    assert problem == (
        "route 'r' takes 4 topics, but a group of 'a' may read 3 at most. Make several routes of it, each with a part of the "
        "topics and a group of its own; half come before t2"
    )
    assert (await look(world, route("r", "a/~t[^0]", "b/t"))).problems == []
