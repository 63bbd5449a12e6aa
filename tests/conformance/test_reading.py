"""Reading a range of one partition without a group: exact at both ends, and without side effects."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing

from mqbridge.adapter import reading
from mqbridge.adapter.cluster import Cluster
from mqbridge.message import Batch, Message, Position
from mqbridge.net.tasks import spawn
from tests.conformance.arena import Arena, numbered, numbers


async def topic_of(arena: Arena, cluster: Cluster, *sizes: int) -> tuple[str, list[str]]:
    """Make a topic with one partition per size, filled with that many messages, sent a few at a time; return its partitions."""
    topic = await arena.topic(cluster, len(sizes))
    outbound = await arena.outbound(cluster, topic)
    for partition, size in enumerate(sizes):
        for first in range(0, size, 7):
            await arena.send(outbound, partition, numbered(100 * partition + first, 100 * partition + min(first + 7, size)))
    described = await arena.within(cluster.describe(topic))
    assert described is not None
    return topic, list(described.partitions)


async def read(arena: Arena, cluster: Cluster, topic: str, name: str, begin: Position, end: Position | None) -> list[Batch]:
    async def all_of_it() -> list[Batch]:
        async with aclosing(reading.read(cluster, topic, name, begin, end)) as batches:
            return [batch async for batch in batches]

    return await arena.within(all_of_it())


def messages_of(batches: list[Batch]) -> list[Message]:
    return [message for batch in batches for message in batch.messages]


async def test_every_partition_between_its_bounds(arena: Arena, cluster: Cluster) -> None:
    topic, names = await topic_of(arena, cluster, 30, 0, 5)
    bounds = await arena.within(cluster.bounds(topic))
    assert bounds.keys() == set(names)
    for index, (name, size) in enumerate(zip(names, (30, 0, 5), strict=True)):
        batches = await read(arena, cluster, topic, name, bounds[name].first, bounds[name].next)
        assert numbers(messages_of(batches)) == list(range(100 * index, 100 * index + size))
        for batch in batches:
            assert (batch.partition.topic, batch.partition.name, batch.partition.index) == (topic, name, index)
            assert batch.count == len(batch.messages) > 0
            assert batch.first == batch.messages[0].position
            assert batch.messages[-1].position < batch.next <= bounds[name].next


async def test_begin_and_end_are_exact_inside_stored_units(arena: Arena, cluster: Cluster) -> None:
    topic, [name] = await topic_of(arena, cluster, 30)
    bounds = (await arena.within(cluster.bounds(topic)))[name]
    positions = [message.position for message in messages_of(await read(arena, cluster, topic, name, bounds.first, bounds.next))]
    ends = [*positions, bounds.next]
    for begin, end in ((0, 30), (0, 1), (3, 4), (5, 23), (14, 21), (29, 30), (8, 8), (30, 30)):
        batches = await read(arena, cluster, topic, name, ends[begin], ends[end])
        assert numbers(messages_of(batches)) == list(range(begin, end)), (begin, end)
        assert all(batch.next <= ends[end] for batch in batches)


async def test_reading_continues_at_the_end_of_a_batch(arena: Arena, cluster: Cluster) -> None:
    topic, [name] = await topic_of(arena, cluster, 30)
    bounds = (await arena.within(cluster.bounds(topic)))[name]
    got: list[int] = []
    begin = bounds.first
    while begin < bounds.next:
        async with aclosing(reading.read(cluster, topic, name, begin, bounds.next)) as batches:
            batch = await arena.within(anext(batches, None))
        if batch is None:
            break
        got += numbers(batch.messages)
        begin = batch.next
    assert got == list(range(30))


async def test_a_message_has_the_same_position_whenever_it_is_read_again(arena: Arena, cluster: Cluster) -> None:
    """The position stays the same when more messages arrive, and for any begin of the range: repeated reads rely on it."""
    topic, [name] = await topic_of(arena, cluster, 20)
    early = (await arena.within(cluster.bounds(topic)))[name]
    found = await read(arena, cluster, topic, name, early.first, early.next)
    outbound = await arena.outbound(cluster, topic)
    for first in range(20, 40, 10):
        await arena.send(outbound, 0, numbered(first, first + 10))
    late = (await arena.within(cluster.bounds(topic)))[name]
    whole = [(m.payload, m.position) for m in messages_of(await read(arena, cluster, topic, name, early.first, late.next))]
    assert len(whole) == 40
    found += await read(arena, cluster, topic, name, found[-1].next, late.next)
    assert [(message.payload, message.position) for message in messages_of(found)] == whole
    for index in (1, 7, 19, 20, 33):
        again = messages_of(await read(arena, cluster, topic, name, whole[index][1], late.next))
        assert [(message.payload, message.position) for message in again] == whole[index:]


async def test_reading_without_an_end_follows_new_messages(arena: Arena, cluster: Cluster) -> None:
    topic, [name] = await topic_of(arena, cluster, 5)
    outbound = await arena.outbound(cluster, topic)
    first = (await arena.within(cluster.bounds(topic)))[name].first
    got: list[int] = []
    async with aclosing(reading.read(cluster, topic, name, first)) as batches:
        while len(got) < 5:
            got += numbers((await arena.within(anext(batches))).messages)
        waiting = spawn(_next(batches), "the next batch")
        await asyncio.sleep(0)
        await arena.send(outbound, 0, numbered(5, 8))
        while len(got) < 8:
            got += numbers((await arena.within(waiting)).messages)
            if len(got) < 8:
                waiting = spawn(_next(batches), "the next batch")
    assert got == list(range(8))


async def _next(batches: AsyncGenerator[Batch, None]) -> Batch:
    return await anext(batches)


async def test_reading_ends_early_if_the_partition_holds_less(arena: Arena, cluster: Cluster) -> None:
    topic, [name] = await topic_of(arena, cluster, 5)
    bounds = (await arena.within(cluster.bounds(topic)))[name]
    beyond = (*bounds.next[:-1], bounds.next[-1] + 1_000_000)
    assert numbers(messages_of(await read(arena, cluster, topic, name, bounds.first, beyond))) == list(range(5))


async def test_reading_moves_no_group_and_leaves_none(arena: Arena, cluster: Cluster) -> None:
    topic, [name] = await topic_of(arena, cluster, 5)
    operations = arena.operations(cluster)
    before = await arena.within(operations.groups(topic))
    bounds = (await arena.within(cluster.bounds(topic)))[name]
    await read(arena, cluster, topic, name, bounds.first, bounds.next)
    assert await arena.within(operations.groups(topic)) == before


async def test_released_messages_are_decoded_again(arena: Arena, cluster: Cluster) -> None:
    topic, [name] = await topic_of(arena, cluster, 5)
    bounds = (await arena.within(cluster.bounds(topic)))[name]
    for batch in await read(arena, cluster, topic, name, bounds.first, bounds.next):
        before = [message.as_dict() for message in batch.messages]
        batch.release_messages()
        assert [message.as_dict() for message in batch.messages] == before
        assert batch.held_bytes >= batch.size > 0
        assert batch.may_contain(b"mqbridge.origin"), "the suite's messages have an origin"
