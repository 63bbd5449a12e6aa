"""Messages of ours and of the official Java client through Pulsar: chunks, schemas, parts of batches, delays, access."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import os
import time
from pathlib import Path

import pytest

from mqbridge import PulsarClient
from mqbridge.errors import ClusterError, Failure
from mqbridge.pulsar.client.consumer.subscription import Subscription, Types
from mqbridge.pulsar.client.producer import pending_entry
from mqbridge.pulsar.client.producer.entry_producer import EntryProducer
from mqbridge.pulsar.client.producer.producer_settings import ProducerSettings
from mqbridge.pulsar.library.topic_consumer import open_topic_consumer
from mqbridge.pulsar.library.topic_producer import open_topic_producer
from mqbridge.pulsar.mapping.stored import decode_plain
from mqbridge.pulsar.wire import ids, schemas
from mqbridge.pulsar.wire.batch import join_batch
from mqbridge.pulsar.wire.pb import PulsarApi_pb2 as pb
from mqbridge.pulsar.wire.pb.PulsarApi_pb2 import MessageMetadata, SingleMessageMetadata
from tests.kit import java
from tests.kit.java import JavaError
from tests.kit.pulsar import Pulsar
from tests.patience import SERVER_PATIENCE_S
from tests.pulsar.conftest import client_of
from tests.pulsar.entries import batch, drain, payloads, take
from tests.pulsar.proxy import CuttingProxy
from tests.pulsar.test_real_dead_letters import Routes
from tests.sdk.pulsar import SUBSCRIPTION, OurMember, group, in_order
from tests.sdk.rocketmq import body, run_java, sequence, until

pytestmark = [pytest.mark.cluster, pytest.mark.thorough, pytest.mark.sdk, pytest.mark.timeout(300)]

ORDER = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "name", "type": ["null", "string"], "default": None},
    ],
}
TICK_MS = 1100
"""A broker checks for delayed messages once a second, and may deliver them this much too early."""
DELAY_MS = 2500


async def test_java_and_we_read_each_others_chunked_messages(pulsar: Pulsar) -> None:
    topic, size = pulsar.take_topic(), 700_000
    client = client_of(pulsar.service_url)
    producer = client.producer(topic, ProducerSettings(chunking=True, chunk_bytes=100_000))
    bodies = [bytes([number]) * (size + number) for number in range(3)]
    theirs = run_java(
        "PulsarProduce",
        url=pulsar.service_url,
        topic=topic,
        messages=3,
        size=size,
        chunk_bytes=100_000,
        compression="LZ4",
        print=True,
    )
    sent, *_ = await asyncio.gather(theirs, *(producer.send(MessageMetadata(partition_key="k"), each) for each in bodies))
    bodies += [body(line) for line in sent]
    await producer.close()
    consumer = await client.consumer(topic, Subscription("ours"))
    entries = await take(consumer, len(bodies))
    assert sorted(payload for entry in entries for payload in payloads(entry)) == sorted(bodies)
    await client.close()
    got = await run_java(
        "PulsarConsume", url=pulsar.service_url, topic=topic, subscription="theirs", messages=len(bodies), digest=True
    )
    assert [line["sha256"] for line in got] == [hashlib.sha256(entry.payload).hexdigest() for entry in entries]
    assert [line["key"] for line in got].count("k") == 3


@pytest.mark.parametrize("kind", ["Exclusive", "Shared"])
@pytest.mark.parametrize("is_late", [False, True], ids=["soon", "late"])
async def test_java_reads_chunked_messages_of_a_producer_that_lost_its_connection_between_chunks(
    pulsar: Pulsar, monkeypatch: pytest.MonkeyPatch, kind: str, is_late: bool
) -> None:
    """It gets the rest of the chunks, or after a long outage the whole message once more, which may be complete already."""
    if is_late:
        monkeypatch.setattr(pending_entry, "CHUNKS_TOGETHER_S", -1.0)
    topic = pulsar.take_topic()
    bodies = [bytes([number]) * 350_000 for number in range(4)]
    async with CuttingProxy("127.0.0.1", pulsar.port) as proxy:
        client = client_of(proxy.url)
        producer = client.producer(topic, ProducerSettings("me", chunking=True, chunk_bytes=100_000))
        await producer.opened()
        for number, sent in enumerate(bodies):
            proxy.plan(2, number % 2 == 1)  # the second chunk, or its receipt, is lost
            metadata = MessageMetadata(num_messages_in_batch=1, partition_key="k")
            await producer.send(metadata, join_batch([(SingleMessageMetadata(), sent)]))
        assert proxy.connections > len(bodies)
        await producer.close()
        await client.close()
    client = client_of(pulsar.service_url)
    complete = [
        entry.payload for entry in await drain(await client.consumer(topic, Subscription("ours"))) if entry.defect is None
    ]
    await client.close()
    assert list(dict.fromkeys(complete)) == bodies
    assert is_late or len(complete) == len(bodies)
    got = await run_java(
        "PulsarConsume", url=pulsar.service_url, topic=topic, subscription="s", type=kind, messages=len(complete), digest=True
    )
    assert [line["sha256"] for line in got] == [hashlib.sha256(payload).hexdigest() for payload in complete]


@pytest.mark.parametrize("kind", ["Exclusive", "Failover", "Shared"])
async def test_java_reads_the_large_messages_of_a_route(pulsar: Pulsar, tmp_path: Path, kind: str) -> None:
    source, target = pulsar.keep(pulsar.take_topic()), pulsar.keep(pulsar.take_topic())
    bodies = [b"first", os.urandom(6 << 20), b"second", os.urandom(11 << 20)]
    async with PulsarClient(pulsar.service_url) as client, client.producer(source, chunking=True) as producer:
        for sent in bodies:
            await producer.send(sent, key="k")
    counters, error = await Routes(pulsar, tmp_path).run(f"pulsar/{source}", {"cluster": "pulsar", "topic": target})
    assert (counters.dead, error) == (0, None)
    got = await run_java(
        "PulsarConsume", url=pulsar.service_url, topic=target, subscription="s", type=kind, messages=len(bodies), digest=True
    )
    assert [line["sha256"] for line in got] == [hashlib.sha256(sent).hexdigest() for sent in bodies]
    assert {line["key"] for line in got} == {"k"}


# --- schemas ----------------------------------------------------------------------------------------------------------


async def test_java_reads_messages_of_a_schema_that_we_registered(pulsar: Pulsar) -> None:
    texts, orders = pulsar.take_topic(), pulsar.take_topic()
    client = client_of(pulsar.service_url)
    definition = schemas.json_record(ORDER)
    for topic, schema, payload in ((texts, schemas.STRING, "grün".encode()), (orders, definition, b'{"id": 7, "name": "x"}')):
        producer = client.producer(topic, ProducerSettings(schema=schema))
        await producer.send(MessageMetadata(), payload)
        await producer.close()
    await client.close()
    at = {"url": pulsar.service_url, "messages": 1}
    (text,), (order,), (typed,) = await asyncio.gather(
        run_java("PulsarTyped", topic=texts, **at),
        run_java("PulsarTyped", topic=orders, **at),
        run_java("PulsarTyped", topic=orders, **{"as": "JSON"}, **at),
    )
    assert (text["type"], text["value"]) == ("STRING", "grün")
    assert (order["type"], order["value"]) == ("JSON", {"id": 7, "name": "x"})
    assert json.loads(order["definition"]) == ORDER
    assert typed["value"] == {"id": 7, "name": "x"}
    assert {base64.b64decode(line["version"]) for line in (text, order, typed)} == {bytes(8)}


@pytest.mark.parametrize("kind", ["STRING", "JSON"])
async def test_we_read_messages_of_a_schema_that_java_registered(kind: str, pulsar: Pulsar) -> None:
    topic = pulsar.take_topic()
    await run_java("PulsarTyped", url=pulsar.service_url, topic=topic, produce=kind, messages=2)
    client = client_of(pulsar.service_url)
    found = await client.schema(topic)
    assert found is not None
    again = client.producer(topic, ProducerSettings(schema=found.schema))
    await again.opened()
    assert again.schema_version == found.version, "the registry knows it for the same"
    await again.close()
    consumer = await client.consumer(topic, Subscription("s", schema=found.schema))
    entries = await take(consumer, 2)
    assert {entry.metadata.schema_version for entry in entries} == {found.version}
    payloads = [message.payload for entry in entries for message in decode_plain(entry)]
    if kind == "STRING":
        assert (found.schema.type, payloads) == (schemas.Types.String, [b"text 0", b"text 1"])
    else:
        assert found.schema.type == schemas.Types.Json
        fields = {field["name"] for field in json.loads(found.schema.definition)["fields"]}
        assert fields == {"id", "name"}
        assert [json.loads(each or b"") for each in payloads] == [{"id": n, "name": f"order {n}"} for n in range(2)]
    await client.close()


# --- acknowledging single messages of a batch -------------------------------------------------------------------------


@pytest.mark.parametrize("first", ["ours", "Java"])
async def test_unacknowledged_messages_of_a_batch_move_between_java_and_our_consumers(first: str, pulsar: Pulsar) -> None:
    topic = pulsar.take_topic()
    client = client_of(pulsar.service_url)
    shared = Subscription(SUBSCRIPTION, Types.Shared, batch_index_ack=True)
    at = {"url": pulsar.service_url, "topic": topic, "subscription": SUBSCRIPTION, "type": "Shared", "batch_index_ack": True}
    consumer = await client.consumer(topic, shared)
    producer = client.producer(topic)
    await producer.send(*batch([number.to_bytes(8) for number in range(6)]))
    await producer.close()
    if first == "ours":
        (entry,) = await take(consumer, 1)
        for index in (0, 2, 5):
            consumer.acknowledge_message(entry.id, index, 6)
        await consumer.confirm_acks()
        await consumer.close()
        got = await run_java("PulsarConsume", messages=3, **at)
        assert [(sequence(body(line)), line["id"]["batch"], line["id"]["batchSize"]) for line in got] == [
            (1, 1, 6),
            (3, 3, 6),
            (4, 4, 6),
        ]
    else:
        await consumer.close()
        await run_java("PulsarConsume", messages=6, keep_from=4, **at)
        consumer = await client.consumer(topic, shared)
        (entry,) = await take(consumer, 1)
        assert ids.from_words(entry.ack_set) == 0b110000
        assert [sequence(message.payload) for message in decode_plain(entry)] == [4, 5]
        consumer.acknowledge_message(entry.id, 4, 6)
        consumer.acknowledge_message(entry.id, 5, 6)
        await consumer.confirm_acks()
    path = topic.replace("://", "/")
    stats = await asyncio.to_thread(pulsar.admin, "GET", f"{path}/stats?getPreciseBacklog=true")
    assert stats["subscriptions"][SUBSCRIPTION]["msgBacklog"] == 0
    await client.close()


# --- delays -----------------------------------------------------------------------------------------------------------


async def test_java_and_we_deliver_delayed_messages_at_their_time(pulsar: Pulsar, tmp_path: Path) -> None:
    """Both clients send, and both receive: messages 0 to 19 without a delay, the others delayed."""
    async with group(pulsar, "Shared", 1, tmp_path) as members:
        members.spawn_java("java-1")
        await members.wait_until_joined()
        other = await open_topic_consumer(members.client, members.topic, Subscription("other", Types.Shared))
        ours = OurMember("a", other, cumulative=False)
        theirs = run_java(
            "PulsarProduce", url=pulsar.service_url, topic=members.topic, start=100, messages=20, size=8, deliver_after=DELAY_MS
        )
        due = time.time_ns() // 1_000_000 + DELAY_MS
        later = [members.producer.send(number.to_bytes(8), deliver_at=due) for number in range(200, 220)]
        await asyncio.gather(theirs, *later, *(members.producer.send(number.to_bytes(8)) for number in range(20)))
        members.sent += [*range(20), *range(100, 120), *range(200, 220)]
        await members.wait_until_acknowledged()
        await until(lambda: len(ours.handled) >= len(members.sent))
        await ours.leave()
        for events in (ours.handled, members.events()):
            numbers = [event.number for event in events]
            assert sorted(numbers) == members.sent
            assert sorted(numbers[:20]) == list(range(20)), "what is not delayed does not wait for what is"
            assert min(event.at for event in events if event.number >= 100) // 1000 >= due - TICK_MS


# --- exclusive access -------------------------------------------------------------------------------------------------


async def fenced(producer: EntryProducer) -> ClusterError:
    """Send until the broker reports that another producer has exclusive access, and return that error."""
    async with asyncio.timeout(SERVER_PATIENCE_S):
        while True:
            try:
                await producer.send(MessageMetadata(), bytes(8))
            except ClusterError as error:
                return error
            await asyncio.sleep(0.05)


async def test_exclusive_producers_fence_each_other(pulsar: Pulsar) -> None:
    topic = pulsar.take_topic()
    client, other = client_of(pulsar.service_url), client_of(pulsar.service_url)
    first = client.producer(topic, ProducerSettings(access=pb.Exclusive))
    await first.opened()
    at = {"url": pulsar.service_url, "topic": topic, "size": 8, "start": 1}
    with pytest.raises(JavaError, match="ProducerFenced"):
        await run_java("PulsarProduce", access="Exclusive", **at)

    with java.spawn("PulsarProduce", access="ExclusiveWithFencing", messages=100_000, rate=20, **at) as theirs:
        error = await fenced(first)
        assert (error.failure, first.topic_epoch) == (Failure.FATAL, 0)
        assert theirs.running
        refused = other.producer(topic, ProducerSettings(access=pb.Exclusive))
        with pytest.raises(ClusterError, match="ProducerFenced"):
            await refused.opened()
        second = other.producer(topic, ProducerSettings(access=pb.ExclusiveWithFencing))
        await second.send(MessageMetadata(), (1 << 32).to_bytes(8))
        assert second.topic_epoch == 2
        with pytest.raises(JavaError, match="Fenced"):
            await asyncio.to_thread(theirs.wait)
    consumer = await client.consumer(topic, Subscription("s"))
    numbers: list[int] = []
    async with asyncio.timeout(SERVER_PATIENCE_S):
        while not numbers or numbers[-1] != 1 << 32:
            numbers += [sequence(payload) for payload in payloads(await consumer.receive())]
    assert numbers.count(0) >= 1
    stored = [number for number in numbers if number]
    assert in_order(stored)
    assert stored == sorted({*stored})
    for producer in (first, refused, second):
        await producer.close()
    await client.close()
    await other.close()


async def test_a_java_producer_waits_while_our_producer_has_exclusive_access(pulsar: Pulsar) -> None:
    topic = pulsar.take_topic()
    client = client_of(pulsar.service_url)
    first = client.producer(topic, ProducerSettings(access=pb.Exclusive))
    await first.opened()
    with java.spawn(
        "PulsarProduce", url=pulsar.service_url, topic=topic, size=8, start=5, access="WaitForExclusive", print=True
    ) as theirs:
        path = topic.replace("://", "/")
        await until(lambda: pulsar.admin("GET", f"{path}/stats")["waitingPublishers"] == 1)
        await first.send(MessageMetadata(), bytes(8))
        assert not theirs.lines()
        await first.close()
        await asyncio.to_thread(theirs.wait)
    consumer = await client.consumer(topic, Subscription("s"))
    assert [sequence(payload) for entry in await take(consumer, 2) for payload in payloads(entry)] == [0, 5]
    await client.close()


async def test_java_and_we_choose_the_same_partition_for_a_key(pulsar: Pulsar) -> None:
    """With Murmur3, which both clients support, messages of one key share a partition, whichever client sent them."""
    topic, count = pulsar.take_topic(5), 40
    client = client_of(pulsar.service_url)
    producer = await open_topic_producer(client, topic, key_hash="murmur3")
    ours = {f"k{number}": await producer.send(b"x", key=f"k{number}") for number in range(count)}
    await producer.close()
    await client.close()
    theirs = await run_java("PulsarProduce", url=pulsar.service_url, topic=topic, messages=count, size=8, key="k{n}", print=True)
    assert {f"k{line['seq']}": line["id"]["partition"] for line in theirs} == {
        key: receipt.partition for key, receipt in ours.items()
    }
