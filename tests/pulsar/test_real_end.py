"""A real topic is read to its end by a lane that is asked, also if its last messages are never delivered."""

import asyncio
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from mqbridge.adapter.inbound import InboundSpec
from mqbridge.adapter.outbound import OutboundSpec
from mqbridge.cli.reading.group_reader import GroupReader, GroupReadSpec
from mqbridge.message import Batch, Message, Share
from mqbridge.pulsar.adapter.cluster import Pulsar
from mqbridge.pulsar.adapter.config import PulsarInboundOptions
from mqbridge.pulsar.adapter.registration import ADAPTER
from mqbridge.pulsar.client.consumer.subscription import Types
from tests.kit.pulsar import Pulsar as Server
from tests.patience import SERVER_PATIENCE_S
from tests.pulsar.conftest import Subscribe

pytestmark = pytest.mark.cluster


@pytest_asyncio.fixture
async def cluster(pulsar: Server) -> AsyncIterator[Pulsar]:
    cluster = ADAPTER.make_cluster("p", ADAPTER.cluster_model(service_url=pulsar.service_url, admin_url=pulsar.admin_url))
    assert isinstance(cluster, Pulsar)
    await cluster.connect()
    yield cluster
    await cluster.close()


async def test_a_group_is_read_to_its_end_although_its_last_messages_are_acknowledged(
    pulsar: Server, cluster: Pulsar, subscribe: Subscribe
) -> None:
    topic = pulsar.take_topic()
    consumer = await subscribe(topic, "g", type=Types.Shared)
    outbound = await cluster.outbound(OutboundSpec(topic))
    for number in range(6):
        assert not (await outbound.send(0, Share(Batch.of([Message(b"%d" % number)])))).failures
    await outbound.close()
    entries = [await asyncio.wait_for(consumer.receive(), SERVER_PATIENCE_S) for _ in range(6)]
    for entry in entries[3:]:
        consumer.acknowledge(entry.id)
    await consumer.confirm_acks()
    await consumer.close()

    described = await cluster.describe(topic)
    assert described is not None
    (partition,) = described.partitions
    ends = {partition: (await cluster.bounds(topic))[partition].next}
    shown: list[bytes] = []
    reader = GroupReader(
        GroupReadSpec(frozenset({partition}), ends=ends, stop_at_end=True),
        lambda _, messages: shown.extend(message.payload or b"" for message in messages),
    )
    inbound = await cluster.inbound(InboundSpec((topic,), "g", options=PulsarInboundOptions(subscription_type="shared")))
    async with asyncio.timeout(SERVER_PATIENCE_S):
        assert await reader.run(inbound) == 3
    assert shown == [b"0", b"1", b"2"]
    await inbound.close()
