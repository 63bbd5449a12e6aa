"""What all connections share: topics, commits and resets."""

import asyncio
from typing import Any

import pytest

from mqbridge.errors import RequestRefused
from mqbridge.listener import group_membership
from mqbridge.listener.group_membership import BackingMembershipState
from mqbridge.rocketmq.server import broker as module
from mqbridge.rocketmq.server.refusals import CodedRefusal, status_of
from mqbridge.rocketmq.wire.codes import Status
from tests.rocketmq.server.serving import GROUP, PULL_FREE, PULL_HELD, bodies_of, rounds, serving, until

COMMIT = 1


async def test_topics_are_found_created_and_forgotten() -> None:
    async with serving(create_partitions=3) as served:
        broker = served.broker
        assert await broker.find_topic("t") is None
        assert broker.known_topic("t") is None
        with pytest.raises(CodedRefusal) as refused:
            await broker.readable_topic("t")
        assert refused.value.code == Status.TOPIC_NOT_EXIST
        assert (await broker.writable_topic("t")).count == 3
        assert (await broker.writable_topic("%RETRY%g")).count == 1, "it needs no more"
        assert await broker.find_topic("t") is broker.known_topic("t")
        broker.forget_topic("t")
        broker.forget_topic("t")
        assert broker.known_topic("t") is None


async def test_topics_of_groups_are_created_where_clients_may_create_none() -> None:
    async with serving(create_partitions=None) as served:
        assert (await served.broker.writable_topic("%DLQ%g")).count == 1
        with pytest.raises(RequestRefused) as refused:
            await served.broker.writable_topic("t")
        assert status_of(refused.value) == Status.TOPIC_NOT_EXIST


async def test_few_topics_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_KNOWN_TOPICS", 2)
    async with serving() as served:
        for name in "abc":
            await served.create(name)
        assert [served.broker.known_topic(name) is not None for name in "abc"] == [False, False, True]


async def test_the_largest_message_is_the_smaller_of_both_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    async with serving() as served:
        assert served.broker.max_message_bytes == 4 << 20
        monkeypatch.setattr(module, "MAX_MESSAGE_BYTES", 16 << 20)
        assert served.broker.max_message_bytes == 8 << 20
        object.__setattr__(served.broker.services, "max_message_bytes", lambda: None)
        assert served.broker.max_message_bytes == 16 << 20


async def test_a_number_that_is_no_offset_is_refused() -> None:
    async with serving() as served:
        assert served.broker.position(5) == (5,)
        with pytest.raises(CodedRefusal):
            served.broker.position(-1)


# --- commits of pulls -----------------------------------------------------------------------------------------------------


async def test_a_pull_commits_forwards_only() -> None:
    async with serving() as served:
        client = await served.connect()
        await client.store(b"a", b"b", b"c")
        await client.read(0)
        for offset, flag, expected in ((2, COMMIT, 2), (1, COMMIT, 2), (3, 0, 2), (-1, COMMIT, 2), (3, COMMIT, 3)):
            await client.pull(0, sys_flag=PULL_FREE | flag, commit_offset=offset)
            assert await client.committed() == expected


async def test_a_pull_of_an_unknown_topic_commits_nothing() -> None:
    async with serving() as served:
        client = await served.connect()
        assert (await client.pull(0, topic="x", sys_flag=PULL_FREE | COMMIT, commit_offset=2)).code == Status.TOPIC_NOT_EXIST
        await served.create()
        assert (await client.pull(0, queue=3, sys_flag=PULL_FREE | COMMIT, commit_offset=2)).code == Status.INVALID_PARAMETER


async def test_a_pull_of_a_member_commits_in_its_lane_and_that_of_a_stranger_nothing() -> None:
    async with serving(owns_groups=False) as served:
        client, stranger = await served.connect("1"), await served.connect("2")
        await client.store(b"a", b"b", b"c")
        await client.join("t")
        await client.read_all(3, sys_flag=PULL_HELD)
        stranger.start_pull(0, sys_flag=PULL_FREE | COMMIT, commit_offset=3)
        await stranger.settle()
        assert await client.committed() == 0
        client.start_pull(3, sys_flag=PULL_HELD | COMMIT, commit_offset=2)
        await client.settle()
        assert await client.committed() == 2
        client.start_pull(3, sys_flag=PULL_HELD | COMMIT, commit_offset=1)
        await client.settle()
        assert await client.committed() == 2


# --- resets ---------------------------------------------------------------------------------------------------------------


async def test_commits_are_ignored_until_a_client_goes_on_where_its_group_was_moved() -> None:
    async with serving() as served:
        topic = await served.create(queues=2)
        await served.connect()
        broker, (link,) = served.broker, served.server._connections
        broker.begin_reset(link, GROUP, topic, 0, 5)
        assert broker.is_being_reset(link, GROUP, topic, 0, 9)
        assert not broker.is_being_reset(link, GROUP, topic, 1, 9)
        assert not broker.is_being_reset(link, "h", topic, 0, 9)
        assert broker.is_being_reset(link, GROUP, topic, 0, 4)
        assert not broker.is_being_reset(link, GROUP, topic, 0, 5)
        assert not broker.is_being_reset(link, GROUP, topic, 0, 9), "it knows now"
        broker.begin_reset(link, GROUP, topic, 0, 5)
        broker.end_reset(link, GROUP, topic, 0)
        assert not broker.is_being_reset(link, GROUP, topic, 0, 9)
        broker.begin_reset(link, GROUP, topic, 0, 5)
        broker.drop(link)
        assert broker._resets == {}


async def test_a_reset_ends_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    async with serving() as served:
        topic = await served.create()
        await served.connect()
        (link,) = served.server._connections
        served.broker.begin_reset(link, GROUP, topic, 0, 5)
        loop = asyncio.get_running_loop()
        now = loop.time()
        with monkeypatch.context() as patch:
            patch.setattr(loop, "time", lambda: now + module.RESET_S - 1)
            assert served.broker.is_being_reset(link, GROUP, topic, 0, 9)
            patch.setattr(loop, "time", lambda: now + module.RESET_S + 1)
            assert not served.broker.is_being_reset(link, GROUP, topic, 0, 9)
        assert served.broker._resets == {}


# --- groups ---------------------------------------------------------------------------------------------------------------


async def test_the_retry_topic_of_a_group_is_made_before_it_is_joined() -> None:
    async with serving(owns_groups=False) as served:
        client = await served.connect()
        await served.create()
        joins: list[set[str]] = []
        groups = served.listener.groups
        join = groups.join  # type: ignore[union-attr]

        async def note(topics, *args):
            joins.append({topic.name for topic in topics})
            return await join(topics, *args)

        groups.join = note  # type: ignore[union-attr, method-assign]
        await client.join("t", "%RETRY%g")
        await until(lambda: joins)
        assert joins == [{"t", "%RETRY%g"}]
        await client.join("t", "%RETRY%g")
        await rounds()
        assert len(joins) == 1


async def test_a_retry_topic_that_cannot_be_made_does_not_keep_a_group_from_its_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    async with serving(owns_groups=False) as served:
        client = await served.connect()
        await client.store(b"a")

        async def fail(*_: object, **__: object) -> None:
            raise CodedRefusal("no", 1)

        monkeypatch.setattr(served.listener.topics, "create", fail)
        await client.join("t", "%RETRY%g")
        assert bodies_of(await client.read(0, sys_flag=PULL_HELD)) == [b"a"]
        assert served.broker.membership_problem(GROUP) is None


async def test_a_group_whose_retry_topic_is_made_slowly_is_joined_for_the_members_that_it_has_then(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with serving(owns_groups=False) as served:
        first, second = await served.connect("1"), await served.connect("2")
        await first.store(b"a")
        released = asyncio.Event()
        create = served.listener.topics.create

        async def held(*args: Any, **values: Any) -> Any:
            await released.wait()
            return await create(*args, **values)

        monkeypatch.setattr(served.listener.topics, "create", held)
        await first.join("t", "%RETRY%g")
        await first.leave()
        await second.join("t", "%RETRY%g")
        released.set()
        assert bodies_of(await second.read(0, sys_flag=PULL_HELD, suspend_timeout_millis=5_000)) == [b"a"]


@pytest.mark.parametrize("exists", [True, False])
async def test_nothing_is_kept_of_a_group_without_members_that_is_not_joined(
    exists: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(group_membership, "LINGER_S", 0.0)
    async with serving(owns_groups=False) as served:
        client = await served.connect()
        if exists:
            await served.create()
        await client.join("t")
        wanted = BackingMembershipState.IN if exists else BackingMembershipState.OUT
        await until(lambda: served.broker._memberships[GROUP].state is wanted)
        if exists:
            await client.join()  # it has ended its subscription, and then its membership
            await until(lambda: served.broker._memberships[GROUP].state is BackingMembershipState.OUT)
        await client.leave()
        await until(lambda: not served.broker._memberships)


async def test_nothing_is_kept_of_pulls_that_have_waited_for_their_group(monkeypatch: pytest.MonkeyPatch) -> None:
    async with serving(owns_groups=False) as served:
        client, member = await served.connect("1"), await served.connect("2")
        await client.store(b"a")
        await served.create()

        def pull(group: str, hold_ms: int) -> int:
            flags = PULL_FREE | PULL_HELD | COMMIT
            return client.start_pull(1, consumer_group=group, sys_flag=flags, commit_offset=1, suspend_timeout_millis=hold_ms)

        waiting = [pull(f"g{index}", 1) for index in range(5)]
        for each in waiting:
            assert (await client.answer(each)).code == Status.PULL_NOT_FOUND
        assert served.broker._signals == {}, "they have waited long enough"
        short, _ = pull("g0", 500), pull("g0", 15_000)
        await client.answer(short)
        assert [signal.waiting for signal in served.broker._signals.values()] == [1]
        await member.join("t", group="g0")
        await client.close()
        await until(lambda: served.broker._signals == {})


async def test_nobody_joins_groups_that_the_gateway_keeps_itself() -> None:
    async with serving() as served:
        client = await served.connect()
        await client.store(b"a")
        await client.join("t")
        assert served.broker._memberships == {}
        connection = next(iter(served.server._connections))
        assert not served.broker.is_shared(connection, GROUP, "t")
        assert served.broker.membership_problem(GROUP) is None


async def test_the_problem_of_a_group_that_cannot_be_joined_is_described(monkeypatch: pytest.MonkeyPatch) -> None:
    async with serving(owns_groups=False) as served:
        client = await served.connect()
        await served.create()

        async def fail(*_: object) -> None:
            raise CodedRefusal("not now", 1)

        monkeypatch.setattr(served.listener.groups, "join", fail)
        await client.join("t")
        await until(lambda: served.broker.membership_problem(GROUP) == "not now")
        assert served.server.describe()["subscriptions"][0]["problem"] == "not now"


async def test_the_server_describes_its_clients() -> None:
    async with serving() as served:
        client = await served.connect("1", "GO")
        await client.join("t", "u")
        await client.produce("p")
        assert served.server.describe() == {
            "producers": [{"name": "p", "clients": ["1"]}],
            "subscriptions": [
                {
                    "name": GROUP,
                    "topics": ["t", "u"],
                    "consumers": [{"name": "1", "address": client.address, "language": "GO"}],
                    "problem": None,
                }
            ],
        }
