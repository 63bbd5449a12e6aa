"""A running gateway whose patterns match what it writes: copies, dead letters, and copies that come back through others."""

from typing import Any

import pytest

from mqbridge.config.load import from_dict
from mqbridge.errors import ClusterError, ConfigError
from mqbridge.routes.endpoints import RouteEndpoints
from mqbridge.testing.memory.broker import Broker
from tests.gateway.world import (
    ADAPTERS,
    World,
    end,
    everything,
    fill,
    named,
    put,
    route,
    run,
    running,
    stored,
    until,
)

EARLY_AND_OFTEN = {"refresh": "100ms"}
REFRESHES = 5


@pytest.fixture
def refreshes(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The name of a route for each check of its topics that has ended."""
    ended: list[str] = []
    original = RouteEndpoints.refresh

    async def refresh(self: RouteEndpoints) -> bool:
        result = await original(self)
        ended.append(self._config.name)
        return result

    monkeypatch.setattr(RouteEndpoints, "refresh", refresh)
    return ended


async def test_a_pattern_does_not_select_the_copies_of_its_own_route(world: World, refreshes: list[str]) -> None:
    fill(world.a, "orders", 1, 10)
    async with running(world.config(route("r", "a/~orders.*", "a/{topic}-copy", source_=EARLY_AND_OFTEN))) as gateway:
        await until(lambda: len(refreshes) >= REFRESHES and everything(world.a, "orders-copy") == list(range(10)))
        fill(world.a, "orders-new", 1, 10)
        await until(lambda: everything(world.a, "orders-new-copy") == list(range(10)))
        seen = len(refreshes)
        await until(lambda: len(refreshes) >= seen + REFRESHES)
        assert sorted(world.a.topics) == ["orders", "orders-copy", "orders-new", "orders-new-copy"]
        assert named(gateway, "r").state.endpoints.excluded.keys() == {"orders-copy", "orders-new-copy"}
    assert (await run(world.config(route("r", "a/~orders.*", "a/{topic}-copy")))).clean  # as after a restart
    assert len(world.a.topics) == 4


async def test_one_bad_message_becomes_one_dead_letter(world: World, refreshes: list[str]) -> None:
    """Also with two routes whose patterns match the dead-letter topic of the other."""
    world.a.create("orders_eu", 1)
    put(world.a, "orders_eu", 0, b"good", b"x" * 400, b"too")
    config = world.config(
        route("r", "a/~orders_(.+)", "b/{topic}", source_=EARLY_AND_OFTEN, delivery={"dead_letter": end("a/orders_dead")}),
        route("s", "a/~orders_.*", "b/all", source_=EARLY_AND_OFTEN, delivery={"dead_letter": end("a/orders_lost")}),
        b={"max_message_bytes": 300},
    )
    async with running(config) as gateway:
        await until(lambda: [one.state.counters.stored for one in gateway.routes] == [2, 2])
        seen = len(refreshes)
        await until(lambda: len(refreshes) >= seen + 2 * REFRESHES)
        assert [one.state.counters.dead for one in gateway.routes] == [1, 1]
    assert [len(stored(world.a, name)[0]) for name in ("orders_dead", "orders_lost")] == [1, 1]
    assert sorted(world.b.topics) == ["all", "orders_eu"]


async def test_two_routes_do_not_make_topics_without_end(world: World, refreshes: list[str]) -> None:
    fill(world.a, "orders", 1, 10)
    there = route("there", "a/~.*", "b/{topic}-x", source_=EARLY_AND_OFTEN)
    back = route("back", "b/~.*", "a/{topic}", source_=EARLY_AND_OFTEN)
    async with running(world.config(there, back)):
        await until(lambda: everything(world.a, "orders-x") == list(range(10)))
        seen = len(refreshes)
        await until(lambda: len(refreshes) >= seen + 2 * REFRESHES)
    assert (sorted(world.a.topics), sorted(world.b.topics)) == (["orders", "orders-x"], ["orders-x"])


async def test_mirrors_by_patterns_in_both_directions_copy_every_topic_once(world: World, refreshes: list[str]) -> None:
    fill(world.a, "orders", 2, 10)
    fill(world.b, "customers", 2, 10)
    ends = (("there", "a/~.*", "b/{topic}"), ("back", "b/~.*", "a/{topic}"))
    async with running(world.config(*(route(*one, source_=EARLY_AND_OFTEN) for one in ends))):
        for topic in ("orders", "customers"):
            await until(lambda topic=topic: everything(world.a, topic) == everything(world.b, topic) == list(range(10)))  # type: ignore[misc]
        seen = len(refreshes)
        await until(lambda: len(refreshes) >= seen + 2 * REFRESHES)
        put(world.b, "orders", 0, b"10")
        await until(lambda: everything(world.a, "orders") == list(range(11)))
    assert everything(world.b, "orders") == list(range(11))
    assert sorted(world.a.topics) == sorted(world.b.topics) == ["customers", "orders"]


async def test_two_gateways_that_do_not_know_each_other_stop_making_topics(world: World, refreshes: list[str]) -> None:
    fill(world.a, "orders", 1, 10)
    there = world.config(route("there", "a/~.*", "b/a.{topic}", source_=EARLY_AND_OFTEN))
    back = world.config(route("back", "b/~.*", "a/b.{topic}", source_=EARLY_AND_OFTEN))
    async with running(there), running(back, alone=False):
        await until(lambda: "a.b.a.orders" in world.b.topics)

        def names(broker: Broker) -> list[str]:
            return sorted(broker.topics)

        while True:
            before, seen = (names(world.a), names(world.b)), len(refreshes)
            await until(lambda seen=seen: len(refreshes) >= seen + 4 * REFRESHES)  # type: ignore[misc]
            if (names(world.a), names(world.b)) == before:
                break
            assert len(before[0]) + len(before[1]) < 10


async def test_two_names_of_one_cluster_are_one_cluster_for_the_prevention_of_loops(world: World) -> None:
    fill(world.a, "t", 1, 10)
    config = world.config(route("there", "a/t", "b/t"), route("back", "b/t", "twin/t"))
    config["clusters"]["twin"] = config["clusters"]["a"]
    outcome = await run(config)
    assert everything(world.a, "t") == everything(world.b, "t") == list(range(10))
    assert [result.counters.looped for result in outcome.routes] == [0, 10]


async def test_a_route_without_any_other_topic_says_why(world: World) -> None:
    fill(world.a, "orders_dead", 1, 0)
    with pytest.raises(ConfigError) as raised:
        await run(world.config(route("r", "a/~orders_.*", "b/{topic}", delivery={"dead_letter": end("a/orders_dead")})))
    assert str(raised.value) == (
        "route 'r': cluster 'a' has no topic that it may read and that matches ~orders_.*. It does not read topic 'orders_dead': "
        "it is the dead-letter topic of the route itself"
    )


async def test_a_reload_takes_account_of_new_routes(world: World, refreshes: list[str]) -> None:
    fill(world.a, "orders", 1, 1)
    fill(world.a, "orders-x", 1, 1)
    first = route("r", "a/~.*", "b/{topic}", source_=EARLY_AND_OFTEN)
    async with running(world.config(first)) as gateway:
        assert set(named(gateway, "r").state.target_partitions) == {"orders", "orders-x"}
        second: dict[str, Any] = route("s", "b/orders", "a/{topic}-x")
        await gateway.apply(from_dict(world.config(first, second), adapters=ADAPTERS))
        await until(lambda: set(named(gateway, "r").state.target_partitions) == {"orders"})
        with pytest.raises(ClusterError):  # a configuration that is not applied has no effect
            await gateway.apply(from_dict(world.config(first, route("s", "b/none", "a/{topic}-x")), adapters=ADAPTERS))
        seen = len(refreshes)
        await until(lambda: len(refreshes) >= seen + REFRESHES)
        assert set(named(gateway, "r").state.target_partitions) == {"orders"}
