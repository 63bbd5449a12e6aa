"""Several targets, sources and routes in one process: how they depend on each other, and how they do not."""

from mqbridge.delivery.lane import LEG_BYTES
from tests.gateway.world import World, committed, end, everything, fill, named, put, route, run, running, stored, until

COUNT = 600
ALL = list(range(COUNT))


async def test_every_target_gets_everything_in_order(world: World) -> None:
    fill(world.a, "t", 3, COUNT)
    outcome = await run(world.config(route("r", "a/t", "b/t1", "c/t2", end("b/t3", partitions={"by": "key"}))))
    assert outcome.clean
    assert outcome.routes[0].counters.stored == 3 * COUNT
    assert stored(world.b, "t1") == stored(world.c, "t2") == stored(world.b, "t3") == stored(world.a, "t")
    assert committed(world.a, "g-r") == COUNT


async def test_acknowledgement_waits_for_the_last_target(world: World) -> None:
    fill(world.a, "t", 3, COUNT)
    world.c.create("t", 3)
    world.c.faults.hold_receipts = True
    async with running(world.config(route("r", "a/t", "b/t", "c/t"))) as gateway:
        await until(lambda: everything(world.b, "t") == ALL and everything(world.c, "t") == ALL)
        assert committed(world.a, "g-r") == 0
        assert named(gateway, "r").state.in_flight_batches == COUNT // 20
        world.c.release_receipts()
        await until(lambda: committed(world.a, "g-r") == COUNT)
    assert everything(world.b, "t") == everything(world.c, "t") == ALL


async def test_a_slow_target_delays_the_others_only_when_the_budget_is_full(world: World) -> None:
    fill(world.a, "t", 1, 0)
    put(world.a, "t", 0, *(b"%063d" % number for number in range(4000)))
    world.c.create("t", 1)
    world.c.faults.hold_receipts = True
    slow = route("slow", "a/t", "b/slow", "c/t", delivery={"in_flight_bytes": "64KiB"})
    fits = (32 << 10) // (20 * 63 + 2 * LEG_BYTES) * 20
    async with running(world.config(slow, route("fast", "a/t", "b/fast"))) as gateway:
        await until(lambda: committed(world.a, "g-fast") == 4000)
        await until(lambda: len(stored(world.b, "slow")[0]) >= fits)  # the other target has all messages that the budget admits
        assert committed(world.a, "g-slow") == 0
        assert named(gateway, "slow").state.budget.used <= 64 << 10
        assert len(stored(world.b, "slow")[0]) == fits
        world.c.release_receipts()
        await until(lambda: committed(world.a, "g-slow") == 4000)
    assert stored(world.b, "slow") == stored(world.c, "t") == stored(world.a, "t")


async def test_messages_refused_by_one_target_are_stored_by_the_others(world: World) -> None:
    fill(world.a, "t", 3, COUNT)
    world.c.create("t", 3)
    world.c.faults.refuse = lambda message: "odd" if int(message.payload or b"0") % 2 else None
    outcome = await run(world.config(route("r", "a/t", "b/t", "c/t", delivery={"dead_letter": end("b/dead")})))
    assert outcome.clean
    assert everything(world.b, "t") == ALL
    assert everything(world.c, "t") == ALL[::2]
    assert everything(world.b, "dead") == ALL[1::2]
    [targets] = ({m.property("mqbridge.dead.target") for partition in world.b.topics["dead"] for m in partition.messages},)
    assert targets == {"c/t"}
    assert committed(world.a, "g-r") == COUNT


async def test_a_target_that_refuses_everything_stops_its_route_alone(world: World) -> None:
    fill(world.a, "t", 3, COUNT)
    world.c.create("t", 3)
    world.c.faults.fatal = "no rights"
    outcome = await run(world.config(route("r", "a/t", "b/t", "c/t"), route("other", "a/t", "b/other")))
    assert [one.error for one in outcome.routes] == ["no rights", None]
    assert committed(world.a, "g-r") == 0
    assert everything(world.b, "other") == ALL
    world.c.faults.fatal = None
    assert (await run(world.config(route("r", "a/t", "b/t", "c/t")))).clean
    assert everything(world.c, "t") == ALL
    assert set(everything(world.b, "t")) == set(ALL)


async def test_a_route_waits_for_an_unreachable_target_and_other_routes_continue(world: World) -> None:
    fill(world.a, "t", 3, COUNT)
    world.c.create("t", 3)
    async with running(world.config(route("r", "a/t", "b/t", "c/t"), route("other", "a/t", "b/other"))):
        world.c.disconnect()
        put(world.a, "t", 0, b"%d" % COUNT)
        await until(lambda: committed(world.a, "g-other") == COUNT + 1)
        await until(lambda: everything(world.b, "t")[-1] == COUNT)
        assert committed(world.a, "g-r") < COUNT + 1
        world.c.reconnect()
        await until(lambda: committed(world.a, "g-r") == COUNT + 1)
    assert everything(world.b, "t") == everything(world.c, "t") == [*ALL, COUNT]


async def test_several_topics_share_one_target_topic(world: World) -> None:
    fill(world.a, "t1", 3, COUNT)
    fill(world.a, "t2", 2, COUNT, first=COUNT)
    fill(world.a, "t3", 5, COUNT, first=2 * COUNT)
    async with running(world.config(route("r", "a/t1", "b/all", source_={"topic": None, "topics": ["t1", "~t[23]"]}))) as gateway:
        await until(lambda: committed(world.a, "g-r") == 3 * COUNT)
        targets = named(gateway, "r").state.endpoints.targets.values()
        assert len({id(target.outbound) for of_topic in targets for target in of_topic}) == 1
    assert everything(world.b, "all") == list(range(3 * COUNT))
    assert len(world.b.topics["all"]) == 5
    for topic in ("t1", "t2", "t3"):
        for index, partition in enumerate(stored(world.a, topic)):
            own = set(partition)
            assert [payload for payload in stored(world.b, "all")[index] if payload in own] == partition


async def test_several_routes_share_one_target_topic(world: World) -> None:
    fill(world.a, "t", 2, COUNT)
    fill(world.c, "t", 3, COUNT, first=COUNT)
    outcome = await run(world.config(route("from-a", "a/t", "b/all"), route("from-c", "c/t", "b/all")))
    assert outcome.clean
    assert everything(world.b, "all") == list(range(2 * COUNT))
