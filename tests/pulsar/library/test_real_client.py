"""`PulsarClient` at a real broker: features that only Pulsar has. Tests for all clients are in `tests/library`."""

import asyncio
import re
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from uuid import uuid4

import pytest
import pytest_asyncio

from mqbridge.errors import ClusterError
from mqbridge.library.received import ReceivedMessage
from mqbridge.pulsar.library.client import PulsarClient
from mqbridge.pulsar.library.consumer import Consumer
from mqbridge.pulsar.library.reader import Reader
from tests.kit.pulsar import Pulsar
from tests.patience import SERVER_PATIENCE_S

pytestmark = pytest.mark.cluster


@pytest_asyncio.fixture
async def client(pulsar: Pulsar) -> AsyncIterator[PulsarClient]:
    async with PulsarClient(pulsar.service_url, admin_url=pulsar.admin_url) as client:
        yield client


async def send(client: PulsarClient, topic: str, *payloads: bytes) -> None:
    """Send messages as one batch for each partition."""
    async with client.producer(topic, batch_delay_s=0.05) as producer:
        await asyncio.gather(*[producer.send(payload, key="k") for payload in payloads])


async def take(consumer: Consumer | Reader, count: int) -> list[ReceivedMessage]:
    return [await consumer.receive(SERVER_PATIENCE_S) for _ in range(count)]


async def test_seeking_into_a_batch(pulsar: Pulsar, client: PulsarClient) -> None:
    topic = pulsar.take_topic(2)
    await send(client, topic, b"a", b"b", b"c", b"d")
    async with client.consumer(topic, "billing") as consumer:
        messages = await take(consumer, 4)
        assert messages[0].position[:2] == messages[3].position[:2]
        await consumer.seek(messages[2])
        assert not consumer.acknowledge(messages[0])
        again = await take(consumer, 2)
        assert [each.payload for each in again] == [b"c", b"d"]
        assert all(consumer.acknowledge(each) for each in again)
    async with client.consumer(topic, "billing") as consumer:
        with pytest.raises(TimeoutError):
            await consumer.receive(1.0)


async def test_a_negative_acknowledgement_redelivers_the_rest_of_a_batch(pulsar: Pulsar, client: PulsarClient) -> None:
    topic = pulsar.take_topic()
    await send(client, topic, b"a", b"b", b"c")
    async with client.consumer(topic, "workers", mode="shared") as consumer:
        for message in await take(consumer, 3):
            if message.payload == b"b":
                assert consumer.negative_acknowledge(message, 0.1)
            else:
                assert consumer.acknowledge(message)
        (again,) = await take(consumer, 1)
        assert (again.payload, again.delivery_count) == (b"b", 1)
        assert consumer.acknowledge(again)
        await consumer.flush()
        stats = client.admin
        assert (await stats.call("GET", f"/{topic.replace('://', '/')}/stats"))["subscriptions"]["workers"]["msgBacklog"] == 0


async def test_consuming_by_pattern(pulsar: Pulsar, client: PulsarClient) -> None:
    namespace = pulsar.create_namespace("acme", f"pattern-{uuid4().hex[:6]}")
    topics = [pulsar.create_topic(name, namespace=namespace) for name in ("logs-a", "logs-b", "other")]
    for topic in topics:
        await send(client, topic, topic.encode())
    async with client.consumer(re.compile("logs-.*"), "follower", namespace=namespace) as consumer:
        messages = await take(consumer, 2)
        assert sorted(each.topic for each in messages) == topics[:2]
        assert all(each.payload == each.topic.encode() and consumer.acknowledge(each) for each in messages)


async def test_a_reader_reads_all_partitions_to_the_end_and_from_a_time(pulsar: Pulsar, client: PulsarClient) -> None:
    topic = pulsar.take_topic(3)
    async with client.producer(topic) as producer:
        await asyncio.gather(*[producer.send(b"%d" % number, partition=number % 3) for number in range(9)])
        await asyncio.sleep(0.01)
        middle = datetime.now(UTC)
        await asyncio.sleep(0.01)
        last = await producer.send(b"last", partition=1)
    async with client.reader(topic) as reader:
        found = []
        while await reader.has_more():
            found += await take(reader, 1)
        assert len(found) == 10
        assert (await reader.last_positions())[f"{topic}-partition-1"] == last.position
    async with client.reader(topic, start=middle) as reader:
        assert [each.payload for each in await take(reader, 1)] == [b"last"]
        assert not await reader.has_more()
    assert set(pulsar.admin("GET", f"{topic.replace('://', '/')}-partition-0/subscriptions")) <= {"keeper"}


async def test_exclusive_consumers_and_producers_keep_others_out(pulsar: Pulsar, client: PulsarClient) -> None:
    topic = pulsar.take_topic()
    async with PulsarClient(pulsar.service_url, operation_timeout_s=2.0) as other, client.consumer(topic, "a", mode="exclusive"):
        with pytest.raises(ClusterError):
            await other.consumer(topic, "a", mode="exclusive")
    async with client.producer(topic, access="exclusive"):
        with pytest.raises(ClusterError):
            await client.producer(topic, access="exclusive")


async def test_failover_consumers_share_partitions_and_take_over(pulsar: Pulsar, client: PulsarClient) -> None:
    topic = pulsar.take_topic(4)
    first = await client.consumer(topic, "team", consumer_name="a")
    second = await client.consumer(topic, "team", consumer_name="b")
    await asyncio.sleep(1.5)  # the broker elects the active consumers
    async with client.producer(topic) as producer:
        await asyncio.gather(*[producer.send(b"%d" % number, partition=number) for number in range(4)])
    received: list[set[str]] = [set(), set()]
    for seen, consumer in zip(received, (first, second), strict=True):
        while len(seen) < 2:
            seen.add((await consumer.receive(SERVER_PATIENCE_S)).partition)
    assert received[0] | received[1] == {"0", "1", "2", "3"}
    await first.close()
    again = {(await second.receive(SERVER_PATIENCE_S)).partition for _ in range(2)}
    assert again == received[0]


async def test_entries_are_received_with_their_consumers(pulsar: Pulsar, client: PulsarClient) -> None:
    topic = pulsar.take_topic()
    await send(client, topic, b"a", b"b")
    async with client.entry_consumer(topic, "fast") as consumer, client.entry_producer(topic) as producer:
        assert producer.pending == 0
        owner, entry = await asyncio.wait_for(consumer.receive(), SERVER_PATIENCE_S)
        assert entry.count == 2
        owner.acknowledge_up_to((entry.ledger, entry.entry))


async def test_unsubscribing_deletes_the_subscription_of_all_partitions(pulsar: Pulsar, client: PulsarClient) -> None:
    topic = pulsar.take_topic(2)
    consumer = await client.consumer(topic, "gone")
    assert {stats.backlog for stats in (await consumer.stats()).values()} == {0}
    await consumer.unsubscribe()
    assert consumer.closed
    assert "gone" not in pulsar.admin("GET", f"{topic.replace('://', '/')}-partition-0/subscriptions")


async def test_memory_stays_bounded_while_a_topic_is_long(pulsar: Pulsar, client: PulsarClient) -> None:
    topic = pulsar.take_topic()
    async with client.producer(topic, batch_messages=1) as producer:
        await asyncio.gather(*[producer.send(b"x" * 100_000) for _ in range(100)])
    async with client.entry_consumer(topic, "slow", max_bytes=1 << 20) as entries:
        await asyncio.sleep(1.0)
        assert sum(each.held_bytes for each in entries.consumers.values()) < 3 << 20
    async with client.consumer(topic, "slow", max_bytes=1 << 20) as consumer:
        for message in await take(consumer, 100):
            consumer.acknowledge(message)
