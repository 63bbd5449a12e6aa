"""Entry producers, consumers and readers against a real Pulsar."""

import asyncio
import time
from uuid import uuid4

import pytest

from mqbridge.errors import ClusterError, Failure, ServerRefused
from mqbridge.pulsar.client.consumer.subscription import Subscription, Types
from mqbridge.pulsar.wire import ids
from mqbridge.pulsar.wire.compression import CODEC_NUMBERS
from mqbridge.pulsar.wire.pb.PulsarApi_pb2 import MessageMetadata
from tests.kit.pulsar import Pulsar
from tests.patience import SERVER_PATIENCE_S
from tests.pulsar.conftest import client_of, no_subscriptions
from tests.pulsar.entries import batch, drain, numbers, payloads, send_all, take

pytestmark = pytest.mark.cluster


def path_of(topic: str) -> str:
    return topic.replace("://", "/")


# --- topics -----------------------------------------------------------------------------------------------------------


async def test_partitions_of_existing_and_missing_topics(pulsar, client):
    assert await client.partitions(pulsar.take_topic(3)) == 3
    assert await client.partitions(pulsar.take_topic()) == 0
    missing = f"persistent://public/default/none-{uuid4().hex}"
    assert await client.partitions(missing) is None
    assert await client.partitions(missing) is None, "asking must not create it"
    # A topic without partitions is not created by a metadata request, only by a producer or consumer.
    assert await client.partitions(missing, create=True) == 0
    assert await client.partitions(missing) is None
    producer = client.producer(missing)
    await producer.opened()
    assert await client.partitions(missing) == 0
    await producer.close()


async def test_topics_of_a_namespace(pulsar, client):
    namespace = pulsar.create_namespace("acme", f"ns-{uuid4().hex[:6]}")
    pulsar.create_topic("one", 2, namespace=namespace)
    pulsar.create_topic("two", namespace=namespace)
    found = await client.topics(namespace)
    assert sorted(found) == [f"persistent://{namespace}/{name}" for name in ("one-partition-0", "one-partition-1", "two")]


async def test_an_unknown_namespace_and_a_bad_name_are_fatal(client):
    for topic in ("persistent://nobody/nowhere/x", "persistent://public/default"):
        producer = client.producer(topic)
        with pytest.raises(ClusterError) as caught:
            await producer.opened()
        assert caught.value.failure is Failure.FATAL
        with pytest.raises(ClusterError):
            await producer.send(MessageMetadata(), b"x")
        await producer.close()


# --- produce and consume ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("codec", sorted(CODEC_NUMBERS))
async def test_batches_of_every_compression_are_received_in_order(pulsar, client, subscribe, codec):
    topic = pulsar.take_topic()
    sent = [[b"%d-%d " % (entry, number) * 50 for number in range(100)] for entry in range(20)]
    producer = client.producer(topic, codec=CODEC_NUMBERS[codec])
    receipts = await asyncio.gather(*[producer.send(*batch(messages)) for messages in sent])
    assert [(receipt.ledger, receipt.entry) for receipt in receipts] == [(receipts[0].ledger, number) for number in range(20)]
    consumer = await subscribe(topic)
    entries = await take(consumer, 20)
    assert [payloads(entry) for entry in entries] == sent
    assert {entry.metadata.compression for entry in entries} == {CODEC_NUMBERS[codec]}
    assert [entry.metadata.sequence_id for entry in entries] == [number * 100 for number in range(20)]
    assert not await consumer.has_more()
    await producer.close()


async def test_the_producer_sets_its_own_metadata_fields(pulsar, client, subscribe):
    topic = pulsar.take_topic()
    producer = client.producer(topic, name="me")
    before = time.time_ns() // 1_000_000
    await producer.send(*batch([b"a", b"b"]))
    await producer.send(MessageMetadata(publish_time=7), b"c", sequence_id=100)
    await producer.send(MessageMetadata(), b"d")
    one, two, three = (entry.metadata for entry in await take(await subscribe(topic), 3))
    assert (one.producer_name, one.sequence_id, one.highest_sequence_id) == ("me", 0, 1)
    assert before <= one.publish_time <= time.time_ns() // 1_000_000
    assert (two.sequence_id, two.publish_time, three.sequence_id) == (100, 7, 101)
    await producer.close()


async def test_a_deduplicating_broker_drops_stored_entries(pulsar, client, subscribe):
    namespace = pulsar.create_namespace("acme", f"dedup-{uuid4().hex[:6]}")
    pulsar.admin("POST", f"namespaces/{namespace}/deduplication", True)
    topic = pulsar.create_topic("t", namespace=namespace)
    producer = client.producer(topic, name="me")
    first = await producer.send(MessageMetadata(), b"0", sequence_id=5)
    await producer.send(MessageMetadata(), b"1", sequence_id=9)
    await producer.close()
    again = client.producer(topic, name="me")
    await again.opened()
    assert (first.duplicate, again.last_sequence_id) == (False, 9)
    repeated = await again.send(MessageMetadata(), b"1", sequence_id=9)
    assert (repeated.duplicate, again.duplicates) == (True, 1)
    await again.send(MessageMetadata(), b"2", sequence_id=10)
    assert numbers(await drain(await subscribe(topic))) == [0, 1, 2]
    await again.close()


async def test_a_message_that_is_too_large_fails_alone(pulsar, client, subscribe):
    topic = pulsar.take_topic()
    producer = client.producer(topic)
    await producer.opened()
    limit = 5 << 20
    sent = [producer.send(MessageMetadata(), payload) for payload in (b"0", bytes(limit + 1), bytes(limit), b"1")]
    done = await asyncio.gather(*sent, return_exceptions=True)
    assert isinstance(done[1], ClusterError)
    assert done[1].failure is Failure.REFUSED
    entries = await take(await subscribe(topic), 3)
    assert [len(entry.payload) for entry in entries] == [1, limit, 1]
    await producer.close()


async def test_compression_makes_a_large_message_small_enough(pulsar, client, subscribe):
    topic = pulsar.take_topic()
    producer = client.producer(topic, codec=CODEC_NUMBERS["zstd"])
    await producer.send(MessageMetadata(), bytes(20 << 20))
    (entry,) = await take(await subscribe(topic), 1)
    assert entry.payload == bytes(20 << 20)
    await producer.close()


async def test_many_producers_share_the_window_of_a_connection(pulsar, client, subscribe):
    topics = [pulsar.take_topic() for _ in range(3)]
    producers = [client.producer(topic) for topic in topics]
    await asyncio.gather(*[send_all(producer, 0, 2000) for producer in producers])
    for topic in topics:
        assert numbers(await drain(await subscribe(topic))) == list(range(2000))
    await asyncio.gather(*[producer.close() for producer in producers])


async def test_a_producer_waits_while_its_name_is_in_use(pulsar, client):
    topic = pulsar.take_topic()
    holder = client.producer(topic, name="one")
    await holder.opened()
    waiter = client.producer(topic, name="one")
    sent = waiter.send(MessageMetadata(), b"0")
    await asyncio.sleep(0.5)
    assert not sent.done()
    await holder.close()
    await asyncio.wait_for(sent, SERVER_PATIENCE_S)
    await waiter.close()


# --- the broker goes away ---------------------------------------------------------------------------------------------


async def test_unloading_the_topic_loses_nothing_and_keeps_the_order(pulsar, client, subscribe):
    topic = pulsar.take_topic()
    producer = client.producer(topic)
    consumer = await subscribe(topic)
    await producer.opened()
    sent = []
    for round_number in range(4):
        sent += [producer.send(MessageMetadata(), b"%d" % (round_number * 500 + number)) for number in range(500)]
        await asyncio.sleep(0)
        await asyncio.to_thread(pulsar.admin, "PUT", f"{path_of(topic)}/unload")
    await asyncio.wait_for(asyncio.gather(*sent), SERVER_PATIENCE_S)
    seen = numbers(await drain(consumer))
    assert sorted(set(seen)) == list(range(2000))
    assert consumer.registrations > 1
    # Entries stored before the unload without a receipt may be stored again: as a repeated sequence, never out of order.
    assert list(dict.fromkeys(seen)) == list(range(2000))
    await producer.close()


@pytest.mark.thorough
async def test_a_broker_restart_loses_nothing():
    with Pulsar() as pulsar:
        client = client_of(pulsar.service_url)
        topic = pulsar.create_topic("t")
        # A restart closes the ledger, and the broker then deletes entries that no subscription has yet to acknowledge.
        consumer = await client.consumer(topic, Subscription("after"))
        await consumer.close()
        producer = client.producer(topic)
        await send_all(producer, 0, 100)
        stop = asyncio.create_task(asyncio.to_thread(pulsar.restart))
        sent = []
        for number in range(100, 1100):
            sent.append(producer.send(MessageMetadata(), b"%d" % number))
            await asyncio.sleep(0.002)
        await stop
        await asyncio.wait_for(asyncio.gather(*sent), SERVER_PATIENCE_S)
        await producer.close()
        consumer = await client.consumer(topic, Subscription("after"))
        seen = numbers(await drain(consumer))
        assert list(dict.fromkeys(seen)) == list(range(1100))
        await consumer.close()
        await client.close()


async def test_a_terminated_topic_is_fatal(pulsar, client):
    topic = pulsar.take_topic()
    producer = client.producer(topic)
    await producer.send(MessageMetadata(), b"0")
    pulsar.admin("POST", f"{path_of(topic)}/terminate")
    with pytest.raises(ClusterError) as caught:
        await asyncio.wait_for(producer.send(MessageMetadata(), b"1"), SERVER_PATIENCE_S)
    assert caught.value.failure is Failure.FATAL
    await producer.close()


# --- subscriptions ----------------------------------------------------------------------------------------------------


async def test_an_exclusive_subscription_refuses_a_second_consumer(pulsar, subscribe):
    topic = pulsar.take_topic()
    await subscribe(topic, "one")
    with pytest.raises(ServerRefused) as caught:
        await subscribe(topic, "one")
    assert caught.value.failure is Failure.FATAL
    with pytest.raises(ServerRefused):
        await subscribe(topic, "one", type=Types.Shared)


async def test_failover_delivers_to_one_and_then_to_the_other(pulsar, client, subscribe):
    topic = pulsar.take_topic()
    producer = client.producer(topic)
    await send_all(producer, 0, 10)
    consumers = {name: await subscribe(topic, "f", type=Types.Failover, consumer_name=name) for name in "ab"}
    chosen = ""
    async with asyncio.timeout(SERVER_PATIENCE_S):
        while chosen not in consumers:
            chosen = pulsar.admin("GET", f"{path_of(topic)}/stats")["subscriptions"]["f"].get("activeConsumerName", "")
            await asyncio.sleep(0.01)
        # The broker has chosen the active consumer by a hash of the names; it informs both about a second later.
        first, second = consumers.pop(chosen), *consumers.values()
        await first.wait_active(True)
        await second.wait_active(False)
    entries = await take(first, 10)
    first.acknowledge_up_to((entries[4].ledger, entries[4].entry))
    await first.close()
    await asyncio.wait_for(second.wait_active(True), SERVER_PATIENCE_S)
    assert numbers(await take(second, 5)) == [5, 6, 7, 8, 9]
    await producer.close()


async def test_shared_consumers_divide_the_entries(pulsar, client, subscribe):
    topic = pulsar.take_topic()
    producer = client.producer(topic)
    consumers = [await subscribe(topic, "s", type=Types.Shared) for _ in range(2)]
    await send_all(producer, 0, 200)
    found: list[list[int]] = [[], []]

    async def read(index: int) -> None:
        while True:
            entry = await consumers[index].receive()
            found[index] += numbers([entry])
            consumers[index].acknowledge((entry.ledger, entry.entry))

    readers = [asyncio.ensure_future(read(index)) for index in range(2)]
    async with asyncio.timeout(SERVER_PATIENCE_S):
        while len(found[0]) + len(found[1]) < 200:
            await asyncio.sleep(0.01)
    for reader in readers:
        reader.cancel()
    assert sorted(found[0] + found[1]) == list(range(200))
    assert all(found)
    await producer.close()


async def test_key_shared_keeps_a_key_with_one_consumer(pulsar, client, subscribe):
    topic = pulsar.take_topic()
    producer = client.producer(topic)
    consumers = [await subscribe(topic, "k", type=Types.Key_Shared, consumer_name=name) for name in "ab"]
    keys = [f"key-{number % 20}" for number in range(200)]
    await asyncio.gather(*[producer.send(MessageMetadata(partition_key=key), b"x") for key in keys])
    owners: dict[str, set[int]] = {}
    total = 0
    async with asyncio.timeout(SERVER_PATIENCE_S):
        while total < 200:
            for index, consumer in enumerate(consumers):
                while (entry := consumer.take()) is not None:
                    owners.setdefault(entry.metadata.partition_key, set()).add(index)
                    consumer.acknowledge((entry.ledger, entry.entry))
                    total += 1
            await asyncio.sleep(0.01)
    assert len(owners) == 20
    assert all(len(indexes) == 1 for indexes in owners.values())
    await producer.close()


# --- acknowledgements -------------------------------------------------------------------------------------------------


async def test_a_cumulative_acknowledgement_survives_the_reconnection(pulsar, client, subscribe):
    topic = pulsar.take_topic()
    producer = client.producer(topic)
    await send_all(producer, 0, 10)
    consumer = await subscribe(topic, "c")
    entries = await take(consumer, 10)
    consumer.acknowledge_up_to((entries[6].ledger, entries[6].entry))
    await consumer.close()
    assert numbers(await take(await subscribe(topic, "c"), 3)) == [7, 8, 9]
    await producer.close()


async def test_individual_acknowledgements_survive_the_reconnection(pulsar, client, subscribe):
    topic = pulsar.take_topic()
    producer = client.producer(topic)
    await send_all(producer, 0, 10)
    consumer = await subscribe(topic, "i", type=Types.Shared)
    for entry in (await take(consumer, 10))[::2]:
        consumer.acknowledge((entry.ledger, entry.entry))
    await consumer.close()
    again = await take(await subscribe(topic, "i", type=Types.Shared), 5)
    assert sorted(numbers(again)) == [1, 3, 5, 7, 9]
    await producer.close()


@pytest.mark.parametrize("batch_index", [True, False])
async def test_acknowledging_inside_a_batch(pulsar, client, subscribe, batch_index):
    topic = pulsar.take_topic()
    producer = client.producer(topic)
    await producer.send(*batch([b"%d" % number for number in range(70)]))
    settings = {"type": Types.Shared, "batch_index_ack": batch_index}
    consumer = await subscribe(topic, "b", **settings)
    (entry,) = await take(consumer, 1)
    for index in (0, 65):
        consumer.acknowledge_message((entry.ledger, entry.entry), index, entry.count)
    await consumer.close()
    again = await subscribe(topic, "b", **settings)
    (entry,) = await take(again, 1)
    due = ids.full_mask(70) & ~1 & ~(1 << 65) if batch_index else 0
    assert ids.from_words(entry.ack_set) == due
    for index in range(70):
        again.acknowledge_message((entry.ledger, entry.entry), index, entry.count)
    await again.close()
    assert not await (await subscribe(topic, "b", **settings)).has_more()
    await producer.close()


@pytest.mark.parametrize(("batch_index", "expected_mask"), [(True, ids.full_mask(10) & ~ids.full_mask(5)), (False, 0)])
async def test_acknowledging_cumulatively_inside_a_batch(pulsar, client, subscribe, batch_index, expected_mask):
    topic = pulsar.take_topic()
    producer = client.producer(topic)
    for start in (0, 10):
        await producer.send(*batch([b"%d" % number for number in range(start, start + 10)]))
    consumer = await subscribe(topic, "b", batch_index_ack=batch_index)
    _, entry = await take(consumer, 2)
    consumer.acknowledge_up_to((entry.ledger, entry.entry), 4, 10)
    await consumer.close()
    (again,) = await take(await subscribe(topic, "b"), 1)
    assert ((again.ledger, again.entry), ids.from_words(again.ack_set)) == ((entry.ledger, entry.entry), expected_mask)
    await producer.close()


async def test_rejected_entries_are_redelivered(pulsar, client, subscribe):
    topic = pulsar.take_topic()
    producer = client.producer(topic)
    await send_all(producer, 0, 10)
    shared = await subscribe(topic, "s", type=Types.Shared)
    entries = await take(shared, 10)
    shared.redeliver([(entries[3].ledger, entries[3].entry)])
    (again,) = await take(shared, 1)
    assert (numbers([again]), again.redelivery_count) == ([3], 1)
    ordered = await subscribe(topic, "e")
    entries = await take(ordered, 6)
    ordered.acknowledge_up_to((entries[1].ledger, entries[1].entry))
    ordered.redeliver()
    assert numbers(await take(ordered, 8)) == [2, 3, 4, 5, 6, 7, 8, 9]
    await producer.close()


async def test_an_unload_repeats_nothing_for_an_ordered_consumer(pulsar, client, subscribe):
    topic = pulsar.keep(pulsar.take_topic())
    producer = client.producer(topic)
    await send_all(producer, 0, 10)
    consumer = await subscribe(topic)
    entries = await take(consumer, 6)
    consumer.acknowledge_up_to((entries[1].ledger, entries[1].entry))
    await consumer.confirm_acks()  # an acknowledgement in flight would look like a reset, after which entries are repeated
    await asyncio.to_thread(pulsar.admin, "PUT", f"{path_of(topic)}/unload")
    async with asyncio.timeout(SERVER_PATIENCE_S):
        while consumer.registrations < 2:
            await asyncio.sleep(0.01)
    assert numbers(await take(consumer, 4)) == [6, 7, 8, 9]
    assert not await consumer.has_more()
    await producer.close()


# --- positions --------------------------------------------------------------------------------------------------------


async def test_seeking_by_id_and_by_time(pulsar, client, subscribe):
    topic = pulsar.take_topic()
    producer = client.producer(topic)
    for number in range(10):
        await producer.send(MessageMetadata(publish_time=1_700_000_000_000 + number * 1000), b"%d" % number)
    consumer = await subscribe(topic, earliest=False)
    assert not await consumer.has_more()
    await consumer.seek(ids.EARLIEST)
    entries = await take(consumer, 10)
    assert numbers(entries) == list(range(10))
    consumer.acknowledge_up_to((entries[9].ledger, entries[9].entry))
    await consumer.seek((entries[4].ledger, entries[4].entry))
    assert numbers(await take(consumer, 6)) == [4, 5, 6, 7, 8, 9]
    await consumer.seek(publish_time=1_700_000_007_000)
    assert numbers(await take(consumer, 3)) == [7, 8, 9]
    await consumer.seek(ids.LATEST)
    assert not await consumer.has_more()
    await producer.close()


async def test_a_reader_starts_at_its_position_and_leaves_no_subscription(pulsar, client, subscribe):
    topic = pulsar.keep(pulsar.take_topic())
    producer = client.producer(topic)
    await send_all(producer, 0, 10)
    reader = await subscribe(topic, "r", reader_from=ids.EARLIEST)
    entries = await take(reader, 10)
    assert numbers(entries) == list(range(10))
    fifth = entries[5]
    assert await reader.last_id() == (entries[9].ledger, entries[9].entry)
    later = await subscribe(topic, "r2", reader_from=(fifth.ledger, fifth.entry))
    assert numbers(await take(later, 2)) == [5, 6]
    pulsar.admin("PUT", f"{path_of(topic)}/unload")
    assert numbers(await take(later, 3)) == [7, 8, 9]
    await reader.close()
    await later.close()
    await no_subscriptions(pulsar, topic)
    await producer.close()


async def test_the_last_id_of_an_empty_topic(pulsar, subscribe):
    consumer = await subscribe(pulsar.take_topic())
    assert (await consumer.last_id())[1] == -1
    assert not await consumer.has_more()


# --- memory -----------------------------------------------------------------------------------------------------------


async def test_a_consumer_stays_within_its_memory_limit(pulsar, client, subscribe):
    topic = pulsar.take_topic()
    producer = client.producer(topic)
    sent = [producer.send(*batch([bytes(1000)] * 100)) for _ in range(300)]
    await asyncio.gather(*sent)
    consumer = await subscribe(topic, max_bytes=1 << 20)
    most = total = 0
    async with asyncio.timeout(SERVER_PATIENCE_S):
        while total < 300 * 100:
            await asyncio.sleep(0.002)  # slower than the broker
            most = max(most, consumer.held_bytes)
            total += (await consumer.receive()).count
    # The broker rounds permits up to whole reads of at most 5 MiB each.
    assert most <= (1 << 20) + (5 << 20)
    assert consumer.registrations == 1
    await producer.close()


async def test_messages_that_suddenly_become_large_do_not_fill_the_memory(pulsar, client, subscribe):
    topic = pulsar.take_topic()
    producer = client.producer(topic)
    await send_all(producer, 0, 300)
    consumer = await subscribe(topic, max_bytes=100_000)
    assert numbers(await take(consumer, 300)) == list(range(300))
    await asyncio.gather(*[producer.send(MessageMetadata(), bytes(1 << 20)) for _ in range(30)])
    most = 0
    async with asyncio.timeout(SERVER_PATIENCE_S):
        for _ in range(30):
            await asyncio.sleep(0.05)
            most = max(most, consumer.held_bytes)
            assert len((await consumer.receive()).payload) == 1 << 20
    assert most < 16 << 20
    assert not await consumer.has_more()
    await producer.close()
