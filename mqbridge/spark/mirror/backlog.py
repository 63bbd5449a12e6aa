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


async def count_backlog(cluster: Cluster, ends: Ends, topics: Iterable[str] = ()) -> int:
    """Units of the source between where the query is and what there is now. Raises ClusterError.

    `topics` are those it is to read: one that it has not begun lies before it as a whole.
    """
    permits = asyncio.Semaphore(SIDE_BY_SIDE)

    async def count(topic: str, name: str, begin: Position, end: Position) -> int:
        if begin >= end:
            return 0
        if len(end) == 1:
            return end[0] - begin[0]
        async with permits:
            return sum(stretch.count for stretch in await cluster.measure(topic, name, begin, end))

    asked = sorted({*ends, *topics})
    found = await asyncio.gather(*(_bounds(cluster, topic) for topic in asked))
    waits = [
        count(topic, name, _reached(ends.get(topic, {}), name, held), held.next)
        for topic, bounds in zip(asked, found, strict=True)
        for name, held in bounds.items()
    ]
    return sum(await asyncio.gather(*waits))


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
