"""Producers of a real broker: exclusive access, delayed messages, schemas."""

import asyncio
import time

import pytest

from mqbridge.errors import ClusterError, Failure, ServerRefused
from mqbridge.pulsar.client.consumer.subscription import Types
from mqbridge.pulsar.client.producer.producer_settings import ProducerSettings
from mqbridge.pulsar.library.topic_producer import open_topic_producer
from mqbridge.pulsar.wire import schemas
from mqbridge.pulsar.wire.names import parse_topic
from mqbridge.pulsar.wire.pb import PulsarApi_pb2 as pb
from mqbridge.pulsar.wire.pb.PulsarApi_pb2 import MessageMetadata
from mqbridge.pulsar.wire.schemas import STRING, version_number
from tests.patience import SERVER_PATIENCE_S
from tests.pulsar.conftest import client_of
from tests.pulsar.entries import numbers, take

pytestmark = [pytest.mark.cluster, pytest.mark.thorough]

AVRO = {"type": "record", "name": "Order", "fields": [{"name": "id", "type": "long"}]}
NUMBER = {"name": "n", "type": ["null", "long"], "default": None}
AVRO_2 = {"type": "record", "name": "Order", "fields": [*AVRO["fields"], NUMBER]}
AVRO_BAD = {"type": "record", "name": "Order", "fields": [{"name": "id", "type": "string"}]}


def path_of(topic: str) -> str:
    return topic.replace("://", "/")


async def test_exclusive_access_keeps_others_out(pulsar, client):
    topic = pulsar.take_topic()
    first = client.producer(topic, ProducerSettings(access=pb.Exclusive))
    await first.opened()
    assert first.topic_epoch == 0
    second = client.producer(topic, ProducerSettings(access=pb.Exclusive))
    with pytest.raises(ClusterError, match="ProducerFenced") as caught:
        await second.opened()
    assert caught.value.failure is Failure.FATAL
    await second.close()
    await asyncio.to_thread(pulsar.admin, "PUT", f"{path_of(topic)}/unload")
    await asyncio.wait_for(first.send(MessageMetadata(), b"0"), SERVER_PATIENCE_S)
    assert first.registrations == 2, "its epoch lets it in again"
    await first.close()


async def test_a_waiting_producer_gets_access_when_the_first_closes(pulsar, client):
    topic = pulsar.take_topic()
    first = client.producer(topic, ProducerSettings(access=pb.Exclusive))
    await first.opened()
    waiting = client.producer(topic, ProducerSettings(access=pb.WaitForExclusive))
    sent = waiting.send(MessageMetadata(), b"1")
    async with asyncio.timeout(SERVER_PATIENCE_S):
        while not waiting.awaits_exclusive_access:
            await asyncio.sleep(0.01)
    withdrawn = client.producer(topic, ProducerSettings(access=pb.WaitForExclusive))
    async with asyncio.timeout(SERVER_PATIENCE_S):
        while not withdrawn.awaits_exclusive_access:
            await asyncio.sleep(0.01)
    await withdrawn.close()
    assert not sent.done()
    await first.close()
    await asyncio.wait_for(sent, SERVER_PATIENCE_S)
    assert waiting.topic_epoch == 1
    await waiting.close()


async def test_fencing_ends_the_existing_producer(pulsar, client, subscribe):
    topic = pulsar.take_topic()
    other = client_of(pulsar.service_url)
    first = other.producer(topic, ProducerSettings(access=pb.Exclusive))
    await first.send(MessageMetadata(), b"0")
    second = client.producer(topic, ProducerSettings(access=pb.ExclusiveWithFencing))
    await second.send(MessageMetadata(), b"1")
    assert (first.topic_epoch, second.topic_epoch) == (0, 1)
    with pytest.raises(ClusterError) as caught:
        await asyncio.wait_for(first.send(MessageMetadata(), b"lost"), SERVER_PATIENCE_S)
    assert caught.value.failure is Failure.FATAL
    assert numbers(await take(await subscribe(topic), 2)) == [0, 1]
    await first.close()
    await second.close()
    await other.close()


async def test_a_delayed_message_is_delivered_after_its_delay(pulsar, client, subscribe):
    topic = pulsar.take_topic()
    consumer = await subscribe(topic, type=Types.Shared)
    producer = await open_topic_producer(client, topic)
    await producer.send(b"7")
    (warm_up,) = await take(consumer, 1)
    assert numbers([warm_up]) == [7]
    later = time.time_ns() // 1_000_000 + 6000
    await asyncio.gather(producer.send(b"1", deliver_at=later), producer.send(b"0"))
    first, second = await take(consumer, 2)
    assert (numbers([first, second]), second.metadata.deliver_at_time) == ([0, 1], later)
    assert time.time_ns() // 1_000_000 >= later - 1100, "the broker may be early by a tick of a second"
    await producer.close()


# --- schemas ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("schema", [STRING, schemas.json_record(AVRO), schemas.avro(AVRO)], ids=["string", "json", "avro"])
async def test_a_producers_schema_is_registered_and_messages_name_its_version(pulsar, client, subscribe, schema):
    topic = pulsar.take_topic()
    assert await client.schema(topic) is None
    producer = client.producer(topic, ProducerSettings(schema=schema))
    await producer.send(MessageMetadata(), b"body")
    assert producer.schema_version == bytes(8)
    found = await client.schema(topic)
    assert found is not None
    assert (found.schema.type, found.version, found.schema.name) == (schema.type, bytes(8), parse_topic(topic).path)
    if schema.definition:
        assert found.schema.definition == schema.definition
    consumer = await subscribe(topic, schema=schema)
    (entry,) = await take(consumer, 1)
    assert (entry.payload, version_number(entry.metadata.schema_version)) == (b"body", 0)
    await producer.close()


async def test_schemas_evolve_and_incompatible_ones_are_refused(pulsar, client):
    topic = pulsar.take_topic()
    first = await client.register_schema(topic, schemas.avro(AVRO))
    second = await client.register_schema(topic, schemas.avro(AVRO_2))
    assert [version_number(each) for each in (first, second)] == [0, 1]
    assert await client.register_schema(topic, schemas.avro(AVRO)) == first, "known already"
    found = [await client.schema(topic, version) for version in (first, second, None)]
    definitions = [each.schema.definition for each in found if each]
    assert definitions == [schemas.avro(each).definition for each in (AVRO, AVRO_2, AVRO_2)]
    with pytest.raises(ServerRefused, match="IncompatibleSchema"):
        await client.register_schema(topic, schemas.avro(AVRO_BAD))
    producer = client.producer(topic, ProducerSettings(schema=schemas.avro(AVRO_BAD)))
    with pytest.raises(ClusterError, match="IncompatibleSchema") as caught:
        await producer.opened()
    assert caught.value.failure is Failure.FATAL
    await producer.close()


async def test_a_topic_with_a_schema_accepts_a_producer_without(pulsar, client, subscribe):
    topic = pulsar.take_topic()
    await client.register_schema(topic, STRING)
    producer = client.producer(topic)
    await producer.send(MessageMetadata(), b"x")
    assert producer.schema_version == b""
    (entry,) = await take(await subscribe(topic), 1)
    assert not entry.metadata.HasField("schema_version")
    await producer.close()
