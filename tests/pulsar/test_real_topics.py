"""Topics of a real cluster: new partitions, changing topics of a pattern, other service addresses, a proxy."""

import asyncio
from uuid import uuid4

import pytest

from mqbridge.errors import ClusterError, Unreachable
from mqbridge.pulsar.client.consumer.subscription import Subscription, Types
from mqbridge.pulsar.library.batching import Batching
from mqbridge.pulsar.library.topic_consumer import open_pattern_consumer, open_topic_consumer
from mqbridge.pulsar.library.topic_producer import open_topic_producer
from mqbridge.pulsar.wire.hashing import java_string_hash
from mqbridge.pulsar.wire.pb.PulsarApi_pb2 import MessageMetadata
from mqbridge.pulsar.wire.topic_lists import topics_hash
from tests.kit.process import free_ports
from tests.patience import SERVER_PATIENCE_S
from tests.pulsar.conftest import client_of
from tests.pulsar.entries import payloads
from tests.pulsar.proxy import CuttingProxy

pytestmark = pytest.mark.cluster


async def collect(consumer, count: int) -> list[bytes]:
    found: list[bytes] = []
    async with asyncio.timeout(SERVER_PATIENCE_S):
        while len(found) < count:
            taken, entry = await consumer.receive()
            found += payloads(entry)
            taken.acknowledge_up_to(entry.id)
    return found


async def test_producers_and_consumers_use_new_partitions(pulsar, client):
    topic = pulsar.take_topic(2)
    producer = await open_topic_producer(client, topic, refresh_s=0.1)
    consumer = await open_topic_consumer(client, topic, Subscription("s"), refresh_s=0.1)
    keys = [f"key-{number}" for number in range(40)]
    await asyncio.gather(*[producer.send(b"%d" % number, key=key) for number, key in enumerate(keys)])
    assert sorted(map(int, await collect(consumer, 40))) == list(range(40))
    await asyncio.to_thread(pulsar.admin, "POST", f"{topic.replace('://', '/')}/partitions", 5)
    async with asyncio.timeout(SERVER_PATIENCE_S):
        while producer.partitions < 5 or len(consumer.consumers) < 5:
            await asyncio.sleep(0.01)
    receipts = await asyncio.gather(*[producer.send(b"%d" % number, key=key) for number, key in enumerate(keys)])
    assert [each.partition for each in receipts] == [java_string_hash(key) % 5 for key in keys]
    assert sorted(map(int, await collect(consumer, 40))) == list(range(40))
    await producer.close()
    await consumer.close()


@pytest.mark.parametrize("padding", ["", "(this is more than the broker wants to watch)?"], ids=["short", "long"])
async def test_a_pattern_follows_the_brokers_topic_updates(pulsar, client, padding):
    namespace = pulsar.create_namespace("acme", f"watch-{uuid4().hex[:6]}")
    pulsar.create_topic("logs-1", 2, namespace=namespace)
    pulsar.create_topic("other", namespace=namespace)
    pattern = f"{namespace}/logs-[0-9]{padding}"
    consumer = await open_pattern_consumer(client, namespace, pattern, Subscription("s"))
    assert sorted(consumer.consumers) == [f"persistent://{namespace}/logs-1-partition-{index}" for index in range(2)]
    assert consumer._watch is not None
    assert consumer._watch.receives_pushes, "nobody waits for the next poll, a minute later"
    second = await asyncio.to_thread(pulsar.create_topic, "logs-2", namespace=namespace)
    async with asyncio.timeout(SERVER_PATIENCE_S):
        while second not in consumer.consumers:
            await asyncio.sleep(0.01)
    producer = client.producer(second)
    await producer.send(MessageMetadata(), b"hello")
    assert await collect(consumer, 1) == [b"hello"]
    await producer.close()
    await asyncio.to_thread(pulsar.admin, "DELETE", f"persistent/{namespace}/logs-1/partitions?force=true")
    async with asyncio.timeout(SERVER_PATIENCE_S):
        while sorted(consumer.consumers) != [second]:
            await asyncio.sleep(0.01)
    await consumer.close()


async def test_topic_lists_by_pattern_and_hash(pulsar, client):
    namespace = pulsar.create_namespace("acme", f"list-{uuid4().hex[:6]}")
    names = [pulsar.create_topic(name, namespace=namespace) for name in ("a-1", "a-2", "b-1")]
    assert sorted(await client.topics(namespace, f"{namespace}/a-.*")) == names[:2]
    found = await client._lookup.topics(namespace)
    assert (sorted(found.names), found.hash) == (names, topics_hash(names))
    again = await client._lookup.topics(namespace, None, found.hash)
    assert again.names is None, "nothing changed"


async def test_batches_by_key_suit_key_shared_consumers(pulsar, client, subscribe):
    topic = pulsar.take_topic()
    consumers = [await subscribe(topic, "k", type=Types.Key_Shared, consumer_name=name) for name in "ab"]
    producer = await open_topic_producer(client, topic, batching=Batching(by_key=True))
    await asyncio.gather(*[producer.send(b"%d" % number, key=f"key-{number % 10}") for number in range(200)])
    owners: dict[int, set[int]] = {}
    total = 0
    async with asyncio.timeout(SERVER_PATIENCE_S):
        while total < 200:
            for index, consumer in enumerate(consumers):
                while (entry := consumer.take()) is not None:
                    for payload in payloads(entry):
                        owners.setdefault(int(payload) % 10, set()).add(index)
                        total += 1
                    consumer.acknowledge(entry.id)
            await asyncio.sleep(0.01)
    assert len(owners) == 10
    assert all(len(indexes) == 1 for indexes in owners.values())
    await producer.close()


async def test_another_service_address_takes_over(pulsar):
    (dead,) = free_ports(1)
    async with CuttingProxy("127.0.0.1", pulsar.port) as proxy:
        client = client_of(f"pulsar://127.0.0.1:{dead},127.0.0.1:{proxy.port},127.0.0.1:{pulsar.port}")
        topic = pulsar.take_topic()
        producer = client.producer(topic)
        await producer.send(MessageMetadata(), b"0")
        assert proxy.connections >= 1
        proxy._server.close()
        proxy.drop()
        await asyncio.wait_for(producer.send(MessageMetadata(), b"1"), SERVER_PATIENCE_S)
        await producer.close()
        await client.close()
    nowhere = client_of(f"pulsar://127.0.0.1:{dead}")
    with pytest.raises(Unreachable):
        await nowhere.connect()
    await nowhere.close()


async def test_a_proxy_gets_the_address_of_the_broker(pulsar):
    """A standalone answers every lookup with "through the service address", as a cluster behind a proxy does."""
    async with CuttingProxy("127.0.0.1", pulsar.port) as proxy:
        client = client_of(proxy.url)
        topic = pulsar.take_topic()
        producer = client.producer(topic)
        await producer.send(MessageMetadata(), b"0")
        assert proxy.connections == 2, "one for lookups, one on behalf of the broker"
        assert {key[0] for key in client._pool._connections} == {f"127.0.0.1:{proxy.port}", f"127.0.0.1:{pulsar.port}"}
        await asyncio.to_thread(pulsar.admin, "PUT", f"{topic.replace('://', '/')}/unload")
        await asyncio.wait_for(producer.send(MessageMetadata(), b"1"), SERVER_PATIENCE_S)
        await producer.close()
        await client.close()


async def test_requesting_partitions_creates_no_topic(client):
    with pytest.raises(ClusterError, match="create it"):
        await open_topic_consumer(
            client, f"persistent://public/default/none-{uuid4().hex}", Subscription("s", create_topic=False)
        )
