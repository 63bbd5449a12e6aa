"""Positions as numbers, the bounds of one partition, and the last message."""

import pytest

from mqbridge.adapter.cluster import Cluster
from mqbridge.adapter.reading import read
from mqbridge.errors import ClusterError, Failure
from mqbridge.message import Position
from tests.conformance.arena import Arena, numbered


async def positions_of(arena: Arena, cluster: Cluster, topic: str, name: str) -> list[Position]:
    bounds = (await arena.within(cluster.bounds(topic, name)))[name]

    async def all_positions() -> list[Position]:
        batches = read(cluster, topic, name, bounds.first, bounds.next)
        return [message.position async for batch in batches for message in batch.messages]

    return await arena.within(all_positions())


async def test_positions_become_ordered_numbers_and_back(arena: Arena, cluster: Cluster) -> None:
    topic = await arena.topic(cluster)
    outbound = await arena.outbound(cluster, topic)
    for first in range(0, 20, 5):
        await arena.send(outbound, 0, numbered(first, first + 5))
    described = await arena.within(cluster.describe(topic))
    assert described is not None
    positions = await positions_of(arena, cluster, topic, described.partitions[0])
    numbering = cluster.numbering
    numbers = [numbering.number(position) for position in positions]
    assert [numbering.position(number) for number in numbers] == positions
    assert numbers == sorted(set(numbers))
    assert numbers[0] >= 0
    assert numbers[-1] < 1 << 63
    if numbering.dense:
        assert numbers == list(range(numbers[0], numbers[0] + 20))
    for wrong in ((1, 2, 3, 4), (-1,), (-1, 0), (1 << 63,)):
        with pytest.raises(ValueError, match=r"position|offset|fit"):
            numbering.number(wrong)
    for number in (-1, 1 << 63):
        with pytest.raises(ValueError, match=r"number|offset"):
            numbering.position(number)


async def test_the_bounds_of_one_partition_are_those_among_all(arena: Arena, cluster: Cluster) -> None:
    topic = await arena.topic(cluster, 3)
    outbound = await arena.outbound(cluster, topic)
    await arena.send(outbound, 1, numbered(0, 5))
    every = await arena.within(cluster.bounds(topic))
    for name, bounds in every.items():
        assert await arena.within(cluster.bounds(topic, name)) == {name: bounds}
    with pytest.raises(ClusterError) as raised:
        await arena.within(cluster.bounds(topic, next(iter(every)) + "9"))
    assert raised.value.failure is Failure.FATAL


async def test_the_last_message_is_known_or_said_not_to_be(arena: Arena, cluster: Cluster) -> None:
    topic = await arena.topic(cluster)
    ((name, empty),) = (await arena.within(cluster.bounds(topic))).items()
    assert empty.last is None
    outbound = await arena.outbound(cluster, topic)
    for first in (0, 4):
        await arena.send(outbound, 0, numbered(first, first + 4))
        last = (await arena.within(cluster.bounds(topic, name)))[name].last
        if arena.harness.finds_last:
            assert last == (await positions_of(arena, cluster, topic, name))[-1]
        else:
            assert last is None
