"""Topics, bounds, groups, and closing."""

import asyncio

import pytest

from mqbridge.adapter.cluster import Capabilities, Cluster, JudgesDeletions
from mqbridge.adapter.inbound import CountsReadAhead, InboundSpec, Start, ask_caught_up
from mqbridge.adapter.outbound import OutboundSpec
from mqbridge.errors import ClusterError, Failure, LaneRevoked
from mqbridge.message import Batch, Message, Share
from mqbridge.net.tasks import cancel, spawn
from tests.conformance.arena import Arena, fresh_group, numbered, numbers
from tests.conformance.harness import Room


async def test_existing_topics_are_listed_and_described(arena: Arena, cluster: Cluster, capabilities: Capabilities) -> None:
    topic = await arena.topic(cluster, 3)
    described = await arena.within(cluster.describe(topic))
    assert described is not None
    assert described.name == topic
    assert len(set(described.partitions)) == 3
    assert await arena.within(cluster.describe(arena.harness.unknown_topic())) is None
    if capabilities.list_topics:
        assert topic in await arena.within(cluster.topics())


async def test_topics_are_created_and_grown(arena: Arena, cluster: Cluster, capabilities: Capabilities) -> None:
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


async def test_stored_messages_are_not_deleted_unread(arena: Arena, cluster: Cluster) -> None:
    """Only systems whose positions are not contiguous decide this themselves."""
    if not isinstance(cluster, JudgesDeletions):
        pytest.skip("has contiguous positions")
    topic, group = await arena.topic(cluster), fresh_group()
    outbound = await arena.outbound(cluster, topic)
    lane = await arena.lane(await arena.inbound(cluster, topic, group))
    await arena.send(outbound, 0, numbered(0, 10))
    name, (_, batches) = lane.partition.name, await arena.take(lane, 10)
    bounds = (await arena.within(cluster.bounds(topic)))[name]
    for begin in (bounds.first, batches[-1].next):
        assert await arena.within(cluster.deleted_unread(topic, name, group, begin, bounds.first)) is not True


async def test_bounds_and_committed_positions_advance(arena: Arena, cluster: Cluster) -> None:
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
        assert after.next > grown.highest_position
    assert group not in await arena.within(arena.operations(cluster).groups(await arena.topic(cluster)))


async def test_close_waits_for_sends_in_flight(arena: Arena, cluster: Cluster) -> None:
    topic = await arena.topic(cluster)
    outbound = await arena.outbound(cluster, topic)
    receipts = [outbound.send(0, Share(Batch.of(numbered(index * 10, index * 10 + 10)))) for index in range(20)]
    await arena.within(outbound.close())
    assert all(receipt.done() for receipt in receipts)
    assert not any(receipt.result().failures for receipt in receipts)
    late = outbound.send(0, Share(Batch.of(numbered(0, 1))))
    with pytest.raises(ClusterError):
        await arena.within(late)
    await arena.within(outbound.close())
    lane = await arena.lane(await arena.inbound(cluster, topic, fresh_group()))
    await arena.take(lane, 200)


async def test_close_ends_lanes_and_their_waiters(arena: Arena, cluster: Cluster) -> None:
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


async def test_start_applies_only_to_topics_that_existed_at_first(arena: Arena, cluster: Cluster) -> None:
    """A topic that is found later, by a pattern, is read from its beginning also by a group with `start: latest`."""
    old, new = await arena.topic(cluster), await arena.topic(cluster)
    for topic in (old, new):
        await arena.send(await arena.outbound(cluster, topic), 0, numbered(0, 5))
    described = await arena.within(cluster.describe(old))
    assert described is not None
    spec = InboundSpec(
        (old, new),
        fresh_group(),
        Start.LATEST,
        options=arena.harness.inbound_options,
        initial_partitions={old: frozenset(described.partitions)},
    )
    inbound = await arena.open(cluster.inbound(spec))
    lanes = {lane.partition.topic: lane for lane in [await arena.lane(inbound), await arena.lane(inbound)]}
    received, _ = await arena.take(lanes[new], 5)
    assert numbers(received) == list(range(5))
    waiting = spawn(lanes[old].receive(), "test receive")

    await arena.until(lambda: ask_caught_up(lanes[old]))
    await arena.send(await arena.outbound(cluster, old), 0, numbered(5, 6))
    assert numbers((await arena.within(waiting)).messages) == [5]


async def test_a_partition_that_is_added_is_read_from_its_beginning(
    arena: Arena, cluster: Cluster, capabilities: Capabilities
) -> None:
    if not capabilities.create_topics:
        pytest.skip("cannot create topics")
    topic, group = arena.harness.unknown_topic(), fresh_group()
    await arena.within(cluster.create(topic, 1))
    described = await arena.within(cluster.describe(topic))
    assert described is not None
    known = {topic: frozenset(described.partitions)}
    spec = InboundSpec((topic,), group, Start.LATEST, options=arena.harness.inbound_options, initial_partitions=known)
    inbound = await arena.open(cluster.inbound(spec))
    first = await arena.lane(inbound)
    other = await arena.cluster()
    await arena.within(other.create(topic, 2))
    await arena.send(await arena.outbound(other, topic), 1, numbered(0, 3))
    added = await arena.lane(inbound)
    assert added.partition != first.partition
    received, _ = await arena.take(added, 3)
    assert numbers(received) == list(range(3))


@pytest.mark.parametrize(("sends", "per_send"), [(1, 3), (3, 1)], ids=["one batch fills it", "each lane has a part"])
async def test_lanes_share_max_bytes(arena: Arena, cluster: Cluster, sends: int, per_send: int) -> None:
    """A batch counts until the next `receive` of its lane: one batch of each lane stays within the limit."""
    if arena.harness.room is Room.LOOSE:
        pytest.skip("each lane has some room of its own, however small `max_bytes` is")
    if arena.harness.room is Room.DIVIDED and per_send > 1:
        pytest.skip("a lane that holds nothing takes what was sent at once, though its part of `max_bytes` is smaller")
    topic = await arena.topic(cluster, 3)
    outbound = await arena.outbound(cluster, topic)
    for partition in range(3):
        for _ in range(sends):
            await arena.send(outbound, partition, [Message(bytes(40_000), position=(n,)) for n in range(per_send)])
    spec = InboundSpec((topic,), fresh_group(), options=arena.harness.inbound_options, max_bytes=150_000)
    inbound = await arena.open(cluster.inbound(spec))
    lanes = [await arena.lane(inbound) for _ in range(3)]
    left = {lane.partition: 3 for lane in lanes}
    receiving = {spawn(lane.receive(), "test receive"): lane for lane in lanes}
    while any(left.values()):
        done, _ = await asyncio.wait(receiving, timeout=arena.harness.patience_s, return_when=asyncio.FIRST_COMPLETED)
        assert done, "a lane whose batch was acknowledged, or that was asked again, makes room for the others"
        await asyncio.sleep(0.2)
        batches = [task.result() for task in receiving if task.done()]
        assert len(batches) == 1 or sum(batch.held_bytes for batch in batches) <= spec.max_bytes
        for task in [task for task in receiving if task.done()]:
            lane, batch = receiving.pop(task), task.result()
            left[lane.partition] -= batch.count
            lane.acknowledge(batch)
            receiving[spawn(lane.receive(), "test receive")] = lane
    for task in receiving:
        await cancel(task)


async def test_a_batch_that_the_caller_counts_itself_leaves_its_room_to_other_lanes(arena: Arena, cluster: Cluster) -> None:
    """As a listener does whose clients take nothing of a partition for long."""
    topic = await arena.topic(cluster, 3)
    outbound = await arena.outbound(cluster, topic)
    for partition in range(3):
        await arena.send(outbound, partition, [Message(bytes(40_000), position=(partition,))])
    spec = InboundSpec((topic,), fresh_group(), options=arena.harness.inbound_options, max_bytes=50_000)
    inbound = await arena.open(cluster.inbound(spec))
    for _ in range(3):
        lane = await arena.lane(inbound)
        if not isinstance(lane, CountsReadAhead):
            pytest.skip("its lanes count batches until they are acknowledged")
        batch = await arena.within(lane.receive())
        lane.counted(batch)
        assert batch.count == 1
