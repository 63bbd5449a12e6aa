"""Reading of a retry queue continues after refusals and deleted messages; its lanes end with the queue."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from mqbridge.errors import ClusterError, LaneRevoked, MqbridgeError, ServerRefused
from mqbridge.rocketmq.adapter import retry_queue
from mqbridge.rocketmq.adapter.retry_lane import RetryLane
from mqbridge.rocketmq.adapter.retry_queue import RetryQueue
from mqbridge.rocketmq.client.consumer.assigned_queue import AssignedQueue
from mqbridge.rocketmq.wire import properties
from mqbridge.rocketmq.wire.bodies.queue import Queue
from mqbridge.rocketmq.wire.codes import Code, Status
from mqbridge.rocketmq.wire.properties import Name
from mqbridge.rocketmq.wire.record import Record, encode_record
from tests.patience import PATIENCE_S
from tests.rocketmq.client.broker import refuses, until
from tests.rocketmq.client.conftest import cluster
from tests.rocketmq.client.groups import ScriptedEnvironment, environment, offset_moved

__all__ = ["cluster", "environment"]

QUEUE = Queue("T", "broker-a", 0)


class Retries:
    """A retry queue of a scripted Broker. This member consumes topic `orders`; messages of other topics are sent back."""

    def __init__(
        self, environment: ScriptedEnvironment, assigned: AssignedQueue, send_back: Callable[[Record], Awaitable[None]]
    ) -> None:
        self.environment, self.assigned = environment, assigned
        self.reported: list[RetryLane | MqbridgeError] = []
        self.queue = RetryQueue(assigned, "c", ["orders"], self.reported.append, send_back)

    async def lane(self) -> RetryLane:
        await until(lambda: self.reported)
        lane = self.reported[0]
        assert isinstance(lane, RetryLane)
        return lane


def store(environment: ScriptedEnvironment, *messages: tuple[str, bytes]) -> None:
    log = environment.groups.log()
    for topic, body in messages:
        stored = properties.encode([(Name.RETRY_TOPIC, topic)])
        log.records.append(encode_record(Record("T", body, stored, queue_offset=log.end)))


async def fail_on_send_back(record: Record) -> None:
    raise AssertionError(f"{record} was sent back")


async def test_a_refused_send_back_is_retried(environment: ScriptedEnvironment, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retry_queue, "MIN_PAUSE_S", 0.001)
    store(environment, ("others", b"1"), ("orders", b"2"))
    sent: list[bytes] = []

    async def send_back(record: Record) -> None:
        if len(sent) < 2:
            sent.append(b"refused")
            raise ClusterError("the broker is busy")
        sent.append(record.body)

    retries = Retries(environment, await environment.assigned(), send_back)
    batch = await asyncio.wait_for((await retries.lane()).receive(), PATIENCE_S)
    assert [message.payload for message in batch.messages] == [b"2"]
    assert sent == [b"refused", b"refused", b"1"]
    await retries.queue.release()


async def test_a_gap_is_skipped_and_the_queue_continues(
    environment: ScriptedEnvironment, caplog: pytest.LogCaptureFixture
) -> None:
    store(environment, *[("orders", b"%d" % n) for n in range(10)])
    environment.groups.offsets["G", QUEUE] = 2
    environment.groups.log().first = 6
    retries = Retries(environment, await environment.assigned(), fail_on_send_back)
    batch = await asyncio.wait_for((await retries.lane()).receive(), PATIENCE_S)
    assert (batch.first, batch.next, len(batch.messages)) == ((6,), (10,), 4)
    assert "messages that members sent back are lost" in caplog.text
    await retries.queue.release()


async def test_a_gap_is_skipped_only_after_the_messages_before_it_are_stored(environment: ScriptedEnvironment) -> None:
    """Skipping the gap commits an offset after it, so all messages delivered before must be stored first."""
    store(environment, *[("orders", b"%d" % n) for n in range(2)])
    assigned = await environment.assigned()
    retries = Retries(environment, assigned, fail_on_send_back)
    lane = await retries.lane()
    batch = await lane.receive()
    await until(lambda: environment.groups.held)
    store(environment, *[("orders", b"%d" % n) for n in range(2, 10)])
    environment.groups.log().first = 6
    offset_moved(6, 6, 10, "OFFSET_TOO_SMALL")(*environment.groups.held.pop())
    await until(lambda: assigned.state.gap_at == 2)
    await asyncio.sleep(0.01)
    assert (assigned.state.gap_at, assigned.acknowledged) == (2, 0)
    lane.acknowledge(batch)
    assert (await asyncio.wait_for(lane.receive(), PATIENCE_S)).first == (6,)
    await retries.queue.release()


async def test_acknowledgements_from_before_a_reset_commit_nothing(environment: ScriptedEnvironment) -> None:
    """An administrator resets the group to an earlier offset; the messages are delivered and acknowledged again."""
    store(environment, *[("orders", b"%d" % n) for n in range(3)])
    assigned = await environment.assigned()
    retries = Retries(environment, assigned, fail_on_send_back)
    lane = await retries.lane()
    old = await lane.receive()
    await assigned.reset(0, "because an administrator reset it")
    again = await asyncio.wait_for(lane.receive(), 5)
    assert (old.next, again.first, again.next) == ((3,), (0,), (3,))
    lane.acknowledge(old)
    assert assigned.acknowledged == 0
    lane.acknowledge(again)
    assert assigned.acknowledged == 3
    await retries.queue.release()


async def test_after_a_revocation_no_buffered_message_is_delivered(environment: ScriptedEnvironment) -> None:
    store(environment, ("orders", b"1"), ("other", b"-"), ("orders", b"2"))

    async def send_back(_: Record) -> None:
        pass

    retries = Retries(environment, await environment.assigned(), send_back)
    lane = await retries.lane()
    batch = await lane.receive()
    await until(lambda: retries.queue.assigned.position == 3)
    await retries.assigned.revoke()
    assert lane.revoked.is_set()
    with pytest.raises(LaneRevoked):
        await lane.receive()
    lane.acknowledge(batch)
    assert environment.groups.committed("G") in (None, 0)


async def test_a_revocation_ends_a_waiting_receive(environment: ScriptedEnvironment) -> None:
    store(environment, ("orders", b"1"))
    retries = Retries(environment, await environment.assigned(), fail_on_send_back)
    lane = await retries.lane()
    await lane.receive()
    waiting = asyncio.ensure_future(lane.receive())
    await asyncio.sleep(0)
    await retries.assigned.revoke()
    with pytest.raises(LaneRevoked):
        await asyncio.wait_for(waiting, PATIENCE_S)


async def test_releasing_a_lane_releases_the_queue(environment: ScriptedEnvironment) -> None:
    store(environment, ("orders", b"1"))
    consumer = await environment.join()
    assigned = consumer.held[QUEUE]
    retries = Retries(environment, assigned, fail_on_send_back)
    lane = await retries.lane()
    lane.acknowledge(await lane.receive())
    await lane.release()
    assert environment.groups.committed("G") == 1
    await until(lambda: consumer.held.get(QUEUE) not in (None, assigned))


async def test_a_fatal_error_is_reported_even_without_a_lane(environment: ScriptedEnvironment) -> None:
    environment.cluster.on[Code.PULL_MESSAGE] = refuses(Status.SUBSCRIPTION_GROUP_NOT_EXIST)
    retries = Retries(environment, await environment.assigned(), fail_on_send_back)
    await until(lambda: retries.reported)
    assert isinstance(retries.reported[0], ServerRefused)
    await retries.queue.release()


async def test_bytes_count_against_the_budget_until_the_batch_is_acknowledged_or_rejected(
    environment: ScriptedEnvironment,
) -> None:
    store(environment, ("orders", bytes(500)), ("others", b"-"), ("orders", bytes(700)))

    async def send_back(_: Record) -> None:
        pass

    consumer = await environment.join()
    retries = Retries(environment, consumer.held[QUEUE], send_back)
    lane = await retries.lane()
    await until(lambda: retries.queue.assigned.position == 3 and not retries.queue.assigned.state.buffered)
    everything = sum(map(len, environment.groups.log().records))
    assert consumer.budget.held == everything
    first, second = await lane.receive(), await lane.receive()
    lane.acknowledge(first)
    lane.reject(second)
    again = await lane.receive()
    lane.acknowledge(again)
    assert consumer.budget.held == 0
    await retries.queue.release()


async def test_behind_a_message_that_is_not_stored_no_stored_message_is_held(environment: ScriptedEnvironment) -> None:
    sent = 0

    async def send_back(_: Record) -> None:
        nonlocal sent
        sent += 1

    store(environment, ("orders", b"1"), *[("others", b"-"), ("third", b"-")] * 500)
    retries = Retries(environment, await environment.assigned(), send_back)
    batch = await (lane := await retries.lane()).receive()
    await until(lambda: sent == 1000)
    assert sum(len(portion.records) for portion in retries.queue._portions) == 1
    assert len(retries.queue._portions) <= retry_queue.MERGE_PORTIONS
    lane.acknowledge(batch)
    assert not retries.queue._portions
    assert retries.assigned.acknowledged == 1001
    await retries.queue.release()


async def test_what_is_acknowledged_inside_a_batch_is_committed_and_does_not_come_again(environment: ScriptedEnvironment) -> None:
    store(environment, *[("orders", b"%d" % number) for number in range(10)])
    assigned = await environment.assigned()
    retries = Retries(environment, assigned, fail_on_send_back)
    lane = await retries.lane()
    batch = await asyncio.wait_for(lane.receive(), PATIENCE_S)
    for count in (0, 3, 6, 2):
        lane.acknowledge(batch, range(count))
    assert assigned.acknowledged == 6, "an earlier message than before changes nothing"
    lane.reject(batch)
    again = await asyncio.wait_for(lane.receive(), PATIENCE_S)
    assert [message.payload for message in again.messages] == [b"6", b"7", b"8", b"9"]
    assert again.first == (6,)
    lane.acknowledge(again, range(2))
    assert assigned.acknowledged == 8
    lane.acknowledge(again)
    assert assigned.acknowledged == 10
    await retries.queue.release()
    assert environment.groups.committed("G") == 10


async def test_what_is_acknowledged_inside_a_batch_waits_for_earlier_messages(environment: ScriptedEnvironment) -> None:
    """The two lanes share the queue: its offset passes what both have acknowledged."""
    store(environment, *[("orders", b"%d" % number) for number in range(2)], *[("bills", b"%d" % number) for number in range(4)])
    assigned = await environment.assigned()
    reported: list[RetryLane | MqbridgeError] = []
    queue = RetryQueue(assigned, "c", ["orders", "bills"], reported.append, fail_on_send_back)
    await until(lambda: len(reported) == 2)
    lanes = {lane.partition.topic: lane for lane in reported if isinstance(lane, RetryLane)}
    batches = {topic: await asyncio.wait_for(lane.receive(), PATIENCE_S) for topic, lane in lanes.items()}
    lanes["bills"].acknowledge(batches["bills"], range(3))
    assert assigned.acknowledged == 0
    lanes["orders"].acknowledge(batches["orders"], range(2))
    assert assigned.acknowledged == 2, "its last message is acknowledged, and the batch stays in flight"
    lanes["orders"].acknowledge(batches["orders"])
    assert assigned.acknowledged == 5
    lanes["bills"].acknowledge(batches["bills"], range(4))
    lanes["bills"].reject(batches["bills"])
    assert assigned.acknowledged == 6, "nothing of the batch is left to deliver again"
    await queue.release()


async def test_a_queue_that_announces_its_release_delivers_no_buffered_messages(environment: ScriptedEnvironment) -> None:
    store(environment, *[("orders", b"%d" % number) for number in range(4)])
    environment.groups.log().limit = 2
    assigned = await environment.assigned()
    retries = Retries(environment, assigned, fail_on_send_back)
    lane = await retries.lane()
    batch = await asyncio.wait_for(lane.receive(), PATIENCE_S)
    await until(lambda: lane._buffered)
    assigned.announce_release(PATIENCE_S)
    assert lane.releasing.is_set()
    receiving = asyncio.ensure_future(lane.receive())
    await asyncio.sleep(0.01)
    assert not receiving.done()
    lane.acknowledge(batch)
    await lane.release()
    with pytest.raises(LaneRevoked):
        await receiving
    assert environment.groups.committed("G") == 2
