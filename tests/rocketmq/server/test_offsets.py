"""Requests about offsets."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from mqbridge.listener import group_membership
from mqbridge.listener.topics import ListenedTopic
from mqbridge.message import Position, Unit
from mqbridge.rocketmq.mapping.sent_units import unit_of_message
from mqbridge.rocketmq.server import offsets as module
from mqbridge.rocketmq.server.support import NOT_MANAGED
from mqbridge.rocketmq.wire.bodies.groups import ACTIVELY, BROADCASTING, FROM_LAST
from mqbridge.rocketmq.wire.codes import Code, Status
from mqbridge.rocketmq.wire.headers.groups import ResetOffsetHeader
from mqbridge.rocketmq.wire.headers.offsets import (
    OffsetResult,
    QueryOffsetHeader,
    QueueHeader,
    SearchOffsetHeader,
    TimestampResult,
    UpdateOffsetHeader,
)
from mqbridge.rocketmq.wire.headers.pull import PullFlag
from tests.rocketmq.server.serving import (
    GROUP,
    PULL_HELD,
    RawRemotingClient,
    RocketMQServing,
    bodies_of,
    gateway,
    log_cluster,
    serving,
    until,
)


async def offset(client: RawRemotingClient, code: int, header) -> int:
    answer = await client.ask(code, header)
    assert answer.code == 0, answer
    return OffsetResult.decode(answer.ext).offset


async def search(client: RawRemotingClient, time_ms: int, boundary: str | None = None, topic: str = "t", queue: int = 0) -> int:
    return await offset(client, Code.SEARCH_OFFSET_BY_TIMESTAMP, SearchOffsetHeader(topic, queue, time_ms, boundary))


async def bounds(client: RawRemotingClient, topic: str = "t", queue: int = 0) -> tuple[int, int]:
    header = QueueHeader(topic, queue)
    return await offset(client, Code.GET_MIN_OFFSET, header), await offset(client, Code.GET_MAX_OFFSET, header)


async def queried(client: RawRemotingClient, zero: bool | None = None, queue: int = 0, topic: str = "t") -> int | None:
    answer = await client.ask(Code.QUERY_CONSUMER_OFFSET, QueryOffsetHeader(GROUP, topic, queue, zero))
    assert answer.code in {0, Status.QUERY_NOT_FOUND}
    return None if answer.code else OffsetResult.decode(answer.ext).offset


async def store_apart(served: RocketMQServing, client: RawRemotingClient, count: int) -> list[int]:
    """Store messages at different times, and return these."""
    times: list[int] = []
    while len(times) < count:
        await client.store(b"x")
        stored_ms = (await client.read(len(times)))[0].store_timestamp
        times.append(stored_ms)
        await until(lambda at=stored_ms: module_now_ms() > at + 2)
    return times


def module_now_ms() -> int:
    import time

    return int(time.time() * 1000)


# --- queues ---------------------------------------------------------------------------------------------------------------


async def test_the_ends_of_queues() -> None:
    async with serving() as served:
        client = await served.connect()
        assert await bounds(client) == (0, 0), "a topic that does not exist"
        await served.create(queues=2)
        assert await bounds(client) == (0, 0)
        await client.store(b"a", b"b")
        assert await bounds(client) == (0, 2)
        assert await bounds(client, queue=1) == (0, 0)
        assert await bounds(client, queue=7) == (0, 0)
        assert await bounds(client, queue=-1) == (0, 0)


async def test_offsets_are_searched_by_time_with_both_edges() -> None:
    """As a broker answers with store times t0 < t1 < t2 < t3."""
    async with serving() as served:
        client = await served.connect()
        times = await store_apart(served, client, 4)
        cases = [
            (times[0] - 1, 0, 0),
            (times[0], 0, 0),
            (times[0] + 1, 1, 0),
            (times[1], 1, 1),
            (times[3], 3, 3),
            (times[3] + 1, 4, 3),
            (-1, 0, 0),
            (1 << 50, 4, 3),
        ]
        for time_ms, lower, upper in cases:
            assert await search(client, time_ms) == lower
            assert await search(client, time_ms, "LOWER") == lower
            assert await search(client, time_ms, "lower") == lower
            assert await search(client, time_ms, "UPPER") == upper
            assert await search(client, time_ms, "upper") == upper


async def test_a_search_in_nothing_is_at_0() -> None:
    async with serving() as served:
        client = await served.connect()
        await served.create(queues=2)
        for boundary in (None, "UPPER"):
            assert await search(client, 5, boundary) == 0
            assert await search(client, 5, boundary, queue=9) == 0
            assert await search(client, 5, boundary, topic="missing") == 0


async def test_the_time_of_the_first_message() -> None:
    async with serving() as served:
        client = await served.connect()
        times = await store_apart(served, client, 2)
        answer = await client.ask(Code.GET_EARLIEST_MSG_STORETIME, QueueHeader("t", 0))
        assert TimestampResult.decode(answer.ext).timestamp == times[0]
        await served.create("u", 2)
        for topic, queue, code in (
            ("u", 1, Status.SYSTEM_ERROR),
            ("t", 5, Status.INVALID_PARAMETER),
            ("x", 0, Status.TOPIC_NOT_EXIST),
        ):
            assert (await client.ask(Code.GET_EARLIEST_MSG_STORETIME, QueueHeader(topic, queue))).code == code


# --- groups ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("owns_groups", [True, False])
async def test_a_group_without_an_offset_begins_at_0_in_a_young_queue(owns_groups: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    async with serving(owns_groups=owns_groups) as served:
        client = await served.connect()
        assert await queried(client) is None, "a topic that does not exist"
        await served.create(queues=2)
        assert await queried(client) is None, "an empty queue"
        await client.store(b"a", b"b")
        assert await queried(client) == 0
        assert await queried(client, zero=True) == 0
        assert await queried(client, zero=False) is None
        assert await queried(client, queue=1) is None
        assert await queried(client, queue=8) is None
        monkeypatch.setattr(module, "YOUNG_MESSAGES", 1)
        assert await queried(client) is None, "it is not young any more"
        answer = await client.ask(Code.QUERY_CONSUMER_OFFSET, QueryOffsetHeader(GROUP, "t", 0))
        assert answer.remark == "group g has no offset in queue 0 of topic t"


async def test_a_group_of_the_gateway_commits_forwards_and_backwards() -> None:
    async with serving() as served:
        client = await served.connect()
        await served.create(queues=2)
        await client.store(b"a", b"b", b"c")
        assert (await client.commit(2)).code == 0
        assert await client.committed() == 2
        assert (await client.commit(1)).code == 0
        assert (await client.committed(), await client.committed(queue=1)) == (1, None)
        assert await client.committed(group="other") is None
        client.oneway(Code.UPDATE_CONSUMER_OFFSET, UpdateOffsetHeader(GROUP, "t", 0, 3))
        await client.settle()
        assert await client.committed() == 3


@pytest.mark.parametrize("owns_groups", [True, False])
async def test_commits_that_cannot_be_are_refused(owns_groups: bool) -> None:
    async with serving(owns_groups=owns_groups) as served:
        client = await served.connect()
        assert (await client.commit(1)).code == Status.TOPIC_NOT_EXIST
        await served.create()
        assert (await client.commit(1, queue=4)).code == Status.INVALID_PARAMETER
        assert (await client.commit(-5)).code == 0, "clients in Go commit -1 before they have got anything"
        assert await client.committed() is None


async def test_a_topic_that_is_not_known_yet_is_found_for_a_commit(tmp_path: Path) -> None:
    async with log_cluster(tmp_path) as cluster:
        await cluster.create("t", 1)
        async with gateway(cluster, tmp_path) as served:
            client = await served.connect()
            assert (await client.commit(0)).code == 0
            assert await client.committed() == 0


# --- groups of the cluster ------------------------------------------------------------------------------------------------


async def leave_group(served: RocketMQServing, client: RawRemotingClient) -> None:
    """Leave the group, whose last member this client is, and wait until the gateway has left it, too."""
    await client.leave()
    await until(lambda: GROUP not in served.broker._memberships)


@asynccontextmanager
async def left_group(committed: int) -> AsyncIterator[tuple[RocketMQServing, RawRemotingClient, RawRemotingClient]]:
    """Serve a group that has committed this offset of three, and has no members any more; yield its last one, and a stranger."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(group_membership, "LINGER_S", 0.0)
        async with serving(owns_groups=False, manage=True) as served:
            client, stranger = await served.connect("1"), await served.connect("2")
            await join_with(served, client, b"a", b"b", b"c")
            await client.commit(committed)
            await leave_group(served, client)
            yield served, client, stranger


async def join_with(served: RocketMQServing, client: RawRemotingClient, *bodies: bytes, **fields) -> None:
    """Store messages, join the group, and read all of them."""
    await client.store(*bodies)
    await client.join("t", **fields)
    assert bodies_of(await client.read_all(len(bodies), sys_flag=PULL_HELD)) == list(bodies)


async def test_a_member_commits_in_the_lane_and_never_behind_what_is_committed() -> None:
    async with serving(owns_groups=False) as served:
        client = await served.connect()
        await join_with(served, client, b"a", b"b", b"c")
        assert (await client.commit(2)).code == 0
        assert await client.committed() == 2
        assert (await client.commit(1)).code == 0
        assert await client.committed() == 2, "a commit that comes late does not go back"
        await client.commit(3)
        assert await client.committed() == 3


async def test_a_member_that_chooses_its_offsets_may_go_back() -> None:
    async with serving(owns_groups=False) as served:
        client = await served.connect()
        await join_with(served, client, b"a", b"b", b"c", consume_type=ACTIVELY)
        await client.commit(3)
        assert await client.committed() == 3
        assert (await client.commit(1)).code == 0
        assert await client.committed() == 1
        assert bodies_of(await client.read(1, sys_flag=PULL_HELD)) == [b"b", b"c"]


async def test_the_last_commits_of_a_client_that_has_just_left_count() -> None:
    async with serving(owns_groups=False, manage=False) as served:
        client = await served.connect()
        await join_with(served, client, b"a", b"b")
        await client.leave()
        assert (await client.commit(2)).code == 0
        assert await client.committed() == 2
        await until(lambda: served.broker._memberships[GROUP].state.value == "leaving")


async def test_a_member_may_commit_what_it_has_not_pulled() -> None:
    async with serving(owns_groups=False) as served:
        client = await served.connect()
        await client.store(b"a", b"b", b"c")
        await client.join("t", consume_from=FROM_LAST)
        topic = await served.broker.find_topic("t")
        assert topic is not None
        await until(lambda: (feed := served.broker.feed_of(GROUP, topic, 0)) is not None and feed.is_held)
        assert (await client.commit(2)).code == 0
        await until_committed(client, 2)  # the lane is moved in the background


async def until_committed(client: RawRemotingClient, offset: int) -> None:
    while await client.committed() != offset:
        pass


async def test_strangers_do_not_move_a_group_unless_they_may_manage() -> None:
    for manage, code in ((False, Status.NO_PERMISSION), (True, 0)):
        async with serving(owns_groups=False, manage=manage) as served:
            client = await served.connect()
            await client.store(b"a", b"b")
            answer = await client.commit(1)
            assert answer.code == code
            assert (NOT_MANAGED in (answer.remark or "")) == (not manage)
            assert await client.committed() == (1 if manage else None)


@pytest.mark.parametrize("manage", [True, False])
async def test_late_commits_of_a_member_that_has_connected_again_go_forwards_only(manage: bool) -> None:
    async with serving(owns_groups=False, manage=manage) as served:
        other, client = await served.connect("1"), await served.connect("2")
        await join_with(served, client, b"a", b"b", b"c")
        await other.join("t")
        await client.close()
        client = await served.connect("2")
        client.start_pull(3, sys_flag=PULL_HELD | PullFlag.COMMIT_OFFSET, commit_offset=0)
        assert [(await client.commit(offset)).code for offset in (2, 1)] == [0, 0]
        assert await client.committed() == 2


async def test_a_client_that_commits_before_its_first_pull_moves_no_group_back() -> None:
    """A member that has connected again may be throttled, and then its timer commits before it pulls."""
    async with serving(owns_groups=False, manage=True) as served:
        other, client = await served.connect("1"), await served.connect("2")
        await join_with(served, other, b"a", b"b", b"c")
        await other.commit(2)
        answer = await client.commit(1)
        assert answer.code == Status.SYSTEM_ERROR
        assert answer.remark == "group g may have consumers here: only a reset moves it back"
        assert await other.committed() == 2
        assert [(await client.commit(offset)).code for offset in (2, 3)] == [0, 0]
        assert await other.committed() == 3


async def test_a_commit_moves_no_group_back_while_its_lane_is_held() -> None:
    """The lane of a group without members is kept for a while, because clients come back."""
    async with serving(owns_groups=False, manage=True) as served:
        client, stranger = await served.connect("1"), await served.connect("2")
        await join_with(served, client, b"a", b"b", b"c")
        await client.commit(2)
        await client.leave()
        assert (await stranger.commit(1)).code == Status.SYSTEM_ERROR
        assert await stranger.committed() == 2


async def test_a_client_moves_no_group_back_while_its_members_may_not_be_known_yet() -> None:
    """The timer of a member commits before its heartbeat, and another one may have its queue now."""
    async with left_group(2) as (served, _, late):
        served.broker.clients.began_at = asyncio.get_running_loop().time()
        assert (await late.commit(1)).code == Status.SYSTEM_ERROR
        assert await late.committed() == 2
        assert (await late.commit(3)).code == 0
        assert await late.committed() == 3


async def test_a_commit_whose_connection_ends_is_one_of_a_member(monkeypatch: pytest.MonkeyPatch) -> None:
    async with left_group(2) as (served, client, other):
        served.broker._topics.clear()  # the commit waits for the topic
        served.listener.topics._known.clear()
        (connection,) = [each for each in served.server._connections if served.broker.clients.was_member(each, GROUP)]
        commit = client.start(Code.UPDATE_CONSUMER_OFFSET, UpdateOffsetHeader(GROUP, "t", 0, 1))
        find = served.listener.topics.find

        async def find_later(name: str) -> ListenedTopic | None:
            served.broker.clients.drop(connection)
            return await find(name)

        monkeypatch.setattr(served.listener.topics, "find", find_later)
        assert (await client.answer(commit)).code == 0
        monkeypatch.undo()
        assert await other.committed() == 2


async def test_a_commit_behind_the_end_of_a_queue_has_no_effect(monkeypatch: pytest.MonkeyPatch) -> None:
    """The group would get nothing from there; perhaps the topic was made anew."""
    monkeypatch.setattr(group_membership, "LINGER_S", 0.0)
    async with serving(owns_groups=False) as served:
        client = await served.connect("1")
        await join_with(served, client, b"a", b"b", b"c")
        for offset, committed in ((1000, None), (2, 2)):
            await client.commit(offset)
            if committed is not None:
                await until_committed(client, committed)
        await leave_group(served, client)
        await client.commit(1000)
        assert await client.committed() == 2
        await client.commit(3)
        assert await client.committed() == 3


async def test_a_tool_moves_a_group_without_members_back() -> None:
    async with left_group(3) as (_, _, tool):
        assert (await tool.commit(1)).code == 0
        assert await tool.committed() == 1


async def test_a_tool_moves_a_group_back_whose_members_assign_themselves_queues() -> None:
    async with serving(owns_groups=False, manage=True) as served:
        client, tool = await served.connect("1"), await served.connect("2")
        await client.store(b"a", b"b", b"c")
        await client.join(consume_type=ACTIVELY)
        await client.commit(3)
        assert (await tool.commit(1)).code == 0
        assert await tool.committed() == 1


@pytest.mark.parametrize("manage", [True, False])
async def test_late_commits_in_a_queue_of_another_gateway_go_forwards_only(manage: bool) -> None:
    async with serving(owns_groups=False, manage=manage) as served:
        client = await served.connect()
        await join_with(served, client, b"a", b"b", b"c")
        await leave_group(served, client)
        for offset, committed in ((2, 2), (1, 2), (3, 3)):
            assert (await client.commit(offset)).code == 0
            assert await client.committed() == committed


class HeldMoves:
    """Moves of groups in the cluster that wait until they are released."""

    def __init__(self, served: RocketMQServing, monkeypatch: pytest.MonkeyPatch) -> None:
        self.offsets: list[dict[int, int]] = []
        self.released = asyncio.Event()
        move = served.listener.groups.move

        async def held(topic: ListenedTopic, group: str, positions: Mapping[int, Position]) -> None:
            self.offsets.append({queue: position[0] for queue, position in positions.items()})
            await self.released.wait()
            await move(topic, group, positions)

        monkeypatch.setattr(served.listener.groups, "move", held)


def start_commit(client: RawRemotingClient, offset: int, queue: int = 0) -> int:
    return client.start(Code.UPDATE_CONSUMER_OFFSET, UpdateOffsetHeader(GROUP, "t", queue, offset))


async def test_late_commits_at_the_same_time_end_at_the_largest(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each is compared with what is committed once those before are stored."""
    monkeypatch.setattr(group_membership, "LINGER_S", 0.0)
    async with serving(owns_groups=False, manage=False) as served:
        members = [await served.connect(name) for name in ("1", "2", "3")]
        await join_with(served, members[0], b"a", b"b", b"c")
        for member in members:
            await member.join("t")
        for member in members:
            await member.leave()
        await until(lambda: GROUP not in served.broker._memberships)
        moves = HeldMoves(served, monkeypatch)
        commits = [(members[0], start_commit(members[0], 2))]
        await until(lambda: len(moves.offsets) == 1)
        for member, offset in zip(members, (0, 3, 1), strict=True):
            commits.append((member, start_commit(member, offset)))
            await member.settle()
            await member.committed()  # the commit has been compared if it does not wait
        moves.released.set()
        for member, commit in commits:
            assert (await member.answer(commit)).code == 0
        assert await members[0].committed() == 3
        assert moves.offsets == [{0: 2}, {0: 3}]
        offsets = served.server._handlers[Code.UPDATE_CONSUMER_OFFSET].__self__  # type: ignore[attr-defined]
        assert (offsets._commits, len(offsets._moving)) == ({}, 0)


async def test_a_late_commit_behind_a_move_of_a_tool_at_the_same_time_does_not_undo_it(monkeypatch: pytest.MonkeyPatch) -> None:
    async with left_group(1) as (served, client, tool):
        moves = HeldMoves(served, monkeypatch)
        commits = [(tool, start_commit(tool, 2))]
        await until(lambda: len(moves.offsets) == 1)
        for sender, offset in ((tool, 3), (client, 2), (tool, 0), (client, 0)):
            commits.append((sender, start_commit(sender, offset)))
            await sender.settle()
        moves.released.set()
        for sender, commit in commits:
            assert (await sender.answer(commit)).code == 0
        assert moves.offsets == [{0: 2}, {0: 0}]
        assert await client.committed() == 0


async def test_a_reset_waits_for_a_commit_that_was_compared_already(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise the commit could undo it."""
    async with left_group(1) as (served, client, tool):
        moves = HeldMoves(served, monkeypatch)
        commit = start_commit(client, 2)
        await until(lambda: len(moves.offsets) == 1)
        reset = tool.start(Code.INVOKE_BROKER_TO_RESET_OFFSET, ResetOffsetHeader(GROUP, "t", 0, is_force=True))
        offsets = served.server._handlers[Code.UPDATE_CONSUMER_OFFSET].__self__  # type: ignore[attr-defined]
        await until(lambda: len(moves.offsets) == 2 or offsets._moving._locks[GROUP, "t"].users == 2)
        assert moves.offsets == [{0: 2}]
        moves.released.set()
        assert (await client.answer(commit)).code == (await tool.answer(reset)).code == 0
        assert moves.offsets == [{0: 2}, {0: 0}]
        assert await client.committed() == 0


async def test_a_stranger_does_not_move_a_group_that_has_members() -> None:
    async with serving(owns_groups=False, manage=False) as served:
        client, stranger = await served.connect("1"), await served.connect("2")
        await join_with(served, client, b"a", b"b")
        assert (await stranger.commit(2)).code == Status.NO_PERMISSION
        await client.commit(1)
        assert await client.committed() == 1


async def test_a_member_that_assigns_itself_queues_commits_without_a_lane() -> None:
    async with serving(owns_groups=False, manage=False) as served:
        client = await served.connect()
        await served.create(queues=3)
        for queue in range(3):
            await client.store(b"a", b"b", queue=queue)
        await client.join(consume_type=ACTIVELY)
        commits = [client.start(Code.UPDATE_CONSUMER_OFFSET, UpdateOffsetHeader(GROUP, "t", queue, 2)) for queue in range(3)]
        for commit in commits:
            assert (await client.answer(commit)).code == 0
        assert [await client.committed(queue=queue) for queue in range(3)] == [2, 2, 2]
        assert served.server.describe()["subscriptions"][0]["topics"] == []


async def test_broadcast_members_do_not_join_the_group() -> None:
    async with serving(owns_groups=False) as served:
        client = await served.connect()
        await client.store(b"a")
        await client.join("t", message_model=BROADCASTING)
        assert bodies_of(await client.read(0, sys_flag=PULL_HELD)) == [b"a"]
        assert served.broker._memberships == {}
        assert await client.committed() is None


async def test_a_message_of_another_age_has_a_store_time() -> None:
    async with serving() as served:
        topic = await served.create()
        unit: Unit = unit_of_message(b"x", b"", flag=0, sys_flag=0, born_ms=0, reconsume_times=0)
        await served.append(unit)
        offsets = module.Offsets(served.broker)
        assert (await offsets.stored_ms(topic, 0, 0) or 0) > 1_700_000_000_000
