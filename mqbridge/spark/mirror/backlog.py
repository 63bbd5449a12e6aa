"""Counts the backlog of a route: the driver asks the source cluster how much lies after the positions of the route's query."""

import asyncio
from collections.abc import Iterable, Mapping

from mqbridge.adapter.cluster import Cluster
from mqbridge.adapter.topics import Bounds
from mqbridge.errors import ClusterError
from mqbridge.message import Position, parse_position

MAX_CONCURRENT_REQUESTS = 8
"""Partitions that are measured at once."""

ReachedPositions = Mapping[str, Mapping[str, str]]
"""The next position to read, by topic and partition name, in the text form of the query's offsets."""
StopPositions = Mapping[str, Mapping[str, Position]]
"""The end positions at which a mirror stops, by topic and partition name."""


async def count_backlog(cluster: Cluster, reached: ReachedPositions, stops: StopPositions | None = None) -> int:
    """Return the units of the source between the reached positions and `stops`, or the current ends. Raises ClusterError."""
    permits = asyncio.Semaphore(MAX_CONCURRENT_REQUESTS)

    async def count(topic: str, name: str, begin: Position, end: Position) -> int:
        if begin >= end:
            return 0
        if len(end) == 1:
            return end[0] - begin[0]
        async with permits:
            return sum(unit_range.count for unit_range in await cluster.measure(topic, name, begin, end))

    bounds_by_topic = await find_bounds(cluster, reached)
    counts = [
        count(
            topic,
            name,
            _begin(reached[topic], name, bounds),
            bounds.next if stops is None else stops.get(topic, {}).get(name, ()),
        )
        for topic, partitions in bounds_by_topic.items()
        for name, bounds in partitions.items()
    ]
    return sum(await asyncio.gather(*counts))


async def find_bounds(cluster: Cluster, topics: Iterable[str]) -> dict[str, Mapping[str, Bounds]]:
    """Return the bounds of the partitions of each topic. Raises ClusterError."""
    names = sorted(topics)
    return dict(zip(names, await asyncio.gather(*(_bounds(cluster, topic) for topic in names)), strict=True))


async def find_stop_positions(cluster: Cluster, topics: Iterable[str]) -> StopPositions:
    """Return the current end positions of the topics. Raises ClusterError."""
    bounds_by_topic = await find_bounds(cluster, topics)
    return {topic: {name: bounds.next for name, bounds in partitions.items()} for topic, partitions in bounds_by_topic.items()}


async def _bounds(cluster: Cluster, topic: str) -> Mapping[str, Bounds]:
    try:
        return await cluster.bounds(topic)
    except ClusterError:
        if await cluster.describe(topic) is None:
            return {}  # a deleted topic has no backlog
        raise


def _begin(reached: Mapping[str, str], name: str, bounds: Bounds) -> Position:
    """Return the first position of the backlog: the reached one, or the first stored one if that is later."""
    return max(bounds.first, parse_position(reached[name])) if name in reached else bounds.first


def backlog_unit(cluster: Cluster) -> str:
    """Return the name of the unit in which the cluster counts a backlog, for people."""
    return "messages" if cluster.operations is None else cluster.operations.backlog_unit
