"""Groups that the gateway keeps itself: positions, users, and what is left behind: nothing."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from mqbridge.adapter.inbound import Start
from mqbridge.errors import ClusterError, Failure, RefusalReason, RequestRefused
from mqbridge.groups import store as store_module
from mqbridge.listener import limits as limits_module
from mqbridge.listener import own_groups as own_groups_module
from mqbridge.listener.feed import Feed
from mqbridge.listener.own_groups import OwnGroups
from mqbridge.listener.topics import ListenedTopic
from mqbridge.net.tasks import cancel, spawn
from mqbridge.testing.memory.adapter.reader import MemoryReader
from tests.listener.faulty import SHARED, START, Listened, take_some, taken_numbers, until
from tests.listener.feeds import settle
from tests.patience import PATIENCE_S


class OwnBench(Listened):
    def __init__(self, path: Path) -> None:
        super().__init__("own-groups", path)
        self.start()

    def start(self) -> None:
        assert self.store is not None
        self.groups = OwnGroups(self.partitions, self.store, "app", self.cluster.name)

    async def open(self, topic: ListenedTopic, partition: int = 0, group: str = "g", start: Start = Start.EARLIEST) -> Feed:
        async with asyncio.timeout(PATIENCE_S):
            return await self.groups.open(topic, partition, group, start, SHARED)

    def check_nothing_is_left(self) -> None:
        assert not self.groups._feeds
        assert not self.groups._users
        assert len(self.groups._locks) == len(self.groups._creating) == 0
        assert not self.groups._closing
        assert not self.groups._lingering
        assert self.readers() == 0

    async def until_nothing_is_left(self) -> None:
        await until(lambda: not self.groups._feeds and not self.groups._closing and not self.groups._lingering)
        self.check_nothing_is_left()


@pytest.fixture(autouse=True)
def nothing_settles_late(monkeypatch: pytest.MonkeyPatch) -> None:
    """Most tests take messages and do nothing with them."""
    monkeypatch.setattr(own_groups_module, "LINGER_S", 0.0)
    monkeypatch.setattr(own_groups_module, "SETTLE_S", 0.05)


@pytest_asyncio.fixture
async def bench(tmp_path: Path) -> AsyncIterator[OwnBench]:
    made = OwnBench(tmp_path / "state.db")
    yield made
    await made.groups.close()
    await made.close()


async def test_a_group_resumes_where_it_was(bench: OwnBench) -> None:
    topic = await bench.topic()
    bench.send(*range(10))
    feed = await bench.open(topic)
    assert await bench.open(topic) is feed, "all consumers share it"
    taken = await take_some(feed, 10)
    for each in taken[:4] + taken[6:7]:
        feed.acknowledge(each)
    bench.groups.release(feed)
    await settle()
    assert feed.is_held, "somebody uses it"
    bench.groups.release(feed)
    await bench.until_nothing_is_left()
    again = await bench.open(topic)
    assert await taken_numbers(again, 5) == [4, 5, 7, 8, 9]
    assert await bench.groups.committed(topic, "g") == {0: (4,)}
    assert await bench.groups.names(topic) == ["g"]
    assert await bench.groups.exists(topic, "g")
    assert not await bench.groups.exists(topic, "other")


async def test_a_group_that_was_deleted_in_one_partition_begins_there_as_a_new_one(bench: OwnBench) -> None:
    """A partition without a position of the group was not added to the topic if the group was deleted in it."""
    topic = await bench.topic(2)
    for partition in range(2):
        bench.send(1, 2, partition=partition)
        bench.groups.release(await bench.open(topic, partition))
    await bench.until_nothing_is_left()
    await bench.groups.delete(topic, "g", 1)
    feed = await bench.open(topic, 1, start=Start.LATEST)
    bench.send(3, partition=1)
    assert await taken_numbers(feed, 1) == [2]
    bench.groups.release(feed)
    await bench.until_nothing_is_left()
    for partition in range(2):
        await bench.groups.delete(topic, "g", partition)
    await bench.open(topic, 0, start=Start.LATEST)
    assert bench.store.notes("app", bench.cluster.name, own_groups_module.DELETED_PARTITIONS) == {}
    grown = await bench.topic(3)
    bench.send(1, partition=2)
    assert await taken_numbers(await bench.open(grown, 2, start=Start.LATEST), 1) == [0]


async def test_what_is_being_stored_elsewhere_when_the_last_user_goes_is_acknowledged(
    bench: OwnBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(own_groups_module, "SETTLE_S", PATIENCE_S)
    topic = await bench.topic()
    bench.send(*range(3))
    feed = await bench.open(topic)
    parked, *others = await take_some(feed, 3)
    for each in others:
        feed.give_back(each, counted=False)
    bench.groups.release(feed)
    await until(lambda: bool(bench.groups._closing))
    opening = spawn(bench.open(topic), "opening")  # the client comes back before its message is stored
    await settle()
    assert not opening.done()
    feed.acknowledge(parked)
    assert await taken_numbers(await opening, 2) == [1, 2]


async def test_every_partition_of_a_new_group_begins_at_the_end(bench: OwnBench) -> None:
    """A client opens the partitions of a topic one after the other: the later ones are no partitions that were added."""
    topic = await bench.topic(3)
    for partition in range(3):
        bench.send(1, 2, 3, partition=partition)
    feeds = [await bench.open(topic, partition, start=Start.LATEST) for partition in range(3)]
    for partition in range(3):
        bench.send(4, partition=partition)
    assert [await taken_numbers(feed, 1) for feed in feeds] == [[3]] * 3
    grown = await bench.topic(4)
    bench.send(1, partition=3)
    assert await taken_numbers(await bench.open(grown, 3, start=Start.LATEST), 1) == [0]


async def test_a_caller_that_gives_up_leaves_no_feed_behind(bench: OwnBench) -> None:
    topic = await bench.topic()
    gate = bench.requests.hang("bounds")
    first = spawn(bench.open(topic), "first")
    await bench.requests.until_waiting("bounds")
    second = spawn(bench.open(topic), "second")
    await settle()
    gate.set()
    bench.groups.release(await first)
    await cancel(second)
    if not second.cancelled():
        bench.groups.release(await second)
    await bench.until_nothing_is_left()


async def test_a_caller_that_waits_for_the_lock_and_gives_up_is_the_last_user(bench: OwnBench) -> None:
    topic = await bench.topic()
    feed = await bench.open(topic)
    key = feed.key
    async with bench.groups._locks.hold(key):
        waiting = spawn(bench.open(topic), "waiting")
        await settle()
        bench.groups.release(feed)
        await cancel(waiting)
    await bench.until_nothing_is_left()


async def test_a_cluster_that_fails_or_hangs_leaves_nothing_behind(bench: OwnBench, monkeypatch: pytest.MonkeyPatch) -> None:
    topic = await bench.topic()
    bench.requests.errors["bounds"] = ClusterError("away")
    with pytest.raises(ClusterError, match="away"):
        await bench.open(topic)
    await bench.until_nothing_is_left()
    monkeypatch.setattr(limits_module, "REQUEST_TIMEOUT_S", 0.01)
    bench.requests.errors.clear()
    gate = bench.requests.hang("bounds")
    with pytest.raises(ClusterError, match="did not finish"):
        await bench.open(topic)
    await bench.until_nothing_is_left()
    gate.set()
    monkeypatch.undo()
    bench.groups.release(await bench.open(topic))
    await bench.until_nothing_is_left()


async def test_ten_thousand_groups_leave_nothing_behind(bench: OwnBench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_module, "FLUSH_RATIO", 0)
    topic = await bench.topic()
    bench.send(1)
    loop = asyncio.get_running_loop()
    for begin in range(0, 10_000, 500):
        names = [f"g{number}" for number in range(begin, begin + 500)]
        feeds = await asyncio.gather(*(bench.open(topic, group=name) for name in names))
        for feed in feeds:
            bench.groups.release(feed)
        await bench.until_nothing_is_left()
    await until(lambda: len(asyncio.all_tasks(loop)) < 5)


async def test_a_partition_that_cannot_be_read_is_read_again(bench: OwnBench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(own_groups_module, "FIRST_PAUSE_S", 0.01)
    topic = await bench.topic()
    bench.send(1, 2)
    feed = await bench.open(topic)
    (first, _) = await take_some(feed, 2)
    feed.acknowledge(first)
    receive = MemoryReader.receive

    async def fail(self: MemoryReader) -> None:
        raise ClusterError("the partition is broken", Failure.FATAL)

    monkeypatch.setattr(MemoryReader, "receive", fail)
    await bench.groups.move(topic, "g", {0: (1,)})
    feed.take(1, 1)
    await until(lambda: feed.problem is not None)
    bench.requests.errors["bounds"] = ClusterError("away")
    calls = bench.requests.calls["bounds"]
    await until(lambda: bench.requests.calls["bounds"] > calls + 1)
    await until(lambda: feed.problem == "away")
    monkeypatch.setattr(MemoryReader, "receive", receive)
    bench.requests.errors.clear()
    assert await taken_numbers(feed, 1) == [1]
    assert feed.problem is None


async def test_a_feed_without_users_is_not_read_again(bench: OwnBench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(own_groups_module, "FIRST_PAUSE_S", 0.01)
    topic = await bench.topic()
    feed = await bench.open(topic)
    bench.requests.errors["reader"] = ClusterError("broken", Failure.FATAL)
    feed.take(1, 1)
    await until(lambda: feed.problem is not None)
    bench.groups.release(feed)
    await bench.until_nothing_is_left()
    calls = bench.requests.calls["bounds"]
    await asyncio.sleep(0.05)
    assert bench.requests.calls["bounds"] == calls


async def test_a_group_that_is_opened_while_it_is_deleted_is_not_torn_from_its_consumer(bench: OwnBench) -> None:
    topic = await bench.topic()
    bench.send(1)
    bench.groups.release(await bench.open(topic))
    await bench.until_nothing_is_left()
    gate = bench.requests.hang("bounds")
    opening = spawn(bench.open(topic), "opening")
    await bench.requests.until_waiting("bounds")
    with pytest.raises(RequestRefused, match="consumers"):
        await bench.groups.delete(topic, "g") if gate.set() is None else None
    feed = await opening
    assert await taken_numbers(feed, 1) == [0]


async def test_deletion_waits_for_an_opening_that_was_given_up(bench: OwnBench) -> None:
    topic = await bench.topic()
    bench.groups.release(await bench.open(topic))
    feed = await bench.open(topic)
    async with bench.groups._locks.hold(feed.key):
        bench.groups.release(feed)
        deleting = spawn(bench.groups.delete(topic, "g"), "delete")
        await settle()
        opening = spawn(bench.open(topic), "open")
        await settle()
    with pytest.raises(RequestRefused) as refused:
        await deleting
    assert refused.value.reason is RefusalReason.BUSY
    assert (await opening).is_held


async def test_a_deleted_group_is_new(bench: OwnBench) -> None:
    topic = await bench.topic(2)
    bench.send(1, 2, 3)
    feed = await bench.open(topic)
    with pytest.raises(RequestRefused) as refused:
        await bench.groups.delete(topic, "g")
    assert refused.value.reason is RefusalReason.BUSY
    for each in await take_some(feed, 3):
        feed.acknowledge(each)
    bench.groups.release(feed)
    await bench.groups.delete(topic, "g")
    assert not await bench.groups.exists(topic, "g")
    assert await taken_numbers(await bench.open(topic), 3) == [0, 1, 2]


async def test_a_moved_group_continues_there(bench: OwnBench) -> None:
    topic = await bench.topic()
    bench.send(*range(10))
    await bench.groups.move(topic, "g", {0: (4,)})
    feed = await bench.open(topic)
    assert await taken_numbers(feed, 6) == [4, 5, 6, 7, 8, 9]
    await bench.groups.move(topic, "g", {0: (8,)})
    assert await taken_numbers(feed, 2) == [8, 9]
    assert await bench.groups.committed(topic, "g") == {0: (8,)}


async def test_a_topic_that_is_made_anew_is_read_from_its_first_message(bench: OwnBench) -> None:
    topic = await bench.topic()
    bench.send(*range(10))
    feed = await bench.open(topic)
    for each in await take_some(feed, 10):
        feed.acknowledge(each)
    await bench.groups.forget(topic)
    await bench.topics.delete("t")
    assert not feed.is_held
    bench.groups.release(feed)
    topic = await bench.topic()
    bench.send(1, 2)
    assert await taken_numbers(await bench.open(topic), 2) == [0, 1]


async def test_a_topic_made_anew_elsewhere_is_read_from_its_first_message(bench: OwnBench) -> None:
    topic = await bench.topic()
    bench.send(*range(10))
    feed = await bench.open(topic)
    for each in await take_some(feed, 10):
        feed.acknowledge(each)
    bench.groups.release(feed)
    await bench.until_nothing_is_left()
    bench.cluster.broker.delete("t")
    topic = await bench.topic()
    bench.send(1, 2)
    assert await taken_numbers(await bench.open(topic), 2) == [0, 1]


async def test_a_topic_is_forgotten_while_its_groups_are_opened_and_released(bench: OwnBench) -> None:
    topic = await bench.topic(2)
    first, second = await bench.open(topic, 0), await bench.open(topic, 1)
    bench.groups.release(second)
    gate = bench.requests.hang("bounds")
    opening = spawn(bench.open(topic, 1, "other"), "open")
    await bench.requests.until_waiting("bounds")
    forgetting = spawn(bench.groups.forget(topic), "forget")
    await settle()
    gate.set()
    await forgetting
    bench.groups.release(await opening)
    bench.groups.release(first)
    await bench.until_nothing_is_left()


async def test_nothing_is_opened_once_it_is_closed(bench: OwnBench) -> None:
    topic = await bench.topic()
    gate = bench.requests.hang("bounds")
    opening = spawn(bench.open(topic), "open")
    await bench.requests.until_waiting("bounds")
    await bench.groups.close()
    gate.set()
    with pytest.raises(RequestRefused) as refused:
        await opening
    assert refused.value.reason is RefusalReason.NOT_READY
    await bench.until_nothing_is_left()


async def test_a_created_group_gets_what_is_sent_later(bench: OwnBench) -> None:
    topic = await bench.topic()
    bench.send(1, 2)
    await bench.groups.create(topic, "g", Start.LATEST)
    bench.send(3)
    await bench.groups.create(topic, "g", START if isinstance(START, Start) else Start.EARLIEST)
    assert await taken_numbers(await bench.open(topic), 1) == [2]


@pytest.mark.parametrize("is_open", [True, False])
async def test_what_is_acknowledged_behind_a_skipped_message_stays_so(bench: OwnBench, is_open: bool) -> None:
    topic = await bench.topic()
    bench.send(*range(6))
    feed = await bench.open(topic)
    for each in (await take_some(feed, 6))[3:5]:
        feed.acknowledge(each)
    if not is_open:
        bench.groups.release(feed)
        await bench.until_nothing_is_left()
    await bench.groups.advance(topic, "g", {0: (2,)})
    assert await bench.groups.committed(topic, "g") == {0: (2,)}
    if is_open:
        bench.groups.release(feed)
        await bench.until_nothing_is_left()
    assert await taken_numbers(await bench.open(topic), 2) == [2, 5]
    await bench.groups.advance(topic, "g", {0: (6,)})
    assert await bench.groups.committed(topic, "g") == {0: (6,)}


# --- commits of positions -----------------------------------------------------------------------------------------------------


async def test_positions_are_committed_without_a_feed(bench: OwnBench) -> None:
    topic = await bench.topic(2)
    bench.groups.commit(topic, 0, "g", (3,), backwards=False)
    assert await bench.groups.committed(topic, "g") == {0: (3,)}
    assert await bench.groups.names(topic) == ["g"]
    bench.groups.commit(topic, 0, "g", (5,), backwards=False)
    bench.groups.commit(topic, 1, "g", (1,), backwards=True)
    bench.groups.commit(topic, 0, "other", (9,), backwards=False)
    assert await bench.groups.committed(topic, "g") == {0: (5,), 1: (1,)}


@pytest.mark.parametrize("position", [(2,), (4,), (5,)])
async def test_a_commit_goes_back_only_where_it_may(bench: OwnBench, position: tuple[int]) -> None:
    topic = await bench.topic()
    bench.groups.commit(topic, 0, "g", (5,), backwards=False)
    bench.groups.commit(topic, 0, "g", position, backwards=False)
    assert await bench.groups.committed(topic, "g") == {0: (5,)}
    bench.groups.commit(topic, 0, "g", position, backwards=True)
    assert await bench.groups.committed(topic, "g") == {0: position}


@pytest.mark.parametrize("backwards", [False, True])
async def test_what_is_acknowledged_behind_a_position_stays_when_it_is_committed_again(bench: OwnBench, backwards: bool) -> None:
    topic = await bench.topic()
    bench.send(*range(4))
    feed = await bench.open(topic)
    first, _, third, _ = await take_some(feed, 4)
    for each in (first, third):
        feed.acknowledge(each)
    bench.groups.release(feed)
    await bench.until_nothing_is_left()
    bench.groups.commit(topic, 0, "g", (1,), backwards=backwards)
    assert await taken_numbers(await bench.open(topic), 2) == [1, 3]


async def test_a_committed_position_is_in_the_state_file_soon(bench: OwnBench) -> None:
    topic = await bench.topic()
    bench.send(*range(4))
    bench.groups.commit(topic, 0, "g", (2,), backwards=False)
    assert bench.store is not None
    await bench.store.written(bench.partitions.key(topic, 0, "g"))
    assert bench.path is not None
    again = store_module.GroupStore(bench.path)
    state = again.load(bench.partitions.key(topic, 0, "g"))
    assert state is not None
    assert (state.mark, state.confirmed, state.ranges) == ((2,), (2,), ())
    await again.close()
    assert await taken_numbers(await bench.open(topic), 2) == [2, 3]
