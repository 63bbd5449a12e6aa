"""Operations: newest messages, members, backlog, moving a group, positions by time, settings."""

import asyncio
import time
from collections.abc import Mapping
from contextlib import aclosing

import pytest

from mqbridge.adapter.cluster import Cluster
from mqbridge.adapter.operations import Operations
from mqbridge.adapter.reading import read
from mqbridge.errors import ClusterError, Failure
from mqbridge.message import Message, Position
from tests.conformance.arena import Arena, fresh_group, numbered, numbers

LATER_S = 0.3
"""Pause between two sends, so that a time lies between them."""


async def stored(arena: Arena, cluster: Cluster, count: int) -> tuple[str, list[Message]]:
    """Make a topic of one partition with messages sent one by one; return them with their positions."""
    topic = await arena.topic(cluster)
    outbound = await arena.outbound(cluster, topic)
    for number in range(count):
        await arena.send(outbound, 0, numbered(number, number + 1))
    messages = await everything(arena, cluster, topic, await name_of(cluster, topic))
    assert len(messages) == count
    return topic, messages


async def everything(arena: Arena, cluster: Cluster, topic: str, name: str, begin: Position | None = None) -> list[Message]:
    """Return the messages of a partition from a position on."""
    bounds = (await arena.within(cluster.bounds(topic)))[name]
    got: list[Message] = []
    async with aclosing(read(cluster, topic, name, bounds.first if begin is None else begin, bounds.next)) as batches:
        while (batch := await arena.within(anext(batches, None))) is not None:
            got += batch.messages
    return got


async def consumed(arena: Arena, cluster: Cluster, topic: str, group: str, count: int) -> None:
    inbound = await arena.inbound(cluster, topic, group)
    await arena.take(await arena.lane(inbound), count)
    await arena.within(inbound.close())


async def name_of(cluster: Cluster, topic: str) -> str:
    described = await cluster.describe(topic)
    assert described is not None
    return described.partitions[0]


async def test_newest_has_count_messages_after_its_position(arena: Arena, cluster: Cluster) -> None:
    topic, _ = await stored(arena, cluster, 10)
    name, operations = await name_of(cluster, topic), arena.operations(cluster)
    for count in (1, 4, 100):
        begin = (await arena.within(operations.newest(topic, count)))[name]
        got = numbers(await everything(arena, cluster, topic, name, begin))
        assert got[-1] == 9
        assert len(got) >= min(count, 10)
    empty = await arena.topic(cluster)
    begin = (await arena.within(operations.newest(empty, 3)))[await name_of(cluster, empty)]
    assert await everything(arena, cluster, empty, await name_of(cluster, empty), begin) == []


async def test_members_come_and_go(arena: Arena, cluster: Cluster) -> None:
    topic, group = await arena.topic(cluster, 2), fresh_group()
    assert await arena.within(arena.operations(cluster).members(topic, group)) == []
    inbound = await arena.inbound(cluster, topic, group)
    held = {(await arena.lane(inbound)).partition.name for _ in range(2)}

    async def shown() -> bool:
        members = await arena.operations(cluster).members(topic, group)
        return len(members) == 1 and set(members[0].partitions or ()) == held

    await arena.until(shown)
    assert (await arena.within(arena.operations(cluster).members(topic, group)))[0].id
    await arena.within(inbound.close())

    async def gone() -> bool:
        return await arena.operations(cluster).members(topic, group) == []

    await arena.until(gone)


async def test_backlog_counts_down_as_a_group_reads(arena: Arena, cluster: Cluster) -> None:
    topic, _ = await stored(arena, cluster, 10)
    group, name = fresh_group(), await name_of(cluster, topic)
    await consumed(arena, cluster, topic, group, 10)

    async def is_left(least: int, most: int) -> bool:
        left = (await arena.operations(cluster).backlog(topic, group)).get(name)
        return left is not None and least <= left <= most

    await arena.until(lambda: is_left(0, 0))
    outbound = await arena.outbound(cluster, topic)
    for number in range(10, 15):
        await arena.send(outbound, 0, numbered(number, number + 1))
    await arena.until(lambda: is_left(5, 5))


async def test_a_group_moves_back_and_forth(arena: Arena, cluster: Cluster) -> None:
    topic, messages = await stored(arena, cluster, 10)
    group, name = fresh_group(), await name_of(cluster, topic)
    await consumed(arena, cluster, topic, group, 10)
    bounds = (await arena.within(cluster.bounds(topic)))[name]
    for position, expected in ((messages[4].position, 4), (bounds.first, 0), (messages[7].position, 7), (bounds.next, 10)):
        await arena.until(lambda: _try_move(arena.operations(cluster), topic, group, {name: position}))  # noqa: B023 - awaited here
        outbound = await arena.outbound(cluster, topic)
        await arena.send(outbound, 0, numbered(10, 11))
        inbound = await arena.inbound(cluster, topic, group)
        lane = await arena.lane(inbound)
        got: list[int] = []
        while expected not in got:
            batch = await arena.receive(lane)
            got += numbers(batch.messages)
            lane.acknowledge(batch)
        assert expected != 10 or set(got) == {10}, "the end is a position between messages on every system"
        assert got[0] <= expected
        exact = len(position) == 1 or position[-1] == 0  # else inside of what the system keeps as one entry
        assert not exact or got[0] == expected
        await arena.within(inbound.close())


async def _try_move(operations: Operations, topic: str, group: str, positions: Mapping[str, Position]) -> bool:
    """Try to move the group; return False if the system still counts members that have left."""
    try:
        await operations.move(topic, group, positions)
    except ClusterError as error:
        if "stop them" not in str(error):
            raise
        return False
    return True


async def test_moving_a_missing_group_creates_it(arena: Arena, cluster: Cluster) -> None:
    topic, _ = await stored(arena, cluster, 5)
    group, name = fresh_group(), await name_of(cluster, topic)
    end = (await arena.within(cluster.bounds(topic)))[name].next
    await arena.within(arena.operations(cluster).move(topic, group, {name: end}))

    async def there() -> bool:
        return (await cluster.committed(topic, group)).get(name) == end

    await arena.until(there)
    assert group in await arena.within(arena.operations(cluster).groups(topic))
    await arena.send(await arena.outbound(cluster, topic), 0, numbered(5, 6))
    inbound = await arena.inbound(cluster, topic, group)
    received = await arena.receive(await arena.lane(inbound))
    assert numbers(received.messages) == [5]


async def test_a_group_with_members_is_not_moved(arena: Arena, cluster: Cluster) -> None:
    topic, messages = await stored(arena, cluster, 5)
    group, name = fresh_group(), await name_of(cluster, topic)
    inbound = await arena.inbound(cluster, topic, group)
    lane = await arena.lane(inbound)
    await arena.take(lane, 5)
    with pytest.raises(ClusterError, match="stop them") as raised:
        await arena.within(arena.operations(cluster).move(topic, group, {name: messages[2].position}))
    assert raised.value.failure is Failure.FATAL
    await arena.send(await arena.outbound(cluster, topic), 0, numbered(5, 6))
    assert numbers((await arena.receive(lane)).messages) == [5]


async def test_a_missing_partition_cannot_be_moved(arena: Arena, cluster: Cluster) -> None:
    topic = await arena.topic(cluster)
    with pytest.raises(ClusterError, match="77"):
        await arena.within(arena.operations(cluster).move(topic, fresh_group(), {"none:77": (0,)}))


async def test_positions_are_found_by_time(arena: Arena, cluster: Cluster) -> None:
    topic = await arena.topic(cluster)
    if not arena.harness.finds_times:
        with pytest.raises(ClusterError) as raised:
            await arena.within(arena.operations(cluster).position_at(topic, 0))
        assert raised.value.failure is Failure.FATAL
        return
    name = await name_of(cluster, topic)
    outbound = await arena.outbound(cluster, topic)
    await arena.send(outbound, 0, numbered(0, 5))
    await asyncio.sleep(LATER_S)
    between = time.time_ns() // 1_000_000
    await asyncio.sleep(LATER_S)
    await arena.send(outbound, 0, numbered(5, 10))
    messages = await everything(arena, cluster, topic, await name_of(cluster, topic))
    bounds = (await arena.within(cluster.bounds(topic)))[name]
    future = between + 3_600_000
    found = [(await arena.within(arena.operations(cluster).position_at(topic, at)))[name] for at in (0, between, future)]
    assert found == [messages[0].position, messages[5].position, bounds.next]


async def test_settings_are_readable(arena: Arena, cluster: Cluster) -> None:
    topic = await arena.topic(cluster)
    settings = await arena.within(arena.operations(cluster).settings(topic))
    assert all(isinstance(name, str) and isinstance(value, str) and name and value for name, value in settings.items())
