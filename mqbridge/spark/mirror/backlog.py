"""How much lies before a route: asked of its source cluster by the driver, from the positions that its query has reached."""

import asyncio
from collections.abc import Iterable, Mapping

from mqbridge.adapter.cluster import Cluster
from mqbridge.adapter.topics import Bounds
from mqbridge.errors import ClusterError
from mqbridge.message import Position, parse_position

SIDE_BY_SIDE = 8
"""Partitions that are asked about at once."""

Ends = Mapping[str, Mapping[str, str]]
"""By topic and partition name, as in the offsets of the query."""
Marks = Mapping[str, Mapping[str, Position]]
"""Ends that are not moved any more, likewise."""


async def count_backlog(cluster: Cluster, ends: Ends, marks: Marks | None = None) -> int:
    """Units of the source between where the query is and what there is now, or `marks`. Raises ClusterError."""
    permits = asyncio.Semaphore(SIDE_BY_SIDE)

    async def count(topic: str, name: str, begin: Position, end: Position) -> int:
        if begin >= end:
            return 0
        if len(end) == 1:
            return end[0] - begin[0]
        async with permits:
            return sum(unit_range.count for unit_range in await cluster.measure(topic, name, begin, end))

    found = await bounds_of(cluster, ends)
    waits = [
        count(topic, name, _reached(ends[topic], name, held), held.next if marks is None else marks.get(topic, {}).get(name, ()))
        for topic, bounds in found.items()
        for name, held in bounds.items()
    ]
    return sum(await asyncio.gather(*waits))


async def bounds_of(cluster: Cluster, topics: Iterable[str]) -> dict[str, Mapping[str, Bounds]]:
    """The bounds of these topics. Raises ClusterError."""
    asked = sorted(topics)
    return dict(zip(asked, await asyncio.gather(*(_bounds(cluster, topic) for topic in asked)), strict=True))


async def marks_of(cluster: Cluster, topics: Iterable[str]) -> Marks:
    """Where the topics end now. Raises ClusterError."""
    found = await bounds_of(cluster, topics)
    return {topic: {name: held.next for name, held in bounds.items()} for topic, bounds in found.items()}


async def _bounds(cluster: Cluster, topic: str) -> Mapping[str, Bounds]:
    try:
        return await cluster.bounds(topic)
    except ClusterError:
        if await cluster.describe(topic) is None:
            return {}  # gone, and nothing of it lies before anybody
        raise


def _reached(ends: Mapping[str, str], name: str, held: Bounds) -> Position:
    return max(held.first, parse_position(ends[name])) if name in ends else held.first


def unit_of(cluster: Cluster) -> str:
    """What is counted, for people."""
    return "messages" if cluster.operations is None else cluster.operations.backlog_unit
