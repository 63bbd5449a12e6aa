"""Groups of the backing cluster: memberships, races of those who come and go, and what is left behind: nothing."""

import asyncio
import gc
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from mqbridge.adapter.inbound import Inbound, InboundSpec, Sharing, Start
from mqbridge.errors import ClusterError, Failure, RefusalReason, RequestRefused
from mqbridge.groups.lock_owners import KIND
from mqbridge.groups.membership import MembershipState
from mqbridge.groups.store import GroupStore
from mqbridge.listener import backing_groups as backing_groups_module
from mqbridge.listener.backing_groups import BackingGroups
from mqbridge.listener.feed import Feed
from mqbridge.listener.topics import ListenedTopic
from mqbridge.net.tasks import cancel, spawn
from mqbridge.testing.memory.adapter.inbound import MemoryInbound, MemoryLane
from tests.listener.faulty import SHARED, Listened, take_some, taken_numbers, until
from tests.listener.feeds import settle
from tests.patience import PATIENCE_S


class BackingBench(Listened):
    def __init__(self, path: Path) -> None:
        super().__init__("backing-groups", path)
        self.groups = self.gateway()
        self.gateways = [self.groups]

    def gateway(self, store: GroupStore | None = None) -> BackingGroups:
        return BackingGroups(self.cluster, self.partitions, self.names, store or self.store, "gateway")

    async def open(self, topic: ListenedTopic, partition: int = 0, group: str = "g", start: Start = Start.EARLIEST) -> Feed:
        async with asyncio.timeout(PATIENCE_S):
            return await self.groups.open(topic, partition, group, start, Sharing.FAILOVER)

    async def held(self, feed: Feed) -> Feed:
        await until(lambda: feed.is_held)
        return feed

    async def until_nothing_is_left(self, group: str = "g") -> None:
        await until(lambda: not self.groups._members)
        assert not self.groups._of
        assert self.cluster.members(group) == 0
        await until(lambda: self.readers() == 0)


@pytest_asyncio.fixture
async def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[BackingBench]:
    monkeypatch.setattr(backing_groups_module, "LINGER_S", 0.01)
    made = BackingBench(tmp_path / "state.db")
    yield made
    made.requests.release()
    for each in made.gateways:
        await each.close()
    await made.close()


async def test_a_group_is_joined_once_and_resumes_where_it_was(bench: BackingBench) -> None:
    topic = await bench.topic()
    bench.send(*range(10))
    feed = await bench.open(topic)
    assert await bench.open(topic) is feed, "all consumers share it"
    assert bench.cluster.members("g") == 1
    taken = await take_some(feed, 10)
    for each in taken[:4] + taken[6:7]:
        feed.acknowledge(each)
    bench.groups.release(feed)
    bench.groups.release(feed)
    await bench.until_nothing_is_left()
    again = await bench.open(topic)
    assert await taken_numbers(again, 5) == [4, 5, 7, 8, 9]
    assert await bench.groups.committed(topic, "g") == {0: (4,)}
    assert (await bench.groups.names(topic), await bench.groups.exists(topic, "g")) == (["g"], True)


async def test_who_locks_partitions_is_kept_by_topic_and_group(bench: BackingBench, monkeypatch: pytest.MonkeyPatch) -> None:
    topic, specs, join = await bench.topic(), [], bench.cluster.inbound

    async def inbound(spec: InboundSpec) -> Inbound:
        specs.append(spec)
        return await join(spec)

    monkeypatch.setattr(bench.cluster, "inbound", inbound)
    await bench.open(topic)
    owners = specs[0].lock_owners
    assert owners is not None
    await owners.record("me")
    assert bench.store.notes("app", bench.cluster.name, KIND) == {f"{topic.backing}\ng": "me"}


async def test_those_who_come_back_soon_stay_in_the_group(bench: BackingBench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backing_groups_module, "LINGER_S", 1000.0)
    topic = await bench.topic()
    feed = await bench.open(topic)
    bench.groups.release(feed)
    assert await bench.open(topic) is feed


async def test_a_client_that_comes_back_when_the_group_is_being_left_gets_a_feed_that_lives(bench: BackingBench) -> None:
    topic = await bench.topic()
    bench.send(1)
    for _ in range(3):
        feed = await bench.open(topic)
        bench.groups.release(feed)
        (member,) = bench.groups._members.values()
        assert member.linger is not None
        callback, arguments = member.linger._callback, member.linger._args  # type: ignore[attr-defined]
        member.linger.cancel()
        callback(*arguments)  # its time comes, and in the same moment somebody opens the group
        again = await bench.held(await bench.open(topic))
        await asyncio.sleep(0.02)
        assert again.is_held
        bench.groups.release(again)
        await bench.until_nothing_is_left()


async def test_a_failed_join_is_told_to_all_who_wait_and_leaves_nothing_behind(bench: BackingBench) -> None:
    topic = await bench.topic()
    gate = bench.requests.hang("inbound")
    bench.requests.errors["inbound"] = ClusterError("no members today")
    opening = [spawn(bench.open(topic), "open", log_errors=False) for _ in range(3)]
    await bench.requests.until_waiting("inbound")
    with pytest.raises(RequestRefused):
        await bench.groups.move(topic, "g", {0: (0,)})
    gate.set()
    for each in opening:
        with pytest.raises(ClusterError, match="no members today"):
            await each
    await bench.until_nothing_is_left()
    bench.requests.release()
    assert (await bench.held(await bench.open(topic))).is_held


async def test_an_error_of_a_join_for_which_nobody_waits_any_more_is_no_bug(bench: BackingBench) -> None:
    topic = await bench.topic()
    errors: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: errors.append(context))
    gate = bench.requests.hang("inbound")
    bench.requests.errors["inbound"] = ClusterError("no members today")
    opening = spawn(bench.open(topic), "open")
    await bench.requests.until_waiting("inbound")
    await cancel(opening)
    gate.set()
    await bench.until_nothing_is_left()
    gc.collect()
    assert errors == []


async def test_a_caller_that_gives_up_leaves_the_group_to_the_others(bench: BackingBench) -> None:
    topic = await bench.topic()
    gate = bench.requests.hang("inbound")
    first, second = spawn(bench.open(topic), "first"), spawn(bench.open(topic), "second")
    await bench.requests.until_waiting("inbound")
    await cancel(first)
    gate.set()
    feed = await bench.held(await second)
    bench.groups.release(feed)
    await bench.until_nothing_is_left()


@pytest.mark.parametrize("request_name", ["committed", "bounds", "move", "inbound"])
async def test_a_group_that_nobody_waits_for_any_more_is_not_joined(bench: BackingBench, request_name: str) -> None:
    topic = await bench.topic()
    bench.requests.hang(request_name)
    opening = spawn(bench.open(topic), "open")
    await bench.requests.until_waiting(request_name)
    await cancel(opening)
    await bench.until_nothing_is_left()


@pytest.mark.parametrize("how", ["forget", "close"])
@pytest.mark.parametrize("request_name", ["committed", "inbound"])
async def test_leaving_while_joining_refuses_those_who_wait(bench: BackingBench, how: str, request_name: str) -> None:
    """They are not cancelled themselves: a CancelledError would end their connection silently."""
    topic = await bench.topic()
    bench.requests.hang(request_name)
    opening = spawn(bench.open(topic), "open", log_errors=False)
    await bench.requests.until_waiting(request_name)
    await (bench.groups.forget(topic) if how == "forget" else bench.groups.close())
    with pytest.raises(RequestRefused) as refused:
        await opening
    assert refused.value.reason is RefusalReason.NOT_READY
    bench.requests.release()
    await bench.until_nothing_is_left()


async def test_a_feed_may_be_released_after_its_group_was_left(bench: BackingBench) -> None:
    topic = await bench.topic()
    feed = await bench.open(topic)
    await bench.groups.forget(topic)
    bench.groups.release(feed)
    await bench.until_nothing_is_left()


async def test_nothing_is_joined_once_it_is_closed(bench: BackingBench) -> None:
    topic = await bench.topic()
    await bench.groups.close()
    with pytest.raises(RequestRefused) as refused:
        await bench.open(topic)
    assert refused.value.reason is RefusalReason.NOT_READY
    await bench.until_nothing_is_left()


async def test_a_group_is_left_although_whoever_asked_is_gone(bench: BackingBench, monkeypatch: pytest.MonkeyPatch) -> None:
    topic = await bench.topic()
    feed = await bench.held(await bench.open(topic))
    gate, close = asyncio.Event(), MemoryInbound.close

    async def close_slowly(self: MemoryInbound, deadline: float | None = None) -> None:
        await gate.wait()
        await close(self, deadline)

    monkeypatch.setattr(MemoryInbound, "close", close_slowly)
    bench.groups.release(feed)
    deleting = spawn(bench.groups.delete(topic, "g"), "delete")
    await until(lambda: not feed.is_held)
    await settle()
    await cancel(deleting)
    assert bench.cluster.members("g") == 1
    gate.set()
    await bench.until_nothing_is_left()


async def test_closing_ends_at_its_deadline_although_a_group_is_left_slowly(
    bench: BackingBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backing_groups_module, "GRACE_S", 0.0)
    topic = await bench.topic()
    feed = await bench.held(await bench.open(topic))
    gate, close = asyncio.Event(), MemoryInbound.close

    async def close_slowly(self: MemoryInbound, deadline: float | None = None) -> None:
        await gate.wait()
        await close(self, deadline)

    monkeypatch.setattr(MemoryInbound, "close", close_slowly)
    bench.groups.release(feed)
    await until(lambda: not feed.is_held)  # it is being left already, with much time
    async with asyncio.timeout(PATIENCE_S):
        await bench.groups.close(asyncio.get_running_loop().time() + 0.01)
    gate.set()
    await bench.until_nothing_is_left()


async def test_there_is_a_limit_of_memberships(bench: BackingBench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backing_groups_module, "MAX_MEMBERSHIPS", 3, raising=False)
    monkeypatch.setattr(backing_groups_module, "LINGER_S", 1000.0)
    topic = await bench.topic()
    feeds = [await bench.open(topic, group=f"g{number}") for number in range(3)]
    with pytest.raises(RequestRefused) as refused:
        await bench.open(topic, group="more")
    assert refused.value.reason is RefusalReason.NOT_ALLOWED
    assert await bench.open(topic, group="g1") is feeds[1], "which is joined already"
    bench.groups.release(feeds[2])
    more = await asyncio.gather(*(bench.open(topic, group=f"more{number}") for number in range(2)), return_exceptions=True)
    assert sorted(type(each).__name__ for each in more) == ["Feed", "RequestRefused"], "a group without consumers makes room"
    assert len(bench.groups._members) == 3


async def test_a_thousand_groups_leave_nothing_behind(bench: BackingBench) -> None:
    topic = await bench.topic()
    groups = bench.gateways[0] = bench.groups = BackingGroups(bench.cluster, bench.partitions, bench.names, None, "gateway")
    for begin in range(0, 1000, 100):
        feeds = await asyncio.gather(*(bench.open(topic, group=f"g{number}") for number in range(begin, begin + 100)))
        for feed in feeds:
            groups.release(feed)
        await bench.until_nothing_is_left()
        bench.cluster.broker.progress.clear()
        bench.cluster.broker._members.clear()
        bench.cluster.inbound_specs.clear()
    await until(lambda: len(asyncio.all_tasks()) < 5)


async def test_a_partition_that_was_added_is_served(bench: BackingBench) -> None:
    first = await bench.open(await bench.topic(1))
    bench.send(1, partition=0)
    topic = await bench.topic(3)
    bench.send(2, partition=2)
    feed = await bench.open(topic, 2, start=Start.LATEST)
    assert await taken_numbers(feed, 1) == [0]
    assert feed.key.partition == "2"
    bench.groups.release(first)
    bench.groups.release(feed)
    await bench.until_nothing_is_left()


async def test_a_lane_of_a_partition_that_nobody_has_asked_for_is_kept(bench: BackingBench) -> None:
    feed = await bench.held(await bench.open(await bench.topic(1)))
    bench.cluster.broker.create("t", 2)
    (member,) = bench.groups._members.values()
    await until(lambda: ("t", "1") in member.feeds and member.feeds["t", "1"].is_held)
    assert member.topics["t"].count == 2
    bench.groups.release(feed)
    await bench.until_nothing_is_left()


async def test_a_partition_that_comes_back_is_not_given_up_with_the_lane_before(
    bench: BackingBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What ran the lane before may need a while to notice that it has ended."""
    topic = await bench.topic()
    bench.send(1, 2)
    feed = await bench.held(await bench.open(topic))
    gate, slow = asyncio.Event(), 0

    async def cancel_slowly(*tasks: "asyncio.Task[None] | None") -> None:
        nonlocal slow
        slow += 1
        await gate.wait()
        await cancel(*tasks)
        slow -= 1

    monkeypatch.setattr(backing_groups_module, "cancel", cancel_slowly)
    try:
        generation = feed.generation
        bench.cluster.broker.revoke("t", 0)
        await until(lambda: feed.generation != generation)  # it may be held again at once
        await bench.held(feed)
        await until(lambda: slow == 1)
    finally:
        gate.set()  # otherwise nothing could end
    await until(lambda: slow == 0)
    await settle()
    assert await taken_numbers(feed, 2) == [0, 1]
    assert feed.is_held


async def test_a_lane_that_has_failed_is_replaced(bench: BackingBench, monkeypatch: pytest.MonkeyPatch) -> None:
    """A group need not assign a partition again that was released."""
    monkeypatch.setattr(backing_groups_module, "LANE_PAUSE_S", 0.01, raising=False)
    topic = await bench.topic(2)
    bench.send(1, 2, partition=1)
    feed = await bench.held(await bench.open(topic, 1))
    receive = MemoryLane.receive

    async def fail(self: MemoryLane) -> None:
        raise ClusterError("the partition is broken", Failure.FATAL)

    monkeypatch.setattr(MemoryLane, "receive", fail)
    feed.take(1, 1)
    await until(lambda: feed.problem is not None and not feed.is_held)
    monkeypatch.setattr(MemoryLane, "receive", receive)
    assert await taken_numbers(feed, 2) == [0, 1]
    assert feed.problem is None


async def test_a_group_begins_where_its_first_client_says(bench: BackingBench) -> None:
    topic = await bench.topic(2)
    bench.send(1, 2)
    bench.send(1, partition=1)
    feed = await bench.open(topic, start=Start.LATEST)
    bench.groups.release(feed)
    await bench.until_nothing_is_left()
    bench.send(3)
    assert await taken_numbers(await bench.open(topic, start=Start.EARLIEST), 1) == [2]


async def test_a_group_begins_at_the_end_where_positions_cannot_be_set(bench: BackingBench) -> None:
    bench.cluster.has_operations = False
    topic = await bench.topic()
    bench.send(1, 2)
    feed = await bench.held(await bench.open(topic, start=Start.LATEST))
    bench.send(3)
    assert await taken_numbers(feed, 1) == [2]


async def test_two_gateways_create_the_same_group(bench: BackingBench) -> None:
    """The second one must not move a group behind what was sent after the first had answered its client."""
    topic = await bench.topic()
    other = bench.gateway()
    bench.gateways.append(other)
    gate = bench.requests.hang("bounds")
    theirs = spawn(other.open(topic, 0, "g", Start.LATEST, SHARED), "other")
    await bench.requests.until_waiting("bounds")
    del bench.requests.gates["bounds"]
    feed = await bench.open(topic, start=Start.LATEST)
    bench.groups.release(feed)
    await bench.until_nothing_is_left()
    bench.send(1)
    gate.set()
    assert await taken_numbers(await theirs, 1) == [0]


async def test_deletion_in_each_partition_deletes_the_group(bench: BackingBench) -> None:
    topic = await bench.topic(2)
    feeds = [await bench.open(topic, partition) for partition in range(2)]
    with pytest.raises(RequestRefused) as refused:
        await bench.groups.delete(topic, "g")
    assert refused.value.reason is RefusalReason.BUSY
    bench.groups.release(feeds[0])
    await bench.groups.delete(topic, "g", 0)
    assert await bench.groups.exists(topic, "g")
    bench.groups.release(feeds[1])
    await bench.groups.delete(topic, "g", 1)
    assert not await bench.groups.exists(topic, "g")
    await bench.until_nothing_is_left()


async def test_a_group_that_is_opened_while_it_is_deleted_is_a_new_one(bench: BackingBench) -> None:
    topic = await bench.topic()
    bench.send(1, 2)
    bench.groups.release(await bench.open(topic))
    gate = bench.requests.hang("delete_group")
    deleting = spawn(bench.groups.delete(topic, "g"), "delete")
    await bench.requests.until_waiting("delete_group")
    opening = spawn(bench.open(topic, start=Start.LATEST), "open")
    await settle()
    gate.set()
    await deleting
    feed = await bench.held(await opening)
    bench.send(3)
    assert await taken_numbers(feed, 1) == [2]
    assert await bench.groups.exists(topic, "g")


async def test_a_deletion_that_is_refused_later_is_no_bug(bench: BackingBench, caplog: pytest.LogCaptureFixture) -> None:
    topic = await bench.topic()
    feed = await bench.open(topic)
    await bench.groups.delete(topic, "g", 0)
    bench.requests.errors["delete_group"] = ClusterError("others have it", Failure.FATAL)
    bench.groups.release(feed)
    await bench.until_nothing_is_left()
    await until(lambda: "was not deleted" in caplog.text)
    assert "Traceback" not in caplog.text


async def test_a_group_is_moved_with_and_without_members(bench: BackingBench) -> None:
    topic = await bench.topic()
    bench.send(*range(10))
    await bench.groups.move(topic, "g", {0: (4,)})
    feed = await bench.held(await bench.open(topic))
    assert await taken_numbers(feed, 6) == [4, 5, 6, 7, 8, 9]
    await bench.groups.move(topic, "g", {0: (8,)})
    assert await taken_numbers(feed, 2) == [8, 9]
    assert await bench.groups.committed(topic, "g") == {0: (8,)}
    bench.cluster.broker.fail("g", ClusterError("broken"))
    await until(lambda: not feed.is_held)
    with pytest.raises(RequestRefused) as refused:
        await bench.groups.move(topic, "g", {0: (1,)})
    assert refused.value.reason is RefusalReason.NOT_READY


async def test_an_operator_moves_a_group_without_members_back(bench: BackingBench) -> None:
    """What was recorded as acknowledged before must not make the group skip what it is to read again."""
    topic = await bench.topic()
    bench.send(*range(10))
    feed = await bench.open(topic)
    for each in await take_some(feed, 10):
        feed.acknowledge(each)
    bench.groups.release(feed)
    await bench.until_nothing_is_left()
    operations = bench.cluster.operations
    assert operations is not None
    await operations.move("t", "g", {"0": (5,)})
    assert await taken_numbers(await bench.open(topic), 5) == [5, 6, 7, 8, 9]


async def test_a_topic_that_is_made_anew_is_read_from_its_first_message(bench: BackingBench) -> None:
    topic = await bench.topic()
    bench.send(*range(10))
    feed = await bench.open(topic)
    for each in await take_some(feed, 10):
        feed.acknowledge(each)
    bench.cluster.broker.revoke("t", 0)  # so that nothing says that the group has stored its position
    await bench.groups.forget(topic)
    await bench.topics.delete("t")
    topic = await bench.topic()
    bench.send(1, 2)
    assert await taken_numbers(await bench.open(topic), 2) == [0, 1]


async def test_a_membership_that_fails_is_joined_again(bench: BackingBench) -> None:
    topic = await bench.topic()
    bench.send(1, 2)
    feed = await bench.held(await bench.open(topic))
    bench.cluster.broker.fail("g", ClusterError("broken"))
    (member,) = bench.groups._members.values()
    assert member.membership is not None
    await until(lambda: member.membership is not None and member.membership.rejoins == 1)
    assert member.membership.state is MembershipState.JOINED
    assert await taken_numbers(feed, 2) == [0, 1]


async def test_one_group_without_consumers_makes_room_not_all(bench: BackingBench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backing_groups_module, "MAX_MEMBERSHIPS", 4)
    monkeypatch.setattr(backing_groups_module, "LINGER_S", 1000.0)
    topic = await bench.topic()
    for number in range(4):
        bench.groups.release(await bench.open(topic, group=f"g{number}"))
    await bench.open(topic, group="more")
    assert sorted(group for _, group in bench.groups._members) == ["g1", "g2", "g3", "more"]


async def test_a_partition_of_which_nothing_is_taken_leaves_the_others_their_room(
    bench: BackingBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backing_groups_module, "LANE_BYTES", 1)
    topic = await bench.topic(3)
    for partition in range(3):
        bench.send(1, 2, partition=partition)
    for partition in range(3):
        (await take_some(await bench.open(topic, partition), 1)).clear()


@pytest.mark.parametrize("is_joined", [True, False])
async def test_what_is_acknowledged_behind_a_skipped_message_stays_acknowledged(bench: BackingBench, is_joined: bool) -> None:
    topic = await bench.topic()
    bench.send(*range(6))
    feed = await bench.held(await bench.open(topic))
    for each in (await take_some(feed, 6))[3:5]:
        feed.acknowledge(each)
    if not is_joined:
        bench.groups.release(feed)
        await bench.until_nothing_is_left()
    await bench.groups.advance(topic, "g", {0: (2,)})
    if is_joined:
        bench.groups.release(feed)
        await bench.until_nothing_is_left()
    assert await taken_numbers(await bench.open(topic), 2) == [2, 5]
