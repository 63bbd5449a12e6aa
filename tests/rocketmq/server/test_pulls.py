"""Pulls: each reads messages of one queue from an offset on, and waits for a while if there are none."""

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from mqbridge.errors import ClusterError, Failure
from mqbridge.listener import backing_groups, queue_feed
from mqbridge.listener.numbered import Slice
from mqbridge.listener.topics import ListenedTopic
from mqbridge.message import Message, Unit
from mqbridge.rocketmq.mapping.sent_units import unit_of_message
from mqbridge.rocketmq.server import clients
from mqbridge.rocketmq.server import pulls as module
from mqbridge.rocketmq.server.pulls import PullState, QueuePull
from mqbridge.rocketmq.server.support import NO_SQL
from mqbridge.rocketmq.wire.bodies.groups import ACTIVELY, BROADCASTING, PASSIVELY
from mqbridge.rocketmq.wire.bodies.offsets import ResetOffsets
from mqbridge.rocketmq.wire.bodies.queue import Queue
from mqbridge.rocketmq.wire.codes import Code, Status
from mqbridge.rocketmq.wire.command import Command
from mqbridge.rocketmq.wire.headers.groups import ResetOffsetHeader
from mqbridge.rocketmq.wire.headers.pull import PullFlag
from mqbridge.rocketmq.wire.properties import Name
from mqbridge.rocketmq.wire.record import decode_records
from tests.rocketmq.server.serving import (
    DEAD_LETTERS,
    GROUP,
    PULL_FREE,
    PULL_HELD,
    RawRemotingClient,
    RocketMQServing,
    bodies_of,
    gateway,
    log_cluster,
    next_of,
    pull_header,
    result_of,
    rounds,
    serving,
    until,
)

HELD_FREE = PULL_FREE | PULL_HELD
HELD_COMMITTING = HELD_FREE | PullFlag.COMMIT_OFFSET
NOT_FOUND, MOVED, AGAIN = Status.PULL_NOT_FOUND, Status.PULL_OFFSET_MOVED, Status.PULL_RETRY_IMMEDIATELY


def pulls_of(served: RocketMQServing, topic: str = "t") -> list[QueuePull]:
    return served.server.pulls.all_of(GROUP, topic)


async def until_waiting(served: RocketMQServing, count: int = 1) -> QueuePull:
    await until(lambda: sum(len(each._waiting) for each in pulls_of(served)) == count)
    return pulls_of(served)[0]


def told(answer: Command) -> tuple[int, int]:
    return answer.code, next_of(answer)


# --- by position ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("code", [Code.PULL_MESSAGE, Code.LITE_PULL_MESSAGE])
async def test_a_pull_gets_messages_and_the_bounds(code: int) -> None:
    async with serving() as served:
        client = await served.connect()
        await client.store(b"a", b"b", b"c")
        answer = await client.pull(1, code=code)
        result = result_of(answer)
        assert (answer.code, bodies_of(decode_records(answer.body))) == (0, [b"b", b"c"])
        assert (result.suggest_which_broker_id, result.next_begin_offset, result.min_offset, result.max_offset) == (0, 3, 0, 3)
        assert [record.queue_offset for record in decode_records(answer.body)] == [1, 2]
        assert served.server.counts.delivered_messages == 2
        assert served.server.counts.delivered_bytes == len(answer.body)


async def test_the_limits_of_an_answer() -> None:
    async with serving() as served:
        client = await served.connect()
        await client.store(*[bytes(1000)] * 6)
        assert len(await client.read(0, max_msg_nums=2)) == 2
        assert len(await client.read(2, max_msg_nums=2)) == 2, "what was read already is served at once"
        assert len(await client.read(0, max_msg_nums=0)) == 1
        assert len(await client.read(0, max_msg_nums=-7)) == 1
        assert len(await client.read(0, max_msg_bytes=2500)) == 2
        assert len(await client.read(0, max_msg_bytes=0)) == 1, "one message is larger than that"
        assert len(await client.read(0, max_msg_nums=100_000)) == 6


async def test_pulls_that_find_nothing_wait_if_they_may() -> None:
    async with serving() as served:
        client = await served.connect()
        await client.store(b"a")
        assert told(await client.pull(1)) == (NOT_FOUND, 1)
        assert told(await client.pull(1, sys_flag=HELD_FREE, suspend_timeout_millis=1)) == (NOT_FOUND, 1)
        waiting = client.start_pull(1, sys_flag=HELD_FREE)
        pull = await until_waiting(served)
        assert pull.state is PullState.WAITING
        await client.store(b"b")
        answer = await client.answer(waiting)
        assert bodies_of(decode_records(answer.body)) == [b"b"]
        assert pull.state is PullState.FREE


async def test_a_new_queue_is_waited_for_at_its_begin() -> None:
    async with serving() as served:
        client = await served.connect()
        await served.create()
        assert told(await client.pull(0)) == (NOT_FOUND, 0)
        waiting = client.start_pull(0, sys_flag=HELD_FREE)
        await until_waiting(served)
        await client.store(b"a")
        assert bodies_of(decode_records((await client.answer(waiting)).body)) == [b"a"]


@pytest.mark.parametrize("flag", [PULL_FREE, HELD_FREE])
async def test_an_offset_outside_of_the_queue_is_moved(flag: int) -> None:
    async with serving() as served:
        client = await served.connect()
        await client.store(b"a", b"b")
        assert told(await client.pull(9, sys_flag=flag)) == (MOVED, 2)
        assert told(await client.pull(-1, sys_flag=flag)) == (MOVED, 0)
        await served.create("u")
        assert told(await client.pull(5, topic="u", sys_flag=flag)) == (MOVED, 0)


async def test_an_offset_of_lost_messages_is_moved_to_the_first_that_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    async with serving() as served:
        client = await served.connect()
        await client.store(b"a", b"b", b"c")

        async def bounds_of(*_: object) -> tuple[int, int]:
            return 2, 3

        monkeypatch.setattr(served.broker, "bounds_of", bounds_of)
        assert told(await client.pull(1)) == (MOVED, 2)
        answer = await client.pull(2)
        assert (bodies_of(decode_records(answer.body)), result_of(answer).min_offset) == ([b"c"], 2)


@pytest.mark.parametrize(("asked_ms", "held_s"), [(15_000, 15.0), (20_000_000_000, module.MAX_HOLD_S), (-5, 0.0), (500, 0.5)])
async def test_a_pull_is_held_as_long_as_it_asks_but_not_too_long(asked_ms: int, held_s: float) -> None:
    async with serving() as served:
        client = await served.connect()
        await client.store(b"a")
        await client.read(0)
        (pull,) = pulls_of(served)
        header = module.PullHeader(GROUP, "t", 0, 0, 1, HELD_FREE, 0, asked_ms, 0)
        assert pull._hold_s(header) == held_s
        header.sys_flag = PULL_FREE
        assert pull._hold_s(header) == module.MAX_HOLD_S


async def test_pulls_of_what_does_not_exist_are_refused() -> None:
    async with serving() as served:
        client = await served.connect()
        assert (await client.pull(0)).code == Status.TOPIC_NOT_EXIST
        await served.create()
        assert (await client.pull(0, queue=1)).code == Status.INVALID_PARAMETER
        assert (await client.pull(0, topic="TBW102")).code == Status.TOPIC_NOT_EXIST
        assert pulls_of(served) == []


async def test_several_pulls_of_a_queue_are_served_each_by_itself() -> None:
    async with serving() as served:
        client = await served.connect()
        await client.store(b"a", b"b", b"c")
        waiting = [client.start_pull(3, sys_flag=HELD_FREE) for _ in range(2)]
        pull = await until_waiting(served, 2)
        assert bodies_of(await client.read(1)) == [b"b", b"c"], "it does not wait for the others"
        assert pull.state is PullState.WAITING
        await client.store(b"d")
        for each in waiting:
            assert bodies_of(decode_records((await client.answer(each)).body)) == [b"d"]
        await until(lambda: pull.state is PullState.FREE)
        assert len(pull._readers) == 3
        assert bodies_of(await client.read(0)) == [b"a", b"b", b"c", b"d"]


async def test_the_end_of_a_connection_ends_its_pulls() -> None:
    async with serving() as served:
        client = await served.connect()
        await served.create()
        client.start_pull(0, sys_flag=HELD_FREE)
        pull = await until_waiting(served)
        await client.close()
        await until(lambda: pull.state is PullState.CLOSED and not pull._readers)
        assert pulls_of(served) == []
        assert served.server.pulls._pulls == {}


async def test_pulls_that_are_not_used_are_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    async with serving() as served:
        client = await served.connect()
        await served.create(queues=2)
        await client.store(b"a")
        await client.read(0)
        client.start_pull(0, queue=1, sys_flag=HELD_FREE)
        await until_waiting(served)
        free, waiting = pulls_of(served)
        served.server.pulls._drop_idle()
        assert pulls_of(served) == [free, waiting]
        for pull in (free, waiting):
            pull.used_at -= module.IDLE_S + 1
        served.server.pulls._drop_idle()
        assert pulls_of(served) == [waiting], "one that waits is used"
        await until(lambda: free.state is PullState.CLOSED and not free._readers)
        assert bodies_of(await client.read(0)) == [b"a"]


async def test_a_pull_is_used_while_its_client_has_messages_that_it_has_not_processed(monkeypatch: pytest.MonkeyPatch) -> None:
    """It may be held back by its own limits for long, and has to be told of a reset."""
    async with serving(owns_groups=False) as served:
        client = await served.connect()
        await client.store(b"a", b"b")
        await client.join("t")
        await client.read_all(2, sys_flag=PULL_HELD)
        (pull,) = pulls_of(served)
        pull.used_at -= module.IDLE_S + 1
        served.server.pulls._drop_idle()
        assert pulls_of(served) == [pull]
        await client.commit(2)
        served.server.pulls._drop_idle()
        assert pulls_of(served) == []


async def test_a_pull_with_a_body_is_refused() -> None:
    """It may wait for long, and so would the body."""
    async with serving() as served:
        client = await served.connect()
        await served.create()
        answer = await client.ask(Code.PULL_MESSAGE, pull_header(0), b"body")
        assert answer.code == Status.MESSAGE_ILLEGAL


async def test_unused_pulls_are_looked_for_again_and_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SWEEP_S", 0.001)
    monkeypatch.setattr(module, "IDLE_S", 0.0)
    async with serving() as served:
        client = await served.connect()
        await client.store(b"a")
        for _ in range(2):
            assert bodies_of(await client.read(0)) == [b"a"]
            await until(lambda: pulls_of(served) == [])


async def test_the_number_of_queues_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_QUEUES", 1)
    async with serving() as served:
        client, other = await served.connect("1"), await served.connect("2")
        await served.create(queues=2)
        assert (await client.pull(0)).code == NOT_FOUND
        assert (await client.pull(0, queue=1)).code == Status.SYSTEM_BUSY
        assert (await client.pull(0)).code == NOT_FOUND
        assert (await other.pull(0, queue=1)).code == NOT_FOUND


async def test_a_topic_that_was_made_anew_is_found_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    async with serving() as served:
        client = await served.connect()
        await client.store(b"a")
        await client.read(0)

        async def fail(*_: object) -> tuple[int, int]:
            raise ClusterError("it was deleted", Failure.FATAL)

        with monkeypatch.context() as patch:
            patch.setattr(served.broker, "bounds_of", fail)
            assert (await client.pull(5)).code == Status.SYSTEM_ERROR
        assert pulls_of(served) == []
        assert bodies_of(await client.read(0)) == [b"a"]


async def test_a_temporary_error_is_busy_and_keeps_the_pull(monkeypatch: pytest.MonkeyPatch) -> None:
    async with serving() as served:
        client = await served.connect()
        await client.store(b"a")
        await client.read(0)

        async def fail(*_: object) -> tuple[int, int]:
            raise ClusterError("not now")

        with monkeypatch.context() as patch:
            patch.setattr(served.broker, "bounds_of", fail)
            assert (await client.pull(5)).code == Status.SYSTEM_BUSY
        assert len(pulls_of(served)) == 1


# --- filters --------------------------------------------------------------------------------------------------------------


async def test_a_filter_by_tag_passes_what_has_one_of_them() -> None:
    async with serving() as served:
        client = await served.connect()
        for index, tag in enumerate(("A", "B", "C", None)):
            await client.store(b"%d" % index, properties=[(Name.TAGS, tag)] if tag else [])
        every = [b"0", b"1", b"2", b"3"]
        for expression, expected in (("A || C", [b"0", b"2"]), ("*", every), ("", every), (" B", [b"1"])):
            assert bodies_of(await client.read(0, subscription=expression)) == expected
        answer = await client.pull(0, subscription="X")
        assert told(answer) == (AGAIN, 4), "the client goes on behind what it does not want"
        assert told(await client.pull(4, subscription="X")) == (NOT_FOUND, 4)
        assert bodies_of(await client.read(0, subscription="A", expression_type=None)) == [b"0"]


async def test_a_filter_is_that_of_the_heartbeat_if_the_pull_has_none() -> None:
    async with serving() as served:
        client, other = await served.connect("1"), await served.connect("2")
        await client.store(b"a", properties=[(Name.TAGS, "A")])
        await client.store(b"b", properties=[(Name.TAGS, "B")])
        answer = await client.pull(0, sys_flag=0)
        assert (answer.code, "heartbeat" in (answer.remark or "")) == (Status.SUBSCRIPTION_NOT_EXIST, True)
        await client.join("t", expression="A")
        await other.join("t", expression="B")
        assert bodies_of(await client.read(0, sys_flag=0, subscription=None)) == [b"a"]
        assert bodies_of(await other.read(0, sys_flag=0, subscription="A")) == [b"b"], "each has its own"
        third = await served.connect("3")
        assert len(await third.read(0, sys_flag=0)) == 1, "one that has sent none gets what the group has subscribed to"
        answer = await client.pull(0, topic="u", sys_flag=0)
        assert (answer.code, "has not subscribed" in (answer.remark or "")) == (Status.SUBSCRIPTION_NOT_EXIST, True)


async def test_filters_by_sql_are_refused() -> None:
    async with serving() as served:
        client = await served.connect()
        await client.store(b"a")
        answer = await client.pull(0, subscription="a > 1", expression_type="SQL92")
        assert (answer.code, answer.remark) == (Status.SYSTEM_ERROR, NO_SQL)


# --- other messages -------------------------------------------------------------------------------------------------------


def unit(body: bytes) -> Unit:
    return unit_of_message(body, b"", flag=0, sys_flag=0, born_ms=0, reconsume_times=0)


async def test_messages_of_other_systems_are_records() -> None:
    async with serving() as served:
        client = await served.connect()
        await served.create()
        await served.append(Message(b"foreign", (("a", "b"),), keys=("k",), msg_type="A"))
        await client.store(b"own")
        assert bodies_of(await client.read_all(2)) == [b"foreign", b"own"]
        assert bodies_of(await client.read(0, subscription="A")) == [b"foreign"]


@pytest.mark.parametrize("owns_groups", [True, False])
async def test_a_damaged_unit_is_a_dead_letter_and_clients_go_on(owns_groups: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    async with serving(owns_groups=owns_groups) as served:
        client = await served.connect()
        await served.create()
        damaged = unit(b"damaged")
        damaged = damaged._replace(data=damaged.data[:84] + b"\x7f" + damaged.data[85:])
        await served.append(unit(b"a"), damaged, unit(b"b"))
        await client.join("t")
        answer = await client.pull(0, sys_flag=PULL_HELD)
        assert (bodies_of(decode_records(answer.body)), next_of(answer)) == ([b"a", b"b"], 3)
        await until(lambda: served.listener._dead_letters is not None)
        while not (letters := await served.stored(DEAD_LETTERS)):
            await asyncio.sleep(0.005)
        assert letters[0].payload == damaged.data


async def test_only_damaged_units_are_answered_with_again() -> None:
    async with serving() as served:
        client = await served.connect()
        await served.create()
        damaged = unit(b"damaged")
        await served.append(damaged._replace(data=damaged.data[:84] + b"\x7f" + damaged.data[85:]))
        assert told(await client.pull(0)) == (AGAIN, 1)


# --- lanes ----------------------------------------------------------------------------------------------------------------


def feed_state(served: RocketMQServing, topic: ListenedTopic, queue: int = 0) -> str:
    feed = served.broker.feed_of(GROUP, topic, queue)
    return "none" if feed is None else feed.state.value


async def test_a_member_gets_the_messages_of_the_lane_and_its_stray_pulls_move_no_group() -> None:
    async with serving(owns_groups=False) as served:
        client = await served.connect()
        await client.store(b"a", b"b", b"c", b"d")
        await client.join("t")
        assert bodies_of(await client.read(0, sys_flag=PULL_HELD, max_msg_nums=2)) == [b"a", b"b"]
        assert bodies_of(await client.read(2, sys_flag=PULL_HELD, max_msg_nums=1)) == [b"c"]
        await client.commit(2)
        assert bodies_of(await client.read(1, sys_flag=PULL_HELD, max_msg_nums=1)) == [b"b"], "it was handed out before"
        assert await client.committed() == 2
        topic = served.broker.known_topic("t")
        assert topic is not None
        feed = served.broker.feed_of(GROUP, topic, 0)
        assert feed is not None
        assert (feed.committed, feed.next) == (2, 3)
        assert told(await client.pull(99, sys_flag=PULL_HELD)) == (MOVED, 4)
        assert told(await client.pull(-1, sys_flag=PULL_HELD)) == (MOVED, 0)
        assert (feed.committed, feed.next) == (2, 3)
        assert bodies_of(await client.read(3, sys_flag=PULL_HELD)) == [b"d"]


async def test_a_member_that_has_connected_again_waits_until_its_heartbeat() -> None:
    """Its pulls come before that, and what they would read by position may be handed out to another member."""
    async with serving(owns_groups=False) as served:
        other, client = await served.connect("1"), await served.connect("2")
        await client.store(b"a", b"b", b"c")
        await other.join("t")
        await client.join("t")
        assert bodies_of(await client.read(0, sys_flag=HELD_COMMITTING, max_msg_nums=1)) == [b"a"]
        await client.close()
        client = await served.connect("2")
        waiting = client.start_pull(1, sys_flag=HELD_COMMITTING, commit_offset=1)
        await until_waiting(served)
        assert bodies_of(await other.read(1, sys_flag=PULL_HELD, max_msg_nums=1)) == [b"b"]
        assert not client.has(waiting)
        await client.join("t")
        assert bodies_of(decode_records((await client.answer(waiting)).body)) == [b"b", b"c"]


async def test_a_pull_that_commits_waits_for_the_heartbeat_although_its_topic_is_not_known(tmp_path: Path) -> None:
    """As after a restart of the gateway: clients know the queues from before."""
    async with log_cluster(tmp_path) as cluster:
        async with gateway(cluster, tmp_path, "1", owns_groups=False) as before:
            await (await before.connect()).store(b"a", b"b")
        async with gateway(cluster, tmp_path, "2", owns_groups=False) as served:
            client = await served.connect()
            waiting = client.start_pull(0, sys_flag=HELD_COMMITTING)
            await until_waiting(served)
            assert served.broker.is_expected(next(iter(served.server._connections)), GROUP)
            await client.join("t")
            assert bodies_of(decode_records((await client.answer(waiting)).body)) == [b"a", b"b"]
            topic = await served.broker.readable_topic("t")
            feed = served.broker.feed_of(GROUP, topic, 0)
            assert feed is not None
            assert feed.next == 2, "they were handed out by the lane"


@pytest.mark.parametrize(
    ("kind", "code", "flag"),
    [
        (ACTIVELY, Code.LITE_PULL_MESSAGE, HELD_FREE),
        (PASSIVELY, Code.PULL_MESSAGE, HELD_FREE),
        (PASSIVELY, Code.PULL_MESSAGE, PULL_HELD),
    ],
    ids=["lite", "push in C++", "push in Java"],
)
async def test_a_member_that_has_connected_again_and_has_committed_nothing_waits_until_its_heartbeat(
    kind: str, code: int, flag: int
) -> None:
    """Its pulls carry no commit: clients of this kind never do that, or have nothing to commit yet."""
    async with serving(owns_groups=False, manage=False) as served:
        other, client = await served.connect("1"), await served.connect("2")
        await client.store(b"a", b"b", b"c")
        await other.join("t", consume_type=kind)
        await client.join("t", consume_type=kind)
        assert bodies_of(await client.read(0, code=code, sys_flag=flag, max_msg_nums=1)) == [b"a"]
        await client.close()
        await until(lambda: len(served.broker.clients.consumers[GROUP].connected) == 1)
        client = await served.connect("2")
        assert (await client.commit(1)).code == 0
        assert await other.committed() == 1
        waiting = client.start_pull(1, code=code, sys_flag=flag)
        await until_waiting(served)
        assert bodies_of(await other.read(1, code=code, sys_flag=flag, max_msg_nums=1)) == [b"b"]
        assert not client.has(waiting)
        await client.join("t", consume_type=kind)
        assert bodies_of(decode_records((await client.answer(waiting)).body)) == [b"b", b"c"]


async def test_a_pull_that_may_not_wait_is_answered_before_the_heartbeat(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_HOLD_S", 3600.0)
    async with serving(owns_groups=False) as served:
        client = await served.connect()
        await client.store(b"a")
        await client.join("t")
        await client.leave()
        assert told(await client.pull(0, sys_flag=PULL_FREE)) == (NOT_FOUND, 0)
        await client.join("t")
        assert bodies_of(await client.read(0, sys_flag=PULL_FREE)) == [b"a"]


async def test_a_client_that_is_expected_and_sends_another_heartbeat_reads_by_position() -> None:
    async with serving(owns_groups=False) as served:
        lost, reader = await served.connect("1"), await served.connect("2")
        await lost.store(b"a", b"b")
        await lost.join("t")
        await lost.close()
        await until(lambda: not served.broker.clients.consumers)
        waiting = reader.start_pull(0, sys_flag=HELD_FREE)
        await until_waiting(served)
        await reader.join("t", group="other")
        assert bodies_of(decode_records((await reader.answer(waiting)).body)) == [b"a", b"b"]


async def test_a_client_that_is_expected_and_sends_no_heartbeat_reads_by_position(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clients, "HEARTBEAT_S", 0.05)
    async with serving(owns_groups=False) as served:
        lost, reader = await served.connect("1"), await served.connect("2")
        await lost.store(b"a", b"b")
        await lost.join("t")
        await lost.close()
        await until(lambda: not served.broker.clients.consumers)
        assert bodies_of(await reader.read(0, sys_flag=HELD_FREE)) == [b"a", b"b"]


async def test_both_of_two_members_with_one_id_get_messages() -> None:
    """Both read the same queues, as with brokers."""
    async with serving(owns_groups=False) as served:
        first, second = await served.connect("same"), await served.connect("same")
        await first.store(b"a", b"b", b"c")
        await first.join("t")
        assert bodies_of(await first.read(0, sys_flag=PULL_HELD, max_msg_nums=1)) == [b"a"]
        await second.join("t")
        for client in (first, second):
            assert bodies_of(await client.read_all(2, offset=1, sys_flag=PULL_HELD, suspend_timeout_millis=500)) == [b"b", b"c"]
        assert served.server.counts.consumers == 2


async def test_only_members_commit_with_their_pulls() -> None:
    async with serving(owns_groups=False) as served:
        member, stranger = await served.connect("1"), await served.connect("2")
        await member.store(b"a", b"b")
        await member.join("t")
        await member.read_all(2, sys_flag=PULL_HELD)
        waiting = stranger.start_pull(2, sys_flag=HELD_COMMITTING, commit_offset=2)
        await until_waiting(served)
        assert await member.committed() == 0
        await stranger.join("t")
        assert not stranger.has(waiting)


async def test_a_pull_of_a_lane_that_may_not_wait_is_answered_at_once() -> None:
    async with serving(owns_groups=False) as served:
        client = await served.connect()
        await client.store(b"a")
        await client.join("t")
        await client.read_all(1, sys_flag=PULL_HELD)
        assert told(await client.pull(1, sys_flag=0)) == (NOT_FOUND, 1)
        waiting = client.start_pull(1, sys_flag=PULL_HELD)
        await until_waiting(served)
        await client.store(b"b")
        assert bodies_of(decode_records((await client.answer(waiting)).body)) == [b"b"]


async def test_who_does_not_share_a_topic_reads_by_position() -> None:
    async with serving(owns_groups=False) as served:
        member, tool, caster, reader = [await served.connect(name) for name in ("1", "2", "3", "4")]
        await member.store(b"a", b"b")
        await member.join("t")
        await caster.join("t", group="casts", message_model=BROADCASTING)
        await reader.join(consume_type=ACTIVELY)
        assert bodies_of(await member.read_all(2, sys_flag=PULL_HELD)) == [b"a", b"b"]
        assert bodies_of(await tool.read(0)) == [b"a", b"b"]
        assert bodies_of(await caster.read(0, consumer_group="casts", sys_flag=PULL_HELD)) == [b"a", b"b"]
        assert bodies_of(await reader.read(0)) == [b"a", b"b"]
        assert await member.committed() == 0


class TwoGateways:
    """Two gateways of one log, and a topic with two queues in which the first one has both lanes."""

    def __init__(self, one: RocketMQServing, client: RawRemotingClient, topic: ListenedTopic, stack: AsyncExitStack) -> None:
        self.one, self.client, self.topic, self._stack = one, client, topic, stack
        self.two: RocketMQServing

    def lost(self) -> list[int]:
        return [queue for queue in (0, 1) if feed_state(self.one, self.topic, queue) == "unheld"]

    async def take_one(self, folder: Path) -> int:
        """Start the second gateway, and return the queue that it has got."""
        self.two = await self._stack.enter_async_context(gateway(self.one.cluster, folder, "two", owns_groups=False))
        other = await self.two.connect("other")
        await other.join("t")
        await until(lambda: len(self.lost()) == 1)
        return self.lost()[0]


async def two_gateways(stack: AsyncExitStack, folder: Path, language: str = "JAVA") -> TwoGateways:
    cluster = await stack.enter_async_context(log_cluster(folder))
    one = await stack.enter_async_context(gateway(cluster, folder, "one", owns_groups=False))
    client = await one.connect("c", language)
    topic = await one.create(queues=2)
    for queue in (0, 1):
        await client.store(b"a%d" % queue, b"b%d" % queue, queue=queue)
    await client.join("t")
    for queue in (0, 1):
        assert len(await client.read_all(2, queue=queue, sys_flag=PULL_HELD)) == 2
        await client.commit(1, queue=queue)
    return TwoGateways(one, client, topic, stack)


@pytest.fixture
def quick_release(monkeypatch: pytest.MonkeyPatch) -> None:
    """A lane is given up at once, although not all of it is committed."""
    monkeypatch.setattr(backing_groups, "RELEASE_WAIT_S", 0.1)
    monkeypatch.setattr(module, "FINISHING_HOLD_S", 0.01)
    assert queue_feed.RELEASE_GRACE_S > 0


@pytest.mark.usefixtures("quick_release")
async def test_a_client_that_pulls_soon_is_told_of_a_lost_queue(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LOST_S", 60.0)
    async with AsyncExitStack() as stack:
        gateways = await two_gateways(stack, tmp_path)
        queue = await gateways.take_one(tmp_path)
        answer = await gateways.client.pull(2, queue=queue, sys_flag=PULL_HELD)
        assert told(answer) == (MOVED, 1), "where the group is"
        waiting = gateways.client.start_pull(1, queue=queue, sys_flag=PULL_HELD, suspend_timeout_millis=50)
        assert told(await gateways.client.answer(waiting)) == (NOT_FOUND, 1), "the next one waits, as long as another has it"
        assert not gateways.client.was_pushed(Code.RESET_CONSUMER_CLIENT_OFFSET)


@pytest.mark.usefixtures("quick_release")
async def test_a_client_that_waits_is_told_of_a_lost_queue_by_its_pull(tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        gateways = await two_gateways(stack, tmp_path)
        client = gateways.client
        waiting = [client.start_pull(2, queue=queue, sys_flag=PULL_HELD) for queue in (0, 1)]
        await until_waiting(gateways.one, 2)
        queue = await gateways.take_one(tmp_path)
        assert told(await client.answer(waiting[queue])) == (MOVED, 1)
        assert not client.has(waiting[1 - queue])
        await rounds()
        assert not client.was_pushed(Code.RESET_CONSUMER_CLIENT_OFFSET)
        assert all(pull.state is not PullState.LOST for pull in pulls_of(gateways.one))


@pytest.mark.usefixtures("quick_release")
@pytest.mark.parametrize("language", ["JAVA", "GO", "CPP", "PYTHON"])
async def test_a_client_that_does_not_pull_is_told_of_a_lost_queue_by_a_request(
    tmp_path: Path, language: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    keeps = language in {"CPP", "PYTHON"}
    monkeypatch.setattr(module, "LOST_S", 0.02 if not keeps else 60.0)
    async with AsyncExitStack() as stack:
        gateways = await two_gateways(stack, tmp_path, language)
        queue = await gateways.take_one(tmp_path)
        told_by = await gateways.client.pushed(Code.RESET_CONSUMER_CLIENT_OFFSET)
        header = ResetOffsetHeader.decode(told_by.ext)
        assert (told_by.is_oneway, header.group, header.topic) == (True, GROUP, "t")
        assert ResetOffsets.decode(told_by.body).offsets == {Queue("t", "mqbridge-app", queue): 1}, "the lost queue only"
        assert (b'"offsetTable":[' in told_by.body) == keeps, "C++ reads a list"
        answer = await gateways.client.pull(2, queue=queue, sys_flag=PULL_HELD, suspend_timeout_millis=50)
        assert told(answer) == (NOT_FOUND, 2), "it is told once"


@pytest.mark.usefixtures("quick_release")
async def test_a_cpp_client_that_waits_is_not_answered_with_a_moved_offset(tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        gateways = await two_gateways(stack, tmp_path, "CPP")
        client = gateways.client
        waiting = [client.start_pull(2, queue=queue, sys_flag=PULL_HELD) for queue in (0, 1)]
        await until_waiting(gateways.one, 2)
        queue = await gateways.take_one(tmp_path)
        assert (await client.answer(waiting[queue])).code == NOT_FOUND
        told_by = await client.pushed(Code.RESET_CONSUMER_CLIENT_OFFSET)
        assert ResetOffsets.decode(told_by.body).offsets == {Queue("t", "mqbridge-app", queue): 1}


@pytest.mark.usefixtures("quick_release")
async def test_a_pull_that_comes_while_a_lane_is_given_up_is_told_of_the_loss(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "FINISHING_HOLD_S", 60.0)
    async with AsyncExitStack() as stack:
        gateways = await two_gateways(stack, tmp_path)
        client = gateways.client
        task = asyncio.create_task(gateways.take_one(tmp_path))
        await until(lambda: "finishing" in {feed_state(gateways.one, gateways.topic, queue) for queue in (0, 1)})
        queue = next(queue for queue in (0, 1) if feed_state(gateways.one, gateways.topic, queue) == "finishing")
        waiting = client.start_pull(2, queue=queue, sys_flag=PULL_HELD)
        assert await task == queue
        assert told(await client.answer(waiting)) == (MOVED, 1)


async def test_a_lane_that_is_given_up_is_committed_to_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pull that waits is answered, so that the next one brings the client's commit."""
    monkeypatch.setattr(module, "FINISHING_HOLD_S", 0.02)
    async with AsyncExitStack() as stack:
        gateways = await two_gateways(stack, tmp_path)
        client = gateways.client
        task = asyncio.create_task(gateways.take_one(tmp_path))
        await until(lambda: "finishing" in {feed_state(gateways.one, gateways.topic, queue) for queue in (0, 1)})
        queue = next(queue for queue in (0, 1) if feed_state(gateways.one, gateways.topic, queue) == "finishing")
        answer = await client.pull(2, queue=queue, sys_flag=PULL_HELD)
        assert told(answer) == (NOT_FOUND, 2)
        await client.commit(2, queue=queue)
        assert await task == queue
        while await client.committed(queue=queue) != 2:  # the lane is released in the background
            pass


# --- moved groups ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("language", ["JAVA", "CPP"])
async def test_a_client_without_a_pull_is_told_that_its_group_was_moved(language: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LOST_S", 0.01)
    async with serving() as served:
        client = await served.connect("c", language)
        await client.store(b"a", b"b")
        await client.read(0)
        await client.commit(2)
        await client.ask(Code.INVOKE_BROKER_TO_RESET_OFFSET, ResetOffsetHeader(GROUP, "t", 0))
        request = await client.pushed(Code.RESET_CONSUMER_CLIENT_OFFSET)
        assert ResetOffsets.decode(request.body).offsets == {Queue("t", "mqbridge-app", 0): 0}


async def test_a_cpp_client_that_waits_is_told_by_a_request_that_its_group_was_moved() -> None:
    async with serving() as served:
        client = await served.connect("c", "CPP")
        await client.store(b"a", b"b")
        await client.commit(2)
        waiting = client.start_pull(2, sys_flag=HELD_FREE)
        await until_waiting(served)
        await client.ask(Code.INVOKE_BROKER_TO_RESET_OFFSET, ResetOffsetHeader(GROUP, "t", 0))
        assert (await client.answer(waiting)).code == NOT_FOUND
        request = await client.pushed(Code.RESET_CONSUMER_CLIENT_OFFSET)
        assert ResetOffsets.decode(request.body).offsets == {Queue("t", "mqbridge-app", 0): 0}


@pytest.mark.parametrize("language", ["JAVA", "CPP"])
@pytest.mark.parametrize("owns_groups", [True, False])
async def test_a_pull_that_has_found_messages_when_its_group_is_moved_tells_the_client(
    owns_groups: bool, language: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serving(owns_groups=owns_groups) as served:
        client = await served.connect("c", language)
        await client.store(b"a")
        await client.join("t")
        await client.read(0, sys_flag=HELD_FREE)
        await client.commit(1)
        (pull,) = pulls_of(served)
        read = pull._read

        async def read_and_move(header: module.PullHeader) -> Slice:
            found = await read(header)
            pull.on_moved()
            return found

        monkeypatch.setattr(pull, "_read", read_and_move)
        waiting = client.start_pull(1, sys_flag=HELD_FREE)
        await until_waiting(served)
        await client.store(b"b")
        answer = await client.answer(waiting)
        if language == "JAVA":
            assert told(answer) == (MOVED, 1)
        else:
            assert bodies_of(decode_records(answer.body)) == [b"b"]
            request = await client.pushed(Code.RESET_CONSUMER_CLIENT_OFFSET)
            assert ResetOffsets.decode(request.body).offsets == {Queue("t", "mqbridge-app", 0): 1}


async def test_a_loss_at_the_end_of_a_pull_is_no_error() -> None:
    async with serving() as served:
        client = await served.connect()
        await served.create()
        waiting = client.start_pull(0, sys_flag=HELD_FREE)
        pull = await until_waiting(served)
        (limit,) = pull._waiting
        limit.reschedule(0.0)
        while not limit.expired():
            await asyncio.sleep(0)
            pull.on_moved()
            pull.on_moved()
        assert (await client.answer(waiting)).code == MOVED


async def test_the_state_table_of_a_pull() -> None:
    async with serving() as served:
        client = await served.connect()
        await client.store(b"a")
        await client.read(0)
        (pull,) = pulls_of(served)
        assert pull.state is PullState.FREE
        pull.on_lost()
        assert pull.state is PullState.LOST
        pull.on_lost()
        assert pull.state is PullState.LOST
        await pull.close()
        assert (pull.state, pull._lost_timer) == (PullState.CLOSED, None)
        pull.on_lost()
        assert pull.state is PullState.CLOSED
        pull.on_moved()
        assert pull.state is PullState.CLOSED
        await pull._tell_lost()
        assert not client.was_pushed(Code.RESET_CONSUMER_CLIENT_OFFSET)
        assert bodies_of(await client.read(0)) == [b"a"], "a new one is opened"


async def test_a_cpp_client_that_pulls_before_it_is_told_waits_and_is_told() -> None:
    async with serving() as served:
        client = await served.connect("c", "CPP")
        await client.store(b"a", b"b")
        await client.read(0)
        await client.commit(1)
        (pull,) = pulls_of(served)
        pull.on_lost()
        assert pull._lost_timer is not None
        pull._lost_timer.cancel()
        waiting = client.start_pull(2, sys_flag=HELD_FREE)
        await until_waiting(served)
        assert (pull.state, client.has(waiting)) == (PullState.LOST, False)
        await pull._tell_lost()
        request = await client.pushed(Code.RESET_CONSUMER_CLIENT_OFFSET)
        assert ResetOffsets.decode(request.body).offsets == {Queue("t", "mqbridge-app", 0): 1}
        assert pull.state is PullState.WAITING
        await client.store(b"c")
        assert bodies_of(decode_records((await client.answer(waiting)).body)) == [b"c"]
        assert pull.state is PullState.FREE


@pytest.mark.parametrize(("kind", "expected"), [(PASSIVELY, [b"c"]), (ACTIVELY, [b"a", b"b", b"c"])])
async def test_only_a_client_that_chooses_its_offsets_gets_again_what_its_group_has_consumed(
    kind: str, expected: list[bytes]
) -> None:
    async with serving(owns_groups=False) as served:
        client = await served.connect()
        await client.store(b"a", b"b", b"c")
        await client.commit(2)
        await client.join("t", consume_type=kind)
        topic = await served.broker.readable_topic("t")
        await until(lambda: feed_state(served, topic) == "held")
        assert bodies_of(await client.read(0, sys_flag=PULL_HELD)) == expected
        assert await client.committed() == 2
