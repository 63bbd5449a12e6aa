"""Warnings about retention by time, from a real broker's settings and offsets."""

import asyncio
import time
from collections.abc import AsyncIterator
from uuid import uuid4

import pytest
import pytest_asyncio

from mqbridge.adapter.inbound import InboundSpec
from mqbridge.adapter.outbound import OutboundSpec
from mqbridge.message import Batch, Message, Share
from mqbridge.rocketmq.adapter import operations
from mqbridge.rocketmq.adapter.cluster import RocketMQ
from mqbridge.rocketmq.adapter.registration import ADAPTER
from mqbridge.rocketmq.client.admin.group_admin import GroupAdmin
from mqbridge.rocketmq.wire.bodies.configs import GroupConfig
from tests.kit import rocketmq_remoting as remoting
from tests.kit.rocketmq import RocketMQ as Server
from tests.patience import SERVER_PATIENCE_S

pytestmark = pytest.mark.cluster


@pytest_asyncio.fixture
async def cluster(rocketmq: Server) -> AsyncIterator[RocketMQ]:
    cluster = ADAPTER.make_cluster("r", ADAPTER.cluster_model(name_servers=rocketmq.name_server))
    assert isinstance(cluster, RocketMQ)
    await cluster.connect()
    yield cluster
    await cluster.close()


async def test_a_group_that_lags_by_half_of_the_retention_time_is_warned_about(rocketmq, cluster, monkeypatch):
    topic, group = rocketmq.take_topic(2), f"g_{uuid4().hex[:8]}"
    outbound = await cluster.outbound(OutboundSpec(topic))
    for partition in range(2):
        assert not (await outbound.send(partition, Share(Batch.of([Message(b"x")] * 5)))).failures
    await outbound.close()
    bounds = await cluster.bounds(topic)
    async with asyncio.timeout(SERVER_PATIENCE_S):
        while any(bound.next != (5,) for bound in bounds.values()):  # a broker counts a message a moment after it acknowledged it
            await asyncio.sleep(0.01)
            bounds = await cluster.bounds(topic)
    behind, done = sorted(bounds)
    await cluster.operations.move(topic, group, {behind: bounds[behind].first, done: bounds[done].next})
    assert await cluster.operations.warnings(topic, group) == []
    hours = await retention_hours(cluster)
    later = time.time() + hours * 3600 * operations.LATE_FRACTION + 60
    monkeypatch.setattr(operations, "now_s", lambda: later)
    (warning,) = await cluster.operations.warnings(topic, group)
    assert f"group {group!r} is late in {topic}" in warning
    assert f"(fileReservedTime={hours}; partition {behind})" in warning
    assert await cluster.operations.warnings(topic, "nobody") == []


async def test_a_target_with_a_short_retention_time_is_warned_about(rocketmq, cluster):
    topic, hours = rocketmq.take_topic(1), await retention_hours(cluster)
    assert await cluster.operations.warnings(topic) == []
    await set_retention_hours(cluster, 12)
    try:
        (warning,) = await cluster.operations.warnings(topic)
    finally:
        await set_retention_hours(cluster, hours)
    assert f"{topic} keeps messages for only 12 hours (fileReservedTime=12)" in warning


async def retention_hours(cluster: RocketMQ) -> int:
    (config,) = (await cluster._client.admin.at_masters(cluster._client.admin.broker_config)).values()
    return int(config["fileReservedTime"])


async def set_retention_hours(cluster: RocketMQ, hours: int) -> None:
    admin = cluster._client.admin
    await admin.at_masters(lambda address: admin.update_broker_config(address, {"fileReservedTime": hours}))


async def test_a_target_with_queues_that_nobody_can_read_is_warned_about(rocketmq, cluster):
    topic = rocketmq.take_topic(4)
    assert await cluster.operations.warnings(topic) == []
    remoting.create_topic(rocketmq.broker_address, topic, 4, "", readQueueNums=2)
    async with asyncio.timeout(SERVER_PATIENCE_S):
        while not (warnings := await cluster.operations.warnings(topic)):
            await asyncio.sleep(0.1)
    (warning,) = warnings
    assert f"no consumer can read 2 queues of {topic}" in warning
    assert "broker-a:2, broker-a:3" in warning
    assert await cluster.operations.warnings(topic, "any-group") == [], "a source is only read"


async def test_a_paused_group_and_a_topic_that_may_not_be_read_are_warned_about_and_read_later(rocketmq, cluster):
    topic, group = rocketmq.take_topic(1), f"g_{uuid4().hex[:8]}"
    rocketmq.send(topic, b"1")
    inbound = await cluster.inbound(InboundSpec((topic,), group))
    lane = await anext(inbound.lanes())
    lane.acknowledge(await lane.receive())
    groups = GroupAdmin(cluster._client, cluster._client.admin, cluster._client.positions)
    await groups.create(GroupConfig(group, consume_enable=False))
    assert any("is paused (consumeEnable=false at broker-a)" in text for text in await cluster.operations.warnings(topic, group))
    rocketmq.send(topic, b"2")
    receiving = asyncio.ensure_future(lane.receive())
    await asyncio.wait([receiving], timeout=3)
    await groups.create(GroupConfig(group, consume_enable=True))
    batch = await asyncio.wait_for(receiving, SERVER_PATIENCE_S)
    assert [message.payload for message in batch.messages] == [b"2"]
    await inbound.close()
    remoting.create_topic(rocketmq.broker_address, topic, 1, "", perm=2)
    assert any(f"nobody may read topic {topic} at broker-a" in text for text in await cluster.operations.warnings(topic, group))
