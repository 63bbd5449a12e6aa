"""A partition of a group: every line of its state table, and what a consumer gets, confirms and rolls back."""

import asyncio
from collections.abc import AsyncIterator
from typing import cast

import pytest
import pytest_asyncio

from mqbridge.adapter.inbound import Start
from mqbridge.errors import ClusterError, LaneRevoked
from mqbridge.net.tasks import cancel, spawn
from mqbridge.tubemq.server import partition as module
from mqbridge.tubemq.server.broker import ServedBroker
from mqbridge.tubemq.server.lanes import LaneStart, PartitionId
from mqbridge.tubemq.server.partition import PartitionOwnership, ServedPack, ServedPartition
from mqbridge.tubemq.server.refusals import CodedRefusal
from tests.listener.feeds import settle
from tests.patience import PATIENCE_S
from tests.tubemq.server.scripted import ScriptedBroker, ScriptedLanes
from tests.tubemq.server.serving import until

FREE, OPENING = PartitionOwnership.FREE, PartitionOwnership.OPENING
OWNED, OUT = PartitionOwnership.OWNED, PartitionOwnership.OUT
EARLIEST = LaneStart(Start.EARLIEST)
ID = PartitionId("demo", 0)


class PartitionBench:
    """A partition with messages 0 to 9, whose lane is held; batches have three messages."""

    def __init__(self, *numbers: int) -> None:
        self.broker = ScriptedBroker()
        self.queue = self.broker.queues[ID]
        self.queue.store(*numbers)
        self.lanes = ScriptedLanes(self.broker)
        self.lane = self.lanes.hold(ID)
        self.feed = self.lanes.feeds[ID]
        self.partition = ServedPartition(cast(ServedBroker, self.broker), self.lanes, "g", self.broker.topic, 0)
        self.feed.on_change = lambda feed: None if feed.is_held else self.partition.release()

    async def register(self, client_id: str = "a", start: LaneStart = EARLIEST) -> None:
        await self.partition.register(client_id, self.broker.topic, start, frozenset())

    async def take(self, client_id: str = "a", *, keeps_pack: bool = False) -> list[int] | None:
        """Get a pack, and return the numbers of its messages; None if there is none."""
        pack = await self.partition.get(client_id, keeps_pack=keeps_pack)
        if pack is None:
            return None
        self.partition.hand_out(pack)
        return list(pack.messages.numbers)

    @property
    def numbers(self) -> tuple[int, int]:
        return self.partition.confirmed, self.partition.read_end


@pytest_asyncio.fixture
async def bench() -> AsyncIterator[PartitionBench]:
    made = PartitionBench(*range(10))
    yield made
    made.broker.bounds_gate.set()
    made.lanes.open_gate.set()
    made.partition.release()
    await made.lanes.end()
    await settle()


# --- states -------------------------------------------------------------------------------------------------------------------


async def test_registering_opens_the_partition_for_its_owner(bench: PartitionBench) -> None:
    partition = bench.partition
    assert (partition.state, partition.owner, partition.is_free) == (FREE, None, True)
    bench.lanes.open_gate.clear()
    registering = spawn(bench.register(), "register")
    await settle()
    assert (partition.state, partition.owner, partition.is_free) == (OPENING, "a", False)
    with pytest.raises(CodedRefusal) as early:
        partition.check_owner("a")
    assert early.value.code == 411
    bench.lanes.open_gate.set()
    await registering
    assert (partition.state, partition.owner) == (OWNED, "a")
    assert (bench.numbers, partition.end) == ((0, 0), 10)


@pytest.mark.parametrize("error", [ClusterError("down"), CodedRefusal("no", 410), RuntimeError("bug")])
async def test_a_registration_that_fails_leaves_the_partition_free(bench: PartitionBench, error: Exception) -> None:
    bench.lanes.error = error
    with pytest.raises(type(error)):
        await bench.register()
    assert (bench.partition.state, bench.partition.owner) == (FREE, None)
    await bench.register("b")
    assert bench.partition.owner == "b"


async def test_a_registration_that_is_given_up_leaves_the_partition_free(bench: PartitionBench) -> None:
    bench.lanes.open_gate.clear()
    registering = spawn(bench.register(), "register", log_errors=False)
    await settle()
    await cancel(registering)
    assert (bench.partition.state, bench.partition.owner) == (FREE, None)


async def test_another_consumer_cannot_register_what_has_an_owner(bench: PartitionBench) -> None:
    bench.lanes.open_gate.clear()
    registering = spawn(bench.register(), "register")
    await settle()
    for _ in range(2):  # while it is being opened, and then
        with pytest.raises(CodedRefusal) as refused:
            await bench.register("b")
        assert refused.value.code == 410
        bench.lanes.open_gate.set()
        await registering
    assert bench.partition.owner == "a"


async def test_a_registration_ends_the_offer_to_its_consumer_only(bench: PartitionBench) -> None:
    bench.partition.offered_to = "b"
    assert not bench.partition.is_free
    await bench.register("a")
    assert bench.partition.offered_to == "b"
    bench.partition.release()
    await bench.register("b")
    assert bench.partition.offered_to is None


async def test_registering_again_rolls_back_what_is_out(bench: PartitionBench) -> None:
    await bench.register()
    assert await bench.take() == [0, 1, 2]
    await bench.register()
    assert (bench.partition.state, bench.numbers) == (OWNED, (0, 0))
    assert await bench.take() == [0, 1, 2]


async def test_a_pack_is_out_until_it_is_confirmed(bench: PartitionBench) -> None:
    await bench.register()
    assert await bench.take() == [0, 1, 2]
    assert (bench.partition.state, bench.numbers, bench.partition.is_settled) == (OUT, (0, 3), False)
    bench.partition.confirm()
    assert (bench.partition.state, bench.numbers, bench.partition.is_settled) == (OWNED, (3, 3), True)
    assert bench.feed.committed == bench.queue.committed == 3
    bench.partition.confirm()
    assert bench.numbers == (3, 3), "nothing is out: a second confirmation confirms nothing"


async def test_what_is_rolled_back_comes_again_and_then_what_is_behind_it(bench: PartitionBench) -> None:
    await bench.register()
    assert await bench.take() == [0, 1, 2]
    bench.partition.roll_back()
    assert (bench.partition.state, bench.numbers, bench.feed.committed) == (OWNED, (0, 0), 0)
    bench.partition.roll_back()
    assert await bench.take() == [0, 1, 2]
    bench.partition.confirm()
    assert await bench.take() == [3, 4, 5]


@pytest.mark.parametrize(("is_consumed", "next_pack"), [(True, [3, 4, 5]), (False, [0, 1, 2])])
async def test_unregistering_confirms_or_rolls_back(bench: PartitionBench, is_consumed: bool, next_pack: list[int]) -> None:
    await bench.register()
    await bench.take()
    bench.partition.unregister("a", is_consumed=is_consumed)
    assert (bench.partition.state, bench.partition.owner) == (FREE, None)
    await bench.register("b")
    assert await bench.take("b") == next_pack


async def test_only_the_owner_unregisters(bench: PartitionBench) -> None:
    with pytest.raises(CodedRefusal) as nobody:
        bench.partition.unregister("a", is_consumed=True)
    await bench.register()
    await bench.take()
    with pytest.raises(CodedRefusal) as other:
        bench.partition.unregister("b", is_consumed=True)
    assert (nobody.value.code, other.value.code) == (411, 412)
    assert (bench.partition.state, bench.numbers) == (OUT, (0, 3))


@pytest.mark.parametrize("is_out", [False, True])
async def test_a_lost_lane_frees_the_partition(bench: PartitionBench, is_out: bool) -> None:
    await bench.register()
    if is_out:
        await bench.take()
    bench.lane.lose()
    await settle()
    assert (bench.partition.state, bench.partition.owner) == (FREE, None)
    with pytest.raises(CodedRefusal) as lost:
        bench.partition.check_owner("a")
    assert lost.value.code == 411
    bench.lanes.hold(ID)
    await bench.register("b")
    assert await bench.take("b") == [0, 1, 2]


async def test_a_release_closes_the_feed_unless_the_partition_has_a_new_owner(bench: PartitionBench) -> None:
    await bench.register()
    bench.partition.release()
    bench.partition.release()
    await until(lambda: bench.lanes.closed == [bench.feed])
    await bench.register()
    bench.partition.release()
    await bench.register("b")
    await settle()
    assert bench.partition.feed is bench.feed
    assert len(bench.lanes.closed) == 2


@pytest.mark.parametrize("is_taken", [False, True])
async def test_a_registration_that_is_released_while_it_opens_is_refused(bench: PartitionBench, is_taken: bool) -> None:
    """The owner has left its group meanwhile, and another consumer may have come."""
    bench.lanes.open_gate.clear()
    registering = spawn(bench.register(), "register", log_errors=False)
    await settle()
    bench.partition.release()
    other = spawn(bench.register("b"), "other") if is_taken else None
    await settle()
    bench.lanes.open_gate.set()
    with pytest.raises(CodedRefusal) as refused:
        await registering
    assert refused.value.code == 410
    if other is not None:
        await other
    assert (bench.partition.state, bench.partition.owner) == ((OWNED, "b") if is_taken else (FREE, None))


@pytest.mark.parametrize("is_taken", [False, True])
async def test_a_registration_that_is_released_at_its_last_step_is_refused(bench: PartitionBench, is_taken: bool) -> None:
    bench.broker.bounds_gate.clear()
    registering = spawn(bench.register(), "register", log_errors=False)
    await until(lambda: bench.broker.bounds_asked == 1)
    bench.partition.release()
    other = spawn(bench.register("b"), "other") if is_taken else None
    await settle()
    bench.broker.bounds_gate.set()
    with pytest.raises(CodedRefusal) as refused:
        await registering
    assert refused.value.code == 410
    if other is not None:
        await other
    await settle()
    assert (bench.partition.state, bench.partition.owner) == ((OWNED, "b") if is_taken else (FREE, None))
    assert (bench.partition.feed is None) != is_taken


async def test_a_lane_that_is_lost_while_the_partition_opens_refuses_the_registration(bench: PartitionBench) -> None:
    bench.lanes.open_gate.clear()
    registering = spawn(bench.register(), "register", log_errors=False)
    await settle()
    bench.feed.on_change = lambda _: None  # the partition has no feed yet that could be told from others
    bench.lane.lose()
    await settle()
    bench.lanes.open_gate.set()
    with pytest.raises(CodedRefusal) as refused:
        await registering
    assert refused.value.code == 410
    assert bench.partition.is_free


# --- signs of the owner -------------------------------------------------------------------------------------------------------


async def test_signs_of_the_owner_renew_its_lease(bench: PartitionBench) -> None:
    await bench.register()
    for sign in (lambda: bench.partition.check_owner("a"), lambda: asyncio.ensure_future(bench.take())):
        bench.partition.renewed_at = 0.0
        if (task := sign()) is not None:
            await task
        assert bench.partition.renewed_at > 0.0
    bench.partition.renewed_at = 0.0
    with pytest.raises(CodedRefusal):
        bench.partition.check_owner("b")
    assert bench.partition.renewed_at == 0.0


@pytest.mark.parametrize(("owner", "asker", "code", "refused"), [
    (None, "a", 411, 411), (None, "a", 401, 401), ("b", "a", 411, 412), ("b", "a", 401, 412),
])  # fmt: skip
async def test_who_is_not_the_owner_is_told_so(
    bench: PartitionBench, owner: str | None, asker: str, code: int, refused: int
) -> None:
    if owner is not None:
        await bench.register(owner)
    with pytest.raises(CodedRefusal) as error:
        bench.partition.check_owner(asker, code)
    assert error.value.code == refused


# --- packs --------------------------------------------------------------------------------------------------------------------


async def test_a_get_without_messages_gets_none(bench: PartitionBench) -> None:
    await bench.register(start=LaneStart(Start.EARLIEST, number=10))
    assert await bench.take() is None
    assert (bench.partition.state, bench.numbers) == (OWNED, (10, 10))
    bench.queue.store(10)
    assert await bench.take() == [10]


async def test_gets_that_keep_their_pack_go_on_behind_it(bench: PartitionBench) -> None:
    await bench.register()
    assert await bench.take(keeps_pack=True) == [0, 1, 2]
    assert await bench.take(keeps_pack=True) == [3, 4, 5]
    assert (bench.partition.state, bench.numbers) == (OUT, (0, 6))
    bench.partition.confirm()
    assert bench.numbers == (6, 6)
    assert await bench.take(keeps_pack=True) == [6, 7, 8]
    bench.partition.roll_back()
    assert await bench.take(keeps_pack=True) == [6, 7, 8]


async def empty(bench: PartitionBench, *, keeps_pack: bool) -> None:
    """Get a pack all of whose messages are filtered out."""
    pack = await bench.partition.get("a", keeps_pack=keeps_pack)
    assert pack is not None
    bench.partition.hand_out(pack._replace(messages=pack.messages._replace(numbers=())))


async def test_a_pack_without_messages_is_confirmed_at_once_if_nothing_is_out(bench: PartitionBench) -> None:
    await bench.register()
    await empty(bench, keeps_pack=False)
    assert (bench.partition.state, bench.numbers, bench.feed.committed) == (OWNED, (3, 3), 3)
    assert await bench.take(keeps_pack=True) == [3, 4, 5]
    await empty(bench, keeps_pack=True)
    assert (bench.partition.state, bench.numbers, bench.feed.committed) == (OUT, (3, 9), 3)
    bench.partition.roll_back()
    assert await bench.take() == [3, 4, 5]


async def test_packs_say_where_they_begin_and_whether_they_were_handed_out_before(bench: PartitionBench) -> None:
    await bench.register()
    packs: list[ServedPack] = []
    for step in ("confirm", "roll_back", "confirm"):
        pack = await bench.partition.get("a", keeps_pack=False)
        assert pack is not None
        bench.partition.hand_out(pack)
        packs.append(pack)
        getattr(bench.partition, step)()
    assert [(pack.start, pack.messages.next, pack.is_again) for pack in packs] == [(0, 3, False), (3, 6, False), (3, 6, True)]


async def test_what_another_consumer_had_is_read_up_to_where_the_lane_is(bench: PartitionBench) -> None:
    await bench.register()
    assert await bench.take() == [0, 1, 2]
    bench.partition.confirm()
    assert await bench.take(keeps_pack=True) == [3, 4, 5]
    assert await bench.take(keeps_pack=True) == [6, 7, 8]
    bench.partition.release()
    bench.queue.store(*range(10, 20))
    await bench.register("b")
    found: list[int] = []
    while (numbers := await bench.take("b")) is not None:
        bench.partition.confirm()
        found += numbers
    assert found == [*range(3, 20)]
    assert bench.queue.committed == 20


@pytest.mark.parametrize("opening_s", [0.02, 0.6])
async def test_what_is_rolled_back_comes_again_however_long_a_reader_takes(bench: PartitionBench, opening_s: float) -> None:
    """Nothing else is stored: the lane is at the end."""
    await bench.register()
    found: list[int] = []
    while (numbers := await bench.take(keeps_pack=True)) is not None:
        found += numbers
    assert found == [*range(10)]
    bench.partition.roll_back()
    bench.broker.opening_s = opening_s
    for _ in range(5):
        if (again := await bench.take()) is not None:
            break
    assert again == [0, 1, 2]


@pytest.mark.parametrize("keeps_pack", [False, True])
async def test_a_get_that_waits_hands_out_nothing_after_its_owner_was_released(bench: PartitionBench, keeps_pack: bool) -> None:
    await bench.register(start=LaneStart(Start.EARLIEST, number=10))
    bench.queue.store(10, 11)
    while await bench.take(keeps_pack=keeps_pack) is not None:
        bench.partition.confirm()
    getting = spawn(bench.partition.get("a", keeps_pack=keeps_pack), "get", log_errors=False)
    await asyncio.sleep(0)
    bench.partition.release()
    bench.queue.store(12)
    with pytest.raises(CodedRefusal) as refused:
        await getting
    assert refused.value.code == 411
    await bench.register("b")
    assert await bench.take("b") == [12]


async def test_a_get_that_waits_while_the_pack_before_it_is_rolled_back_hands_out_nothing(
    bench: PartitionBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise its confirmation would confirm what was rolled back."""
    monkeypatch.setattr(module, "CAUGHT_UP_WAIT_S", PATIENCE_S)
    monkeypatch.setattr(module, "WAIT_S", PATIENCE_S)
    await bench.register(start=LaneStart(Start.EARLIEST, number=7))
    assert await bench.take(keeps_pack=True) == [7, 8, 9]
    getting = spawn(bench.take(keeps_pack=True), "get")
    await settle()
    bench.partition.roll_back()
    bench.queue.store(10)
    assert await getting is None
    bench.partition.confirm()
    assert bench.numbers == (7, 7)
    assert await bench.take() == [7, 8, 9]


async def test_a_partition_that_is_about_to_be_given_up_hands_out_nothing_but_is_confirmed(bench: PartitionBench) -> None:
    await bench.register()
    await bench.take()
    finishing = spawn(bench.feed.finish(asyncio.get_running_loop().time() + PATIENCE_S), "finish")
    await settle()
    with pytest.raises(CodedRefusal) as moving:
        await bench.partition.get("a", keeps_pack=False)
    assert moving.value.code == 411
    bench.partition.confirm()
    await finishing
    assert bench.queue.committed == 3


@pytest.mark.parametrize("error", [LaneRevoked("gone"), ClusterError("down")])
async def test_an_error_of_the_lane_is_told(bench: PartitionBench, error: Exception) -> None:
    await bench.register()
    bench.lane.fail(error)
    with pytest.raises(CodedRefusal if isinstance(error, LaneRevoked) else ClusterError):
        await bench.take()
    await settle()
    assert bench.partition.state is FREE


# --- the end ------------------------------------------------------------------------------------------------------------------


async def test_the_end_is_asked_for_again_when_it_is_old(bench: PartitionBench) -> None:
    await bench.register()
    bench.queue.store(10)
    assert bench.partition.end == 10
    bench.partition._end_at -= module.FRESH_S + 1
    assert bench.partition.end == 10, "it is asked for in the background"
    await until(lambda: bench.partition.end == 11)


async def test_an_end_that_is_not_known_now_does_no_harm(bench: PartitionBench, monkeypatch: pytest.MonkeyPatch) -> None:
    await bench.register()

    async def fail(*_: object) -> tuple[int, int]:
        raise ClusterError("down")

    monkeypatch.setattr(bench.broker, "bounds_of", fail)
    bench.partition._end_at -= module.FRESH_S + 1
    assert bench.partition.end == 10
    await until(lambda: bench.partition._asking_end is None)
    assert bench.partition.end == 10


@pytest.mark.parametrize("is_released", [False, True])
async def test_a_partition_without_a_pack_is_given_up_at_once(bench: PartitionBench, is_released: bool) -> None:
    """The pack was rolled back, or its owner has vanished: nobody can confirm it."""
    await bench.register()
    await bench.take()
    if is_released:
        bench.partition.release()
    else:
        bench.partition.roll_back()
    assert bench.partition.is_settled
    async with asyncio.timeout(PATIENCE_S):
        await bench.feed.finish(asyncio.get_running_loop().time() + 2 * PATIENCE_S)


@pytest.mark.parametrize("begin_s", [0.02, 0.6])
async def test_a_lane_whose_begin_takes_a_while_to_find_is_read_all_the_same(bench: PartitionBench, begin_s: float) -> None:
    bench.lanes.begin_s = begin_s
    await bench.register()
    found = None
    for _ in range(5):
        if (found := await bench.take()) is not None:
            break
    assert found == [0, 1, 2]
