"""Consumers of non-persistent topics: the scripted broker sends every entry with the same id, and stores nothing."""

import asyncio
import logging
import time

import pytest

from mqbridge.errors import ClusterError, Failure
from mqbridge.mapping.sequences import position_of_sequence, sequence_of
from mqbridge.pulsar.client.consumer.arrival_ids import ENTRY_BITS, ArrivalIds
from mqbridge.pulsar.client.consumer.entry_consumer import EntryConsumer
from mqbridge.pulsar.client.consumer.subscription import Subscription, Types
from mqbridge.pulsar.wire import ids
from mqbridge.pulsar.wire.entry import ENTRY_BYTES, Entry
from mqbridge.pulsar.wire.pb import PulsarApi_pb2 as pb
from mqbridge.pulsar.wire.pb.PulsarApi_pb2 import BaseCommand
from tests.patience import PATIENCE_S
from tests.pulsar.client.broker import Broker, until

pytestmark = pytest.mark.usefixtures("transcoder")

TOPIC = "non-persistent://public/default/t"
ORDERED = [Types.Exclusive, Types.Failover]
ALL = [*ORDERED, Types.Shared, Types.Key_Shared]


async def receive(broker: Broker, consumer: EntryConsumer, count: int = 1) -> Entry:
    """Send an entry with this number of messages, and receive it."""
    metadata = {"num_messages_in_batch": count} if count > 1 else {}
    broker.link.message(0, 0, 0, bytes(8 * count), metadata=metadata)
    async with asyncio.timeout(PATIENCE_S):
        return await consumer.receive()


@pytest.mark.parametrize("kind", ALL)
async def test_a_partly_acknowledged_entry_does_not_hide_messages_of_the_next(broker: Broker, client, kind: int):
    consumer = await client.consumer(TOPIC, Subscription("s", kind))
    for _ in range(3):
        entry = await receive(broker, consumer, 4)
        assert all(entry.is_due(index) for index in range(4))
        consumer.acknowledge_message(entry.id, 1, 4)
    await consumer.close()


def test_ids_ascend_also_from_one_consumer_to_the_next():
    first = ArrivalIds()
    taken = [first.take() for _ in range(100)]
    time.sleep(0.001)
    taken += [ArrivalIds().take()]
    assert sorted(set(taken)) == taken


def test_ids_continue_with_the_next_ledger():
    numbers = ArrivalIds()
    numbers._next = (7 << ENTRY_BITS) - 1
    assert [numbers.take(), numbers.take()] == [(6, (1 << ENTRY_BITS) - 1), (7, 0)]


def test_an_id_fits_into_a_sequence_id():
    position = (*ArrivalIds().take(), 3)
    assert position_of_sequence(sequence_of(position)) == position


async def test_a_failover_consumer_receives_without_a_report_that_it_is_active(broker: Broker, client):
    """A broker reports only that a consumer is passive, and nothing when that changes."""
    consumer = await client.consumer(TOPIC, Subscription("s", Types.Failover))
    broker.link.send(active_consumer_change=pb.CommandActiveConsumerChange(consumer_id=0, is_active=False))
    assert (await receive(broker, consumer)).count == 1
    assert consumer.active
    await consumer.close()


@pytest.mark.parametrize("kind", ALL)
async def test_no_acknowledgement_is_sent(broker: Broker, client, kind: int):
    """Otherwise their number would be wrong: a broker takes all entries for the same one."""
    consumer = await client.consumer(TOPIC, Subscription("s", kind))
    entry = await receive(broker, consumer)
    consumer.acknowledge(entry.id)
    consumer.flush_acks()
    await consumer.confirm_acks()
    await consumer.close()
    assert not broker.asked[BaseCommand.ACK]


@pytest.mark.parametrize("kind", ALL)
async def test_queued_entries_outlive_the_connection(broker: Broker, client, kind: int):
    consumer = await client.consumer(TOPIC, Subscription("s", kind))
    broker.link.message(0, 0, 0, b"x")
    await until(lambda: consumer.queued)
    generation = consumer.generation
    broker.link.drop()
    await until(lambda: consumer.registrations == 2)
    assert (consumer.queued, consumer.generation) == (1, generation)
    await consumer.close()
    assert consumer.held_bytes == 0


@pytest.mark.parametrize("kind", ALL)
async def test_a_rejected_message_is_reported_once_as_lost(broker: Broker, client, caplog, kind: int):
    consumer = await client.consumer(TOPIC, Subscription("s", kind))
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            consumer.redeliver([(await receive(broker, consumer)).id])
    (warning,) = caplog.messages
    assert warning == (
        f"topic {TOPIC}, subscription s: the topic is not persistent, and its broker stores nothing: "
        "messages that were rejected are not delivered again"
    )
    assert consumer.registrations == 1
    assert not broker.asked[BaseCommand.REDELIVER_UNACKNOWLEDGED_MESSAGES]
    await consumer.close()


async def test_an_overflow_drops_the_queue_and_receiving_continues(broker: Broker, client, caplog):
    consumer = await client.consumer(TOPIC, Subscription("s", max_bytes=8 * ENTRY_BYTES))
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            broker.link.message(0, 0, 0, bytes(6 * ENTRY_BYTES))
        await until(lambda: caplog.records)
    assert "queued entries exceed the receive budget and are dropped" in caplog.text
    assert (await receive(broker, consumer)).count == 1
    await consumer.close()


async def test_there_are_no_positions(broker: Broker, client):
    """GET_LAST_MESSAGE_ID fails at some brokers, so it is not sent."""
    consumer = await client.consumer(TOPIC, Subscription("s"))
    assert (await consumer.last_id(), await consumer.last_message(), await consumer.cursor()) == ((-1, -1), (-1, -1, -1), None)
    assert not await consumer.has_more()
    broker.link.message(0, 0, 0, b"x")
    await until(lambda: consumer.queued)
    assert await consumer.has_more()
    with pytest.raises(ClusterError, match="is not persistent and has no positions") as raised:
        await consumer.seek(ids.EARLIEST)
    assert raised.value.failure is Failure.FATAL
    assert not broker.asked[BaseCommand.GET_LAST_MESSAGE_ID]
    await consumer.close()


@pytest.mark.parametrize("kind", ALL)
async def test_nothing_is_kept_of_a_rejected_message(broker: Broker, client, kind: int):
    """It will be neither acknowledged nor delivered again, so its chunks and its acknowledged messages would be kept for ever."""
    consumer = await client.consumer(TOPIC, Subscription("s", kind))
    chunk = {"uuid": "u", "num_chunks_from_msg": 2, "total_chunk_msg_size": 2}
    for number in range(2):
        broker.link.message(0, 0, 0, b"x", metadata={**chunk, "chunk_id": number})
    async with asyncio.timeout(PATIENCE_S):
        chunked = await consumer.receive()
    batch = await receive(broker, consumer, 4)
    consumer.acknowledge_message(batch.id, 1, 4)
    assert (consumer._receiver_queue.chunks_of(chunked.id), len(consumer._acks.partial)) != ((chunked.id,), 0)
    consumer.redeliver([chunked.id, batch.id])
    assert (consumer._receiver_queue.chunks_of(chunked.id), len(consumer._acks.partial)) == ((chunked.id,), 0)
    await consumer.close()
