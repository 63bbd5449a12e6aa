"""Ranges of partitions: what there is to read, found without an event loop; and what a target holds of a source, read back.

Whoever divides a reading among processes is no asyncio program; the readers then use `Cluster.read`.
"""

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing
from typing import Any, NamedTuple

from mqbridge.adapter.cluster import Cluster
from mqbridge.adapter.inbound import Start
from mqbridge.adapter.registry import Adapter
from mqbridge.adapter.topics import Bounds
from mqbridge.errors import ClusterError, Failure
from mqbridge.message import Partition, Position, position_of
from mqbridge.positions import Positions

Edge = Start | Mapping[str, Position]
"""An end of a reading: of all partitions, or positions by name, where a partition that is left out is read as far as it goes."""


FIRST_WINDOW, GROWTH = 256, 32
"""Messages to look at from the end of a partition, and how many times more each time that none was of the source."""


class Range(NamedTuple):
    """Part of one partition, from `begin` up to, not including, `end`."""

    topic: str
    partition: str
    begin: Position
    end: Position


def plan(
    adapter: Adapter, config: Any, topics: Sequence[str], begin: Edge = Start.EARLIEST, end: Edge = Start.LATEST
) -> list[Range]:
    """The ranges to read of some topics, one for each partition that holds anything between the two ends.

    `config` is a validated `Adapter.cluster_model`. Runs an event loop of its own in a thread, so it may be called from anywhere.
    Raises ClusterError: FATAL for a missing topic.
    """
    with ThreadPoolExecutor(1, thread_name_prefix="mqbridge-plan") as thread:
        return thread.submit(asyncio.run, _plan(adapter.make_cluster("plan", config), topics, begin, end)).result()


async def _plan(cluster: Cluster, topics: Sequence[str], begin: Edge, end: Edge) -> list[Range]:
    await cluster.connect()
    try:
        found = await asyncio.gather(*(_bounds(cluster, topic) for topic in topics))
    finally:
        await cluster.close()
    ranges = [
        Range(topic, name, _edge(begin, name, held, held.first), _edge(end, name, held, held.next))
        for topic, bounds in zip(topics, found, strict=True)
        for name, held in bounds.items()
    ]
    return [one for one in ranges if one.begin < one.end]


async def _bounds(cluster: Cluster, topic: str) -> Mapping[str, Bounds]:
    if await cluster.describe(topic) is None:
        raise ClusterError(f"there is no topic {topic!r} to read", Failure.FATAL)
    return await cluster.bounds(topic)


def _edge(edge: Edge, name: str, held: Bounds, otherwise: Position) -> Position:
    if isinstance(edge, Start):
        return held.first if edge is Start.EARLIEST else held.next
    return edge.get(name, otherwise)


async def last_stored(
    cluster: Cluster,
    topic: str,
    partitions: Mapping[int, str],
    source: Partition,
    since: Mapping[int, Position] | None = None,
) -> dict[int, Position]:
    """The last position of the source that each target partition holds, by index; see `Outbound.resume`. Raises ClusterError.

    A partition that holds nothing of the source is read back to `since`, or to its beginning: only that proves it.
    """
    bounds, floors = await cluster.bounds(topic), since or {}
    found = await asyncio.gather(
        *(_last_of(cluster, topic, name, bounds[name], source, floors.get(index)) for index, name in partitions.items())
    )
    return {index: position for index, position in zip(partitions, found, strict=True) if position is not None}


async def _last_of(
    cluster: Cluster, topic: str, name: str, bounds: Bounds, source: Partition, since: Position | None
) -> Position | None:
    async with aclosing(_windows_back(cluster, topic, name, bounds, since)) as windows:
        async for begin, end in windows:
            last = None
            async for position in _positions(cluster, topic, name, begin, end, source):
                last = position
            if last is not None:
                return last
    return None


async def stored_from(
    cluster: Cluster,
    topic: str,
    partitions: Mapping[int, str],
    source: Partition,
    first: Position,
    since: Mapping[int, Position] | None = None,
) -> dict[int, Positions]:
    """All positions of the source from `first` on that each of these target partitions holds, by index. Raises ClusterError.

    Each is read back to a message of the source before `first`, for its messages are stored in order; or to `since`, or to its
    beginning.
    """
    bounds, floors = await cluster.bounds(topic), since or {}
    found = await asyncio.gather(
        *(_stored_in(cluster, topic, name, bounds[name], source, first, floors.get(index)) for index, name in partitions.items())
    )
    return dict(zip(partitions, found, strict=True))


async def _stored_in(
    cluster: Cluster, topic: str, name: str, bounds: Bounds, source: Partition, first: Position, since: Position | None
) -> Positions:
    found = Positions()
    async with aclosing(_windows_back(cluster, topic, name, bounds, since)) as windows:
        async for begin, end in windows:
            is_before = False
            async for position in _positions(cluster, topic, name, begin, end, source):
                if position >= first:
                    found.add(position)
                else:
                    is_before = True
            if is_before:
                break
    return found


async def _positions(
    cluster: Cluster, topic: str, name: str, begin: Position, end: Position, source: Partition
) -> AsyncGenerator[Position, None]:
    """The positions of the source that are stored between the two."""
    async with aclosing(cluster.read(topic, name, begin, end)) as batches:
        async for batch in batches:
            for message in batch.messages:
                if (position := position_of(message.origin, source)) is not None:
                    yield position


async def _windows_back(
    cluster: Cluster, topic: str, name: str, bounds: Bounds, since: Position | None
) -> AsyncGenerator[tuple[Position, Position], None]:
    """A partition in pieces from its end back to `since`, or to its beginning, each much longer than the one behind it."""
    count, end = FIRST_WINDOW, bounds.next
    first = bounds.first if since is None else max(bounds.first, since)
    counted: Position | None = None
    while end > first:
        before, counted = counted, await _counted_back(cluster, topic, name, bounds, count)
        begin = max(first, min(end, counted))
        if begin == end and counted == before:  # it does not count further back, or what is before that is gone by now
            held = (await cluster.bounds(topic))[name].first
            begin = first = held if since is None else max(held, since)
        yield begin, end
        count, end = count * GROWTH, begin


async def _counted_back(cluster: Cluster, topic: str, name: str, bounds: Bounds, count: int) -> Position:
    if cluster.operations is None:
        return bounds.first
    return (await cluster.operations.newest(topic, count)).get(name, bounds.first)
