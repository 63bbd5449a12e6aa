"""Topics and groups that are deleted at real servers."""

import asyncio
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from mqbridge.adapter.inbound import InboundSpec
from mqbridge.adapter.operations import GroupRemover
from mqbridge.adapter.outbound import OutboundSpec
from mqbridge.adapter.topics import Bounds
from mqbridge.errors import ClusterError, Failure
from mqbridge.message import Batch, Message, Share
from mqbridge.tubemq.adapter.cluster import TubeMQ
from mqbridge.tubemq.adapter.registration import ADAPTER
from tests.kit.tubemq import TubeMQ as Server
from tests.kit.tubemq_settings import BROKER_ID, TOKEN
from tests.patience import SERVER_PATIENCE_S
from tests.tubemq.real import fresh_group

pytestmark = pytest.mark.cluster


@pytest_asyncio.fixture
async def cluster(tubemq: Server) -> AsyncIterator[TubeMQ]:
    config = ADAPTER.cluster_model(masters=tubemq.masters, admin_url=tubemq.admin_url, admin_token=TOKEN, heartbeat="500ms")
    made = TubeMQ("c", config)  # type: ignore[arg-type]
    await made.connect()
    yield made
    await made.close()


async def send(cluster: TubeMQ, topic: str, *bodies: bytes) -> None:
    outbound = await cluster.outbound(OutboundSpec(topic))
    receipt = await outbound.send(0, Share(Batch.of([Message(body, position=(0,)) for body in bodies])))
    assert not receipt.failures
    await outbound.close()


async def read(cluster: TubeMQ, topic: str, group: str, count: int) -> list[bytes | None]:
    inbound = await cluster.inbound(InboundSpec((topic,), group))
    found: list[bytes | None] = []
    async with asyncio.timeout(SERVER_PATIENCE_S):
        lane = await anext(inbound.lanes())
        while len(found) < count:
            batch = await lane.receive()
            found += [message.payload for message in batch.messages]
            lane.acknowledge(batch)
        await inbound.close()
    return found


async def test_a_topic_that_is_made_anew_has_nothing_of_the_old_one(cluster: TubeMQ, tubemq: Server) -> None:
    """An administrator has begun to delete it; the deletion goes on from there."""
    topic, group = tubemq.take_topic(1), fresh_group()
    await send(cluster, topic, b"old 0", b"old 1")
    assert await read(cluster, topic, group, 2) == [b"old 0", b"old 1"]
    record = {"topicName": topic, "brokerId": BROKER_ID, "modifyUser": "tests"}
    tubemq.admin("admin_modify_topic_info", **record, acceptPublish="false", acceptSubscribe="false")
    tubemq.admin("admin_delete_topic_info", **record)
    async with asyncio.timeout(SERVER_PATIENCE_S):
        await cluster.delete(topic)
        assert await cluster.describe(topic) is None
        await cluster.delete(topic)
        await cluster.create(topic, 1)
        assert await cluster.bounds(topic) == {"1:0": Bounds((0, 0), (0, 0))}
        assert await cluster.committed(topic, group) == {}
    await send(cluster, topic, b"new")
    assert await read(cluster, topic, group, 1) == [b"new"]


async def test_a_topic_is_created_after_a_deletion_in_progress(cluster: TubeMQ, tubemq: Server) -> None:
    topic = tubemq.take_topic(1)
    await send(cluster, topic, b"old")
    record = {"topicName": topic, "brokerId": BROKER_ID, "modifyUser": "tests"}
    tubemq.admin("admin_modify_topic_info", **record, acceptPublish="false", acceptSubscribe="false")
    tubemq.admin("admin_delete_topic_info", **record)
    tubemq.admin("admin_remove_topic_info", **record)
    tubemq.admin("admin_reload_broker_configure", brokerId=BROKER_ID, modifyUser="tests")
    async with asyncio.timeout(SERVER_PATIENCE_S):
        await cluster.create(topic, 1)
        assert await cluster.bounds(topic, "1:0") == {"1:0": Bounds((0, 0), (0, 0))}
    await send(cluster, topic, b"new")
    assert await read(cluster, topic, fresh_group(), 1) == [b"new"]


async def test_a_member_without_a_partition_is_a_member(cluster: TubeMQ, tubemq: Server) -> None:
    """Its group is neither moved nor deleted, although it holds nothing at a Broker."""
    topic, group = tubemq.take_topic(1), fresh_group()
    holding = await cluster.inbound(InboundSpec((topic,), group, member="one"))
    async with asyncio.timeout(SERVER_PATIENCE_S):
        await anext(holding.lanes())
        idle = await cluster.inbound(InboundSpec((topic,), group, member="two"))
        operations = cluster.operations
        assert operations is not None
        assert isinstance(operations, GroupRemover)
        members = {member.id.split("_")[1]: member.partitions for member in await operations.members(topic, group)}
        assert members == {"one": ("1:0",), "two": ()}
        for refused in (operations.delete_group(topic, group), operations.move(topic, group, {"1:0": (0, 0)})):
            with pytest.raises(ClusterError, match="_two_") as raised:
                await refused
            assert raised.value.failure is Failure.FATAL
        await idle.close()
        await holding.close()
