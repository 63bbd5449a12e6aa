"""Members of a group: the division of queues, start offsets, joining, broadcasting and requests of brokers."""

import asyncio
import logging
import time

import orjson
import pytest

from mqbridge.errors import ClusterError, Failure, LaneRevoked, LocalProtocolError, ServerRefused
from mqbridge.rocketmq.client.consumer import late_queues, membership
from mqbridge.rocketmq.client.consumer.broadcast_offsets import MemoryOffsets
from mqbridge.rocketmq.client.consumer.consumer_settings import ConsumerSettings, MessageModel, StartOffset
from mqbridge.rocketmq.client.consumer.pull_consumer import PullConsumer, join
from mqbridge.rocketmq.client.consumer.subscription import everything, parse_tags, sql92, tagged
from mqbridge.rocketmq.wire.allocation_strategies import circle
from mqbridge.rocketmq.wire.bodies.groups import CheckClient, ConsumerList, Heartbeat
from mqbridge.rocketmq.wire.bodies.offsets import ResetOffsets
from mqbridge.rocketmq.wire.bodies.queue import Queue
from mqbridge.rocketmq.wire.bodies.running_info import RunningInfo
from mqbridge.rocketmq.wire.codes import Code, Status
from mqbridge.rocketmq.wire.command import ONEWAY, Command
from mqbridge.rocketmq.wire.headers.groups import ConsumeDirectlyHeader, ResetOffsetHeader, RunningInfoHeader
from tests.patience import PATIENCE_S
from tests.rocketmq.client.broker import NS, Link, hangs_up, in_turn, refuses, responds_with, until
from tests.rocketmq.client.groups import ScriptedEnvironment, environment, first_stream

__all__ = ["environment"]

RETRIES = Queue("%RETRY%G", "broker-a", 0)


def q(number: int, broker: str = "broker-a") -> Queue:
    return Queue("T", broker, number)


def numbers(consumer: PullConsumer) -> list[int]:
    return sorted(queue.id for queue in consumer.held)


# --- dividing -------------------------------------------------------------------------------------------------------------


async def test_members_come_and_go_and_each_queue_has_one_owner(environment: ScriptedEnvironment) -> None:
    environment.cluster.topics["T"] = {"broker-a": 5}
    one = await environment.join("1#1")
    assert numbers(one) == [0, 1, 2, 3, 4]
    two = await environment.join("2#2")
    await until(lambda: (numbers(one), numbers(two)) == ([0, 1, 2], [3, 4]))
    three = await environment.join("0#0")
    await until(lambda: (numbers(three), numbers(one), numbers(two)) == ([0, 1], [2, 3], [4]))
    await one.close()
    await until(lambda: (numbers(three), numbers(two)) == ([0, 1, 2], [3, 4]))


async def test_members_divide_queues_by_the_configured_strategy(environment: ScriptedEnvironment) -> None:
    environment.cluster.topics["T"] = {"broker-a": 4}
    one, two = await environment.join("1", strategy=circle), await environment.join("2", strategy=circle)
    await until(lambda: (numbers(one), numbers(two)) == ([0, 2], [1, 3]))


async def test_acknowledged_offsets_are_committed_when_a_queue_moves_to_another_member(environment: ScriptedEnvironment) -> None:
    environment.cluster.topics["T"] = {"broker-a": 2}
    for number in range(2):
        environment.groups.append(*[b"x"] * 4, number=number)
        environment.groups.log(number=number).limit = 2
    one = await environment.join("1")
    assigned = one.held[q(1)]
    first = await assigned.receive()
    await assigned.receive()
    assigned.commit(first.next)
    two = await environment.join("2")
    taken = await first_stream(two)
    assert (taken.queue, (await taken.receive()).first) == (q(1), 2)
    with pytest.raises(LaneRevoked, match="another consumer"):
        await assigned.receive()
    assigned.commit(4)
    assert environment.groups.committed("G", number=1) == 2


async def test_a_member_missing_from_the_list_sends_a_heartbeat_then_releases_all_queues(
    environment: ScriptedEnvironment,
) -> None:
    consumer = await environment.join("1")
    listing = environment.cluster.on[Code.GET_CONSUMER_LIST_BY_GROUP]
    beats = len(environment.cluster.requests[Code.HEART_BEAT])

    def without_us(link: object, request: Command) -> None:
        link.answer(request, body=ConsumerList(("other",)).encode())  # type: ignore[attr-defined]

    environment.cluster.on[Code.GET_CONSUMER_LIST_BY_GROUP] = without_us
    consumer.request_rebalance()
    await until(lambda: consumer.held == {})
    assert len(environment.cluster.requests[Code.HEART_BEAT]) > beats
    environment.cluster.on[Code.GET_CONSUMER_LIST_BY_GROUP] = listing
    consumer.request_rebalance()
    await until(lambda: numbers(consumer) == [0])


@pytest.mark.parametrize("answer", [refuses(Status.SYSTEM_ERROR, "no consumer for this group"), refuses(16), hangs_up])
async def test_queues_are_kept_if_the_member_list_cannot_be_queried(environment: ScriptedEnvironment, answer: object) -> None:
    consumer = await environment.join("1")
    listing = environment.cluster.on[Code.GET_CONSUMER_LIST_BY_GROUP]
    (assigned,) = consumer.held.values()
    count = len(environment.cluster.requests[Code.GET_CONSUMER_LIST_BY_GROUP])
    environment.cluster.on[Code.GET_CONSUMER_LIST_BY_GROUP] = in_turn(answer, answer, listing)  # type: ignore[arg-type]
    consumer.request_rebalance()
    await until(lambda: len(environment.cluster.requests[Code.GET_CONSUMER_LIST_BY_GROUP]) >= count + 3)
    assert list(consumer.held.values()) == [assigned]
    assert not assigned.revoked


async def test_the_retry_queue_is_assigned_as_soon_as_its_topic_exists(environment: ScriptedEnvironment) -> None:
    environment.groups.make_retry_topics = False
    consumer = await environment.join(retries=True)
    assert list(consumer.held) == [q(0)]
    beat = Heartbeat.decode(environment.cluster.requests[Code.HEART_BEAT][-1].body)
    assert [subscription.topic for subscription in beat.consumers[0].subscriptions] == ["T", "%RETRY%G"]
    environment.groups.append(b"again", topic="%RETRY%G")
    environment.cluster.topics["%RETRY%G"] = {"broker-a": 1}
    await until(lambda: RETRIES in consumer.held)
    assert (await consumer.held[RETRIES].receive()).first == 0


async def test_a_released_queue_is_assigned_again_as_a_new_stream(environment: ScriptedEnvironment) -> None:
    environment.groups.append(b"1", b"2")
    consumer = await environment.join()
    assigned = await first_stream(consumer)
    await assigned.receive()
    await assigned.release()
    again = await first_stream(consumer)
    assert again is not assigned
    assert (await again.receive()).first == 0


async def test_closing_a_consumer_ends_its_assignments_and_unregisters_it(environment: ScriptedEnvironment) -> None:
    consumer = await environment.join()
    await consumer.close()
    assert [assigned async for assigned in consumer.assigned_queues()] == []
    (unregister,) = environment.cluster.requests[Code.UNREGISTER_CLIENT]
    assert unregister.ext["consumerGroup"] == "G"
    assert not environment.groups.members["G"]


async def test_a_queue_is_assigned_once_its_start_offset_can_be_queried(environment: ScriptedEnvironment) -> None:
    query = environment.cluster.on[Code.QUERY_CONSUMER_OFFSET]
    environment.cluster.on[Code.QUERY_CONSUMER_OFFSET] = in_turn(refuses(Status.SYSTEM_ERROR), hangs_up, query)
    consumer = await environment.join()
    await until(lambda: numbers(consumer) == [0])


# --- start offsets --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("start", "start_ms", "offset"),
    [(StartOffset.EARLIEST, 0, 2), (StartOffset.LATEST, 0, 6), (StartOffset.TIMESTAMP, 300, 3), (StartOffset.TIMESTAMP, 999, 6)],
)
async def test_a_new_group_starts_at_the_configured_offset_and_commits_it(
    environment: ScriptedEnvironment, start: StartOffset, start_ms: int, offset: int
) -> None:
    environment.groups.append(*[b"x"] * 6)
    environment.groups.log().first = 2
    environment.groups.times[q(0)] = [100, 150, 200, 300, 400, 500]
    consumer = await environment.join(start=start, start_ms=start_ms)
    (assigned,) = consumer.held.values()
    assert assigned.acknowledged == offset
    await until(lambda: environment.groups.committed("G") == offset)


async def test_an_existing_group_continues_at_its_committed_offset(environment: ScriptedEnvironment) -> None:
    environment.groups.append(*[b"x"] * 6)
    environment.groups.offsets["G", q(0)] = 5
    assigned = await environment.assigned(start=StartOffset.LATEST)
    assert (await assigned.receive()).first == 5


async def test_a_queue_added_to_the_topic_later_is_read_from_its_beginning(environment: ScriptedEnvironment) -> None:
    consumer = await environment.join(start=StartOffset.LATEST)
    environment.groups.append(b"before the client knew the queue", number=1)
    environment.cluster.topics["T"] = {"broker-a": 2}
    environment.clients[0].routes.invalidate("T")
    await until(lambda: q(1) in consumer.held)
    assert (await consumer.held[q(1)].receive()).first == 0


@pytest.mark.parametrize(
    ("answers", "began_s_ago", "offset"),
    [
        ([{"bootTimestamp": "-20000", "runtime": "[ 0 days, 0 hours, 0 minutes, 20 seconds ]"}], 100, 3),
        ([{"bootTimestamp": "-90000", "runtime": "[ 0 days, 0 hours, 0 minutes, 20 seconds ]"}], 100, 2),  # 70 s behind
        ([None, {"bootTimestamp": "-20000", "runtime": "[ 0 days, 0 hours, 0 minutes, 20 seconds ]"}], 200, 2),
        ([{"bootTimestamp": "?"}], 100, 0),
        ([None], 100, 0),
    ],
)
async def test_a_queue_whose_broker_was_down_at_the_start_is_read_from_what_was_stored_since_then(
    environment: ScriptedEnvironment,
    monkeypatch: pytest.MonkeyPatch,
    answers: list[dict[str, str] | None],
    began_s_ago: int,
    offset: int,
) -> None:
    """`answers` are those of the broker about its clock, None for a refusal; the last one is repeated."""
    monkeypatch.setattr(late_queues, "CLOCK_PAUSE_S", 0.0)
    cluster, groups = environment.cluster, environment.groups
    cluster.topics["T"] = {"broker-a": 1, "broker-b": 1}
    cluster.down.add("broker-b")
    now_ms, late = time.time_ns() // 1_000_000, Queue("T", "broker-b", 0)

    def tell_clock(link: Link, request: Command) -> None:
        answer = answers[min(len(cluster.requests[Code.GET_BROKER_RUNTIME_INFO]), len(answers)) - 1]
        if answer is None:
            link.answer(request, Status.SYSTEM_ERROR, remark="java.util.NoSuchElementException")
        else:
            boot = answer["bootTimestamp"]
            table = answer | ({"bootTimestamp": str(now_ms + int(boot))} if boot != "?" else {})
            responds_with({"table": table})(link, request)

    cluster.on[Code.GET_BROKER_RUNTIME_INFO] = tell_clock
    consumer = await environment.join(start=StartOffset.LATEST, began_ms=now_ms - began_s_ago * 1000)
    groups.append(*[b"x"] * 5, broker="broker-b")
    groups.times[late] = [now_ms - 1000 * ago for ago in (300, 220, 170, 90, 10)]
    cluster.down.clear()
    environment.clients[0].routes.invalidate("T")
    await until(lambda: late in consumer.held)
    assert consumer.held[late].acknowledged == offset


# --- joining --------------------------------------------------------------------------------------------------------------


async def test_subscribing_to_a_missing_topic_is_fatal(environment: ScriptedEnvironment) -> None:
    with pytest.raises(ClusterError, match="topic absent") as caught:
        await environment.join(subscriptions=(everything("absent"),))
    assert caught.value.failure is Failure.FATAL


async def test_a_group_that_brokers_do_not_register_is_fatal(
    environment: ScriptedEnvironment, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(membership, "JOIN_PAUSE_S", 0)
    environment.cluster.on[Code.HEART_BEAT] = lambda link, request: link.answer(request)
    with pytest.raises(ClusterError, match="autoCreateSubscriptionGroup") as caught:
        await environment.join()
    assert caught.value.failure is Failure.FATAL


async def test_joining_while_the_topic_has_no_route_may_be_retried(
    environment: ScriptedEnvironment, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(membership, "JOIN_PAUSE_S", 0)

    def lose_topic(link: Link, request: Command) -> None:
        environment.cluster.topics.pop("T", None)
        for client in environment.clients:
            client.routes.invalidate("T")
        link.answer(request)

    environment.cluster.on[Code.HEART_BEAT] = lose_topic
    with pytest.raises(ClusterError, match="no name server knows topic T") as caught:
        await environment.join()
    assert caught.value.failure is Failure.RETRY


async def test_an_sql_filter_is_checked_before_the_first_heartbeat(environment: ScriptedEnvironment) -> None:
    environment.cluster.on[Code.CHECK_CLIENT_CONFIG] = refuses(Status.SYSTEM_ERROR, "does not support")
    with pytest.raises(ServerRefused, match="enablePropertyFilter") as caught:
        await environment.join(subscriptions=(sql92("T", "a > 5"),))
    assert caught.value.failure is Failure.FATAL
    assert environment.cluster.requests[Code.HEART_BEAT] == []


async def test_a_checked_sql_filter_is_sent_with_the_heartbeat(environment: ScriptedEnvironment) -> None:
    environment.cluster.on[Code.CHECK_CLIENT_CONFIG] = lambda link, request: link.answer(request)
    await environment.join(subscriptions=(sql92("T", "a > 5"),))
    found = CheckClient.decode(environment.cluster.requests[Code.CHECK_CLIENT_CONFIG][0].body)
    group, checked = found.group, found.subscription
    assert (group, checked.expression_type, checked.expression) == ("G", "SQL92", "a > 5")
    beat = Heartbeat.decode(environment.cluster.requests[Code.HEART_BEAT][-1].body)
    assert beat.consumers[0].subscriptions == (checked,)


async def test_a_client_cannot_join_a_group_twice(environment: ScriptedEnvironment) -> None:
    await environment.join()
    with pytest.raises(LocalProtocolError, match="needs its own client"):
        await join(environment.clients[0], ConsumerSettings("G", (everything("T"),)))
    assert environment.cluster.requests[Code.UNREGISTER_CLIENT] == []


async def test_two_groups_share_a_client(environment: ScriptedEnvironment) -> None:
    environment.groups.append(b"x")
    one = await environment.join(group="G")
    two = await join(environment.clients[0], ConsumerSettings("H", (everything("T"),), retries=False))
    environment.consumers.append(two)
    assert (await one.held[q(0)].receive()).next == (await two.held[q(0)].receive()).next == 1
    beat = Heartbeat.decode(environment.cluster.requests[Code.HEART_BEAT][-1].body)
    assert {consumer.group for consumer in beat.consumers} == {"G", "H"}


@pytest.mark.parametrize(
    "settings",
    [
        {"group": ""},
        {"subscriptions": ()},
        {"subscriptions": (everything("T"), everything("T"))},
        {"model": MessageModel.ASSIGNED},
        {"model": MessageModel.ASSIGNED, "queues": (Queue("U", "broker-a", 0),)},
        {"model": MessageModel.BROADCASTING, "orderly": True},
    ],
)
def test_contradictory_consumer_settings_are_refused(settings: dict[str, object]) -> None:
    with pytest.raises(LocalProtocolError):
        ConsumerSettings(**({"group": "G", "subscriptions": (everything("T"),)} | settings))  # type: ignore[arg-type]


def test_tag_expressions_are_parsed_and_invalid_tags_refused() -> None:
    assert parse_tags("T", " b|| a ").tags == {"a", "b"}
    assert parse_tags("T", "*") == parse_tags("T", "") == everything("T")
    assert tagged("T", ["b", "a"]).expression == "a || b"
    for bad in (["a||b"], [" a"], [""], ["*"], []):
        with pytest.raises(LocalProtocolError):
            tagged("T", bad)
    with pytest.raises(LocalProtocolError):
        sql92("T", " ")


# --- broadcasting ---------------------------------------------------------------------------------------------------------


async def test_broadcasting_members_read_everything_and_keep_their_own_offsets(environment: ScriptedEnvironment) -> None:
    environment.cluster.topics["T"] = {"broker-a": 2}
    for number in range(2):
        environment.groups.append(*[b"x"] * 3, number=number)
    stores = [MemoryOffsets(), MemoryOffsets()]
    members = [
        await environment.join(str(n), model=MessageModel.BROADCASTING, store=store, retries=True)
        for n, store in enumerate(stores)
    ]
    for member, store in zip(members, stores, strict=True):
        assert set(member.held) == {q(0), q(1)}
        for assigned in list(member.held.values()):
            assigned.commit((await assigned.receive()).next)
        await member.held.commit()
        assert store.offsets == {q(0): 3, q(1): 3}
    assert (
        environment.cluster.requests[Code.UPDATE_CONSUMER_OFFSET]
        == environment.cluster.requests[Code.QUERY_CONSUMER_OFFSET]
        == []
    )
    assert {pull.sys_flag & 1 for pull in environment.groups.pulls()} == {0}
    beat = Heartbeat.decode(environment.cluster.requests[Code.HEART_BEAT][-1].body)
    assert beat.consumers[0].message_model == "BROADCASTING"


async def test_a_broadcasting_member_continues_from_its_store_or_starts_at_the_end(environment: ScriptedEnvironment) -> None:
    environment.groups.append(*[b"x"] * 3)
    store = MemoryOffsets()
    store.offsets[q(0)] = 1
    known = await environment.assigned(instance="1", model=MessageModel.BROADCASTING, store=store, start=StartOffset.LATEST)
    assert (await known.receive()).first == 1
    new = await environment.assigned(instance="2", model=MessageModel.BROADCASTING, start=StartOffset.LATEST)
    assert new.position == 3


# --- requests of brokers --------------------------------------------------------------------------------------------------


async def test_a_reset_requested_by_a_broker_is_followed(
    environment: ScriptedEnvironment, caplog: pytest.LogCaptureFixture
) -> None:
    environment.groups.append(*[b"x"] * 6)
    assigned = await environment.assigned()
    await assigned.receive()
    header = ResetOffsetHeader("G", "T", -1).encode()
    body = ResetOffsets({q(0): 2, q(7): 1}).encode()
    with caplog.at_level(logging.WARNING):
        environment.groups.send_request(
            environment.clients[0], Command(Code.RESET_CONSUMER_CLIENT_OFFSET, header, body, flag=ONEWAY)
        )
        await until(lambda: environment.groups.committed("G") == 2)
    assert (await assigned.receive()).first == 2
    assert "administrator" in caplog.text


async def test_running_info_contains_the_held_queues_and_subscriptions(environment: ScriptedEnvironment) -> None:
    environment.groups.append(*[b"x"] * 6)
    assigned = await environment.assigned()
    await until(lambda: environment.groups.held)
    ask = Command(Code.GET_CONSUMER_RUNNING_INFO, RunningInfoHeader("G", environment.clients[0].client_id).encode(), opaque=9)
    environment.groups.send_request(environment.clients[0], ask)
    await until(lambda: [c for c in environment.cluster.requests[0] if c.is_response and c.opaque == 9])
    (answer,) = (c for c in environment.cluster.requests[0] if c.is_response and c.opaque == 9)
    info = RunningInfo.decode(answer.body)
    assert info.queues[assigned.queue]["cachedMsgCount"] == 6
    assert [subscription.topic for subscription in info.subscriptions] == ["T"]
    assert info.properties["PROP_CONSUME_TYPE"] == "CONSUME_PASSIVELY"


async def test_a_request_to_consume_a_message_directly_is_declined(environment: ScriptedEnvironment) -> None:
    await environment.assigned()
    ext = ConsumeDirectlyHeader("G", environment.clients[0].client_id).encode()
    environment.groups.send_request(environment.clients[0], Command(Code.CONSUME_MESSAGE_DIRECTLY, ext, b"record", opaque=8))
    await until(lambda: [c for c in environment.cluster.requests[0] if c.is_response])
    (answer,) = (c for c in environment.cluster.requests[0] if c.is_response)
    assert orjson.loads(answer.body)["consumeResult"] == "CR_LATER"


async def test_a_running_info_request_for_another_group_is_refused(environment: ScriptedEnvironment) -> None:
    await environment.assigned()
    ext = RunningInfoHeader("H", environment.clients[0].client_id).encode()
    environment.groups.send_request(environment.clients[0], Command(Code.GET_CONSUMER_RUNNING_INFO, ext, opaque=8))
    await until(lambda: [c for c in environment.cluster.requests[1] if c.is_response])
    (answer,) = (c for c in environment.cluster.requests[1] if c.is_response)
    assert answer.remark is not None
    assert "G" in answer.remark


async def test_a_member_change_of_a_group_that_was_left_is_ignored(environment: ScriptedEnvironment) -> None:
    consumer = await environment.join()
    link = environment.groups.members_link(environment.clients[0])
    await consumer.close()
    link.send(Command(Code.NOTIFY_CONSUMER_IDS_CHANGED, {"consumerGroup": "G"}, flag=ONEWAY))
    await asyncio.sleep(0)


@pytest.mark.parametrize("how", ["unreachable", "without the topic"])
async def test_consuming_continues_without_name_servers(environment: ScriptedEnvironment, how: str) -> None:
    """Pulls, commits and lock requests go to the brokers of the last known route."""
    environment.groups.append(b"1")
    consumer = await environment.join(orderly=True)
    (assigned,) = consumer.held.values()
    await assigned.receive()
    if how == "unreachable":
        environment.cluster.unreachable.add(NS)
        environment.cluster.link_to(NS).drop()
    else:
        environment.cluster.on[Code.GET_ROUTEINFO_BY_TOPIC] = refuses(Status.TOPIC_NOT_EXIST)
    environment.clients[0].routes.invalidate("T")
    for number in range(2, 6):
        await until(lambda: environment.groups.held)
        environment.groups.append(b"%d" % number)
        assigned.commit((await asyncio.wait_for(assigned.receive(), PATIENCE_S)).next)
    assert consumer.held.needs_locks
    await consumer.held.renew()
    assert not assigned.revoked
    await assigned.release()
    assert environment.groups.committed("G") == 5
