"""Consumers against a real broker: groups, pulls, filters, broadcasting, sending back, seeks and POP."""

import asyncio
import time
from collections import Counter
from typing import Any

import pytest

from mqbridge.errors import ClusterError, Failure, GapError, ServerRefused
from mqbridge.net.tasks import cancel, spawn
from mqbridge.rocketmq.client.consumer.broadcast_offsets import MemoryOffsets
from mqbridge.rocketmq.client.consumer.consumer_settings import MessageModel, StartOffset
from mqbridge.rocketmq.client.consumer.pulled_records import tag_of
from mqbridge.rocketmq.client.consumer.sendback import SendBack
from mqbridge.rocketmq.client.consumer.subscription import everything, sql92, tagged
from mqbridge.rocketmq.library.pop import Popped, Popper
from mqbridge.rocketmq.wire import properties
from mqbridge.rocketmq.wire.allocation_strategies import STRATEGIES, divide
from mqbridge.rocketmq.wire.bodies.groups import ConsumerData, SubscriptionData
from mqbridge.rocketmq.wire.bodies.queue import Queue
from mqbridge.rocketmq.wire.codes import Code
from mqbridge.rocketmq.wire.headers.groups import GroupHeader, ResetOffsetHeader
from tests.patience import SERVER_PATIENCE_S
from tests.rocketmq.client.real_topics import (
    BROKER,
    Environment,
    NewEnvironment,
    bodies_of,
    new_environment,
    receive,
    stream_of,
    until,
)

__all__ = ["new_environment"]

pytestmark = pytest.mark.cluster


SMOKE_TESTED = {(False, "averagely"), (True, "consistent_hash")}
"""The strategies of a group, and whether it consumes orderly, that `make test` tries; `make test-thorough` tries all."""

# --- groups ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("orderly", "strategy"),
    [
        pytest.param(orderly, strategy, marks=[] if (orderly, strategy) in SMOKE_TESTED else pytest.mark.thorough)
        for orderly in (False, True)
        for strategy in STRATEGIES
    ],
)
async def test_members_join_and_leave_without_loss_and_without_two_owners(
    new_environment: NewEnvironment, strategy: str, orderly: bool
) -> None:
    env = new_environment(8)
    settings = {"strategy": STRATEGIES[strategy], "orderly": orderly}
    sending = spawn(_send_steadily(env, 8, 25), "sending")
    one = await env.join_reading(**settings)
    await until(lambda: one.queues == list(range(8)))
    two = await env.join_reading(**settings)
    ids = env.client_ids
    share = sorted(queue.id for queue in divide(settings["strategy"], ids[1], map(env.queue, range(8)), ids))
    # By the consistent hash it is none in 3 of 100 runs.
    await until(lambda: two.queues == share and sorted(one.queues + two.queues) == list(range(8)))
    await one.close()
    await until(lambda: two.queues == list(range(8)))
    await sending
    await until(lambda: len({body for reading in (one, two) for _, _, body in reading.received}) == 200)
    await two.close()
    for number in range(8):
        committed = await (await env.client()).positions.committed(env.queue(number), env.group)
        assert committed == 25
    if orderly:  # every queue in order, whoever read it
        for reading in (one, two):
            for number in range(8):
                offsets = [offset for queue, offset, _ in reading.received if queue.id == number]
                assert offsets == sorted(offsets)


async def _send_steadily(env: Environment, queues: int, each: int) -> None:
    for n in range(each):
        for number in range(queues):
            await env.send(b"%d-%d" % (number, n), queue=number)
        await asyncio.sleep(0.1)


async def test_a_member_that_dies_is_replaced_from_its_last_commit(new_environment: NewEnvironment) -> None:
    env = new_environment(2)
    await env.send(*[b"%d" % n for n in range(10)])
    dying = await env.join()
    assigned = await stream_of(dying, env.queue())
    pulled = await receive(assigned)
    assert pulled.count == 10
    assigned.commit(pulled.next)
    await dying.held.commit()
    await env.send(b"later")
    await receive(assigned)  # not acknowledged
    await cancel(*dying._tasks)
    for connection in dying._client.pool.open_connections():
        connection.endpoint.abort(ClusterError("killed"))
    await dying._client.close()
    heir = await env.join()
    assert bodies_of(await receive(await stream_of(heir, env.queue()))) == [b"later"]


async def test_the_error_of_different_subscriptions_names_the_member_in_another_process(new_environment: NewEnvironment) -> None:
    env, other = new_environment(2), new_environment()
    ours = await env.join()
    foreign = await other.client()
    await foreign.routes.get(other.topic)
    foreign.add_consumer(ConsumerData(env.group, (SubscriptionData(other.topic),)))
    await foreign.heartbeat()
    named = f"different subscriptions: {env.topic} here, {other.topic} at .*{foreign.client_id}"

    async def all_streams() -> None:
        async for _ in ours.assigned_queues():
            pass

    with pytest.raises(ClusterError, match=named) as caught:
        await asyncio.wait_for(all_streams(), SERVER_PATIENCE_S)
    assert caught.value.failure is Failure.RETRY
    await ours.close()
    await foreign.heartbeat()  # a heartbeat of ours may have replaced its subscriptions since
    with pytest.raises(ClusterError, match=named):
        await env.join()
    await foreign.remove_consumer(env.group)
    await env.send(b"1", queue=1)
    again = await env.join()
    assert bodies_of(await receive(await stream_of(again, env.queue(1)))) == [b"1"]


async def test_a_restarted_member_continues_at_the_groups_offset(new_environment: NewEnvironment) -> None:
    env = new_environment()
    await env.send(b"1", b"2")
    first = await env.join()
    assigned = await stream_of(first, env.queue())
    assigned.commit((await receive(assigned)).next)
    await first.close()
    await env.send(b"3")
    again = await env.assigned(start=StartOffset.LATEST)
    assert bodies_of(await receive(again)) == [b"3"]


async def test_a_new_group_starts_at_the_end_of_a_new_queue(new_environment: NewEnvironment) -> None:
    env = new_environment()
    await env.send(b"old")
    assigned = await env.assigned(start=StartOffset.LATEST)
    await until(lambda: assigned.caught_up)
    await env.send(b"new")
    assert bodies_of(await receive(assigned)) == [b"new"]


async def test_a_new_group_starts_at_a_time(new_environment: NewEnvironment) -> None:
    env = new_environment()
    await env.send(b"before")
    await asyncio.sleep(0.1)
    at = time.time_ns() // 1_000_000
    await asyncio.sleep(0.1)
    await env.send(b"after")
    assigned = await env.assigned(start=StartOffset.TIMESTAMP, start_ms=at)
    assert bodies_of(await receive(assigned)) == [b"after"]


async def test_a_start_at_the_end_is_committed_even_without_messages(new_environment: NewEnvironment) -> None:
    env = new_environment()
    await env.send(b"old")
    first = await env.join(start=StartOffset.LATEST)
    assigned = await stream_of(first, env.queue())
    await until(lambda: assigned.caught_up)
    await first.close()
    await env.send(b"while nobody was there")
    assert bodies_of(await receive(await env.assigned(start=StartOffset.LATEST))) == [b"while nobody was there"]


async def test_the_error_of_a_missing_topic_names_it(new_environment: NewEnvironment) -> None:
    env = new_environment()
    with pytest.raises(ClusterError, match="no-such-topic"):
        await env.join(subscriptions=(everything("no-such-topic"),))


async def test_an_added_queue_is_read_from_its_beginning(new_environment: NewEnvironment) -> None:
    env = new_environment(1)
    reading = await env.join_reading(start=StartOffset.LATEST)
    await until(lambda: reading.queues == [0])
    await asyncio.to_thread(env.server.create_topic, env.topic, 2)
    await env.send(b"in the new queue", queue=1)
    reading.consumer._client.routes.invalidate(env.topic)
    await until(lambda: [body for _, _, body in reading.received] == [b"in the new queue"])


# --- pulling --------------------------------------------------------------------------------------------------------------


async def test_a_held_pull_returns_a_new_message_at_once(new_environment: NewEnvironment) -> None:
    env = new_environment()
    assigned = await env.assigned()
    await until(lambda: assigned.caught_up)
    for n in range(5):
        await env.send(b"%d" % n)
        assert bodies_of(await receive(assigned)) == [b"%d" % n]
        assert assigned.caught_up


async def test_a_pull_returns_more_messages_when_the_broker_allows_it(new_environment: NewEnvironment) -> None:
    env = new_environment()
    await env.send(*[b"%d" % n for n in range(100)])
    first = await env.assigned(model=MessageModel.ASSIGNED, queues=(env.queue(),), group="")
    assert (await receive(first)).count == 32
    env.server.configure({"maxTransferCountOnMessageInMemory": 1024})
    try:
        second = await env.assigned(model=MessageModel.ASSIGNED, queues=(env.queue(),), group="")
        assert (await receive(second)).count == 100
    finally:
        env.server.configure({"maxTransferCountOnMessageInMemory": 32})


async def test_memory_stays_bounded_and_every_message_is_received(new_environment: NewEnvironment) -> None:
    env = new_environment(4)
    for number in range(4):
        await env.send(*[bytes(5000)] * 100, queue=number)
    consumer = await env.join(max_bytes=200_000, retries=False)
    await until(lambda: len(consumer.held) == 4)
    most = read = 0
    async with asyncio.timeout(SERVER_PATIENCE_S):
        while read < 400:
            await asyncio.sleep(0.002)
            most = max(most, consumer.budget.held)
            for assigned in consumer.held.values():
                if (pulled := assigned.take()) is not None:
                    read += pulled.count
    assert most <= 200_000 + 4 * 32 * 5200


async def test_a_reader_leaves_nothing_behind(new_environment: NewEnvironment) -> None:
    env = new_environment()
    await env.send(b"1", b"2")
    before = await _groups(env)
    assigned = await env.assigned(model=MessageModel.ASSIGNED, queues=(env.queue(),), group="", offsets={env.queue(): 1})
    pulled = await receive(assigned)
    assert bodies_of(pulled) == [b"2"]
    assigned.commit(pulled.next)
    await assigned.release()
    assert await _groups(env) == before
    assert await (await env.client()).positions.committed(env.queue(), "TOOLS_CONSUMER") is None


async def _groups(env: Environment) -> bytes:
    client = await env.client()
    answer = await client.request(env.server.broker_address, Code.GET_ALL_SUBSCRIPTIONGROUP_CONFIG)
    return answer.body


async def test_offsets_that_do_not_exist_are_gaps(new_environment: NewEnvironment) -> None:
    env = new_environment()
    await env.send(b"1", b"2")
    assigned = await env.assigned(model=MessageModel.ASSIGNED, queues=(env.queue(),), group="", offsets={env.queue(): 9})
    with pytest.raises(GapError, match="ends at offset 2"):
        await receive(assigned)
    await assigned.seek(1)
    assert bodies_of(await receive(assigned)) == [b"2"]


# --- filters --------------------------------------------------------------------------------------------------------------


async def test_messages_are_filtered_by_tag(new_environment: NewEnvironment) -> None:
    env = new_environment()
    for n in range(40):
        await env.send(b"%d" % n, TAGS="Aa" if n % 4 == 0 else "BB" if n % 4 == 1 else "c")
    await env.send(b"untagged")
    assigned = await env.assigned(subscriptions=(tagged(env.topic, ["Aa", "x"]),))
    got: list[bytes] = []
    stored = 0
    while not (assigned.caught_up and assigned.acknowledged == 41):
        pulled = assigned.take()
        if pulled is None:
            await assigned.wait_for_change(0.1)
            continue
        got += bodies_of(pulled)
        stored += pulled.stored
        assigned.commit(pulled.next)
    assert got == [b"%d" % n for n in range(0, 40, 4)]
    assert stored == 20, "the broker compares hashes, and those of Aa and BB are equal"


async def test_messages_are_filtered_by_sql(new_environment: NewEnvironment) -> None:
    env = new_environment()
    for n in range(20):
        await env.send(b"%d" % n, size=str(n), kind="even" if n % 2 == 0 else "odd")
    assigned = await env.assigned(subscriptions=(sql92(env.topic, "size > 10 AND kind = 'even'"),))
    got: list[bytes] = []
    async with asyncio.timeout(SERVER_PATIENCE_S):
        while len(got) < 4 or not assigned.caught_up:
            pulled = await assigned.receive()
            got += bodies_of(pulled)
            assigned.commit(pulled.next)
    assert got == [b"12", b"14", b"16", b"18"]


async def test_an_invalid_sql_filter_is_refused(new_environment: NewEnvironment) -> None:
    env = new_environment()
    with pytest.raises(ServerRefused, match="size >"):
        await env.join(subscriptions=(sql92(env.topic, "size > > 3"),))


async def test_a_reader_filters_without_a_group(new_environment: NewEnvironment) -> None:
    env = new_environment()
    for n in range(6):
        await env.send(b"%d" % n, TAGS="even" if n % 2 == 0 else "odd", n=str(n))
    settings = {"model": MessageModel.ASSIGNED, "queues": (env.queue(),), "group": ""}
    by_tag = await env.assigned(subscriptions=(tagged(env.topic, ["odd"]),), **settings)
    assert bodies_of(await receive(by_tag)) == [b"1", b"3", b"5"]
    by_sql = await env.assigned(subscriptions=(sql92(env.topic, "n >= 4"),), **settings)
    assert bodies_of(await receive(by_sql)) == [b"4", b"5"]


# --- broadcasting ---------------------------------------------------------------------------------------------------------


async def test_every_broadcasting_member_reads_everything(new_environment: NewEnvironment) -> None:
    env = new_environment(3)
    stores = [MemoryOffsets(), MemoryOffsets()]
    members = [await env.join_reading(model=MessageModel.BROADCASTING, store=store) for store in stores]
    for number in range(3):
        await env.send(b"%d" % number, queue=number)
    for member in members:
        await until(lambda member=member: Counter(body for _, _, body in member.received) == Counter([b"0", b"1", b"2"]))
        await member.close()
    assert all(store.offsets == {env.queue(number): 1 for number in range(3)} for store in stores)
    await env.send(b"more")
    again = await env.join_reading(model=MessageModel.BROADCASTING, store=stores[0])
    await until(lambda: [body for _, _, body in again.received] == [b"more"])


# --- sending back ---------------------------------------------------------------------------------------------------------


async def test_a_message_sent_back_is_redelivered_through_the_retry_topic(new_environment: NewEnvironment) -> None:
    env = new_environment()
    await env.send(b"try again", KEYS="k")
    consumer = await env.join()
    assigned = await stream_of(consumer, env.queue())
    pulled = await receive(assigned)
    back = SendBack(await env.client(), env.group)
    await back.redeliver(env.queue(), pulled.records[0], 1)
    assigned.commit(pulled.next)
    retries = Queue(f"%RETRY%{env.group}", BROKER, 0)
    (record,) = (await receive(await stream_of(consumer, retries))).records
    assert (record.body, record.reconsume_times) == (b"try again", 1)
    stored = dict(properties.decode(record.properties))
    assert (stored["RETRY_TOPIC"], stored["KEYS"]) == (env.topic, "k")
    # A second time by a copy of our own: the broker does not find the message that is sent back.
    record.physical_offset += 1
    await back.redeliver(retries, record, 1)
    (again,) = (await receive(consumer.held[retries])).records
    assert (again.body, again.reconsume_times) == (b"try again", 2)
    stored = dict(properties.decode(again.properties))
    assert (stored["RETRY_TOPIC"], stored["KEYS"]) == (env.topic, "k")


@pytest.mark.parametrize("broken", [False, True], ids=["by the broker", "by a copy"])
async def test_a_dead_letter_is_stored_in_the_groups_dead_letter_topic(new_environment: NewEnvironment, broken: bool) -> None:
    env = new_environment()
    await env.send(b"hopeless", KEYS="k")
    consumer = await env.join()
    assigned = await stream_of(consumer, env.queue())
    (record,) = (await receive(assigned)).records
    await stream_of(consumer, Queue(f"%RETRY%{env.group}", BROKER, 0))
    record.physical_offset += broken
    await SendBack(await env.client(), env.group).move_to_dead_letters(env.queue(), record)
    client = await env.client()
    topic = f"%DLQ%{env.group}"
    async with asyncio.timeout(SERVER_PATIENCE_S):
        while await client.routes.get(topic, fresh=True) is None:
            await asyncio.sleep(0.1)
    queue = Queue(topic, BROKER, 0)
    reader = await env.join(model=MessageModel.ASSIGNED, group="", queues=(queue,), subscriptions=(everything(topic),))
    (dead,) = (await receive(await stream_of(reader, queue))).records
    stored = dict(properties.decode(dead.properties))
    assert (dead.body, stored["RETRY_TOPIC"], stored["KEYS"]) == (b"hopeless", env.topic, "k")


# --- seeking and resets ---------------------------------------------------------------------------------------------------


async def test_a_seek_is_committed_and_redelivers_from_its_offset(new_environment: NewEnvironment) -> None:
    env = new_environment()
    await env.send(*[b"%d" % n for n in range(6)])
    consumer = await env.join()
    assigned = await stream_of(consumer, env.queue())
    pulled = await receive(assigned)
    assigned.commit(pulled.next)
    await assigned.seek(2)
    assert await (await env.client()).positions.committed(env.queue(), env.group) == 2
    assert bodies_of(await receive(assigned)) == [b"2", b"3", b"4", b"5"]
    await assigned.seek(5)
    assert bodies_of(await receive(assigned)) == [b"5"]


async def test_a_reset_by_an_administrator_is_followed(new_environment: NewEnvironment) -> None:
    env = new_environment()
    await env.send(*[b"%d" % n for n in range(6)])
    consumer = await env.join()
    assigned = await stream_of(consumer, env.queue())
    assigned.commit((await receive(assigned)).next)
    await until(lambda: assigned.caught_up)
    await consumer.held.commit()
    header = ResetOffsetHeader(env.group, env.topic, -1, queue_id=0, offset=3)
    client = await env.client()
    await client.request(env.server.broker_address, Code.INVOKE_BROKER_TO_RESET_OFFSET, header.encode())
    pulled = await receive(assigned)
    assert (pulled.first, bodies_of(pulled)) == (3, [b"3", b"4", b"5"])
    assert not assigned.revoked
    await until(lambda: assigned.caught_up)
    assigned.commit(pulled.next)
    await consumer.close()
    assert await client.positions.committed(env.queue(), env.group) == 6


async def test_requests_of_mqadmin_for_running_info_are_answered(new_environment: NewEnvironment) -> None:
    env = new_environment(2)
    consumer = await env.join()
    await until(lambda: len(consumer.held) >= 2)
    client = await env.client()
    ext = {"consumerGroup": env.group, "clientId": consumer._client.client_id, "jstackEnable": "false"}
    answer = await client.request(env.server.broker_address, Code.GET_CONSUMER_RUNNING_INFO, ext)
    assert env.topic.encode() in answer.body
    listed = await client.request(env.server.broker_address, Code.GET_CONSUMER_CONNECTION_LIST, GroupHeader(env.group).encode())
    assert consumer._client.client_id.encode() in listed.body


# --- POP ------------------------------------------------------------------------------------------------------------------


async def pop_all(popper: Popper, count: int) -> list[tuple[Any, Any]]:
    got: list[tuple[Any, Any]] = []
    async with asyncio.timeout(SERVER_PATIENCE_S):
        while len(got) < count:
            got += (await popper.pop(BROKER)).messages
    return got


async def test_popped_messages_are_acknowledged_or_redelivered(new_environment: NewEnvironment) -> None:
    env = new_environment(2)
    for number in range(2):
        await env.send(*[b"%d-%d" % (number, n) for n in range(5)], queue=number)
    popper = Popper(await env.client(), env.group, everything(env.topic), invisible_ms=10_000, poll_ms=3000)
    got = await pop_all(popper, 10)
    assert Counter(record.body for record, _ in got) == Counter(b"%d-%d" % (a, b) for a in range(2) for b in range(5))
    kept = [receipt for record, receipt in got if record.body != b"1-4"]
    await popper.acknowledge(kept[:1])
    await popper.acknowledge(kept[1:])
    ((record, receipt),) = await pop_all(popper, 1)
    assert (record.body, receipt.retry) == (b"1-4", "1")
    await popper.acknowledge([receipt])
    assert (await popper.pop(BROKER)).messages == []


async def test_the_invisible_time_of_a_popped_message_can_be_changed(new_environment: NewEnvironment) -> None:
    env = new_environment()
    await env.send(b"x")
    popper = Popper(await env.client(), env.group, everything(env.topic), invisible_ms=60_000, poll_ms=3000)
    ((_, receipt),) = await pop_all(popper, 1)
    sooner = await popper.change_invisible(receipt, 1000)
    assert sooner.pop_time >= receipt.pop_time
    ((record, again),) = await pop_all(popper, 1)
    assert record.body == b"x"
    longer = await popper.change_invisible(again, 30_000)
    await popper.acknowledge([longer])


async def test_popped_messages_are_filtered_by_tag(new_environment: NewEnvironment) -> None:
    env = new_environment()
    await env.send(b"1", TAGS="Aa")
    await env.send(b"2", TAGS="BB")
    popper = Popper(await env.client(), env.group, tagged(env.topic, ["Aa"]), poll_ms=3000)
    ((record, receipt),) = await pop_all(popper, 1)
    assert tag_of(record) == b"Aa"
    await popper.acknowledge([receipt])


async def test_a_pop_without_messages_returns_an_empty_list(new_environment: NewEnvironment) -> None:
    env = new_environment()
    popper = Popper(await env.client(), env.group, everything(env.topic), poll_ms=1000)
    popped: Popped = await popper.pop(BROKER)
    assert popped.messages == []


async def test_the_broker_lists_the_queues_assigned_to_a_client(new_environment: NewEnvironment) -> None:
    env = new_environment(4)
    consumer = await env.join(retries=False)
    popper = Popper(consumer._client, env.group, everything(env.topic))
    found = await popper.assignments()
    assert {(one.queue.id, one.mode) for one in found} == {(n, "PULL") for n in range(4)}
