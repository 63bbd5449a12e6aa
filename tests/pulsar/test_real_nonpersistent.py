"""Non-persistent topics of a real broker: it gives all entries the same id, reports no active consumer, and stores nothing."""

import asyncio
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from mqbridge.adapter.inbound import InboundSpec, Start
from mqbridge.adapter.outbound import OutboundSpec
from mqbridge.errors import ClusterError
from mqbridge.message import Batch, Message, Share
from mqbridge.pulsar.adapter.cluster import Pulsar
from mqbridge.pulsar.adapter.config import PulsarInboundOptions
from mqbridge.pulsar.adapter.registration import ADAPTER
from mqbridge.pulsar.client.consumer.subscription import Types
from mqbridge.pulsar.wire import ids
from tests.kit.pulsar import Pulsar as Server
from tests.patience import SERVER_PATIENCE_S
from tests.pulsar.entries import batch, payloads, take

pytestmark = pytest.mark.cluster

TOPIC = "non-persistent://public/default"
BATCHES, BATCH = 20, 10
TYPES = ["exclusive", "failover", "shared", "key_shared"]


@pytest_asyncio.fixture
async def cluster(pulsar: Server) -> AsyncIterator[Pulsar]:
    cluster = ADAPTER.make_cluster("p", ADAPTER.cluster_model(service_url=pulsar.service_url, admin_url=pulsar.admin_url))
    assert isinstance(cluster, Pulsar)
    await cluster.connect()
    yield cluster
    await cluster.close()


@pytest.mark.parametrize("kind", [Types.Exclusive, Types.Failover, Types.Shared, Types.Key_Shared])
async def test_a_partly_acknowledged_batch_hides_no_messages_of_the_next(client, subscribe, kind: int):
    topic = f"{TOPIC}/batches-{kind}"
    consumer = await subscribe(topic, type=kind)
    producer = client.producer(topic)
    expected = [[b"%d-%d" % (number, index) for index in range(BATCH)] for number in range(BATCHES)]
    received = []
    for messages in expected:
        await producer.send(*batch(messages))
        (entry,) = await take(consumer, 1)
        received.append(payloads(entry))
        assert all(entry.is_due(index) for index in range(BATCH))
        consumer.acknowledge_message(entry.id, 0, BATCH)
    assert received == expected
    await producer.close()


async def test_entries_have_ascending_ids_also_after_a_restart(client, subscribe):
    topic = f"{TOPIC}/ids"
    producer = client.producer(topic)
    seen = []
    for _ in range(2):
        consumer = await subscribe(topic, "s", type=Types.Exclusive)
        for _ in range(3):
            await producer.send(*batch([b"x"]))
            seen += [entry.id for entry in await take(consumer, 1)]
        await consumer.close()
    assert sorted(set(seen)) == seen
    await producer.close()


async def test_a_topic_without_positions_says_so(cluster: Pulsar, client, subscribe):
    topic = f"{TOPIC}/positions"
    consumer = await subscribe(topic, type=Types.Exclusive)
    assert await consumer.last_id() == (-1, -1)
    assert await consumer.last_message() == (-1, -1, -1)
    assert await consumer.cursor() is None
    assert not await consumer.has_more()
    with pytest.raises(ClusterError, match=r"cannot seek: topic .* is not persistent"):
        await consumer.seek(ids.EARLIEST)
    with pytest.raises(ClusterError, match="is not persistent: its broker stores no messages"):
        await cluster.bounds(topic)


@pytest.mark.parametrize("kind", TYPES)
async def test_a_lane_receives_and_ends_on_every_subscription_type(cluster: Pulsar, kind: str):
    topic = f"{TOPIC}/lane-{kind}"
    await cluster.create(topic, 1)
    options = PulsarInboundOptions(subscription_type=kind)
    outbound = await cluster.outbound(OutboundSpec(topic))
    inbound = await cluster.inbound(InboundSpec((topic,), "g", start=Start.EARLIEST, options=options))
    async with asyncio.timeout(SERVER_PATIENCE_S):
        lane = await anext(aiter(inbound.lanes()))
        shown: list[bytes] = []
        for number in range(BATCHES):
            sent = Batch.of([Message(b"%d-%d" % (number, index), key=b"k") for index in range(BATCH)])
            receipt = await outbound.send(0, Share(sent))
            assert not receipt.failures
            while len(shown) < (number + 1) * BATCH:
                received = await lane.receive()
                shown += [message.payload or b"" for message in received.messages]
                lane.acknowledge(received, [0] if inbound.individual_ack else None)
        assert shown == [b"%d-%d" % (number, index) for number in range(BATCHES) for index in range(BATCH)]
        assert await lane.confirm_caught_up()
        await outbound.close()
        await inbound.close()
