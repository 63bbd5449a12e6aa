"""One queue: the meaning of pull responses, gaps, commits, seeks, the memory limit, and readers without a group."""

import asyncio
import logging
from typing import Any

import pytest

from mqbridge.errors import Failure, GapError, LaneRevoked, RemoteProtocolError, ServerRefused
from mqbridge.rocketmq.client.consumer import pull_loop, pull_request, pulled_records, queue_identity
from mqbridge.rocketmq.client.consumer.assigned_queue import AssignedQueue
from mqbridge.rocketmq.client.consumer.budget import MAX_HELD_PULL_MESSAGES
from mqbridge.rocketmq.client.consumer.consumer_settings import MessageModel, StartOffset
from mqbridge.rocketmq.client.consumer.pull_loop import MAX_UNREADABLE_RESPONSES
from mqbridge.rocketmq.client.consumer.pulled_records import PulledRecords, tag_of
from mqbridge.rocketmq.client.consumer.queue_transitions import State
from mqbridge.rocketmq.client.consumer.subscription import tagged
from mqbridge.rocketmq.wire import properties
from mqbridge.rocketmq.wire.batch import encode_element
from mqbridge.rocketmq.wire.bodies.configs import TopicConfig
from mqbridge.rocketmq.wire.bodies.groups import Heartbeat
from mqbridge.rocketmq.wire.bodies.queue import Queue
from mqbridge.rocketmq.wire.codes import Code, Status
from mqbridge.rocketmq.wire.command import Command
from mqbridge.rocketmq.wire.headers.pull import PullFlag
from mqbridge.rocketmq.wire.record import Record, SysFlag, encode_record
from tests.patience import PATIENCE_S
from tests.rocketmq.client.broker import A, Link, hangs_up, in_turn, refuses, until
from tests.rocketmq.client.groups import ScriptedEnvironment, environment, first_stream, offset_moved, pull_response

__all__ = ["environment"]

QUEUE = Queue("T", "broker-a", 0)


def bodies_of(pulled: PulledRecords) -> list[bytes]:
    return [record.body for record in pulled.records]


# --- reading --------------------------------------------------------------------------------------------------------------


async def test_a_queue_is_read_to_its_end_and_then_has_one_held_pull(environment: ScriptedEnvironment) -> None:
    log = environment.groups.log()
    log.append(*[b"%d" % n for n in range(5)])
    log.limit = 3
    assigned = await environment.assigned()
    first = await assigned.receive()
    assert (first.first, first.next, first.count, bodies_of(first)) == (0, 3, 3, [b"0", b"1", b"2"])
    second = await assigned.receive()
    assert (second.first, second.next, bodies_of(second), assigned.caught_up) == (3, 5, [b"3", b"4"], True)
    await until(lambda: environment.groups.held)
    environment.groups.append(b"5")
    third = await assigned.receive()
    assert bodies_of(third) == [b"5"]
    await until(lambda: environment.groups.held)
    assert [(p.queue_offset, bool(p.sys_flag & PullFlag.SUSPEND)) for p in environment.groups.pulls()] == [
        (0, False), (3, False), (5, True), (6, True),
    ]  # fmt: skip
    assert environment.groups.max_held == 1


async def test_an_empty_queue_is_caught_up_at_once(environment: ScriptedEnvironment) -> None:
    assigned = await environment.assigned()
    await until(lambda: assigned.caught_up)
    assert assigned.take() is None
    assert (assigned.first_offset, assigned.end_offset) == (0, 0)


async def test_a_failed_pull_ends_being_caught_up_until_the_next_response(environment: ScriptedEnvironment) -> None:
    assigned = await environment.assigned()
    await until(lambda: environment.groups.held)
    pull = environment.cluster.on[Code.PULL_MESSAGE]
    environment.cluster.on[Code.PULL_MESSAGE] = lambda *_: None
    for link in environment.cluster.links_to(A):
        link.drop()
    await until(lambda: not assigned.caught_up)
    environment.groups.append(b"x")
    environment.cluster.on[Code.PULL_MESSAGE] = pull
    for link in environment.cluster.links_to(A):
        link.drop()
    assert bodies_of(await assigned.receive()) == [b"x"]
    await until(lambda: assigned.caught_up)


async def test_the_end_of_a_queue_is_confirmed_by_its_broker(environment: ScriptedEnvironment) -> None:
    ends = iter((0, 1, 1))
    environment.cluster.on[Code.GET_MAX_OFFSET] = lambda link, request: link.answer(request, ext={"offset": str(next(ends))})
    assigned = await environment.assigned()
    await until(lambda: environment.groups.held)
    assert await assigned.confirm_caught_up()
    waiting = asyncio.ensure_future(assigned.confirm_caught_up())
    await until(lambda: len(environment.cluster.requests[Code.GET_MAX_OFFSET]) == 2)
    environment.groups.append(b"x")
    assert not await asyncio.wait_for(waiting, PATIENCE_S), "the message is pulled, but not taken"
    await assigned.receive()
    assert await assigned.confirm_caught_up()
    environment.cluster.on[Code.GET_MAX_OFFSET] = refuses(Status.SYSTEM_ERROR)
    with pytest.raises(ServerRefused):
        await assigned.confirm_caught_up()


async def test_a_held_pull_without_messages_is_repeated(environment: ScriptedEnvironment) -> None:
    assigned = await environment.assigned()
    await until(lambda: environment.groups.held)
    environment.groups.release_held()
    await until(lambda: environment.groups.held)
    environment.groups.append(b"x")
    assert bodies_of(await assigned.receive()) == [b"x"]


@pytest.mark.parametrize("iterations", range(1, 4))
async def test_a_change_at_the_begin_of_a_wait_ends_the_wait(environment: ScriptedEnvironment, iterations: int) -> None:
    assigned = await environment.assigned()
    await until(lambda: environment.groups.held)
    waiting = asyncio.create_task(assigned.wait_for_change(PATIENCE_S))
    for _ in range(iterations):
        await asyncio.sleep(0)
    assigned._changed.set()  # as a pull response does
    await asyncio.wait([waiting], timeout=PATIENCE_S / 2)
    assert waiting.done()


async def test_a_pull_contains_its_limit_hold_time_and_subscription_version(environment: ScriptedEnvironment) -> None:
    await environment.assigned(max_msgs=777)
    await until(lambda: environment.groups.held)
    header = environment.groups.pulls()[-1]
    assert (header.suspend_timeout_millis, header.consumer_group) == (pull_request.SUSPEND_MS, "G")
    assert [one.max_msg_nums for one in environment.groups.pulls()] == [777, MAX_HELD_PULL_MESSAGES], (
        "a held pull reserves memory for few messages only"
    )
    beat = Heartbeat.decode(environment.cluster.requests[Code.HEART_BEAT][-1].body)
    assert header.sub_version == beat.consumers[0].subscriptions[0].version


async def test_the_first_pull_follows_the_heartbeat(environment: ScriptedEnvironment) -> None:
    await environment.assigned()
    await until(lambda: environment.groups.held)
    codes = [command.code for command in environment.cluster.requests_to["a:10911"]]
    assert codes.index(Code.HEART_BEAT) < codes.index(Code.PULL_MESSAGE)


# --- filters --------------------------------------------------------------------------------------------------------------


async def test_other_tags_with_the_same_hash_are_left_out_by_the_client(environment: ScriptedEnvironment) -> None:
    # "Aa" and "BB" have the same Java hash: the broker lets both through.
    environment.groups.append(b"1", tag="Aa")
    environment.groups.append(b"2", tag="BB")
    environment.groups.append(b"3")
    assigned = await environment.assigned(subscriptions=(tagged("T", ["Aa"]),))
    pulled = await assigned.receive()
    assert (bodies_of(pulled), pulled.count, pulled.stored, pulled.next) == ([b"1"], 1, 3, 3)


async def test_filtered_offsets_are_committed_when_no_message_is_unacknowledged(environment: ScriptedEnvironment) -> None:
    environment.groups.append(*[b"?"] * 900)
    pull = environment.cluster.on[Code.PULL_MESSAGE]
    environment.cluster.on[Code.PULL_MESSAGE] = in_turn(
        pull_response(Status.PULL_RETRY_IMMEDIATELY, 800, 0, 900, "NO_MATCHED_MESSAGE"),
        pull_response(Status.PULL_RETRY_IMMEDIATELY, 900, 0, 900),
        pull,
    )
    assigned = await environment.assigned(subscriptions=(tagged("T", ["a"]),))
    await until(lambda: environment.groups.held)
    assert assigned.caught_up
    assert assigned.acknowledged == 900
    assert environment.groups.committed("G") == 900


async def test_filtered_offsets_are_not_committed_before_earlier_unacknowledged_messages(
    environment: ScriptedEnvironment,
) -> None:
    environment.groups.append(b"1", tag="a")
    assigned = await environment.assigned(subscriptions=(tagged("T", ["a"]),))
    pulled = await assigned.receive()
    await until(lambda: environment.groups.held)
    environment.groups.log().append(b"2")
    link, request = environment.groups.held.pop()
    pull_response(Status.PULL_RETRY_IMMEDIATELY, 2, 0, 2)(link, request)
    await until(lambda: environment.groups.held)
    assert assigned.acknowledged == 0
    assigned.commit(pulled.next)
    assert assigned.acknowledged == 2


async def test_pulls_continue_after_responses_without_progress(environment: ScriptedEnvironment) -> None:
    environment.groups.append(b"1")
    pull = environment.cluster.on[Code.PULL_MESSAGE]
    environment.cluster.on[Code.PULL_MESSAGE] = in_turn(*[pull_response(Status.PULL_RETRY_IMMEDIATELY, 0, 0, 1)] * 3, pull)
    assigned = await environment.assigned()
    assert bodies_of(await assigned.receive()) == [b"1"]


def test_the_tag_is_the_last_property_of_its_name() -> None:
    stored = properties.encode([("XTAGS", "no"), ("TAGS", "old"), ("TAGS", "new"), ("K", "v")])
    assert tag_of(Record(properties=stored)) == b"new"
    assert tag_of(Record(properties=properties.encode([("XTAGS", "no")]))) is None


def test_messages_of_an_inner_batch_before_the_offset_are_left_out() -> None:
    elements = b"".join(encode_element(body, b"", 0) for body in (b"a", b"b", b"c"))
    record = Record("T", elements, sys_flag=64 | 128, queue_offset=10)
    pulled = PulledRecords(QUEUE, encode_record(record), 11, 13)
    assert (bodies_of(pulled), pulled.count) == ([b"b", b"c"], 2)


# --- resets and gaps ------------------------------------------------------------------------------------------------------


async def test_messages_deleted_before_they_were_read_are_a_gap(environment: ScriptedEnvironment) -> None:
    environment.groups.append(*[b"x"] * 10)
    environment.groups.offsets["G", QUEUE] = 3
    environment.groups.log().first = 7
    assigned = await environment.assigned()
    with pytest.raises(GapError, match="offsets 3 to 6 are lost") as gap:
        await assigned.receive()
    assert not assigned.revoked
    assert gap.value.resume == (7,)
    await assigned.seek(7)
    assert (await assigned.receive()).first == 7
    await until(lambda: environment.groups.committed("G") == 7)


async def test_messages_before_a_gap_are_delivered_first(environment: ScriptedEnvironment) -> None:
    environment.groups.append(*[b"x"] * 2)
    assigned = await environment.assigned()
    await until(lambda: environment.groups.held)
    link, request = environment.groups.held.pop()
    environment.groups.log().append(*[b"y"] * 8)
    offset_moved(9, 9, 10, "OFFSET_TOO_SMALL")(link, request)
    await until(lambda: not environment.groups.held)
    assert (await assigned.receive()).next == 2
    with pytest.raises(GapError):
        await assigned.receive()
    assigned.commit(2)
    await assigned.release()
    assert environment.groups.committed("G") == 2


async def test_an_offset_beyond_the_end_is_a_gap(environment: ScriptedEnvironment) -> None:
    environment.groups.append(b"x")
    environment.groups.offsets["G", QUEUE] = 5
    assigned = await environment.assigned()
    with pytest.raises(GapError, match="created again") as gap:
        await assigned.receive()
    assert gap.value.resume is None


def make_anew(environment: ScriptedEnvironment, count: int) -> None:
    """Delete the topic and create it again with this number of messages, before the held pull, if any, is answered."""
    log = environment.groups.log()
    log.make_anew()
    environment.groups.append(*[b"new"] * count)


@pytest.fixture
def checks_every_response(monkeypatch: pytest.MonkeyPatch) -> None:
    """Check the anchor before every response with messages, as if they came seldom."""
    monkeypatch.setattr(queue_identity, "CHECK_S", 0.0)


async def stopped_by(assigned: AssignedQueue, problem: str) -> None:
    with pytest.raises(GapError, match=problem) as gap:
        await asyncio.wait_for(assigned.receive(), PATIENCE_S)
    assert gap.value.resume is None
    assert assigned.state.state is State.AT_GAP


@pytest.mark.usefixtures("checks_every_response")
@pytest.mark.parametrize("count", [3, 5, 9, 100])
async def test_a_queue_made_anew_during_a_held_pull_is_a_gap(environment: ScriptedEnvironment, count: int) -> None:
    environment.groups.append(*[b"old"] * 5)
    assigned = await environment.assigned()
    assert (await assigned.receive()).next == 5
    await until(lambda: environment.groups.held)
    make_anew(environment, count)
    environment.groups.release_held()
    environment.groups.append(b"one more")
    await stopped_by(assigned, r"was deleted and created again: .* at the offsets 0 to 5")


@pytest.mark.usefixtures("checks_every_response")
async def test_a_queue_made_anew_before_anything_was_read_is_a_gap(environment: ScriptedEnvironment) -> None:
    environment.groups.append(*[b"old"] * 5)
    environment.groups.offsets["G", QUEUE] = 5
    assigned = await environment.assigned()
    await until(lambda: environment.groups.held)
    make_anew(environment, 9)
    await stopped_by(assigned, "was deleted and created again")


async def test_a_queue_made_anew_while_its_topic_was_missing_is_a_gap_at_once(environment: ScriptedEnvironment) -> None:
    environment.groups.append(*[b"old"] * 5)
    assigned = await environment.assigned()
    assert (await assigned.receive()).next == 5
    await until(lambda: environment.groups.held)
    pull = environment.cluster.on[Code.PULL_MESSAGE]
    environment.cluster.on[Code.PULL_MESSAGE] = refuses(Status.TOPIC_NOT_EXIST)
    requests = environment.cluster.requests[Code.PULL_MESSAGE]
    refused = len(requests)
    environment.cluster.link_to(A).drop()
    await until(lambda: len(requests) > refused)
    make_anew(environment, 9)
    environment.cluster.on[Code.PULL_MESSAGE] = pull
    await stopped_by(assigned, "was deleted and created again")


async def test_a_busy_queue_made_anew_is_a_gap_as_soon_as_its_anchor_is_checked(
    environment: ScriptedEnvironment, monkeypatch: pytest.MonkeyPatch
) -> None:
    environment.groups.append(*[b"old"] * 5)
    assigned = await environment.assigned()
    assert (await assigned.receive()).next == 5
    await until(lambda: environment.groups.held)
    make_anew(environment, 9)
    assert (await assigned.receive()).first == 5, "the last check was just now"
    monkeypatch.setattr(queue_identity, "CHECK_S", 0.0)
    await until(lambda: environment.groups.held)
    environment.groups.release_held()
    await stopped_by(assigned, "was deleted and created again")


async def test_a_queue_made_anew_just_after_a_check_without_messages_is_a_gap(
    environment: ScriptedEnvironment, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A message that arrives before the next check proves nothing, although the last check succeeded."""
    environment.groups.append(*[b"old"] * 5)
    assigned = await environment.assigned()
    assert (await assigned.receive()).next == 5
    await until(lambda: environment.groups.held)
    assigned._pulls.identity.suspect()
    environment.groups.release_held()
    await until(lambda: len(environment.groups.pulls()) == 4)  # two pulls, the check, and the next pull
    make_anew(environment, 9)
    assert (await assigned.receive()).first == 5, "the last check was just now"
    monkeypatch.setattr(queue_identity, "CHECK_S", 0.0)
    await until(lambda: environment.groups.held)
    environment.groups.release_held()
    await stopped_by(assigned, "was deleted and created again")


async def test_a_late_response_of_an_older_run_does_not_replace_the_anchor(environment: ScriptedEnvironment) -> None:
    """A seek ends the search for a first anchor; its response would change what a check of the new run compares."""
    environment.groups.append(*[b"x"] * 10)
    environment.groups.offsets["G", QUEUE] = 10
    pull, search, check = environment.cluster.on[Code.PULL_MESSAGE], list[Any](), list[Any]()
    environment.cluster.on[Code.PULL_MESSAGE] = in_turn(pull, lambda *asked: search.append(asked), pull)
    assigned = await environment.assigned()
    await until(lambda: search)
    seeking = asyncio.ensure_future(assigned.seek(2))
    assert (await assigned.receive()).first == 2
    await until(lambda: environment.groups.held)
    environment.cluster.on[Code.PULL_MESSAGE] = in_turn(lambda *asked: check.append(asked), pull)
    assigned._pulls.identity.suspect()
    environment.groups.release_held()
    await until(lambda: check)
    pull(*search[0])
    await asyncio.sleep(0.02)
    pull(*check[0])
    await until(lambda: environment.groups.held)
    environment.groups.append(b"new")
    assert (await assigned.receive()).first == 10
    await seeking


@pytest.mark.usefixtures("checks_every_response")
async def test_after_a_queue_was_made_anew_the_next_member_reads_all_of_it(environment: ScriptedEnvironment) -> None:
    environment.groups.append(*[b"old"] * 5)
    assigned = await environment.assigned()
    pulled = await assigned.receive()
    await until(lambda: environment.groups.held)
    make_anew(environment, 9)
    await stopped_by(assigned, "was deleted and created again")
    assigned.commit(pulled.next)
    await environment.consumers[0].close()
    assert environment.groups.committed("G") == 0
    successor = await environment.assigned(instance="2#2")
    assert ((await successor.receive()).first, successor.acknowledged) == (0, 0)


@pytest.mark.usefixtures("checks_every_response")
@pytest.mark.parametrize("count", [3, 9])
async def test_the_old_offset_is_not_committed_in_a_queue_made_anew(environment: ScriptedEnvironment, count: int) -> None:
    """Not even if the member is killed, so that it releases nothing, or if later messages are acknowledged."""
    environment.groups.append(*[b"old"] * 5)
    consumer = await environment.join()
    assigned = await first_stream(consumer)
    pulled = await assigned.receive()
    await until(lambda: environment.groups.held)
    make_anew(environment, count)
    environment.groups.release_held()
    await stopped_by(assigned, "was deleted and created again")
    await until(lambda: environment.groups.committed("G") == 0)
    assigned.commit(pulled.next)
    await consumer.held.commit()
    await assigned.flush()
    assert environment.groups.committed("G") == 0


@pytest.mark.parametrize("count", [3, 9])
async def test_a_queue_made_anew_while_it_was_assigned_to_nobody_is_a_gap(environment: ScriptedEnvironment, count: int) -> None:
    """The release has committed the old offset, and nobody has read on from there."""
    environment.groups.append(*[b"old"] * 5)
    consumer = await environment.join()
    assigned = await first_stream(consumer)
    assigned.commit((await assigned.receive()).next)
    await assigned.release()
    make_anew(environment, count)
    assert environment.groups.committed("G") == 5
    await stopped_by(successor := await first_stream(consumer), "was deleted and created again")
    assert successor.anchor is None
    await until(lambda: environment.groups.committed("G") == 0)


async def test_a_message_read_before_says_nothing_once_others_have_read_on(environment: ScriptedEnvironment) -> None:
    environment.groups.append(*[b"old"] * 5)
    consumer = await environment.join()
    assigned = await first_stream(consumer)
    assigned.commit((await assigned.receive()).next)
    await assigned.release()
    make_anew(environment, 9)
    environment.groups.offsets["G", QUEUE] = 7
    assert (await (await first_stream(consumer)).receive()).first == 7


async def test_a_queue_that_ends_before_the_position_of_a_new_reader_reports_both(environment: ScriptedEnvironment) -> None:
    """Without a message that was read it cannot be told if the queue was made anew, or has lost its last messages."""
    environment.groups.append(*[b"new"] * 3)
    environment.groups.offsets["G", QUEUE] = 5
    assigned = await environment.assigned()
    with pytest.raises(GapError, match="ends at offset 3") as gap:
        await assigned.receive()
    assert gap.value.went_back == ((3,), (5,))
    await environment.close()
    assert environment.groups.committed("G") == 5


@pytest.mark.usefixtures("checks_every_response")
async def test_a_queue_made_anew_continues_where_an_administrator_sets_the_offset(environment: ScriptedEnvironment) -> None:
    environment.groups.append(*[b"old"] * 5)
    consumer = await environment.join()
    assigned = await first_stream(consumer)
    assigned.commit((await assigned.receive()).next)
    await until(lambda: environment.groups.held)
    make_anew(environment, 9)
    await stopped_by(assigned, "was deleted and created again")
    await assigned.flush()
    environment.groups.offsets["G", QUEUE] = 2
    consumer.request_rebalance()
    successor = await first_stream(consumer)
    assert (await successor.receive()).first == 2


@pytest.mark.usefixtures("checks_every_response")
async def test_a_queue_that_lost_its_anchor_to_retention_or_compaction_is_the_same(environment: ScriptedEnvironment) -> None:
    log = environment.groups.log()
    environment.groups.append(*[b"x"] * 5)
    assigned = await environment.assigned()
    assert (await assigned.receive()).next == 5
    await until(lambda: environment.groups.held)
    log.first = 5
    environment.groups.append(b"y")
    assert (await assigned.receive()).next == 6
    await until(lambda: environment.groups.held)
    log.compacted = {5}
    config = TopicConfig("T", 1, 1, attributes={"cleanup.policy": "COMPACTION"}).encode()
    environment.cluster.on[Code.GET_TOPIC_CONFIG] = lambda link, request: link.answer(request, body=config)
    environment.groups.append(b"z")
    assert (await assigned.receive()).next == 7


async def test_an_empty_queue_at_which_reading_continues_beyond_its_end_is_taken_for_a_new_one(
    environment: ScriptedEnvironment,
) -> None:
    environment.groups.offsets["G", QUEUE] = 5
    assigned = await environment.assigned()
    await stopped_by(assigned, "created again")
    await environment.consumers[0].close()
    assert environment.groups.committed("G") == 0


async def test_a_chosen_start_offset_that_is_deleted_meanwhile_is_no_gap(environment: ScriptedEnvironment) -> None:
    environment.groups.append(*[b"x"] * 10)
    pull = environment.cluster.on[Code.PULL_MESSAGE]
    environment.cluster.on[Code.PULL_MESSAGE] = in_turn(offset_moved(4, 4, 10, "OFFSET_TOO_SMALL"), pull)
    assigned = await environment.assigned()
    assert (await assigned.receive()).first == 4


async def test_a_reset_at_the_broker_is_followed_and_committed(
    environment: ScriptedEnvironment, caplog: pytest.LogCaptureFixture
) -> None:
    environment.groups.append(*[b"x"] * 10)
    assigned = await environment.assigned()
    pulled = await assigned.receive()
    assigned.commit(pulled.next)
    await until(lambda: environment.groups.held)
    environment.groups.resets["G", QUEUE] = 4
    with caplog.at_level(logging.WARNING):
        environment.groups.release_held()
        again = await assigned.receive()
    assert (again.first, again.next, environment.groups.committed("G")) == (4, 10, 4)
    assert "continuing at offset 4 instead of 10" in caplog.text
    assigned.commit(pulled.next)
    assert assigned.acknowledged == 10  # the messages were delivered again meanwhile


async def test_a_reset_reported_to_the_second_request_of_a_check_is_followed(environment: ScriptedEnvironment) -> None:
    """The first request shows that the queue ends before what was read, the second one asks for its first message."""
    environment.groups.append(*[b"x"] * 10)
    assigned = await environment.assigned()
    await assigned.receive()
    await until(lambda: environment.groups.held)
    del environment.groups.log().records[3:]
    pull, anchor = environment.cluster.on[Code.PULL_MESSAGE], assigned._pulls.identity.anchor
    assert anchor is not None
    assigned._pulls.identity.restore(anchor._replace(offset=9))

    def reset_and_pull(link: Link, request: Command) -> None:
        environment.groups.resets["G", QUEUE] = 1
        pull(link, request)

    environment.cluster.on[Code.PULL_MESSAGE] = in_turn(pull, reset_and_pull, pull)
    environment.groups.release_held()
    assert (await assigned.receive()).first == 1


async def test_a_hole_in_the_pulled_messages_is_a_gap(environment: ScriptedEnvironment) -> None:
    environment.groups.append(*[b"x"] * 4)
    environment.groups.offsets["G", QUEUE] = 1
    environment.groups.log().compacted = {1, 2}
    assigned = await environment.assigned()
    with pytest.raises(GapError, match="offsets 1 to 2"):
        await assigned.receive()


async def test_holes_in_a_compacted_topic_are_no_gaps(environment: ScriptedEnvironment) -> None:
    environment.groups.append(*[b"x"] * 4)
    environment.groups.offsets["G", QUEUE] = 1
    environment.groups.log().compacted = {1, 2}
    config = TopicConfig("T", 1, 1, attributes={"cleanup.policy": "COMPACTION"}).encode()
    environment.cluster.on[Code.GET_TOPIC_CONFIG] = lambda link, request: link.answer(request, body=config)
    assigned = await environment.assigned()
    pulled = await assigned.receive()
    assert (pulled.first, pulled.next, pulled.count) == (1, 4, 1)


@pytest.mark.parametrize(
    ("code", "remark"),
    [(Status.PULL_NOT_FOUND, pull_request.FOUND_NULL), (Status.PULL_RETRY_IMMEDIATELY, pull_request.REMOVING)],
)
async def test_unreadable_messages_are_a_gap_after_some_retries(environment: ScriptedEnvironment, code: int, remark: str) -> None:
    environment.groups.append(*[b"x"] * 9)
    environment.groups.offsets["G", QUEUE] = 2
    environment.cluster.on[Code.PULL_MESSAGE] = pull_response(code, 6, 0, 9, remark)
    assigned = await environment.assigned()
    with pytest.raises(GapError, match=remark):
        await assigned.receive()
    assert [pull.queue_offset for pull in environment.groups.pulls()] == [2] * (MAX_UNREADABLE_RESPONSES + 1)


# --- refusals and lost connections ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("code", [Status.SYSTEM_BUSY, Status.FLOW_CONTROL, Status.SYSTEM_ERROR, Status.TOPIC_NOT_EXIST])
async def test_a_pull_is_repeated_after_a_temporary_refusal(environment: ScriptedEnvironment, code: int) -> None:
    environment.groups.append(b"1")
    pull = environment.cluster.on[Code.PULL_MESSAGE]
    environment.cluster.on[Code.PULL_MESSAGE] = in_turn(*[refuses(code)] * 2, pull)
    assigned = await environment.assigned()
    assert bodies_of(await assigned.receive()) == [b"1"]


@pytest.mark.parametrize("code", [24, 25, 27, 28])
async def test_a_heartbeat_follows_a_pull_refused_for_an_unknown_subscription(
    environment: ScriptedEnvironment, code: int
) -> None:
    environment.groups.append(b"1")
    pull = environment.cluster.on[Code.PULL_MESSAGE]
    environment.cluster.on[Code.PULL_MESSAGE] = in_turn(refuses(code), pull)
    assigned = await environment.assigned()
    await assigned.receive()
    codes = [command.code for command in environment.cluster.requests_to["a:10911"]]
    refused_at = codes.index(Code.PULL_MESSAGE)
    assert Code.HEART_BEAT in codes[refused_at : codes.index(Code.PULL_MESSAGE, refused_at + 1)]


async def test_a_paused_group_waits_and_is_reported_once(
    environment: ScriptedEnvironment, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", logger=pull_loop.__name__)
    environment.groups.append(b"1")
    pull = environment.cluster.on[Code.PULL_MESSAGE]
    environment.cluster.on[Code.PULL_MESSAGE] = refuses(Status.NO_PERMISSION, "subscription group no permission, G")
    assigned = await environment.assigned()
    await until(lambda: len(environment.cluster.requests[Code.PULL_MESSAGE]) > 5)
    environment.cluster.on[Code.PULL_MESSAGE] = pull
    assert bodies_of(await assigned.receive()) == [b"1"]
    waits = [record.levelname for record in caplog.records if "permits" in record.message]
    assert waits == ["WARNING", "INFO"]
    assert "subscription group no permission, G" in caplog.text


@pytest.mark.parametrize("code", [Status.SUBSCRIPTION_GROUP_NOT_EXIST, Status.SUBSCRIPTION_PARSE_FAILED])
async def test_a_permanent_refusal_of_a_pull_is_fatal(environment: ScriptedEnvironment, code: int) -> None:
    environment.cluster.on[Code.PULL_MESSAGE] = refuses(code)
    assigned = await environment.assigned()
    with pytest.raises(ServerRefused) as caught:
        await assigned.receive()
    assert (caught.value.code, caught.value.failure) == (code, Failure.FATAL)


async def test_pulls_continue_after_lost_connections(environment: ScriptedEnvironment) -> None:
    environment.groups.append(b"1")
    pull = environment.cluster.on[Code.PULL_MESSAGE]
    environment.cluster.on[Code.PULL_MESSAGE] = in_turn(hangs_up, hangs_up, pull)
    assigned = await environment.assigned()
    assert bodies_of(await assigned.receive()) == [b"1"]


@pytest.mark.parametrize("body", [b"", b"\0\0\0\x10" + bytes(12), bytes(200)])
async def test_a_damaged_pull_response_is_requested_again(environment: ScriptedEnvironment, body: bytes) -> None:
    environment.groups.append(b"1")
    pull = environment.cluster.on[Code.PULL_MESSAGE]
    environment.cluster.on[Code.PULL_MESSAGE] = in_turn(pull_response(Status.SUCCESS, 1, 0, 1, body=body), pull)
    assigned = await environment.assigned()
    assert bodies_of(await assigned.receive()) == [b"1"]


def test_the_error_of_a_torn_record_names_its_number() -> None:
    record = encode_record(Record("T", b"body"))
    with pytest.raises(RemoteProtocolError, match="record 1"):
        PulledRecords(QUEUE, record + record[:-1], 0, 2)


# --- committing -----------------------------------------------------------------------------------------------------------


async def test_commits_are_sent_with_pulls_and_never_go_back(environment: ScriptedEnvironment) -> None:
    environment.groups.append(*[b"x"] * 4)
    environment.groups.log().limit = 2
    assigned = await environment.assigned()
    one, two = await assigned.receive(), await assigned.receive()
    assigned.commit(two.next)
    assigned.commit(one.next)
    assert assigned.acknowledged == 4
    environment.groups.append(b"x")
    await assigned.receive()
    await until(lambda: environment.groups.committed("G") == 4)


async def test_undelivered_messages_cannot_be_committed(environment: ScriptedEnvironment) -> None:
    environment.groups.append(*[b"x"] * 4)
    assigned = await environment.assigned()
    await until(lambda: environment.groups.held)
    assigned.commit(4)
    assert assigned.acknowledged == 0


async def test_the_commit_timer_sends_each_offset_once(environment: ScriptedEnvironment) -> None:
    environment.groups.append(*[b"x"] * 4)
    consumer = await environment.join()
    (assigned,) = consumer.held.values()
    pulled = await assigned.receive()
    await until(lambda: environment.groups.held)
    assigned.commit(pulled.next)
    await consumer.held.commit()
    await consumer.held.commit()
    await until(lambda: environment.groups.committed("G") == 4)
    updates = environment.cluster.requests[Code.UPDATE_CONSUMER_OFFSET]
    assert [(command.is_oneway, command.ext["commitOffset"]) for command in updates] == [(True, "4")]


async def test_a_release_waits_for_the_response_to_its_commit(environment: ScriptedEnvironment) -> None:
    environment.groups.append(*[b"x"] * 4)
    assigned = await environment.assigned()
    pulled = await assigned.receive()
    await until(lambda: environment.groups.held)
    assigned.commit(pulled.next)
    await assigned.release()
    (update,) = environment.cluster.requests[Code.UPDATE_CONSUMER_OFFSET]
    assert not update.is_oneway
    assert (assigned.revoked, environment.groups.committed("G")) == (True, 4)
    with pytest.raises(LaneRevoked):
        await assigned.receive()
    assigned.commit(4)


async def test_a_release_without_progress_commits_nothing(environment: ScriptedEnvironment) -> None:
    environment.groups.append(*[b"x"] * 4)
    environment.groups.offsets["G", QUEUE] = 2
    assigned = await environment.assigned()
    await assigned.receive()
    await assigned.release()
    assert environment.cluster.requests[Code.UPDATE_CONSUMER_OFFSET] == []


# --- seeking --------------------------------------------------------------------------------------------------------------


async def test_a_seek_backwards_is_committed_and_redelivers(environment: ScriptedEnvironment) -> None:
    environment.groups.append(*[b"%d" % n for n in range(4)])
    assigned = await environment.assigned()
    pulled = await assigned.receive()
    assigned.commit(pulled.next)
    await assigned.seek(1)
    assert (assigned.acknowledged, environment.groups.committed("G")) == (1, 1)
    assert bodies_of(await assigned.receive()) == [b"1", b"2", b"3"]


async def test_a_seek_to_an_unacknowledged_offset_keeps_the_committed_offset(environment: ScriptedEnvironment) -> None:
    environment.groups.append(*[b"%d" % n for n in range(4)])
    environment.groups.log().limit = 2
    assigned = await environment.assigned()
    one, two = await assigned.receive(), await assigned.receive()
    assert (one.next, two.next) == (2, 4)
    await assigned.seek(2)
    assert assigned.acknowledged == 0
    assigned.commit(two.next)  # delivered before the seek, so this commit is ignored
    assert assigned.acknowledged == 0
    assert (await assigned.receive()).first == 2
    assigned.commit(4)
    assert assigned.acknowledged == 4


async def test_a_seek_drops_waiting_messages_and_the_pull_in_flight(environment: ScriptedEnvironment) -> None:
    environment.groups.append(*[b"%d" % n for n in range(4)])
    assigned = await environment.assigned()
    await until(lambda: environment.groups.held)
    await assigned.seek(3)
    assert bodies_of(await assigned.receive()) == [b"3"]
    assert assigned.held_bytes == 0
    assert (await asyncio.wait_for(_take_later(assigned), 1)) is None


async def _take_later(assigned: object) -> object:
    await asyncio.sleep(0.01)
    return assigned.take()  # type: ignore[attr-defined]


# --- memory ---------------------------------------------------------------------------------------------------------------


async def test_memory_is_bounded_over_all_queues_while_reading_continues(environment: ScriptedEnvironment) -> None:
    environment.cluster.topics["T"] = {"broker-a": 4}
    for number in range(4):
        log = environment.groups.log(number=number)
        log.append(*[bytes(1000)] * 200)
        log.limit = 10
    consumer = await environment.join(max_bytes=100_000)
    response_bytes = 10 * 1100
    await until(lambda: consumer.budget.held > 100_000 - 2 * response_bytes)  # no message has been taken yet
    max_held, read = 0, 0
    async with asyncio.timeout(PATIENCE_S):
        while read < 800:
            await asyncio.sleep(0.001)
            max_held = max(max_held, consumer.budget.held)
            for assigned in consumer.held.values():
                if (pulled := assigned.take()) is not None:
                    read += pulled.count
    assert max_held <= 100_000
    assert consumer.budget.held == 0
    assert consumer.budget.requested <= 100_000 // 4, "held pulls reserve only a small part of the limit"


async def test_a_queue_without_a_reader_does_not_starve_the_others(environment: ScriptedEnvironment) -> None:
    environment.cluster.topics["T"] = {"broker-a": 2}
    for number in range(2):
        log = environment.groups.log(number=number)
        log.append(*[bytes(1000)] * 100)
        log.limit = 5
    consumer = await environment.join(max_bytes=40_000)
    assigned = consumer.held[Queue("T", "broker-a", 1)]
    read = 0
    while read < 100:
        read += (await asyncio.wait_for(assigned.receive(), PATIENCE_S)).count


# --- readers --------------------------------------------------------------------------------------------------------------


async def test_a_reader_leaves_no_trace_of_a_group(environment: ScriptedEnvironment) -> None:
    environment.groups.append(*[b"x"] * 3, tag="a")
    assigned = await environment.assigned(
        group="", model=MessageModel.ASSIGNED, queues=(QUEUE,), subscriptions=(tagged("T", ["a"]),)
    )
    pulled = await assigned.receive()
    assigned.commit(pulled.next)
    await until(lambda: environment.groups.held)
    header = environment.groups.pulls()[-1]
    assert header.sys_flag == PullFlag.SUBSCRIPTION | PullFlag.LITE | PullFlag.SUSPEND
    assert (header.consumer_group, header.subscription, header.expression_type) == ("TOOLS_CONSUMER", "a", "TAG")
    await assigned.release()
    codes = set(environment.cluster.requests)
    assert not codes & {Code.HEART_BEAT, Code.UPDATE_CONSUMER_OFFSET, Code.QUERY_CONSUMER_OFFSET, Code.UNREGISTER_CLIENT}


async def test_a_reader_with_a_group_continues_at_the_groups_offset(environment: ScriptedEnvironment) -> None:
    environment.groups.append(*[b"x"] * 3)
    environment.groups.offsets["G", QUEUE] = 2
    assigned = await environment.assigned(model=MessageModel.ASSIGNED, queues=(QUEUE,))
    pulled = await assigned.receive()
    assert pulled.first == 2
    assigned.commit(3)
    await assigned.release()
    assert environment.groups.committed("G") == 3
    assert environment.cluster.requests[Code.HEART_BEAT] == []


async def test_a_reader_starts_at_its_given_offset_and_a_deleted_one_is_a_gap(environment: ScriptedEnvironment) -> None:
    environment.groups.append(*[b"x"] * 9)
    environment.groups.log().first = 4
    settings = {"group": "", "model": MessageModel.ASSIGNED, "queues": (QUEUE,)}
    assigned = await environment.assigned(instance="1", offsets={QUEUE: 6}, **settings)
    assert (await assigned.receive()).first == 6
    lost = await environment.assigned(instance="2", offsets={QUEUE: 1}, **settings)
    with pytest.raises(GapError):
        await lost.receive()


async def test_a_broker_without_lite_pulls_gets_ordinary_pulls(environment: ScriptedEnvironment) -> None:
    environment.groups.append(b"x")
    environment.cluster.on[Code.LITE_PULL_MESSAGE] = refuses(Status.REQUEST_CODE_NOT_SUPPORTED)
    assigned = await environment.assigned(group="", model=MessageModel.ASSIGNED, queues=(QUEUE,), start=StartOffset.EARLIEST)
    assert bodies_of(await assigned.receive()) == [b"x"]
    await until(lambda: environment.groups.held)
    assert len(environment.cluster.requests[Code.LITE_PULL_MESSAGE]) == 1


async def test_without_a_master_the_slave_is_read_but_gets_no_commits(environment: ScriptedEnvironment) -> None:
    environment.groups.append(b"x")
    environment.groups.offsets["G", QUEUE] = 0
    assigned = await environment.assigned()
    await assigned.receive()
    await until(lambda: environment.groups.held)
    environment.cluster.brokers["broker-a"] = {1: "a:10911"}
    client = environment.clients[0]
    await client.routes.get("T", fresh=True)
    environment.groups.append(b"y")
    await assigned.receive()
    await until(lambda: environment.groups.held)
    assert not environment.groups.pulls()[-1].sys_flag & PullFlag.COMMIT_OFFSET


def test_pulled_records_are_cut_at_an_offset_even_inside_an_inner_batch() -> None:
    single = [encode_record(Record("T", b"%d" % n, queue_offset=n)) for n in range(10)]
    pulled = PulledRecords(QUEUE, b"".join(single), 0, 10)
    assert pulled.until(10) is pulled
    cut = pulled.until(4)
    assert (bodies_of(cut), cut.count, cut.next) == ([b"0", b"1", b"2", b"3"], 4, 4)
    elements = b"".join(encode_element(body, b"", 0) for body in (b"a", b"b", b"c"))
    batch = PulledRecords(QUEUE, encode_record(Record("T", elements, sys_flag=64 | 128, queue_offset=10)), 11, 13)
    assert (bodies_of(batch.until(12)), batch.until(12).count) == ([b"b"], 1)
    assert batch.may_contain(b"anything"), "its properties may be compressed"


@pytest.mark.parametrize("is_compiled", [True, False])
def test_inner_batches_count_as_many_messages_as_are_delivered(is_compiled: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not is_compiled:
        monkeypatch.setattr(pulled_records, "compiled", None)
    flags = SysFlag.INNER_BATCH | SysFlag.NEED_UNWRAP
    whole = b"".join(encode_element(body, b"", 0) for body in (b"a", b"b"))
    damaged = encode_record(Record("T", whole[:-1], sys_flag=flags, queue_offset=10))
    pulled = PulledRecords(QUEUE, damaged, 10, 15)
    assert pulled.count == len(pulled.records) == 1, "it is one raw message, whatever it contains"
    compacted = PulledRecords(QUEUE, damaged + encode_record(Record("T", whole, sys_flag=flags, queue_offset=15)), 10, 20)
    assert compacted.count == len(compacted.records) == 3, "some offsets have no message"


def test_decoded_records_are_not_cached() -> None:
    """Decoded records take several times the memory of their bytes."""
    pulled = PulledRecords(QUEUE, encode_record(Record("T", b"x", properties.encode([("TAGS", "a")]))), 0, 1, frozenset({"a"}))
    assert (pulled.count, pulled.first_record_offset, bodies_of(pulled)) == (1, 0, [b"x"])
    assert pulled._records is None
    assert (bodies_of(pulled), pulled.may_contain(b"TAGS")) == ([b"x"], True)
