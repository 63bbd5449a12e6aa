"""Memberships of several topics: lanes reach the feeds of their topics; what is joined, moved and left is what was asked for."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from pathlib import Path

import pytest
import pytest_asyncio

from mqbridge.adapter.inbound import Sharing, Start
from mqbridge.adapter.outbound import OutboundSpec
from mqbridge.errors import ClusterError, Failure, LocalProtocolError, RefusalReason, RequestRefused
from mqbridge.groups.lock_owners import KIND
from mqbridge.groups.store import GroupStore
from mqbridge.listener import backing_groups as backing_groups_module
from mqbridge.listener.backing_groups import RELEASE_WAIT_S, BackingGroups, JoinedGroup
from mqbridge.listener.feed import FeedLimits
from mqbridge.listener.groups import GroupNames, GroupStart, Partitions
from mqbridge.listener.limits import LANE_BYTES, UnacknowledgedBytes
from mqbridge.listener.queue_feed import QueueFeed, QueueFeedState
from mqbridge.listener.topics import ListenedTopic, ListenedTopics, TopicTemplate
from mqbridge.log.adapter.cluster import LogCluster
from mqbridge.log.store.settings import LogSettings
from mqbridge.message import Batch, Message, Share
from mqbridge.net.tasks import cancel, spawn
from mqbridge.testing.memory.adapter.inbound import MemoryLane
from tests.listener.faulty import SHARED, Listened, until
from tests.patience import PATIENCE_S

EARLIEST = Start.EARLIEST


class JoinedBench(Listened):
    def __init__(self, path: Path) -> None:
        super().__init__("joined-groups", path)
        self.groups = self.gateway()
        self.gateways = [self.groups]

    def gateway(self) -> BackingGroups:
        return BackingGroups(self.cluster, self.partitions, self.names, self.store, "gateway")

    def make_feed(self, topic: ListenedTopic, partition: int) -> QueueFeed:
        async def find_begin() -> int | None:
            positions = await self.groups.committed(topic, "g")
            return None if partition not in positions else positions[partition][0]

        return self.partitions.make_queue_feed(topic, partition, "g", find_begin)

    async def join(
        self,
        *topics: ListenedTopic,
        starts: Mapping[str, GroupStart] | None = None,
        groups: BackingGroups | None = None,
        sharing: Sharing = Sharing.FAILOVER,
    ) -> JoinedGroup:
        starts = {topic.backing: EARLIEST for topic in topics} if starts is None else starts
        async with asyncio.timeout(PATIENCE_S):
            return await (groups or self.groups).join(topics, "g", starts, sharing, self.make_feed)

    def revoked_nothing(self) -> bool:
        return not self.groups._members and not self.groups._of and self.cluster.members("g") == 0

    async def leave(self, joined: JoinedGroup) -> None:
        joined.release()
        async with asyncio.timeout(PATIENCE_S):
            await joined.leave()
        assert self.revoked_nothing()
        await until(lambda: self.readers("a") == self.readers("b") == 0)


@pytest_asyncio.fixture
async def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[JoinedBench]:
    monkeypatch.setattr(backing_groups_module, "LINGER_S", 1000.0)
    made = JoinedBench(tmp_path / "state.db")
    yield made
    made.requests.release()
    for each in made.gateways:
        await each.close()
    await made.close()


async def held(joined: JoinedGroup, topic: ListenedTopic, partition: int = 0) -> QueueFeed:
    """Wait until this gateway has a partition."""
    await until(lambda: (feed := joined.feed(topic, partition)) is not None and feed.is_held)
    feed = joined.feed(topic, partition)
    assert isinstance(feed, QueueFeed)
    return feed


async def left(joined: JoinedGroup) -> None:
    await joined.leave()


async def pull(feed: QueueFeed, number: int, count: int = 100) -> list[bytes | None]:
    async with asyncio.timeout(PATIENCE_S):
        found = await feed.read(number, count, 1 << 20, may_skip=False)
    assert found.messages is not None
    return [message.payload for message in found.messages]


async def test_one_membership_reads_exactly_these_topics(bench: JoinedBench) -> None:
    a, b = await bench.topic(2, "a"), await bench.topic(1, "b")
    await bench.topic(1, "c")
    joined = await bench.join(b, a)
    (spec,) = bench.cluster.inbound_specs
    assert (spec.topics, spec.group, spec.member, spec.start) == (("b", "a"), "g", "gateway", EARLIEST)
    assert (spec.sharing, spec.sent_back, spec.keep_units) == (Sharing.FAILOVER, False, True)
    assert (spec.max_bytes, spec.release_wait_s) == (LANE_BYTES, RELEASE_WAIT_S)
    assert spec.lock_owners is not None
    await spec.lock_owners.record("me")
    assert bench.store is not None
    assert bench.store.notes("app", bench.cluster.name, KIND) == {"a\ng": "me"}, "whatever the order of the topics is"
    await bench.leave(joined)


async def test_those_who_share_messages_wait_for_no_release(bench: JoinedBench) -> None:
    joined = await bench.join(await bench.topic(1, "a"), await bench.topic(1, "b"), sharing=SHARED)
    assert bench.cluster.inbound_specs[0].release_wait_s == 0.0
    await bench.leave(joined)


async def test_lanes_reach_the_feeds_of_their_topics(bench: JoinedBench) -> None:
    a, b = await bench.topic(2, "a"), await bench.topic(1, "b")
    bench.send(1, 2, topic="a")
    bench.send(3, topic="a", partition=1)
    bench.send(4, topic="b")
    joined = await bench.join(a, b)
    assert await pull(await held(joined, a, 0), 0) == [b"1", b"2"]
    assert await pull(await held(joined, a, 1), 0) == [b"3"]
    assert await pull(await held(joined, b, 0), 0) == [b"4"]
    assert joined.feed(a, 2) is None
    assert joined.feed(await bench.topic(1, "c"), 0) is None
    keys = {(feed.key.topic, feed.key.partition) for feed in bench.groups._of if isinstance(feed, QueueFeed)}
    assert keys == {("a", "0"), ("a", "1"), ("b", "0")}
    await bench.leave(joined)


async def test_a_partition_that_is_added_later_is_read(bench: JoinedBench) -> None:
    a, b = await bench.topic(1, "a"), await bench.topic(1, "b")
    joined = await bench.join(a, b)
    feed = await held(joined, a)
    assert joined.feed(a, 1) is None
    grown = await bench.topic(2, "a")
    bench.send(1, topic="a", partition=1)
    added = await held(joined, grown, 1)
    assert (added.key.partition, await pull(added, 0)) == ("1", [b"1"])
    assert feed.is_held
    await bench.leave(joined)


async def test_the_same_group_joins_with_other_topics_once_it_was_left(bench: JoinedBench) -> None:
    a, b = await bench.topic(1, "a"), await bench.topic(1, "b")
    bench.send(1, 2, topic="a")
    joined = await bench.join(a)
    feed = await held(joined, a)
    assert await pull(feed, 0) == [b"1", b"2"]
    feed.commit(1)
    await bench.leave(joined)
    assert not feed.is_held
    joined = await bench.join(a, b)
    again = await held(joined, a)
    assert again is not feed
    assert await pull(again, 1) == [b"2"]
    assert (await held(joined, b)).is_held
    await bench.leave(joined)


@pytest.mark.parametrize("names", ["a", "b", "ab", "bc", "abc"])
async def test_a_membership_with_one_of_the_topics_keeps_others_from_joining(bench: JoinedBench, names: str) -> None:
    topics = {name: await bench.topic(1, name) for name in "abc"}
    joined = await bench.join(topics["a"], topics["b"])
    with pytest.raises(RequestRefused) as refused:
        await bench.join(*(topics[name] for name in names))
    assert refused.value.reason is RefusalReason.BUSY
    assert bench.cluster.members("g") == 1
    other = await bench.join(topics["c"])
    assert bench.cluster.members("g") == 2
    other.release()
    await other.leave()
    await bench.leave(joined)


async def test_a_membership_that_is_being_left_is_waited_for(bench: JoinedBench, monkeypatch: pytest.MonkeyPatch) -> None:
    a, b = await bench.topic(1, "a"), await bench.topic(1, "b")
    joined = await bench.join(a, b)
    await held(joined, a)
    gate, release = asyncio.Event(), MemoryLane.release

    async def release_slowly(self: MemoryLane, deadline: float | None = None) -> None:
        await gate.wait()
        await release(self, deadline)

    monkeypatch.setattr(MemoryLane, "release", release_slowly)
    joined.release()
    leaving = spawn(left(joined), "leave")
    await until(lambda: any(member.leaving is not None for member in bench.groups._members.values()))
    joining = spawn(bench.join(b), "join")
    for _ in range(20):
        await asyncio.sleep(0)
    assert not joining.done()
    gate.set()
    await leaving
    again = await joining
    assert bench.cluster.inbound_specs[-1].topics == ("b",)
    await bench.leave(again)


async def test_a_new_group_begins_in_each_topic_where_it_says(bench: JoinedBench) -> None:
    a, b, c = await bench.topic(1, "a"), await bench.topic(2, "b"), await bench.topic(1, "c")
    for name in "abc":
        bench.send(1, 2, 3, topic=name)
    bench.cluster.times = {"0": (1,)}
    joined = await bench.join(a, b, c, starts={"a": EARLIEST, "b": Start.LATEST, "c": 12345})
    found = [await bench.groups.committed(topic, "g") for topic in (a, b, c)]
    assert found == [{0: (0,)}, {0: (3,), 1: (0,)}, {0: (1,)}]
    assert await pull(await held(joined, c), 1) == [b"2", b"3"]
    await bench.leave(joined)
    joined = await bench.join(a, b, c, starts={"a": Start.LATEST, "b": EARLIEST, "c": EARLIEST})
    assert [await bench.groups.committed(topic, "g") for topic in (a, b, c)] == found, "it is not a new one any more"
    await bench.leave(joined)


async def test_a_join_that_fails_leaves_nothing_behind(bench: JoinedBench) -> None:
    a, b = await bench.topic(1, "a"), await bench.topic(1, "b")
    bench.requests.errors["inbound"] = ClusterError("no members today")
    with pytest.raises(ClusterError, match="no members today"):
        await bench.join(a, b)
    assert bench.revoked_nothing()
    bench.requests.release()
    await bench.leave(await bench.join(b))


async def test_a_join_that_is_given_up_is_left_after_a_while(bench: JoinedBench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backing_groups_module, "LINGER_S", 0.01)
    a, b = await bench.topic(1, "a"), await bench.topic(1, "b")
    gate = bench.requests.hang("inbound")
    joining = spawn(bench.join(a, b), "join")
    await bench.requests.until_waiting("inbound")
    await cancel(joining)
    gate.set()
    await until(bench.revoked_nothing)


async def test_nothing_is_joined_once_it_is_closed(bench: JoinedBench) -> None:
    a, b = await bench.topic(1, "a"), await bench.topic(1, "b")
    joined = await bench.join(a)
    feed = await held(joined, a)
    await bench.groups.close()
    assert (feed.is_held, bench.revoked_nothing()) == (False, True)
    with pytest.raises(RequestRefused) as refused:
        await bench.join(b)
    assert refused.value.reason is RefusalReason.NOT_READY
    joined.release()


async def test_a_membership_that_is_released_is_left_after_a_while(bench: JoinedBench, monkeypatch: pytest.MonkeyPatch) -> None:
    a, b = await bench.topic(1, "a"), await bench.topic(1, "b")
    joined = await bench.join(a, b)
    feed = await held(joined, b)
    monkeypatch.setattr(backing_groups_module, "LINGER_S", 0.01)
    joined.release()
    assert feed.is_held
    await until(bench.revoked_nothing)
    assert not feed.is_held


async def test_there_is_a_limit_of_memberships(bench: JoinedBench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backing_groups_module, "MAX_MEMBERSHIPS", 2)
    a, b, c = [await bench.topic(1, name) for name in "abc"]
    joined = await bench.join(a, b)
    with pytest.raises(RequestRefused) as refused:
        await bench.join(c)
    assert refused.value.reason is RefusalReason.NOT_ALLOWED
    joined.release()
    other = await bench.join(c)
    assert bench.cluster.inbound_specs[-1].topics == ("c",)
    assert list(bench.groups._members) == [("c", "g")], "one without users makes room, with all of its topics"
    await bench.leave(other)


async def test_the_partitions_are_shared_with_another_gateway(bench: JoinedBench) -> None:
    a, b = await bench.topic(2, "a"), await bench.topic(2, "b")
    joined = await bench.join(a, b)
    feeds = {(topic.name, index): await held(joined, topic, index) for topic in (a, b) for index in range(2)}
    bench.send(1, topic="a", partition=1)
    assert await pull(feeds["a", 1], 0) == [b"1"]
    other = bench.gateway()
    bench.gateways.append(other)
    theirs = await bench.join(a, b, groups=other)
    await until(lambda: feeds["a", 1].state is QueueFeedState.FINISHING)
    assert theirs.feed(a, 1) is None
    assert feeds["a", 1].commit(1), "the other gateway waits for it"
    await held(theirs, a, 1)
    await held(theirs, b, 1)
    assert [key for key, feed in feeds.items() if feed.is_held] == [("a", 0), ("b", 0)]
    assert await bench.groups.committed(a, "g") == {0: (0,), 1: (1,)}


async def test_a_lane_that_has_failed_is_replaced(bench: JoinedBench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backing_groups_module, "LANE_PAUSE_S", 0.01)
    a, b = await bench.topic(1, "a"), await bench.topic(1, "b")
    bench.send(1, topic="b")
    joined = await bench.join(a, b)
    feed, receive = await held(joined, b), MemoryLane.receive

    async def fail(_: MemoryLane) -> Batch:
        raise ClusterError("the partition is broken", Failure.FATAL)

    monkeypatch.setattr(MemoryLane, "receive", fail)
    with pytest.raises(ClusterError, match="is broken"):
        await pull(feed, 0)
    monkeypatch.setattr(MemoryLane, "receive", receive)
    assert await pull(await held(joined, b), 0) == [b"1"]
    await bench.leave(joined)


async def test_a_lane_of_another_topic_is_a_bug_of_the_adapter(bench: JoinedBench) -> None:
    a, b = await bench.topic(1, "a"), await bench.topic(1, "b")
    joined = await bench.join(a)
    bench.requests.calls.clear()
    other = await bench.join(b)
    await held(other, b)
    lane = next(iter(bench.cluster.broker._owners[("g", "b", 0)]._lanes.values()))  # type: ignore[attr-defined]
    member = bench.groups._members["a", "g"]
    with pytest.raises(LocalProtocolError, match="has got a lane of topic b"):
        await bench.groups._run_lane(member, lane, lane._inbound)
    for each in (joined, other):
        each.release()
        await each.leave()


# --- administration -----------------------------------------------------------------------------------------------------------


async def test_a_joined_group_is_moved_in_one_of_its_topics(bench: JoinedBench) -> None:
    a, b = await bench.topic(1, "a"), await bench.topic(1, "b")
    bench.send(1, 2, 3, topic="a")
    bench.send(4, 5, topic="b")
    joined = await bench.join(a, b)
    feed, other = await held(joined, a), await held(joined, b)
    assert await pull(feed, 0) == [b"1", b"2", b"3"]
    assert await pull(other, 0) == [b"4", b"5"]
    await bench.groups.move(a, "g", {0: (1,)})
    assert await pull(feed, 1) == [b"2", b"3"]
    assert (other.next, await bench.groups.committed(b, "g")) == (2, {0: (0,)})
    await bench.groups.advance(b, "g", {0: (1,)})
    assert await bench.groups.committed(b, "g") == {0: (1,)}
    assert other.next == 2, "it goes on where it was"
    await bench.leave(joined)


async def test_a_partition_that_another_gateway_has_is_not_moved(bench: JoinedBench) -> None:
    a, b = await bench.topic(2, "a"), await bench.topic(1, "b")
    joined = await bench.join(a, b)
    feed = await held(joined, a, 1)
    bench.cluster.broker.fail("g", ClusterError("broken"))
    await until(lambda: not feed.is_held)
    with pytest.raises(RequestRefused) as refused:
        await bench.groups.move(a, "g", {0: (0,), 1: (0,)})
    assert refused.value.reason is RefusalReason.NOT_READY
    joined.release()
    await joined.leave()


async def test_a_joined_group_exists_in_all_of_its_topics(bench: JoinedBench) -> None:
    a, b, c = [await bench.topic(1, name) for name in "abc"]
    joined = await bench.join(a, b)
    assert [await bench.groups.exists(topic, "g") for topic in (a, b, c)] == [True, True, False]
    assert [await bench.groups.names(topic) for topic in (a, b, c)] == [["g"], ["g"], []]
    await bench.leave(joined)


async def test_a_joined_group_is_deleted_once_nobody_uses_it(bench: JoinedBench) -> None:
    a, b = await bench.topic(1, "a"), await bench.topic(1, "b")
    joined = await bench.join(a, b)
    with pytest.raises(RequestRefused) as refused:
        await bench.groups.delete(b, "g")
    assert refused.value.reason is RefusalReason.BUSY
    joined.release()
    await bench.groups.delete(b, "g")
    assert bench.revoked_nothing()
    assert not await bench.groups.exists(b, "g")


async def test_a_group_that_was_deleted_in_a_partition_is_deleted_with_its_last_user(bench: JoinedBench) -> None:
    a, b = await bench.topic(1, "a"), await bench.topic(1, "b")
    joined = await bench.join(a, b)
    await bench.groups.delete(a, "g", 0)
    deleted: list[str] = []

    async def delete_unused(topic: ListenedTopic, group: str) -> None:
        deleted.append(f"{topic.name}/{group}")

    bench.groups.delete_unused = delete_unused
    joined.release()
    await until(lambda: deleted == ["a/g", "b/g"])
    await joined.leave()


async def test_leaving_a_topic_leaves_the_whole_membership(bench: JoinedBench) -> None:
    """The group joins again for the topics that are left."""
    a, b = await bench.topic(1, "a"), await bench.topic(1, "b")
    joined = await bench.join(a, b)
    feed = await held(joined, a)
    await bench.groups.forget(b)
    assert (feed.is_held, bench.revoked_nothing()) == (False, True)
    joined.release()
    await bench.leave(await bench.join(a))


# --- a real cluster -----------------------------------------------------------------------------------------------------------


async def test_a_group_of_a_log_joins_several_topics(tmp_path: Path) -> None:
    cluster = LogCluster("log", LogSettings(path=tmp_path / "log.db", poll="5ms", lease="2s"))
    await cluster.connect()
    topics = ListenedTopics(cluster, TopicTemplate("{topic}"), create_partitions=2)
    a, b = [await topics.create(name, 2, is_partitioned=True) for name in "ab"]
    for topic in (a, b):
        outbound = await cluster.outbound(OutboundSpec(topic.backing, stamp_origin=False))
        for index in range(2):
            await outbound.send(index, Share(Batch.of([Message(f"{topic.name}{index}{number}".encode()) for number in range(3)])))
        await outbound.close()
    memory, store = UnacknowledgedBytes(1 << 20), GroupStore(tmp_path / "state.db")
    partitions = Partitions(cluster, "app", "rocketmq.record", FeedLimits(memory, 100))
    groups = BackingGroups(cluster, partitions, GroupNames("{group}", cluster.capabilities.group_name), store, "gateway")

    def make_feed(topic: ListenedTopic, partition: int) -> QueueFeed:
        async def find_begin() -> int | None:
            return (await groups.committed(topic, "g"))[partition][0]

        return partitions.make_queue_feed(topic, partition, "g", find_begin)

    async with asyncio.timeout(PATIENCE_S):
        starts = {"a": EARLIEST, "b": Start.LATEST}
        joined = await groups.join([a, b], "g", starts, Sharing.FAILOVER, make_feed)
        for index in range(2):
            feed = await held(joined, a, index)
            assert await pull(feed, 0) == [f"a{index}{number}".encode() for number in range(3)]
            feed.commit(2)
            assert (await held(joined, b, index)).is_held
        await groups.move(b, "g", {1: (1,)})
        feed = await held(joined, b, 1)
        assert await pull(feed, 1) == [b"b11", b"b12"]
        joined.release()
        await joined.leave()
        assert await groups.committed(a, "g") == {0: (2,), 1: (2,)}
        assert await groups.committed(b, "g") == {0: (3,), 1: (1,)}
        joined = await groups.join([a], "g", starts, Sharing.FAILOVER, make_feed)
        assert await pull(await held(joined, a, 1), 2) == [b"a12"]
        await groups.close()
    assert memory.used == 0
    await store.close()
    await cluster.close()
