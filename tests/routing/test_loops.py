"""Messages do not loop: between two clusters, in a ring, or through gateways that do not know each other."""

from collections.abc import Sequence

import pytest

from mqbridge.adapter.topics import Topic
from mqbridge.config.options.delivery import Delivery
from mqbridge.message import Batch, Message, Partition, Share, origin_prefix
from mqbridge.routes.endpoints import loop_guard
from mqbridge.routing.loops import LoopGuard
from mqbridge.testing.memory.adapter.cluster import MemoryCluster
from mqbridge.testing.memory.adapter.config import MemoryConfig
from tests.gateway.world import World, committed, end, everything, fill, named, put, route, run, running, until


def origin(cluster: str, topic: str) -> str:
    return origin_prefix(Partition(cluster, topic, "b:0", 0)) + "12:3"


def share(messages: Sequence[Message]) -> Share:
    return Share(Batch.of(messages))


def test_bytes_are_searched_before_messages_are_decoded() -> None:
    seen: list[int] = []
    guard = LoopGuard("b", ["orders"], 3, seen.append)
    home = [Message(b"home", origin=origin("b", "orders"), hops=1)]
    decoded: list[bool] = []

    def batch(raw: bytes) -> Batch:
        def decode() -> list[Message]:
            decoded.append(True)
            return home

        partition = Partition("a", "t", "0", 0)
        return Batch(partition, decode, count=1, size=1, first=(0,), next=(1,), may_contain=lambda text: text in raw)

    native = Share(batch(b"nothing of ours"))
    assert guard.keep(native, needs_messages=False) is native
    assert not decoded
    assert guard.keep(Share(batch(b"... mqbridge.origin ...")), needs_messages=False).count == 0
    assert decoded
    assert seen == [1]


def test_messages_from_the_target_and_beyond_the_hop_limit_are_dropped() -> None:
    seen: list[int] = []
    guard = LoopGuard("b", ["orders", "persistent://p/d/orders", "orders"], 3, seen.append)
    home = Message(b"home", origin=origin("b", "orders"), hops=1)
    alias = Message(b"alias", origin=origin("b", "persistent://p/d/orders"), hops=1)
    far = Message(b"far", origin=origin("x", "t"), hops=3)
    fine = [
        Message(b"native"),
        Message(b"near", origin=origin("x", "t"), hops=2),
        Message(b"longer", origin=origin("b", "orders2"), hops=1),
        Message(b"other", origin=origin("bb", "orders"), hops=1),
        Message(b"no origin", origin="something else", hops=1),
    ]
    assert guard.keep(share([home, *fine, alias, far])).messages == fine
    assert seen == [3]
    untouched = share(fine)
    assert guard.keep(untouched) is untouched
    natives = [Message(b"1"), Message(b"2")]
    untouched = share(natives)
    assert guard.keep(untouched) is untouched
    assert seen == [3]


def test_names_with_separators() -> None:
    seen: list[int] = []
    guard = LoopGuard("b|x", ["t%|"], 8, seen.append)
    assert guard.keep(share([Message(b"", origin=origin("b|x", "t%|"), hops=1)])).messages == []
    assert guard.keep(share([message := Message(b"", origin=origin("b", "x|t%|"), hops=1)])).messages == [message]


def test_a_cluster_given_by_url_is_recognized_by_its_identity() -> None:
    """Another cluster of the same system, given by URL, is not the target, even if the target is called after its system."""
    seen: list[int] = []
    guard = LoopGuard("pulsar", ["orders"], 8, seen.append, identity="pulsar://here:6650")
    there = Message(b"there", origin=origin("pulsar://there:6650", "orders"), hops=1)
    here = Message(b"here", origin=origin("pulsar://here:6650", "orders"), hops=1)
    by_job = Message(b"job", origin=origin_prefix(Partition("pulsar", "orders", "0", 0), "0123456789abcdef") + "3", hops=1)
    assert guard.keep(share([there, here, by_job])).messages == [there]
    assert seen == [2]


async def test_the_guard_of_a_route_knows_the_identity_of_its_target() -> None:
    cluster, seen = MemoryCluster("here", MemoryConfig(broker="shop")), list[int]()
    await cluster.connect()
    await cluster.create("t", 1)
    guard = await loop_guard(cluster, "t", Delivery(), seen.append)
    assert guard is not None
    looped = Message(b"", origin=origin("memory://shop", "t"), hops=1)
    other = Message(b"", origin=origin("memory://bank", "t"), hops=1)
    assert guard.keep(share([looped, other])).messages == [other]
    await cluster.close()


async def test_routes_in_both_directions_do_not_loop(world: World, caplog: pytest.LogCaptureFixture) -> None:
    fill(world.a, "t", 3, 300)
    fill(world.b, "t", 3, 300, first=300)
    async with running(world.config(route("there", "a/t", "b/t"), route("back", "b/t", "a/t"))) as gateway:
        await until(lambda: committed(world.a, "g-there") == 600 and committed(world.b, "g-back") == 600)
        assert everything(world.a, "t") == everything(world.b, "t") == list(range(600))
        assert [(one.state.counters.looped, one.state.counters.stored) for one in gateway.routes] == [(300, 300), (300, 300)]
        put(world.a, "t", 0, b"600")
        await until(lambda: committed(world.b, "g-back") == 601)
        assert everything(world.a, "t") == everything(world.b, "t") == list(range(601))
    assert caplog.text.count("dropping looped messages") == 2


async def test_a_longer_ring_ends_at_the_limit_of_hops(world: World) -> None:
    fill(world.a, "t", 1, 10)
    ring = [route("1", "a/t", "b/t"), route("2", "b/t", "c/t"), route("3", "c/t", "a/t")]
    for one in ring:
        one["delivery"] = {"max_hops": 4}
    outcome = await run(world.config(*ring))
    # Four hops: a to b, to c, back to a once, and to b again, where the fifth is refused.
    assert [len(made.topics["t"][0].messages) for made in (world.a, world.b, world.c)] == [20, 20, 10]
    assert [result.counters.looped for result in outcome.routes] == [0, 10, 0]
    assert sum(committed(made, f"g-{n}") for n, made in enumerate((world.a, world.b, world.c), 1)) == 50


async def test_loops_of_gateways_with_different_cluster_names_end(world: World) -> None:
    fill(world.a, "t", 1, 10)
    there = world.config(route("there", "a/t", "b/t"))
    back = world.config(route("back", "b/t", "a/t"))
    back["clusters"] = {f"other-{name}": made for name, made in back["clusters"].items()}
    back["routes"][0]["from"]["cluster"] = "other-b"
    back["routes"][0]["to"][0]["cluster"] = "other-a"
    async with running(there) as first, running(back, alone=False) as second:
        await until(lambda: named(first, "there").state.counters.looped + named(second, "back").state.counters.looped == 10)
        assert len(world.a.topics["t"][0].messages) + len(world.b.topics["t"][0].messages) == 10 * 9


async def test_loop_prevention_applies_per_target(world: World) -> None:
    world.b.create("t", 1)
    put(world.b, "t", 0, Message(b"1", origin=origin("a", "t"), hops=1), Message(b"2"))
    outcome = await run(world.config(route("r", "b/t", "a/t", "c/t")))
    assert (everything(world.a, "t"), everything(world.c, "t")) == ([2], [1, 2])
    assert (outcome.routes[0].counters.looped, outcome.routes[0].counters.acknowledged) == (1, 2)
    assert committed(world.b, "g-r") == 2


@pytest.mark.parametrize("delivery", [{"prevent_loops": False}, {"stamp_origin": False}], ids=str)
async def test_loop_prevention_can_be_turned_off(world: World, delivery: dict[str, bool]) -> None:
    world.b.create("t", 1)
    put(world.b, "t", 0, Message(b"1", origin=origin("a", "t"), hops=9))
    outcome = await run(world.config(route("r", "b/t", "a/t", delivery=delivery)))
    assert everything(world.a, "t") == [1]
    assert outcome.routes[0].counters.looped == 0


async def test_loop_prevention_works_without_stamps(world: World) -> None:
    world.b.create("t", 1)
    put(world.b, "t", 0, Message(b"1", origin=origin("a", "t"), hops=1))
    outcome = await run(world.config(route("r", "b/t", "a/t", delivery={"stamp_origin": False, "prevent_loops": True})))
    assert everything(world.a, "t") == []
    assert outcome.routes[0].counters.looped == 1


async def test_every_alias_of_the_target_counts(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    real = MemoryCluster.describe

    async def describe(self: MemoryCluster, topic: str) -> Topic | None:
        found = await real(self, topic)
        return None if found is None else Topic(found.name, found.partitions, aliases=(f"long://{topic}",))

    monkeypatch.setattr(MemoryCluster, "describe", describe)
    world.b.create("t", 1)
    put(world.b, "t", 0, Message(b"1", origin=origin("a", "long://t"), hops=1), Message(b"2"))
    outcome = await run(world.config(route("r", "b/t", end("a/t"))))
    assert everything(world.a, "t") == [2]
    assert outcome.routes[0].counters.looped == 1
