"""Entries of SDKs, stored as they are in a real broker: consumers cannot tell them from those that the SDK sent itself."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import replace
from uuid import uuid4

import pytest
import pytest_asyncio

from mqbridge.adapter.cluster import Cluster
from mqbridge.adapter.formats import batch_of_units
from mqbridge.adapter.inbound import InboundSpec
from mqbridge.adapter.outbound import OutboundSpec
from mqbridge.adapter.reading import read
from mqbridge.errors import ClusterError, Failure
from mqbridge.message import Batch, Message, Partition, Share, Unit
from mqbridge.pulsar.adapter.registration import ADAPTER
from mqbridge.pulsar.client.cluster_client import ClusterClient
from mqbridge.pulsar.client.producer.producer_settings import ProducerSettings
from mqbridge.pulsar.mapping.stored import decode_plain
from mqbridge.pulsar.mapping.unit_format import EntryFormat
from mqbridge.pulsar.wire.compression import CODEC_NUMBERS
from mqbridge.pulsar.wire.entry import decode_entry, stored_bytes, stored_entry
from mqbridge.pulsar.wire.ids import EARLIEST
from mqbridge.pulsar.wire.pb.PulsarApi_pb2 import MessageMetadata
from tests.kit.pulsar import Pulsar
from tests.patience import SERVER_PATIENCE_S
from tests.pulsar.entries import batch, take

pytestmark = pytest.mark.cluster


@pytest_asyncio.fixture
async def cluster(pulsar: Pulsar) -> AsyncIterator[Cluster]:
    config = ADAPTER.cluster_model(service_url=pulsar.service_url, admin_url=pulsar.admin_url)
    cluster = ADAPTER.make_cluster("c", config)
    await cluster.connect()
    yield cluster
    await cluster.close()


async def units_of(cluster: Cluster, topic: str) -> list[Unit]:
    """Return the entries of a topic as units; each chunk is one, because the batch of a joined message has none."""
    bounds = (await cluster.bounds(topic))["-1"]
    batches = [batch async for batch in read(cluster, topic, "-1", bounds.first, bounds.next)]
    return [unit for batch in batches for unit in batch.units or ()]


async def chunks_of(client: ClusterClient, topic: str, count: int) -> list[Unit]:
    """Return the entries of a topic as units, with the chunks as they are stored."""
    subscription = replace(await client.reader_subscription(EARLIEST), joins_chunks=False, keeps_packed=True)
    consumer = await client.consumer(topic, subscription)
    entries = await take(consumer, count)
    await consumer.close()
    return [Unit(stored_bytes(entry), 1, entry.publish_time) for entry in entries]


async def send(cluster: Cluster, topic: str, units: list[Unit], **spec: object) -> None:
    outbound = await cluster.outbound(OutboundSpec(topic, stamp_origin=False, keep_units=True, **spec))  # type: ignore[arg-type]
    try:
        async with asyncio.timeout(SERVER_PATIENCE_S):
            receipt = await outbound.send(0, Share(batch_of_units(EntryFormat(), units)))
        assert not receipt.failures
    finally:
        await outbound.close()


@pytest.mark.parametrize("is_deduplicated", [False, True])
async def test_chunks_are_stored_as_they_are_and_joined_by_consumers(
    pulsar: Pulsar, client: ClusterClient, subscribe, cluster: Cluster, is_deduplicated: bool
) -> None:
    """Each chunk has a sequence id of its own in SEND; in its metadata it has that of its message."""
    source = pulsar.take_topic()
    producer = client.producer(source, ProducerSettings("sdk", chunking=True, chunk_bytes=1000))
    payloads = [b"a" * 4500, b"b", b"c" * 2500]
    await asyncio.gather(*(producer.send(MessageMetadata(partition_key="k"), payload) for payload in payloads))
    await producer.close()
    units = await chunks_of(client, source, 9)
    namespace = await asyncio.to_thread(pulsar.create_namespace, "acme", f"units-{uuid4().hex[:6]}")
    await asyncio.to_thread(pulsar.admin, "POST", f"namespaces/{namespace}/deduplication", is_deduplicated)
    topic = await asyncio.to_thread(pulsar.create_topic, "t", 0, namespace=namespace)
    await send(cluster, topic, units)
    assert [unit.data for unit in await chunks_of(client, topic, 9)] == [unit.data for unit in units]
    consumer = await subscribe(topic)
    found = [message for entry in await take(consumer, 3) for message in decode_plain(entry)]
    assert [(message.payload, message.key) for message in found] == [(payload, "k") for payload in payloads]


async def test_batches_compression_and_encryption_survive(pulsar: Pulsar, client: ClusterClient, cluster: Cluster) -> None:
    source, target = pulsar.take_topic(), pulsar.take_topic()
    producer = client.producer(source, ProducerSettings("sdk", codec=CODEC_NUMBERS["zstd"]))
    secret = MessageMetadata(encryption_param=b"x")
    secret.encryption_keys.add(key="app", value=b"data key")
    for metadata, payload, count in (batch([b"a" * 100, b"b" * 100]), (secret, b"secret", 1), batch([b"c"])):
        await producer.send(metadata, payload, count)
    await producer.close()
    units = await units_of(cluster, source)
    assert [unit.message_count for unit in units] == [2, 1, 1]
    assert decode_entry(units[0].data).metadata.compression == CODEC_NUMBERS["zstd"]
    await send(cluster, target, units)
    assert [unit.data for unit in await units_of(cluster, target)] == [unit.data for unit in units]


async def test_the_batches_of_a_lane_are_stored_as_they_are(pulsar: Pulsar, client: ClusterClient, cluster: Cluster) -> None:
    source, target = pulsar.take_topic(), pulsar.take_topic()
    producer = client.producer(source, name="sdk")
    for number in range(20):
        await producer.send(*batch([b"%d-%d" % (number, index) for index in range(3)]))
    await producer.close()
    async with AsyncExitStack() as stack:
        inbound = await cluster.inbound(InboundSpec((source,), f"g-{uuid4().hex[:6]}"))
        stack.push_async_callback(inbound.close)
        outbound = await cluster.outbound(OutboundSpec(target, stamp_origin=False, keep_units=True))
        stack.push_async_callback(outbound.close)
        lane, count = await anext(inbound.lanes()), 0
        async with asyncio.timeout(SERVER_PATIENCE_S):
            while count < 60:
                received: Batch = await lane.receive()
                assert not (await outbound.send(0, Share(received))).failures
                lane.acknowledge(received)
                count += received.count
    stored, sent = await units_of(cluster, target), await units_of(cluster, source)
    assert [unit.data for unit in stored] == [unit.data for unit in sent]
    assert {decode_entry(unit.data).metadata.producer_name for unit in stored} == {"sdk"}


def sender_units(name: str, first: int) -> list[Unit]:
    """Return a single message and a batch of three, with sequence ids from `first` on of a producer of this name."""
    single = MessageMetadata(producer_name=name, sequence_id=first, publish_time=7)
    joined, payload, count = batch([b"%d" % number for number in range(first + 1, first + 4)])
    joined.producer_name, joined.sequence_id, joined.highest_sequence_id, joined.publish_time = name, first + 1, first + 3, 7
    return [
        Unit(stored_entry(single, b"%d" % first), 1, 7, (first,)),
        Unit(stored_entry(joined, payload), count, 7, (first + 1,)),
    ]


@pytest.mark.parametrize("name", ["sdk", "another"])
async def test_a_sender_is_found_after_its_topic_was_loaded_again(pulsar: Pulsar, cluster: Cluster, name: str) -> None:
    """Units of the sender's own name are stored as they are, others as messages of the sender."""
    namespace = await asyncio.to_thread(pulsar.create_namespace, "acme", f"units-{uuid4().hex[:6]}")
    await asyncio.to_thread(pulsar.admin, "POST", f"namespaces/{namespace}/deduplication", True)
    topic = await asyncio.to_thread(pulsar.create_topic, "t", 0, namespace=namespace)
    source, units = Partition("sdk", "producer", "0", 0), sender_units(name, 100)
    for round_number in range(3):
        outbound = await cluster.outbound(OutboundSpec(topic, stamp_origin=False, sender="sdk", keep_units=True))
        assert await outbound.resume(source) == ({0: (103,)} if round_number else {})
        assert not (await outbound.send(0, Share(batch_of_units(EntryFormat(), units, source)))).failures
        await outbound.close()
        await asyncio.to_thread(pulsar.admin, "PUT", f"{topic.replace('://', '/')}/unload")
    stored = await units_of(cluster, topic)
    messages = [message for unit in stored for message in decode_plain(decode_entry(unit.data))]
    assert [message.payload for message in messages] == [b"100", b"101", b"102", b"103"]
    assert ([unit.data for unit in stored] == [unit.data for unit in units]) is (name == "sdk")
    producer = await cluster.outbound(OutboundSpec(topic, sender="another", stamp_origin=False))
    assert await producer.resume(source) == {}, "no unit has spent the sequence ids of another producer"
    await producer.close()


async def test_a_topic_in_use_is_not_deleted(pulsar: Pulsar, client: ClusterClient, subscribe, cluster: Cluster) -> None:
    topic = await asyncio.to_thread(pulsar.create_topic, f"used-{uuid4().hex[:6]}", 2)
    consumer = await subscribe(f"{topic}-partition-0", name="g")
    with pytest.raises(ClusterError, match="connected") as raised:
        await cluster.delete(topic)
    assert raised.value.failure is Failure.FATAL
    assert set(await cluster.bounds(topic)) == {"0", "1"}, "no partition was deleted"
    await consumer.close()
    await cluster.delete(topic)  # the subscription without consumers does not prevent it
    assert await cluster.describe(topic) is None
    await cluster.delete(topic)


@pytest.mark.parametrize("name", ["a b", "a+b", "a%2Fb", "ü-ö", "a:b@c,d;e", "a?b#c", "a\\b", "a'b\"c", "日本"])
async def test_names_that_the_rule_accepts_are_those_of_topics(cluster: Cluster, name: str) -> None:
    assert cluster.capabilities.topic_name.problem(name) is None
    topic = f"{name}-{uuid4().hex[:6]}"
    await cluster.create(topic, 1)
    outbound = await cluster.outbound(OutboundSpec(topic))
    assert not (await outbound.send(0, Share(Batch.of([Message(b"x")])))).failures
    await outbound.close()
    assert topic in await cluster.topics()
    bounds = (await cluster.bounds(topic))["0"]
    assert bounds.last is not None
    inbound = await cluster.inbound(InboundSpec((topic,), name))
    await inbound.close()
    await cluster.operations.delete_group(topic, name)  # type: ignore[union-attr]
    assert name not in await cluster.operations.groups(topic)  # type: ignore[union-attr]
    await cluster.delete(topic)
