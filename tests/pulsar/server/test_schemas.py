"""The registry answers clients as a broker does, and its answers are the same at every gateway and after a restart."""

import asyncio
import json
import struct
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from mqbridge.adapter.cluster import Cluster
from mqbridge.errors import RefusalReason, RequestRefused
from mqbridge.listener.definitions import Definitions
from mqbridge.log.adapter.cluster import LogCluster
from mqbridge.log.store.settings import LogSettings
from mqbridge.pulsar.server.schemas import NO_VERSION, Schemas
from mqbridge.pulsar.wire.schemas import STRING, Schema, Types, avro, json_record
from mqbridge.testing.memory.adapter.cluster import MemoryCluster
from mqbridge.testing.memory.adapter.config import MemoryConfig
from mqbridge.testing.memory.broker import delete_broker
from tests.pulsar.server.avro_pairs import field, record

TOPIC = "persistent://public/default/orders"
CLUSTER = "schemas"

R1 = record(field("a", "string"))
R2 = record(field("a", "string"), field("b", "int", default=0))
R3 = record(field("a", "string"), field("b", "int"))
R4 = record(field("a", "int"))


def key_value(key: Schema, value: Schema, key_type: str, value_type: str, encoding: str = "INLINE") -> Schema:
    parts = [part for each in (key, value) for part in (struct.pack(">I", len(each.definition)), each.definition)]
    properties = (("key.schema.type", key_type), ("value.schema.type", value_type), ("kv.encoding.type", encoding))
    return Schema(Types.KeyValue, b"".join(parts), "", properties)


@pytest_asyncio.fixture(params=["memory", "log"])
async def make_cluster(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Callable[[], Cluster]]:
    made: list[Cluster] = []

    def make() -> Cluster:
        if request.param == "memory":
            cluster: Cluster = MemoryCluster(CLUSTER, MemoryConfig())
        else:
            cluster = LogCluster(CLUSTER, LogSettings(path=tmp_path / "log.db", poll="5ms"))
        made.append(cluster)
        return cluster

    yield make
    for cluster in made:
        await cluster.close()
    if request.param == "memory":
        delete_broker(CLUSTER)


@asynccontextmanager
async def started(cluster: Cluster) -> AsyncIterator[Schemas]:
    await cluster.connect()
    made = Schemas(Definitions(cluster))
    await made.start()
    try:
        yield made
    finally:
        await made.close()


@pytest_asyncio.fixture
async def schemas() -> AsyncIterator[Schemas]:
    async with started(MemoryCluster(CLUSTER, MemoryConfig())) as made:
        yield made
    delete_broker(CLUSTER)


async def refused(request: Any) -> str:
    """Return why a request is refused as incompatible."""
    with pytest.raises(RequestRefused) as caught:
        await request
    assert caught.value.reason is RefusalReason.INCOMPATIBLE
    return str(caught.value)


@pytest.mark.parametrize("make", [avro, json_record])
async def test_a_producers_schema_is_registered_if_it_is_compatible(make_cluster: Callable[[], Cluster], make: Any) -> None:
    async with started(make_cluster()) as schemas:
        assert await schemas.latest(TOPIC) is None
        first = await schemas.register(TOPIC, make(R1))
        assert len(first) == 8
        assert await schemas.register(TOPIC, make(R1)) == first
        second = await schemas.register(TOPIC, make(R2))
        third = await schemas.register(TOPIC, make(R3))  # compared with the latest only
        assert len({first, second, third}) == 3
        assert "cannot" in await refused(schemas.register(TOPIC, make(R4)))
        assert await schemas.register(TOPIC, make(R1)) == first, "an old one keeps its version"
        latest = await schemas.latest(TOPIC)
        assert latest is not None
        assert (latest.version, latest.schema) == (third, Schema(make(R3).type, make(R3).definition, "public/default/orders"))
        old = await schemas.version(TOPIC, first)
        assert old is not None
        assert old.schema.definition == make(R1).definition
        assert await schemas.version(TOPIC, b"12345678") is None
        assert [each.version for each in await schemas.versions(TOPIC)] == [first, second, third]
        assert await schemas.find_version(TOPIC, make(R2)) == second
        assert await schemas.find_version(TOPIC, make(R4)) is None
        await schemas.check_producer(TOPIC, make(R3))
        await refused(schemas.check_producer(TOPIC, make(R4)))


async def test_a_consumers_schema_must_read_the_latest_one(schemas: Schemas) -> None:
    with_default, without = record(field("a", "string"), field("c", "int", default=1)), record(field("c", "int"))
    await schemas.check_consumer(TOPIC, avro(R1))
    first = await schemas.latest(TOPIC)
    assert first is not None
    assert first.schema.definition == avro(R1).definition, "a topic without schema gets the consumer's"
    await schemas.check_consumer(TOPIC, avro(record()))  # a broker asks for one direction only
    await schemas.check_consumer(TOPIC, avro(with_default))
    assert [each.version for each in await schemas.versions(TOPIC)] == [first.version], "a consumer adds nothing"
    await refused(schemas.check_consumer(TOPIC, avro(without)))
    await refused(schemas.check_consumer(TOPIC, avro(R4)))
    await refused(schemas.check_consumer(TOPIC, STRING))
    await refused(schemas.check_consumer(TOPIC, Schema(Types.Avro, b"{")))
    await schemas.check_consumer(TOPIC, Schema(Types.AutoConsume))
    await schemas.check_consumer(TOPIC, Schema(Types.NoSchema))


async def test_a_topic_in_use_without_schema_refuses_a_consumers_schema(schemas: Schemas) -> None:
    for schema in (avro(R1), STRING):
        await refused(schemas.check_consumer(TOPIC, schema, in_use=True))
    await schemas.check_consumer(TOPIC, Schema(Types.AutoConsume), in_use=True)
    assert await schemas.latest(TOPIC) is None
    await schemas.register(TOPIC, avro(R1))
    await schemas.check_consumer(TOPIC, avro(R2), in_use=True)


async def test_the_type_of_a_topics_schema_stays(schemas: Schemas) -> None:
    everything = [STRING, Schema(Types.Int32), avro(R1), json_record(R1), Schema(Types.Protobuf, avro(R1).definition)]
    for number, schema in enumerate(everything):
        topic = f"{TOPIC}{number}"
        version = await schemas.register(topic, schema)
        for other in everything:
            if other.type != schema.type:
                await refused(schemas.register(topic, other))
                await refused(schemas.check_consumer(topic, other))
        assert await schemas.register(topic, schema) == version


@pytest.mark.parametrize("schema", [Schema(Types.AutoConsume), Schema(Types.External), Schema(99), Schema(Types.String, b"x")])
async def test_what_no_topic_can_have_is_refused(schemas: Schemas, schema: Schema) -> None:
    await refused(schemas.register(TOPIC, schema))
    assert await schemas.latest(TOPIC) is None


async def test_no_schema_has_no_version(schemas: Schemas) -> None:
    assert await schemas.register(TOPIC, Schema(Types.NoSchema)) == NO_VERSION
    await schemas.register(TOPIC, avro(R1))
    assert await schemas.register(TOPIC, Schema(Types.NoSchema)) == NO_VERSION


async def test_what_only_looks_different_is_the_same_version(schemas: Schemas) -> None:
    version = await schemas.register(TOPIC, avro(R1))
    for same in (
        avro(json.dumps(R1, indent=3)),
        avro(record(field("a", "string", doc="d", aliases=["z"]), doc="d", aliases=["Q"])),
        Schema(Types.Avro, avro(R1).definition, "a name", (("a", "b"),)),
    ):
        assert await schemas.register(TOPIC, same) == version
    assert await schemas.register(TOPIC, avro(record(field("a", "string", color="red")))) != version


async def test_properties_are_kept(schemas: Schemas) -> None:
    properties = (("b", "1"), ("a", "é"))
    await schemas.register(TOPIC, Schema(Types.Json, json_record(R1).definition, "", properties))
    found = await schemas.latest(TOPIC)
    assert found is not None
    assert found.schema.properties == properties


async def test_the_types_of_key_and_value_stay(schemas: Schemas) -> None:
    first = await schemas.register(TOPIC, key_value(STRING, avro(R1), "STRING", "AVRO"))
    assert await schemas.register(TOPIC, key_value(STRING, avro(json.dumps(R1, indent=1)), "STRING", "AVRO")) == first
    assert await schemas.register(TOPIC, key_value(STRING, avro(R2), "STRING", "AVRO")) != first
    separated = await schemas.register(TOPIC, key_value(STRING, avro(R1), "STRING", "AVRO", "SEPARATED"))
    assert separated != first, "messages of the two cannot be read with each other"
    for other in (
        key_value(STRING, avro(R4), "STRING", "AVRO"),
        key_value(STRING, avro(R1), "INT32", "AVRO"),
        key_value(STRING, avro(R1), "STRING", "JSON"),
    ):
        await refused(schemas.register(TOPIC, other))
        await refused(schemas.check_consumer(TOPIC, other))


async def test_deleted_schemas_are_forgotten(make_cluster: Callable[[], Cluster]) -> None:
    async with started(make_cluster()) as schemas:
        first = await schemas.register(TOPIC, avro(R1))
        await schemas.delete(TOPIC)
        await schemas.delete(TOPIC)
        assert await schemas.latest(TOPIC) is None
        assert await schemas.version(TOPIC, first) is None
        await schemas.register(TOPIC, avro(R4))
        await refused(schemas.register(TOPIC, avro(R1)))
        await schemas.delete(TOPIC)
        assert await schemas.register(TOPIC, avro(R1)) == first, "versions are hashes"
    async with started(make_cluster()) as schemas:
        assert [each.version for each in await schemas.versions(TOPIC)] == [first]


async def test_gateways_give_the_same_versions(make_cluster: Callable[[], Cluster]) -> None:
    async with started(make_cluster()) as one, started(make_cluster()) as other:
        version = await one.register(TOPIC, avro(R1))
        found = await other.version(TOPIC, version)
        assert found is not None, "it is read before the answer is that there is none"
        assert found.schema.definition == avro(R1).definition
        assert await other.register(TOPIC, avro(R1)) == version
        await refused(other.register(TOPIC, avro(R4)))
        newer = await other.register(TOPIC, avro(R2))
        assert await one.register(TOPIC, avro(R3)) != newer
    async with started(make_cluster()) as again:
        assert len(await again.versions(TOPIC)) == 3


async def test_schemas_registered_at_the_same_time_are_compatible(make_cluster: Callable[[], Cluster]) -> None:
    """Each is compatible with what was there, but not with the other: one of the gateways takes its own back."""
    async with started(make_cluster()) as one, started(make_cluster()) as other:
        for number in range(5):
            topic = f"{TOPIC}{number}"
            answers = await asyncio.gather(one.register(topic, avro(R1)), other.register(topic, avro(R4)), return_exceptions=True)
            versions = [answer for answer in answers if isinstance(answer, bytes)]
            assert len(versions) == 1, answers
            for gateway in (one, other):
                assert [each.version for each in await gateway.versions(topic)] == versions
            same = await asyncio.gather(one.register(f"{topic}s", STRING), other.register(f"{topic}s", STRING))
            assert len(set(same)) == 1


async def test_many_producers_register_one_schema_once(schemas: Schemas) -> None:
    answers = await asyncio.gather(*(schemas.register(TOPIC, avro(R1)) for _ in range(20)))
    assert len(set(answers)) == 1
    assert len(await schemas.versions(TOPIC)) == 1
