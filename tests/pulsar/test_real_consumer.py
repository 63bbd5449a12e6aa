"""Consumers of a real broker: receipts, redelivery and its count, positions of readers, statistics, unsubscribing."""

import asyncio
import time

import pytest

from mqbridge.errors import ServerRefused
from mqbridge.pulsar.client.consumer.subscription import Types
from mqbridge.pulsar.wire import ids
from mqbridge.pulsar.wire.pb.PulsarApi_pb2 import MessageMetadata
from tests.patience import SERVER_PATIENCE_S
from tests.pulsar.conftest import no_subscriptions
from tests.pulsar.entries import batch, drain, numbers, send_all, take

pytestmark = [pytest.mark.cluster, pytest.mark.thorough]


def path_of(topic: str) -> str:
    return topic.replace("://", "/")


def backlog(pulsar, topic: str, name: str) -> int:
    return pulsar.admin("GET", f"{path_of(topic)}/stats")["subscriptions"][name]["msgBacklog"]


async def test_a_confirmed_acknowledgement_is_at_the_broker(pulsar, client, subscribe):
    topic = pulsar.take_topic()
    producer = client.producer(topic)
    await send_all(producer, 0, 10)
    shared, ordered = await subscribe(topic, "s", type=Types.Shared), await subscribe(topic, "o")
    for entry in await take(shared, 7):
        shared.acknowledge(entry.id)
    await shared.confirm_acks()
    ordered.acknowledge_up_to((await take(ordered, 4))[3].id)
    await ordered.confirm_acks()
    assert (backlog(pulsar, topic, "s"), backlog(pulsar, topic, "o")) == (3, 6)
    await ordered.confirm_acks()
    await producer.close()


async def test_negative_acknowledgements_count_up(pulsar, client, subscribe):
    topic = pulsar.take_topic()
    producer = client.producer(topic)
    await send_all(producer, 0, 3)
    consumer = await subscribe(topic, type=Types.Shared)
    for entry in await take(consumer, 3):
        if numbers([entry]) != [1]:
            consumer.acknowledge(entry.id)
        else:
            consumer.negative_acknowledge(entry.id, 0.1)
    counts = []
    for _ in range(3):
        (entry,) = await take(consumer, 1)
        counts.append(entry.redelivery_count)
        consumer.negative_acknowledge(entry.id, 0.1)
    assert (numbers([entry]), counts) == ([1], [1, 2, 3]), "the delivery count that a limit of deliveries uses"
    await producer.close()


async def test_a_reconnection_does_not_count_as_a_delivery(pulsar, client, subscribe):
    topic = pulsar.take_topic()
    producer = client.producer(topic)
    await send_all(producer, 0, 1)
    first = await subscribe(topic, "s", type=Types.Shared)
    assert (await take(first, 1))[0].redelivery_count == 0
    await first.close()
    assert (await take(await subscribe(topic, "s", type=Types.Shared), 1))[0].redelivery_count == 0
    await producer.close()


async def test_entries_are_redelivered_after_the_ack_timeout(pulsar, client, subscribe):
    topic = pulsar.take_topic()
    producer = client.producer(topic)
    await send_all(producer, 0, 4)
    shared = await subscribe(topic, type=Types.Shared, ack_timeout_s=3.0)
    for number in range(4):
        (entry,) = await take(shared, 1)
        if number % 2 == 0:
            shared.acknowledge(entry.id)
    again = []
    for _ in range(2):
        again += await take(shared, 1)
        shared.acknowledge(again[-1].id)
    assert sorted(numbers(again)) == [1, 3]
    assert {entry.redelivery_count for entry in again} == {1}
    ordered = await subscribe(topic, ack_timeout_s=3.0)
    ordered.acknowledge_up_to((await take(ordered, 2))[1].id)
    assert numbers(await take(ordered, 2)) == [2, 3]
    assert numbers(await take(ordered, 2)) == [2, 3]
    await producer.close()


async def test_a_redelivered_batch_leaves_out_acknowledged_messages(pulsar, client, subscribe):
    topic = pulsar.take_topic()
    producer = client.producer(topic)
    await producer.send(*batch([b"%d" % number for number in range(5)]))
    consumer = await subscribe(topic, type=Types.Shared, batch_index_ack=True)
    (entry,) = await take(consumer, 1)
    consumer.acknowledge_message(entry.id, 1, 5)
    await consumer.confirm_acks()
    consumer.negative_acknowledge(entry.id, 0.0)
    (again,) = await take(consumer, 1)
    assert (ids.from_words(again.ack_set), again.redelivery_count) == (0b11101, 1)
    await producer.close()


# --- positions --------------------------------------------------------------------------------------------------------


async def test_a_reader_seeks_by_time_and_by_id(pulsar, client, subscribe):
    topic = pulsar.keep(pulsar.take_topic())
    producer = client.producer(topic)
    for number in range(10):
        await producer.send(MessageMetadata(publish_time=1_700_000_000_000 + number * 1000), b"%d" % number)
    reader = await subscribe(topic, "r", reader_from=ids.LATEST)
    assert not await reader.has_more()
    await reader.seek(publish_time=1_700_000_006_000)
    entries = await take(reader, 2)
    assert numbers(entries) == [6, 7]
    await asyncio.to_thread(pulsar.admin, "PUT", f"{path_of(topic)}/unload")
    assert numbers(await take(reader, 2)) == [8, 9], "the reader continues after the last entry that it delivered"
    await reader.seek(entries[0].id)
    assert numbers(await take(reader, 4)) == [6, 7, 8, 9]
    assert not await reader.has_more()
    await reader.seek(ids.EARLIEST)
    assert numbers(await drain(reader)) == list(range(10))
    await reader.close()
    await no_subscriptions(pulsar, topic)
    await producer.close()


async def test_a_subscription_starts_some_seconds_ago(pulsar, client, subscribe):
    topic = pulsar.take_topic()
    producer = client.producer(topic)
    now = time.time_ns() // 1_000_000
    for age in (7200, 3600, 10):
        await producer.send(MessageMetadata(publish_time=now - age * 1000), b"%d" % age)
    consumer = await subscribe(topic, rollback_s=600, earliest=False)
    assert numbers(await take(consumer, 1)) == [10]
    await producer.close()


async def test_the_last_message_of_a_topic(pulsar, client, subscribe):
    topic = pulsar.take_topic()
    producer = client.producer(topic)
    single = await producer.send(MessageMetadata(), b"x")
    consumer = await subscribe(topic)
    assert await consumer.last_message() == (single.ledger, single.entry, -1)
    several = await producer.send(*batch([b"a", b"b", b"c"]))
    assert await consumer.last_message() == (several.ledger, several.entry, 2)
    await producer.close()


async def test_read_compacted_returns_the_newest_message_of_each_key(pulsar, client, subscribe):
    topic = pulsar.take_topic()
    producer = client.producer(topic)
    keys = ["a", "b", "a", "c", "b"]
    await asyncio.gather(*[producer.send(MessageMetadata(partition_key=key), b"%d" % n) for n, key in enumerate(keys)])
    await asyncio.to_thread(pulsar.admin, "PUT", f"{path_of(topic)}/compaction")
    async with asyncio.timeout(SERVER_PATIENCE_S):
        while pulsar.admin("GET", f"{path_of(topic)}/compaction")["status"] != "SUCCESS":
            await asyncio.sleep(0.05)
        # The topic uses the compacted ledger a little later.
        while pulsar.admin("GET", f"{path_of(topic)}/internalStats")["compactedLedger"]["ledgerId"] == -1:
            await asyncio.sleep(0.05)
    reader = await subscribe(topic, reader_from=ids.EARLIEST, read_compacted=True)
    assert numbers(await take(reader, 3)) == [2, 3, 4]
    await producer.close()


# --- questions --------------------------------------------------------------------------------------------------------


async def test_statistics_of_a_consumer(pulsar, client, subscribe):
    topic = pulsar.take_topic()
    producer = client.producer(topic)
    await send_all(producer, 0, 5)
    consumer = await subscribe(topic, type=Types.Shared, consumer_name="me")
    await take(consumer, 5)
    stats = await consumer.stats()
    assert (stats.name, stats.type, stats.backlog, stats.unacked_messages) == ("me", "Shared", 5, 5)
    assert stats.available_permits > 0
    await producer.close()


async def test_unsubscribing_deletes_the_subscription(pulsar, subscribe):
    topic = pulsar.take_topic()
    first, second = [await subscribe(topic, "s", type=Types.Shared) for _ in range(2)]
    with pytest.raises(ServerRefused):
        await first.unsubscribe()
    first._state.begin_unsubscribe()  # the broker closes this consumer too; subscribing again would create the subscription again
    await second.unsubscribe(force=True)
    assert pulsar.admin("GET", f"{path_of(topic)}/subscriptions") == []
    alone = await subscribe(topic, "t")
    await alone.unsubscribe()
    assert pulsar.admin("GET", f"{path_of(topic)}/subscriptions") == []


async def test_sticky_key_ranges_divide_the_keys(pulsar, client, subscribe):
    topic = pulsar.take_topic()
    low = await subscribe(topic, "k", type=Types.Key_Shared, key_ranges=((0, 32767),))
    high = await subscribe(topic, "k", type=Types.Key_Shared, key_ranges=((32768, 65535),))
    with pytest.raises(ServerRefused):
        await subscribe(topic, "k", type=Types.Key_Shared, key_ranges=((0, 10),))
    producer = client.producer(topic)
    for key in ("abc", "key1"):  # slots 37882 and 293
        await producer.send(MessageMetadata(partition_key=key), b"x")
    assert [(await take(each, 1))[0].metadata.partition_key for each in (low, high)] == ["key1", "abc"]
    await producer.close()


async def test_subscription_properties_are_kept(pulsar, subscribe):
    topic = pulsar.take_topic()
    await subscribe(topic, "p", properties=(("owner", "me"),))
    stats = pulsar.admin("GET", f"{path_of(topic)}/stats")
    assert stats["subscriptions"]["p"]["subscriptionProperties"] == {"owner": "me"}


async def test_the_end_of_a_terminated_topic_is_reported(pulsar, client, subscribe):
    topic = pulsar.take_topic()
    producer = client.producer(topic)
    await send_all(producer, 0, 2)
    consumer = await subscribe(topic)
    consumer.acknowledge_up_to((await take(consumer, 2))[1].id)
    await consumer.confirm_acks()
    assert not consumer.at_end
    await asyncio.to_thread(pulsar.admin, "POST", f"{path_of(topic)}/terminate")
    async with asyncio.timeout(SERVER_PATIENCE_S):
        while not consumer.at_end:
            await consumer.wait_available(0.1)
    await producer.close()
