"""Acknowledgements of the first messages of a batch, on lanes that acknowledge cumulatively: an entry at a time."""

import asyncio
import time

import pytest

from mqbridge.message import Batch, Partition
from mqbridge.pulsar.adapter.lane import PulsarLane
from mqbridge.pulsar.client.consumer.subscription import Subscription
from mqbridge.pulsar.wire import ids
from mqbridge.pulsar.wire.batch import join_batch
from mqbridge.pulsar.wire.pb import PulsarApi_pb2 as pb
from mqbridge.pulsar.wire.pb.PulsarApi_pb2 import BaseCommand, SingleMessageMetadata
from tests.patience import PATIENCE_S
from tests.pulsar.client.broker import Broker, until

TOPIC = "persistent://public/default/t"


@pytest.fixture
async def lane(client) -> PulsarLane:
    consumer = await client.consumer(TOPIC, Subscription("s"))
    lane = PulsarLane(Partition("c", "t", "0", 0), consumer, 1 << 20, 1 << 20)
    yield lane
    await lane.release()


def deliver(broker: Broker, entry: int, count: int) -> None:
    """Deliver an entry with a batch of `count` messages to the newest consumer."""
    payload = join_batch((SingleMessageMetadata(), b"%d-%d" % (entry, index)) for index in range(count))
    broker.link.message(0, 1, entry, payload, metadata={"num_messages_in_batch": count})


async def batch_of(broker: Broker, lane: PulsarLane, *counts: int) -> Batch:
    """Return a batch of entries with these numbers of messages."""
    for entry, count in enumerate(counts):
        deliver(broker, entry, count)
    await until(lambda: lane._consumer.queued == len(counts))
    return await asyncio.wait_for(lane.receive(), PATIENCE_S)


def cumulative(broker: Broker) -> list[int]:
    """Return the entries of the cumulative acknowledgements, and check that each contains only whole entries."""
    acks = broker.asked[BaseCommand.ACK]
    assert all(ack.ack_type == pb.CommandAck.Cumulative and not ack.message_id[0].ack_set for ack in acks)
    return [ids.entry_id(ack.message_id[0])[1] for ack in acks]


async def test_a_prefix_acknowledges_the_entries_that_it_contains(broker: Broker, lane: PulsarLane) -> None:
    batch = await batch_of(broker, lane, 3, 1, 4)
    expected: list[int] = []
    for prefix, entry in [(0, None), (2, None), (3, 0), (1, None), (4, 1), (7, None), (3, None), (8, 2)]:
        lane.acknowledge(batch, range(prefix))
        lane._consumer.flush_acks()
        expected += [] if entry is None else [entry]
        await asyncio.sleep(0.001)
        assert cumulative(broker) == expected, f"after {prefix} messages"
    lane.acknowledge(batch)
    lane._consumer.flush_acks()
    await asyncio.sleep(0.001)
    assert set(cumulative(broker)) == {0, 1, 2}


async def test_a_batch_with_a_prefix_is_charged_until_it_is_acknowledged(broker: Broker, lane: PulsarLane) -> None:
    batch = await batch_of(broker, lane, 2, 2)
    held = lane._consumer.held_bytes
    lane.acknowledge(batch, range(3))
    assert lane._consumer.held_bytes == held > 0
    lane.acknowledge(batch)
    assert lane._consumer.held_bytes == 0


@pytest.mark.parametrize("prefix", [0, 1, 3, 5, 6])
async def test_a_rejection_redelivers_from_the_entry_that_is_not_acknowledged(
    broker: Broker, lane: PulsarLane, prefix: int
) -> None:
    batch = await batch_of(broker, lane, 3, 3)
    lane.acknowledge(batch, range(prefix))
    lane.reject(batch)
    await until(lambda: lane._consumer.registrations == 2)
    for entry in range(3):
        broker.link.message(0, 1, entry, b"again-%d" % entry, consumer_epoch=1)
    await until(lambda: lane._consumer.queued)
    again = await asyncio.wait_for(lane.receive(), PATIENCE_S)
    assert again.first == (1, prefix // 3, 0)
    lane.acknowledge(batch, range(6))
    lane._consumer.flush_acks()
    assert cumulative(broker)[-1:] == [prefix // 3 - 1] * (prefix >= 3), "the batch was rejected"


async def test_messages_that_were_acknowledged_before_do_not_count(broker: Broker, lane: PulsarLane) -> None:
    payload = join_batch((SingleMessageMetadata(), b"%d" % index) for index in range(4))
    broker.link.message(0, 1, 0, payload, metadata={"num_messages_in_batch": 4}, ack_set=[0b1100])
    deliver(broker, 1, 2)
    await until(lambda: lane._consumer.queued == 2)
    batch = await asyncio.wait_for(lane.receive(), PATIENCE_S)
    assert batch.count == 4
    lane.acknowledge(batch, range(2))
    lane._consumer.flush_acks()
    await until(lambda: cumulative(broker) == [0])


async def test_many_prefixes_of_a_large_batch_are_fast(broker: Broker, client) -> None:
    """Counting all entries for each of them would take minutes."""
    count = 5000
    lane = PulsarLane(Partition("c", "t", "0", 0), await client.consumer(TOPIC, Subscription("s")), 1 << 24, 1 << 24)
    for entry in range(count):
        broker.link.message(0, 1, entry, b"x")
    await until(lambda: lane._consumer.queued == count)
    batch = await asyncio.wait_for(lane.receive(), PATIENCE_S)
    begun = time.monotonic()
    for prefix in range(batch.count):
        lane.acknowledge(batch, range(prefix))
    assert time.monotonic() - begun < PATIENCE_S
    lane._consumer.flush_acks()
    await until(lambda: cumulative(broker)[-1:] == [batch.count - 2])
    await lane.release()
