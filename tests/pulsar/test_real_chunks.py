"""Messages larger than an entry, through a real broker."""

import asyncio
import os
from uuid import uuid4

import pytest

from mqbridge.adapter import reading
from mqbridge.adapter.topics import Bounds
from mqbridge.errors import ConnectionLost
from mqbridge.message import Position
from mqbridge.pulsar.adapter.registration import ADAPTER
from mqbridge.pulsar.client.consumer.subscription import Types
from mqbridge.pulsar.client.producer.producer_settings import ProducerSettings
from mqbridge.pulsar.mapping.stored import decode_plain
from mqbridge.pulsar.wire import ids
from mqbridge.pulsar.wire.chunk_joiner import ChunkLimits
from mqbridge.pulsar.wire.compression import CODEC_NUMBERS
from mqbridge.pulsar.wire.pb.PulsarApi_pb2 import MessageMetadata
from tests.kit.conversation import until
from tests.patience import SERVER_PATIENCE_S
from tests.pulsar.conftest import client_of
from tests.pulsar.entries import take
from tests.pulsar.proxy import CuttingProxy

pytestmark = pytest.mark.cluster

LARGE = os.urandom(12 << 20)


def backlog(pulsar, topic: str, name: str) -> int:
    return pulsar.admin("GET", f"{topic.replace('://', '/')}/stats")["subscriptions"][name]["msgBacklog"]


@pytest.mark.parametrize("codec", ["none", "zstd"])
async def test_a_large_message_survives_chunking(pulsar, client, subscribe, codec):
    topic = pulsar.take_topic()
    producer = client.producer(topic, ProducerSettings(codec=CODEC_NUMBERS[codec], chunking=True))
    metadata = MessageMetadata(partition_key="k", event_time=5)
    metadata.properties.add(key="a", value="b")
    payload = LARGE if codec == "none" else LARGE[: 6 << 20] * 2
    small, receipt, after = await asyncio.gather(
        producer.send(MessageMetadata(), b"0"), producer.send(metadata, payload), producer.send(MessageMetadata(), b"1")
    )
    assert (receipt.first_chunk, receipt.entry) == ((small.ledger, 1), after.entry - 1)
    consumer = await subscribe(topic)
    first, large, last = await take(consumer, 3)
    assert (first.payload, last.payload, large.id) == (b"0", b"1", (receipt.ledger, receipt.entry))
    (message,) = decode_plain(large)
    assert message.payload == payload
    assert (message.key, message.event_time, message.properties, message.defect) == ("k", 5, (("a", "b"),), None)
    assert not await consumer.has_more()
    await producer.close()


async def test_chunks_of_two_producers_are_interleaved(pulsar, client, subscribe):
    topic = pulsar.take_topic()
    settings = [ProducerSettings(name, chunking=True, chunk_bytes=1000) for name in ("one", "two")]
    producers = [client.producer(topic, each) for each in settings]
    other = client_of(pulsar.service_url)
    producers.append(other.producer(topic, ProducerSettings("three", chunking=True, chunk_bytes=1000)))
    payloads = [LARGE[number * 20_000 : (number + 1) * 20_000] for number in range(9)]
    await asyncio.gather(*[producers[n % 3].send(MessageMetadata(), payload) for n, payload in enumerate(payloads)])
    consumer = await subscribe(topic, "s")
    entries = await take(consumer, 9)
    assert sorted(entry.payload for entry in entries) == sorted(payloads)
    for entry in entries[:5]:
        consumer.acknowledge_up_to(entry.id)
    await consumer.confirm_acks()
    await consumer.close()
    again = await subscribe(topic, "s")
    rest = await take(again, 4)
    assert [(entry.payload, entry.defect) for entry in rest] == [(entry.payload, None) for entry in entries[5:]]
    assert not await again.has_more()
    await asyncio.gather(*(producer.close() for producer in producers))
    await other.close()


async def test_on_a_shared_subscription_all_chunks_are_acknowledged_or_redelivered(pulsar, client, subscribe):
    topic = pulsar.take_topic()
    producer = client.producer(topic, ProducerSettings(chunking=True, chunk_bytes=100_000))
    await asyncio.gather(*[producer.send(MessageMetadata(), LARGE[: 950_000 + number]) for number in range(2)])
    consumer = await subscribe(topic, "s", type=Types.Shared)
    first, second = await take(consumer, 2)
    consumer.negative_acknowledge(first.id, 0.0)
    (again,) = await take(consumer, 1)
    assert (len(again.payload), again.redelivery_count) == (len(first.payload), 1)
    consumer.acknowledge(second.id)
    consumer.acknowledge(again.id)
    await consumer.confirm_acks()
    assert backlog(pulsar, topic, "s") == 0
    await producer.close()


async def test_a_connection_cut_between_chunks_loses_and_repeats_nothing(pulsar, subscribe):
    namespace = pulsar.create_namespace("acme", f"chunks-{uuid4().hex[:6]}")
    pulsar.admin("POST", f"namespaces/{namespace}/deduplication", True)
    topic = pulsar.create_topic("t", namespace=namespace)
    async with CuttingProxy("127.0.0.1", pulsar.port) as proxy:
        client = client_of(proxy.url)
        producer = client.producer(topic, ProducerSettings("me", chunking=True, chunk_bytes=1000))
        await producer.opened()
        payloads = [LARGE[:10_000], b"small", LARGE[10_000:20_000]]
        for number, answers in enumerate([False, True] * 4):
            proxy.plan(3 + 2 * number, answers)
            sent = [producer.send(MessageMetadata(), payload + b"%d" % number) for payload in payloads]
            await asyncio.wait_for(asyncio.gather(*sent), SERVER_PATIENCE_S)
        assert proxy.connections > 4
        await producer.close()
        await client.close()
    consumer = await subscribe(topic, chunk_limits=ChunkLimits(expiry_s=2.0))
    entries = []
    async with asyncio.timeout(SERVER_PATIENCE_S):
        while await consumer.has_more():
            if (entry := consumer.take()) is not None:
                entries.append(entry)
            await consumer.wait_available(0.1)
    assert [entry.defect for entry in entries] == [None] * len(entries)
    expected = [payload + b"%d" % number for number in range(8) for payload in payloads]
    assert [entry.payload for entry in entries] == expected


async def test_acknowledging_without_a_connection_covers_no_chunks(pulsar, client, subscribe):
    topic = pulsar.take_topic()
    producer = client.producer(topic)
    consumer = await subscribe(topic, "s")

    async def send_chunk(number: int, payload: bytes) -> None:
        metadata = MessageMetadata(publish_time=1, uuid="a", chunk_id=number, num_chunks_from_msg=3, total_chunk_msg_size=9)
        await producer.send(metadata, payload)

    await send_chunk(0, b"one")
    await producer.send(MessageMetadata(), b"between")
    (between,) = await take(consumer, 1)
    consumer._connection().endpoint.abort(ConnectionLost("cut"))
    await until(lambda: consumer._connection() is None, pause_s=0)
    consumer.acknowledge_up_to(between.id)
    await until(lambda: consumer.registrations == 2)
    await consumer.confirm_acks()
    await send_chunk(1, b"two")
    await send_chunk(2, b"six")
    (whole,) = await take(consumer, 1)
    assert (whole.payload, whole.defect) == (b"onetwosix", None)
    await producer.close()


async def test_a_message_without_its_first_chunks_is_a_defect_of_each_chunk(pulsar, client, subscribe):
    topic = pulsar.take_topic()
    producer = client.producer(topic, ProducerSettings(chunking=True, chunk_bytes=1000))
    receipt = await producer.send(MessageMetadata(), LARGE[:5000])
    await producer.send(MessageMetadata(), b"next")
    consumer = await subscribe(topic)
    await consumer.seek((receipt.ledger, receipt.first_chunk[1] + 2))
    *broken, whole = await take(consumer, 4)
    assert [("missing" in str(entry.defect), entry.metadata.chunk_id) for entry in broken] == [(True, 2), (True, 3), (True, 4)]
    assert whole.payload == b"next"
    await consumer.seek(ids.EARLIEST)
    assert (await take(consumer, 1))[0].payload == LARGE[:5000]
    await producer.close()


def chunk(uuid: str, number: int, count: int) -> tuple[MessageMetadata, bytes]:
    """Return metadata and payload of a chunk of 100 bytes."""
    metadata = MessageMetadata(
        publish_time=1, uuid=uuid, chunk_id=number, num_chunks_from_msg=count, total_chunk_msg_size=100 * count
    )
    return metadata, f"{uuid}-{number}".encode().ljust(100, b".")


async def test_many_interleaved_messages_are_all_read(pulsar, client, subscribe):
    """The official Java client keeps ten by default, and drops the oldest for each further one."""
    topic, count = pulsar.take_topic(), 60
    producer = client.producer(topic)
    chunks = [chunk(f"m{message}", number, 3) for number in range(3) for message in range(count)]
    await asyncio.gather(*(producer.send(metadata, payload) for metadata, payload in chunks))
    entries = await take(await subscribe(topic), count)
    assert [entry.defect for entry in entries] == [None] * count
    assert {entry.payload.partition(b"-")[0] for entry in entries} == {b"m%d" % message for message in range(count)}
    await producer.close()


@pytest.mark.parametrize("kind", [Types.Exclusive, Types.Failover])
async def test_an_orderly_shutdown_repeats_nothing_behind_an_incomplete_message(pulsar, client, subscribe, kind):
    topic = pulsar.take_topic()
    producer = client.producer(topic)
    consumer = await subscribe(topic, "s", type=kind)
    await producer.send(*chunk("a", 0, 2))
    await asyncio.gather(*(producer.send(MessageMetadata(), b"%d" % number) for number in range(50)))
    behind = await take(consumer, 50)
    consumer.acknowledge_up_to(behind[39].id)
    await consumer.close()
    await until(lambda: backlog(pulsar, topic, "s") == 11)
    again = await subscribe(topic, "s", type=kind)
    assert [entry.payload for entry in await take(again, 10)] == [b"%d" % number for number in range(40, 50)]
    await producer.send(*chunk("a", 1, 2))
    (whole,) = await take(again, 1)
    assert (whole.defect, whole.payload[:3], whole.payload[100:103]) == (None, b"a-0", b"a-1")
    again.acknowledge_up_to(whole.id)
    await again.confirm_acks()
    assert backlog(pulsar, topic, "s") == 0
    await producer.close()


async def test_a_dangling_chunk_keeps_nobody_from_reading_the_topic_by_positions(pulsar, client):
    topic = pulsar.keep(pulsar.take_topic())
    producer = client.producer(topic)
    first = await producer.send(*chunk("a", 0, 2))
    await producer.send(MessageMetadata(), b"between")
    last = await producer.send(*chunk("b", 0, 2))
    cluster = ADAPTER.make_cluster("p", ADAPTER.cluster_model(service_url=pulsar.service_url, admin_url=pulsar.admin_url))
    await cluster.connect()
    try:
        (bounds,) = (await asyncio.wait_for(cluster.bounds(topic), SERVER_PATIENCE_S)).values()
        after = (last.ledger, last.entry + 1, 0)
        assert bounds == Bounds((first.ledger, first.entry, 0), after, last=(last.ledger, last.entry, 0))
        described = await cluster.describe(topic)
        (partition,) = described.partitions

        async def read(begin: Position) -> list[bytes]:
            async with asyncio.timeout(SERVER_PATIENCE_S):
                end = (await cluster.bounds(topic))[partition].next
                return [
                    each.payload async for batch in reading.read(cluster, topic, partition, begin, end) for each in batch.messages
                ]

        assert await read(bounds.first) == [b"between"]
        await producer.send(*chunk("b", 1, 2))
        assert [payload[:3] for payload in await read(bounds.next)] == [b"b-0"], "with the chunk before the range"
        await producer.close()
    finally:
        await cluster.close()
