"""Deletions at a real broker: a group in one of its topics, with its retry topic, and topics while a broker is down."""

import asyncio
from collections.abc import AsyncIterator
from uuid import uuid4

import pytest
import pytest_asyncio

from mqbridge.adapter.inbound import InboundSpec, Start
from mqbridge.adapter.outbound import OutboundSpec
from mqbridge.errors import ClusterError, Failure
from mqbridge.message import Batch, Message, Share
from mqbridge.rocketmq.adapter.cluster import RocketMQ
from mqbridge.rocketmq.adapter.registration import ADAPTER
from mqbridge.rocketmq.client.consumer.subscription import retry_topic
from mqbridge.rocketmq.wire.bodies.configs import GroupConfig
from tests.kit.rocketmq import RocketMQ as Server
from tests.patience import SERVER_PATIENCE_S

pytestmark = pytest.mark.cluster


@pytest_asyncio.fixture(params=["rocketmq", pytest.param("rocketmq_old", marks=pytest.mark.thorough)])
async def cluster(request: pytest.FixtureRequest) -> AsyncIterator[RocketMQ]:
    server: Server = request.getfixturevalue(request.param)
    cluster = ADAPTER.make_cluster("r", ADAPTER.cluster_model(name_servers=server.name_server, refresh="500ms"))
    assert isinstance(cluster, RocketMQ)
    await cluster.connect()
    yield cluster
    await cluster.close()


async def topic_with_messages(cluster: RocketMQ, count: int) -> str:
    topic = f"deleted_{uuid4().hex[:8]}"
    await cluster.create(topic, 1)
    outbound = await cluster.outbound(OutboundSpec(topic))
    assert not (await outbound.send(0, Share(Batch.of([Message(b"%d" % number) for number in range(count)])))).failures
    await outbound.close()
    return topic


async def read_all(cluster: RocketMQ, topics: tuple[str, ...], group: str, count: int, start: Start = Start.EARLIEST) -> None:
    """Read this many messages in each topic as a member of the group, and leave it."""
    inbound = await cluster.inbound(InboundSpec(topics, group, start))
    lanes = inbound.lanes()
    async with asyncio.timeout(SERVER_PATIENCE_S):
        for _ in topics:
            lane, received = await anext(lanes), 0
            while received < count:
                batch = await lane.receive()
                received += batch.count
                lane.acknowledge(batch)
    await inbound.close()


async def delete_group(cluster: RocketMQ, topic: str, group: str) -> None:
    """Delete the group; for a moment, a broker may not know yet that its last member has left."""
    async with asyncio.timeout(SERVER_PATIENCE_S):
        while True:
            try:
                return await cluster.operations.delete_group(topic, group)  # type: ignore[attr-defined, no-any-return]
            except ClusterError:
                await asyncio.sleep(0.05)


async def test_a_group_that_reads_another_topic_keeps_its_offsets_there(cluster: RocketMQ) -> None:
    topics = (await topic_with_messages(cluster, 5), await topic_with_messages(cluster, 5))
    group = f"g_{uuid4().hex[:8]}"
    await read_all(cluster, topics, group, 5)
    await delete_group(cluster, topics[0], group)
    assert list((await cluster.committed(topics[1], group)).values()) == [(5,)]
    remaining = list((await cluster.committed(topics[0], group)).values())
    assert remaining in ([], [(0,)]), "a broker before 5.0 returns 0 for none"
    assert group in await cluster._client.groups.configs()
    await delete_group(cluster, topics[0], group)  # nothing is left to delete
    await read_all(cluster, topics[:1], group, 5)  # from the beginning
    await delete_group(cluster, topics[0], group)
    await delete_group(cluster, topics[1], group)
    assert await cluster.committed(topics[1], group) == {} or remaining
    for topic in topics:
        await cluster.delete(topic)


async def test_a_group_that_never_read_the_topic_stays(cluster: RocketMQ) -> None:
    topics = (await topic_with_messages(cluster, 5), await topic_with_messages(cluster, 5))
    reader, configured = f"g_{uuid4().hex[:8]}", f"g_{uuid4().hex[:8]}"
    await read_all(cluster, topics[:1], reader, 5)
    await cluster._client.groups.create(GroupConfig(configured))
    await delete_group(cluster, topics[1], reader)
    await delete_group(cluster, topics[1], configured)
    assert list((await cluster.committed(topics[0], reader)).values()) == [(5,)]
    assert {reader, configured} <= (await cluster._client.groups.configs()).keys()
    for topic in topics:
        await cluster.delete(topic)


async def test_messages_that_were_sent_back_are_deleted_with_the_group(cluster: RocketMQ) -> None:
    topic, group = await topic_with_messages(cluster, 2), f"g_{uuid4().hex[:8]}"
    await read_all(cluster, (topic,), group, 2)
    client = cluster._client
    async with asyncio.timeout(SERVER_PATIENCE_S):
        while await client.routes.get(retry_topic(group), fresh=True) is None:
            await asyncio.sleep(0.05)
    await delete_group(cluster, topic, group)
    assert await client.routes.get(retry_topic(group), fresh=True) is None
    assert group not in await client.groups.configs()
    await read_all(cluster, (topic,), group, 2)
    await cluster.delete(topic)


async def test_a_system_topic_is_not_deleted(cluster: RocketMQ) -> None:
    with pytest.raises(ClusterError, match="system topic") as raised:
        await cluster.delete("SCHEDULE_TOPIC_XXXX")
    assert raised.value.failure is Failure.FATAL
