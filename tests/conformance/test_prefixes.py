"""A batch may be acknowledged up to a message inside it; only what lies behind it comes again."""

import pytest

from mqbridge.adapter.cluster import Cluster
from mqbridge.adapter.inbound import Inbound
from mqbridge.message import Batch, Message, Share
from tests.conformance.arena import SOURCE, Arena, fresh_group, numbered, numbers


async def send_singly(arena: Arena, cluster: Cluster, topic: str, begin: int, end: int) -> None:
    """Send messages one by one without waiting for each, so that a system with units stores many of them."""
    outbound = await arena.outbound(cluster, topic)
    sends = [outbound.send(0, Share(Batch.of([message], SOURCE))) for message in numbered(begin, end)]
    for send in sends:
        assert not (await arena.within(send)).failures
    await arena.within(arena.harness.settle())


async def receive_next(arena: Arena, inbound: Inbound, count: int) -> list[Message]:
    messages, _ = await arena.take(await arena.lane(inbound), count)
    return messages


def skip_individual(inbound: Inbound) -> None:
    if inbound.individual_ack:
        pytest.skip("each message is acknowledged by itself")


async def test_what_is_acknowledged_inside_a_batch_does_not_come_again(arena: Arena, cluster: Cluster) -> None:
    """Of 1,000 messages 900 are acknowledged, one by one: the others come again, and at most a unit of the acknowledged ones."""
    topic, group = await arena.topic(cluster), fresh_group()
    await send_singly(arena, cluster, topic, 0, 1000)
    inbound = await arena.inbound(cluster, topic, group)
    skip_individual(inbound)
    lane = await arena.lane(inbound)
    acknowledged, unit_begin = 0, 0
    while acknowledged < 900:
        batch = await arena.receive(lane)
        unit_begin = acknowledged
        count = min(batch.count, 900 - acknowledged)
        for prefix in range(1, count + 1):
            lane.acknowledge(batch, range(prefix))
        if count == batch.count:
            lane.acknowledge(batch)
        acknowledged += count
    await arena.within(inbound.close())
    again = await arena.inbound(cluster, topic, group)
    first = numbers((await arena.receive(await arena.lane(again))).messages)[0]
    if arena.harness.confirms_messages:
        assert first == 900
    else:
        assert unit_begin <= first <= 900
    await arena.within(again.close())
    assert numbers(await receive_next(arena, await arena.inbound(cluster, topic, group), 1000 - first)) == list(
        range(first, 1000)
    )


async def test_a_batch_that_is_acknowledged_in_parts_is_done_at_its_end(arena: Arena, cluster: Cluster) -> None:
    topic, group = await arena.topic(cluster), fresh_group()
    outbound = await arena.outbound(cluster, topic)
    await arena.send(outbound, 0, numbered(0, 10))
    inbound = await arena.inbound(cluster, topic, group)
    skip_individual(inbound)
    lane, received = await arena.lane(inbound), 0
    while received < 10:
        batch = await arena.receive(lane)
        received += batch.count
        lane.acknowledge(batch, range(0))
        lane.acknowledge(batch, range(batch.count // 2))
        lane.acknowledge(batch, range(batch.count // 3))  # an earlier message than before changes nothing
        lane.acknowledge(batch)
    await arena.send(outbound, 0, numbered(10, 13))
    await arena.within(inbound.close())
    assert numbers(await receive_next(arena, await arena.inbound(cluster, topic, group), 3)) == [10, 11, 12]


async def test_a_batch_is_rejected_from_the_first_message_that_is_not_acknowledged(arena: Arena, cluster: Cluster) -> None:
    topic, group = await arena.topic(cluster), fresh_group()
    outbound = await arena.outbound(cluster, topic)
    await arena.send(outbound, 0, numbered(0, 10))
    inbound = await arena.inbound(cluster, topic, group)
    skip_individual(inbound)
    lane = await arena.lane(inbound)
    batch = await arena.receive(lane)
    prefix = batch.count // 2
    lane.acknowledge(batch, range(prefix))
    lane.reject(batch)
    first = numbers((again := await arena.receive(lane)).messages)[0]
    assert first == prefix if arena.harness.confirms_messages else first <= prefix
    lane.acknowledge(again)
    if again.messages[-1].payload != b"%06d" % 9:
        await arena.take(lane, 9 - numbers(again.messages)[-1])
    await arena.send(outbound, 0, numbered(10, 12))
    received, _ = await arena.take(lane, 2)
    assert numbers(received) == [10, 11]


async def test_a_prefix_of_a_revoked_lane_is_ignored(arena: Arena, cluster: Cluster) -> None:
    topic, group = await arena.topic(cluster), fresh_group()
    outbound = await arena.outbound(cluster, topic)
    await arena.send(outbound, 0, numbered(0, 10))
    inbound = await arena.inbound(cluster, topic, group)
    skip_individual(inbound)
    lane = await arena.lane(inbound)
    batch = await arena.receive(lane)
    await arena.within(lane.release())
    lane.acknowledge(batch, range(batch.count // 2))
    await arena.within(inbound.close())
    assert numbers(await receive_next(arena, await arena.inbound(cluster, topic, group), 10)) == list(range(10))
