"""Topics, bounds, groups, and how everything ends."""

import asyncio

import pytest

from mqbridge.adapter import Capabilities, Cluster, InboundSpec, OutboundSpec
from mqbridge.errors import ClusterError, Failure, LaneRevoked
from mqbridge.message import Batch, Share
from mqbridge.net.tasks import spawn
from tests.conformance.arena import Arena, fresh_group, numbered


async def test_describe_and_list(arena: Arena, cluster: Cluster, capabilities: Capabilities) -> None:
    topic = await arena.topic(cluster, 3)
    described = await arena.within(cluster.describe(topic))
    assert described is not None
    assert described.name == topic
    assert len(set(described.partitions)) == 3
    assert await arena.within(cluster.describe(arena.harness.unknown_topic())) is None
    if capabilities.list_topics:
        assert topic in await arena.within(cluster.topics())


async def test_create_and_grow(arena: Arena, cluster: Cluster, capabilities: Capabilities) -> None:
    if not capabilities.create_topics:
        pytest.skip("cannot create topics")
    topic = arena.harness.unknown_topic()
    for partitions in (2, 2, 3):
        await arena.within(cluster.create(topic, partitions))
        described = await arena.within(cluster.describe(topic))
        assert described is not None
        assert len(described.partitions) == partitions


async def test_a_member_gets_the_partitions_that_a_topic_grows_by(
    arena: Arena, cluster: Cluster, capabilities: Capabilities
) -> None:
    if not capabilities.create_topics:
        pytest.skip("cannot create topics")
    topic = arena.harness.unknown_topic()
    await arena.within(cluster.create(topic, 2))
    inbound = await arena.inbound(cluster, topic, fresh_group())
    indexes = {(await arena.lane(inbound)).partition.index for _ in range(2)}
    await arena.within(cluster.create(topic, 3))
    assert indexes | {(await arena.lane(inbound)).partition.index} == {0, 1, 2}


async def test_an_unknown_topic_is_fatal(arena: Arena, cluster: Cluster) -> None:
    topic = arena.harness.unknown_topic()
    with pytest.raises(ClusterError) as inbound:
        await arena.within(cluster.inbound(InboundSpec((topic,), fresh_group())))
    with pytest.raises(ClusterError) as outbound:
        await arena.within(cluster.outbound(OutboundSpec(topic)))
    for raised in (inbound, outbound):
        assert raised.value.failure is Failure.FATAL
        assert topic in str(raised.value)


async def test_bounds_and_committed(arena: Arena, cluster: Cluster) -> None:
    topic, group = await arena.topic(cluster), fresh_group()
    outbound = await arena.outbound(cluster, topic)
    inbound = await arena.inbound(cluster, topic, group)
    lane = await arena.lane(inbound)
    name = lane.partition.name
    await arena.send(outbound, 0, numbered(0, 10))
    bounds = (await arena.within(cluster.bounds(topic))).get(name)
    first = await arena.receive(lane)
    before = (await arena.within(cluster.committed(topic, group))).get(name)
    assert before is None or before <= first.first, "committed before anything was acknowledged"
    lane.acknowledge(first)
    last = first.messages[-1].position
    if first.count < 10:
        rest, _ = await arena.take(lane, 10 - first.count)
        last = rest[-1].position

    async def committed() -> bool:
        position = (await cluster.committed(topic, group)).get(name)
        return position is not None and position > last

    await arena.until(committed)
    assert await arena.within(arena.operations(cluster).groups(topic)) == [group]
    if bounds is not None:
        assert bounds.first <= first.first
        assert bounds.next > last
        grown = await arena.send(outbound, 0, numbered(10, 20))
        after = (await arena.within(cluster.bounds(topic)))[name]
        assert after.next > bounds.next
        assert after.next > grown.position
    assert group not in await arena.within(arena.operations(cluster).groups(await arena.topic(cluster)))


async def test_close_waits_for_what_is_in_flight(arena: Arena, cluster: Cluster) -> None:
    topic = await arena.topic(cluster)
    outbound = await arena.outbound(cluster, topic)
    receipts = [outbound.send(0, Share(Batch.of(numbered(turn * 10, turn * 10 + 10)))) for turn in range(20)]
    await arena.within(outbound.close())
    assert all(receipt.done() for receipt in receipts)
    assert not any(receipt.result().failures for receipt in receipts)
    late = outbound.send(0, Share(Batch.of(numbered(0, 1))))
    with pytest.raises(ClusterError):
        await arena.within(late)
    await arena.within(outbound.close())
    lane = await arena.lane(await arena.inbound(cluster, topic, fresh_group()))
    await arena.take(lane, 200)


async def test_close_ends_lanes_and_what_waits_on_them(arena: Arena, cluster: Cluster) -> None:
    topic = await arena.topic(cluster)
    inbound = await arena.inbound(cluster, topic, fresh_group())
    lanes = inbound.lanes()
    lane = await arena.within(anext(lanes))
    receiving = spawn(lane.receive(), "test receive")

    async def ended() -> bool:
        return await anext(lanes, None) is None

    ending = spawn(ended(), "test lanes")
    await asyncio.sleep(0)
    await arena.within(inbound.close())
    assert await arena.within(ending)
    with pytest.raises(LaneRevoked):
        await arena.within(receiving)
    await arena.within(inbound.close())


async def test_a_cluster_can_be_opened_again(arena: Arena, cluster: Cluster) -> None:
    topic = await arena.topic(cluster)
    await arena.within(cluster.close())
    again = await arena.cluster()
    assert await arena.within(again.describe(topic)) is not None
