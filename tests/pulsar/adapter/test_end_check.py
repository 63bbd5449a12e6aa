"""A lane near the end of its topic: it asks for the end only if it is asked, and knows then whether it has caught up."""

import asyncio
from typing import Any
from unittest.mock import patch

import pytest

from mqbridge.adapter.receipt import MessageFailure
from mqbridge.errors import ClusterError, Failure
from mqbridge.message import Partition
from mqbridge.pulsar.adapter import end_check
from mqbridge.pulsar.adapter.lane import PulsarLane
from mqbridge.pulsar.adapter.partition_reader import PulsarReader
from mqbridge.pulsar.client.connection import handshake
from mqbridge.pulsar.client.consumer.subscription import Subscription, Types
from mqbridge.pulsar.wire.pb import PulsarApi_pb2 as pb
from mqbridge.pulsar.wire.pb.PulsarApi_pb2 import BaseCommand
from tests.kit.virtual_time import VirtualTimeLoop
from tests.patience import PATIENCE_S
from tests.pulsar.client.broker import Broker, ends_at, scripted_client, success, until

TOPIC = "persistent://public/default/t"
PARTITION = Partition("c", "t", "-1", 0)
LAST = BaseCommand.GET_LAST_MESSAGE_ID


@pytest.fixture
async def lane(broker: Broker):
    client = scripted_client()
    consumer = await client.consumer(TOPIC, Subscription("g"))
    lane = PulsarLane(PARTITION, consumer, 1 << 20, 1 << 20)
    yield lane
    await lane.release()
    await client.close()


async def iterate() -> None:
    """Let all callbacks and tasks run that wait for nothing else."""
    for _ in range(10):
        await asyncio.sleep(0)


async def receive(lane: PulsarLane) -> tuple[int, int]:
    """Receive and acknowledge a batch of one entry; return the id of the entry."""
    batch = await asyncio.wait_for(lane.receive(), PATIENCE_S)
    lane.acknowledge(batch)
    ((ledger, entry),) = [entry.id for entry in batch.data]
    return ledger, entry


async def test_receiving_sends_no_request_for_the_end(broker: Broker, lane: PulsarLane):
    for entry in range(100):
        waiting = asyncio.ensure_future(receive(lane))
        await iterate()
        broker.link.message(0, 1, entry, b"x")
        assert await waiting == (1, entry)
    assert broker.asked[LAST] == []


@pytest.mark.parametrize("kind", [Types.Exclusive, Types.Failover, Types.Shared])
def test_an_idle_lane_sends_only_pings(kind: int):
    """Except for the checks of ordered subscriptions for stalls, which are as rare as `silence_s` says."""
    broker, loop = Broker(), VirtualTimeLoop()

    async def idle_for_an_hour() -> None:
        client = scripted_client()
        consumer = await client.consumer(TOPIC, Subscription("g", kind, silence_s=7200.0))
        broker.link.send(active_consumer_change=pb.CommandActiveConsumerChange(consumer_id=0, is_active=True))
        lane = PulsarLane(PARTITION, consumer, 1 << 20, 1 << 20)
        waiting = asyncio.ensure_future(lane.receive())
        await asyncio.sleep(1.0)
        asked = {command: len(bodies) for command, bodies in broker.asked.items()}
        await asyncio.sleep(3600.0)
        added = {command: len(bodies) - asked.get(command, 0) for command, bodies in broker.asked.items()}
        assert {command for command, count in added.items() if count} == {BaseCommand.PING}
        assert broker.asked[LAST] == []
        broker.link.message(0, 1, 0, b"x")
        assert (await waiting).data[0].id == (1, 0)
        await lane.release()
        await client.close()

    with patch.object(handshake, "dial", broker.dial):
        loop.run_until_complete(idle_for_an_hour())
    loop.close()


async def test_a_lane_is_caught_up_only_after_it_was_asked(broker: Broker, lane: PulsarLane):
    waiting = asyncio.ensure_future(receive(lane))
    await iterate()
    assert not lane.caught_up
    assert await lane.confirm_caught_up()
    assert lane.caught_up
    broker.on[LAST] = ends_at(1, 0)
    assert not await lane.confirm_caught_up(), "the entry is stored, but was not received"
    assert not lane.caught_up
    broker.link.message(0, 1, 0, b"x")
    await waiting
    assert await lane.confirm_caught_up()
    broker.link.message(0, 1, 1, b"y")
    assert not lane.caught_up, "an entry is queued"
    assert await receive(lane) == (1, 1)
    assert not lane.caught_up
    assert len(broker.asked[LAST]) == 3


async def test_an_entry_that_arrives_while_the_broker_is_asked_is_delivered(broker: Broker, lane: PulsarLane):
    held: list[tuple[Any, Any]] = []
    broker.on[LAST] = lambda *asked: held.append(asked)
    waiting, asking = asyncio.ensure_future(receive(lane)), asyncio.ensure_future(lane.confirm_caught_up())
    await until(lambda: bool(held))
    broker.link.message(0, 1, 0, b"x")
    assert await waiting == (1, 0)
    ends_at(-1, -1)(*held[0])  # as if the broker had read its end before it stored the entry
    assert not await asking
    assert not lane.caught_up


async def test_a_response_from_before_a_reconnection_is_ignored(broker: Broker, lane: PulsarLane):
    """The broker may have stored entries meanwhile, and the consumer has not received them over the new connection."""
    answered = asyncio.Event()

    async def has_more() -> bool:
        await answered.wait()
        return False

    with patch.object(lane._consumer, "has_more", has_more):
        asking = asyncio.ensure_future(lane.confirm_caught_up())
        await iterate()
        lane._consumer.redeliver()  # subscribes again
        await until(lambda: lane._consumer.registrations == 2)
        answered.set()
        assert not await asking
    assert not lane.caught_up


async def test_a_lane_without_a_connection_is_not_caught_up(broker: Broker, lane: PulsarLane):
    assert await lane.confirm_caught_up()
    lane._consumer.redeliver()
    assert not lane.caught_up, "the consumer is not subscribed"
    await until(lambda: lane._consumer.registrations == 2)
    assert not lane.caught_up


async def test_a_response_from_before_a_seek_is_ignored(broker: Broker, lane: PulsarLane):
    broker.link.message(0, 1, 0, b"x")
    assert await receive(lane) == (1, 0)
    broker.on[LAST] = ends_at(1, 0)
    seen: list[bool] = []

    async def answer(*sought: Any) -> None:
        seen.append(await lane.confirm_caught_up())
        success(*sought)

    answers: list[asyncio.Task[None]] = []
    broker.on[BaseCommand.SEEK] = lambda *sought: answers.append(asyncio.ensure_future(answer(*sought)))
    await lane.seek((1, 0))
    assert len(seen) == 1
    assert not lane.caught_up


async def test_a_lost_connection_ends_being_caught_up_until_the_lane_is_asked_again(broker: Broker, lane: PulsarLane):
    waiting = asyncio.ensure_future(lane.receive())
    assert await lane.confirm_caught_up()
    broker.link.drop()
    await until(lambda: not lane.caught_up)
    await until(lambda: lane._consumer.registrations == 2)
    assert not lane.caught_up
    assert await lane.confirm_caught_up()
    assert lane.caught_up
    waiting.cancel()


async def test_a_broker_that_cannot_be_asked_raises(broker: Broker, lane: PulsarLane):
    broker.on[LAST] = lambda link, frame: link.error(frame.command.getLastMessageId.request_id, pb.AuthorizationError)
    with pytest.raises(ClusterError) as refused:
        await lane.confirm_caught_up()
    assert refused.value.failure is Failure.FATAL
    broker.on[LAST] = ends_at(-1, -1)
    assert await lane.confirm_caught_up()


@pytest.mark.parametrize("delay_s", [0.0, 60.0])
async def test_the_end_is_not_reached_while_a_redelivery_is_expected(
    broker: Broker, delay_s: float, monkeypatch: pytest.MonkeyPatch
):
    """The topic's newest entry was delivered and rejected on a shared subscription."""
    monkeypatch.setattr(end_check, "REDELIVERY_WAIT_S", 1e6)
    broker.on[LAST] = ends_at(1, 0)
    client = scripted_client()
    lane = PulsarLane(PARTITION, await client.consumer(TOPIC, Subscription("g", Types.Shared)), 1 << 20, 1 << 20)
    broker.link.message(0, 1, 0, b"x")
    batch = await asyncio.wait_for(lane.receive(), PATIENCE_S)
    assert await lane.confirm_caught_up(), "the gateway counts the batch as in flight"
    lane.reject(batch, [MessageFailure(0, Failure.RETRY, "not now")], delay_s)
    assert not lane.caught_up
    asked = len(broker.asked[LAST])
    assert not await lane.confirm_caught_up()
    assert len(broker.asked[LAST]) == asked + 1, "the broker must be asked whether it is there"
    monkeypatch.setattr(lane._end_check, "_no_end_before", 0.0)
    assert await lane.confirm_caught_up(), "another member received it"
    await lane.release()
    await client.close()


async def test_a_range_is_read_with_few_requests_for_the_end(broker: Broker):
    """The entries arrive one by one, so the receiver queue runs empty after each of them."""
    client, count = scripted_client(), 100
    broker.on[LAST] = ends_at(1, count - 1)
    positions: list[Any] = []
    async for batch in _feeding(broker, PulsarReader(client, PARTITION, TOPIC, (1, 0, 0), (1, count, 0), PATIENCE_S), count):
        positions += [message.position for message in batch.messages]
    assert [position[1] for position in positions] == list(range(count))
    assert len(broker.asked[LAST]) < count // 2
    await client.close()


async def _feeding(broker: Broker, reader: PulsarReader, count: int):
    """Yield the batches of the reader, and send it an entry whenever it waits."""

    async def feed() -> None:
        await until(lambda: bool(broker.asked[BaseCommand.FLOW]))
        for entry in range(count):
            broker.link.message(broker.asked[BaseCommand.SUBSCRIBE][0].consumer_id, 1, entry, b"x")
            await iterate()

    feeding = asyncio.ensure_future(feed())
    while (batch := await reader.receive()) is not None:
        yield batch
    await feeding
    await reader.close()


async def test_a_lane_with_an_incomplete_message_has_not_caught_up(broker: Broker, lane: PulsarLane):
    """The message will be delivered, also if its last chunk never comes."""
    broker.on[LAST] = ends_at(1, 0)
    broker.link.message(0, 1, 0, b"x")
    assert await receive(lane) == (1, 0)
    assert await lane.confirm_caught_up()
    metadata = {"uuid": "u", "chunk_id": 0, "num_chunks_from_msg": 2, "total_chunk_msg_size": 2}
    broker.link.message(0, 1, 1, b"x", metadata=metadata)
    await iterate()
    assert not lane.caught_up
    broker.on[LAST] = ends_at(1, 1)
    assert not await lane.confirm_caught_up()
