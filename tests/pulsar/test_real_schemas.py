"""A real broker's rules for schemas: those that the registry of a listener follows."""

import json
from typing import Any

import pytest

from mqbridge.errors import ClusterError
from mqbridge.pulsar.client.cluster_client import ClusterClient
from mqbridge.pulsar.client.consumer.subscription import Subscription
from mqbridge.pulsar.wire.schemas import STRING, Schema, Types, avro, json_record
from tests.kit.pulsar import Pulsar
from tests.pulsar.server.avro_pairs import PAIRS, field, record

pytestmark = [pytest.mark.cluster, pytest.mark.thorough]

ROW = record(field("a", "string"))


async def can_subscribe(client: ClusterClient, topic: str, schema: Schema) -> bool:
    try:
        consumer = await client.consumer(topic, Subscription("s", schema=schema))
        await consumer.close()
    except ClusterError as error:
        if "IncompatibleSchema" not in str(error):
            raise
        return False
    return True


async def can_produce(client: ClusterClient, topic: str, schema: Schema) -> bytes | None:
    try:
        return await client.register_schema(topic, schema)
    except ClusterError as error:
        if "IncompatibleSchema" not in str(error):
            raise
        return None


async def answer(pulsar: Pulsar, client: ClusterClient, old: Any, new: Any) -> str:
    old_schema, new_schema = avro(json.dumps(old)), avro(json.dumps(new))
    topic, other_topic = pulsar.take_topic(), pulsar.take_topic()
    first = await client.register_schema(topic, old_schema)
    await client.register_schema(other_topic, new_schema)
    new_reads = await can_subscribe(client, topic, new_schema)
    old_reads = await can_subscribe(client, other_topic, old_schema)
    second = await can_produce(client, topic, new_schema)
    if second == first:
        return "same"
    if (second is not None) != (new_reads and old_reads):
        return "contradiction"
    return {(True, True): "both", (True, False): "new", (False, True): "old", (False, False): "neither"}[new_reads, old_reads]


async def test_the_broker_still_says_so_about_avro_schemas(pulsar: Pulsar, client: ClusterClient) -> None:
    answers = {name: await answer(pulsar, client, old, new) for name, old, new, _ in PAIRS[::8]}
    assert {name: answers[name] for name, _, _, said in PAIRS[::8] if answers[name] != said} == {}


async def test_a_schema_is_compared_with_the_latest_one(pulsar: Pulsar, client: ClusterClient) -> None:
    topic = pulsar.take_topic()
    with_default = record(field("a", "string"), field("b", "int", default=0))
    first = await client.register_schema(topic, avro(ROW))
    await client.register_schema(topic, avro(with_default))
    await client.register_schema(topic, avro(record(field("a", "string"), field("b", "int"))))
    assert await client.register_schema(topic, avro(ROW)) == first
    assert await can_subscribe(client, topic, avro(record())), "consumers need one direction"


async def test_other_types_are_incompatible(pulsar: Pulsar, client: ClusterClient) -> None:
    everything = [STRING, Schema(Types.Int32), avro(ROW), json_record(ROW), Schema(Types.Protobuf, avro(ROW).definition)]
    for schema in everything:
        topic = pulsar.take_topic()
        await client.register_schema(topic, schema)
        for other in everything:
            assert (await can_produce(client, topic, other) is not None) == (other.type == schema.type)
            assert await can_subscribe(client, topic, other) == (other.type == schema.type)
        assert await can_subscribe(client, topic, Schema(Types.AutoConsume))


async def test_fields_of_protobuf_are_not_compared(pulsar: Pulsar, client: ClusterClient) -> None:
    topic = pulsar.take_topic()
    await client.register_schema(topic, Schema(Types.Protobuf, avro(ROW).definition))
    assert await can_produce(client, topic, Schema(Types.Protobuf, avro(record(field("a", "int"))).definition)) is not None


async def test_a_deleted_schema_permits_any_other(pulsar: Pulsar, client: ClusterClient) -> None:
    topic = pulsar.take_topic()
    first = await client.register_schema(topic, avro(ROW))
    pulsar.admin("DELETE", f"schemas/{topic.partition('://')[2]}/schema")
    assert await client.schema(topic, first) is None
    assert await can_produce(client, topic, STRING) is not None


async def test_no_schema_has_the_empty_version(pulsar: Pulsar, client: ClusterClient) -> None:
    topic = pulsar.take_topic()
    await client.register_schema(topic, avro(ROW))
    assert await client.register_schema(topic, Schema(Types.NoSchema)) == b""
    assert await can_produce(client, topic, Schema(Types.AutoConsume)) is None
