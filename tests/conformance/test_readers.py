"""Readers of one partition: objects that can be cancelled, moved and closed, and that no group sees."""

import asyncio
from contextlib import nullcontext

import pytest

from mqbridge.adapter.cluster import Cluster
from mqbridge.adapter.reader import LimitsBatches, PartitionReader
from mqbridge.errors import ClusterError, Failure
from mqbridge.message import Batch, Position
from mqbridge.net.tasks import cancel, spawn
from tests.conformance.arena import Arena, numbered, numbers


async def topic_of(arena: Arena, cluster: Cluster, count: int) -> tuple[str, str]:
    """Make a topic with one partition and this many messages; return its name and that of the partition."""
    topic = await arena.topic(cluster)
    outbound = await arena.outbound(cluster, topic)
    for first in range(0, count, 10):
        await arena.send(outbound, 0, numbered(first, min(first + 10, count)))
    described = await arena.within(cluster.describe(topic))
    assert described is not None
    return topic, described.partitions[0]


async def first_position(arena: Arena, cluster: Cluster, topic: str, name: str) -> Position:
    return (await arena.within(cluster.bounds(topic)))[name].first


async def receive(arena: Arena, reader: PartitionReader) -> Batch:
    batch = await arena.within(reader.receive())
    assert batch is not None
    assert batch.first == batch.messages[0].position
    assert reader.position == batch.next
    return batch


async def take(arena: Arena, reader: PartitionReader, count: int) -> list[int]:
    """Receive batches until this many messages arrived; return their numbers."""
    found: list[int] = []
    while len(found) < count:
        found += numbers((await receive(arena, reader)).messages)
    return found


async def test_a_cancelled_receive_of_a_reader_loses_nothing(arena: Arena, cluster: Cluster) -> None:
    topic, name = await topic_of(arena, cluster, 20)
    outbound = await arena.outbound(cluster, topic)
    reader = await arena.reader(cluster, topic, name, await first_position(arena, cluster, topic, name))
    found: list[int] = []
    sent, attempts = 20, 0
    while len(found) < sent:
        attempts += 1
        waiting = spawn(reader.receive(), "test receive")
        for _ in range(attempts % 5):
            await asyncio.sleep(0)
        if attempts % 3 == 0:
            await asyncio.wait([waiting], timeout=0.001 * attempts)
        await cancel(waiting)
        if waiting.done() and not waiting.cancelled() and (batch := waiting.result()) is not None:
            found += numbers(batch.messages)
        if sent < 40 and len(found) == sent:
            await arena.send(outbound, 0, numbered(sent, sent + 5))
            sent += 5
    assert found == list(range(40))


async def test_a_reader_goes_back_and_forth(arena: Arena, cluster: Cluster) -> None:
    topic, name = await topic_of(arena, cluster, 30)
    begin = await first_position(arena, cluster, topic, name)
    bounds = (await arena.within(cluster.bounds(topic)))[name]
    ranged = await arena.reader(cluster, topic, name, begin, bounds.next)
    positions: list[Position] = []
    while (batch := await arena.within(ranged.receive())) is not None:
        positions += [message.position for message in batch.messages]
    assert len(positions) == 30
    assert await arena.within(ranged.receive()) is None, "the end stays the end"
    reader = await arena.reader(cluster, topic, name, begin)
    assert reader.position == begin
    await receive(arena, reader)
    for index in (13, 0, 29, 7):
        await arena.within(reader.seek(positions[index]))
        assert reader.position == positions[index]
        assert await take(arena, reader, 30 - index) == list(range(index, 30))


async def test_a_seek_ends_a_wait_at_the_end_of_the_partition(arena: Arena, cluster: Cluster) -> None:
    topic, name = await topic_of(arena, cluster, 10)
    begin = await first_position(arena, cluster, topic, name)
    reader = await arena.reader(cluster, topic, name, begin)
    assert await take(arena, reader, 10) == list(range(10))
    waiting = spawn(reader.receive(), "test receive")
    await asyncio.sleep(0.01)
    assert not waiting.done()
    await arena.within(reader.seek(begin))
    batch = await arena.within(waiting)
    assert batch is not None
    assert numbers(batch.messages)[0] == 0


async def test_a_range_of_a_reader_can_be_read_again(arena: Arena, cluster: Cluster) -> None:
    topic, name = await topic_of(arena, cluster, 10)
    bounds = (await arena.within(cluster.bounds(topic)))[name]
    reader = await arena.reader(cluster, topic, name, bounds.first, bounds.next)
    for _ in range(2):
        assert await take(arena, reader, 10) == list(range(10))
        assert await arena.within(reader.receive()) is None
        await arena.within(reader.seek(bounds.first))


async def test_two_readers_do_not_disturb_each_other_or_a_group(arena: Arena, cluster: Cluster) -> None:
    topic, name = await topic_of(arena, cluster, 10)
    begin = await first_position(arena, cluster, topic, name)
    readers = [await arena.reader(cluster, topic, name, begin) for _ in range(2)]
    for reader in readers:
        assert await take(arena, reader, 10) == list(range(10))
    await arena.within(readers[0].close())
    await arena.within(readers[0].close())
    outbound = await arena.outbound(cluster, topic)
    await arena.send(outbound, 0, numbered(10, 15))
    assert await take(arena, readers[1], 5) == list(range(10, 15))


async def test_a_reader_of_an_unknown_partition_is_refused(arena: Arena, cluster: Cluster) -> None:
    topic, name = await topic_of(arena, cluster, 1)
    begin = await first_position(arena, cluster, topic, name)
    with pytest.raises(ClusterError) as raised:
        await arena.within(cluster.reader(topic, name + "7", begin))
    assert raised.value.failure is Failure.FATAL


async def test_a_reader_that_reads_nothing_ahead_obeys_each_new_limit_of_its_batches(arena: Arena, cluster: Cluster) -> None:
    topic, name = await topic_of(arena, cluster, 40)
    reader = await arena.reader(cluster, topic, name, await first_position(arena, cluster, topic, name))
    if not isinstance(reader, LimitsBatches):
        return
    reader.batch_limit = lambda: nullcontext(1)
    small = (await receive(arena, reader)).count
    assert small <= 10  # one unit, or what was sent together, however large it is
    reader.batch_limit = lambda: nullcontext(1 << 20)
    assert (await receive(arena, reader)).count == 40 - small
