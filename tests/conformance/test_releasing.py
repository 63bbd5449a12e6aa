"""A partition that is wanted for another member is kept until what is in flight is acknowledged, but not for ever."""

import asyncio

import pytest

from mqbridge.adapter.cluster import Cluster
from mqbridge.adapter.inbound import AnnouncesRelease, Inbound, InboundLane, InboundSpec
from mqbridge.net.tasks import spawn
from tests.conformance.arena import Arena, fresh_group, numbered, numbers

PARTITIONS = 2


async def two_lanes(arena: Arena, cluster: Cluster, topic: str, group: str, wait_s: float) -> list[InboundLane]:
    inbound = await arena.open(cluster.inbound(InboundSpec((topic,), group, release_wait_s=wait_s)))
    lanes = [await arena.lane(inbound) for _ in range(PARTITIONS)]
    if not isinstance(lanes[0], AnnouncesRelease):
        pytest.skip("the servers take partitions away")
    return lanes


async def other_member(arena: Arena, topic: str, group: str) -> Inbound:
    """Join the group with another client, which waits for the partitions that members keep, as each of them does."""
    return await arena.open((await arena.cluster()).inbound(InboundSpec((topic,), group, release_wait_s=0.2)))


async def first_releasing(arena: Arena, lanes: list[InboundLane]) -> InboundLane:
    """Return the first lane that is going to be given up."""
    tasks = {spawn(lane.releasing.wait(), "releasing"): lane for lane in lanes if isinstance(lane, AnnouncesRelease)}
    done, waiting = await arena.within(asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED))
    for task in waiting:
        task.cancel()
    return tasks[done.pop()]


async def test_a_partition_is_kept_until_its_messages_are_acknowledged(arena: Arena, cluster: Cluster) -> None:
    topic, group = await arena.topic(cluster, PARTITIONS), fresh_group()
    outbound = await arena.outbound(cluster, topic)
    lanes = await two_lanes(arena, cluster, topic, group, arena.harness.patience_s)
    for partition in range(PARTITIONS):
        await arena.send(outbound, partition, numbered(0, 10))
    batches = {lane: await arena.receive(lane) for lane in lanes}
    other = await other_member(arena, topic, group)
    lane = await first_releasing(arena, lanes)
    assert not lane.revoked.is_set(), "the partition is kept"
    batch = batches[lane]
    lane.acknowledge(batch)
    await arena.within(lane.release())
    assert lane.revoked.is_set()
    await arena.send(outbound, lane.partition.index, numbered(10, 12))
    taken = await arena.lane(other)
    assert taken.partition.name == lane.partition.name
    received, _ = await arena.take(taken, 12 - batch.count)
    assert numbers(received) == list(range(batch.count, 12))


async def test_a_partition_is_given_up_after_the_wait(arena: Arena, cluster: Cluster) -> None:
    topic, group = await arena.topic(cluster, PARTITIONS), fresh_group()
    lanes = await two_lanes(arena, cluster, topic, group, 0.2)
    other = await other_member(arena, topic, group)
    lane = await first_releasing(arena, lanes)
    await arena.within(lane.revoked.wait())
    taken = await arena.lane(other)
    assert taken.partition.name == lane.partition.name
