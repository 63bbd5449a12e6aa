"""Counts the backlog of a route: how much the source cluster has after the positions that the route's query has reached."""

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
    """Return the backlog from the reached positions up to `stops`, or up to the current ends. Raises ClusterError.

    A partition without a reached position counts from its first message. The unit is that of the source system, see
    `backlog_unit`.
    """
    permits = asyncio.Semaphore(MAX_CONCURRENT_REQUESTS)

    async def count_partition(topic: str, name: str, begin: Position, end: Position) -> int:
        if begin >= end:  # also if `stops` does not name the partition: () is below every position
            return 0
        if len(end) == 1:  # the position is one number, which counts the units
            return end[0] - begin[0]
        async with permits:
            return sum(unit_range.count for unit_range in await cluster.measure(topic, name, begin, end))

    bounds_by_topic = await find_bounds(cluster, reached)
    counts = [
        count_partition(
            topic,
            name,
            _backlog_begin(reached[topic], name, bounds),
            bounds.next if stops is None else stops.get(topic, {}).get(name, ()),
        )
        for topic, partitions in bounds_by_topic.items()
        for name, bounds in partitions.items()
    ]
    return sum(await asyncio.gather(*counts))


async def find_bounds(cluster: Cluster, topics: Iterable[str]) -> dict[str, Mapping[str, Bounds]]:
    """Return the bounds of each topic's partitions, by topic and partition name. Raises ClusterError."""
    topic_names = sorted(topics)
    bounds = await asyncio.gather(*(_find_topic_bounds(cluster, topic) for topic in topic_names))
    return dict(zip(topic_names, bounds, strict=True))


async def find_stop_positions(cluster: Cluster, topics: Iterable[str]) -> StopPositions:
    """Return the current end positions of the topics. Raises ClusterError."""
    bounds_by_topic = await find_bounds(cluster, topics)
    return {topic: {name: bounds.next for name, bounds in partitions.items()} for topic, partitions in bounds_by_topic.items()}


async def _find_topic_bounds(cluster: Cluster, topic: str) -> Mapping[str, Bounds]:
    try:
        return await cluster.bounds(topic)
    except ClusterError:
        if await cluster.describe(topic) is None:
            return {}  # a deleted topic has no backlog
        raise


def _backlog_begin(reached: Mapping[str, str], name: str, bounds: Bounds) -> Position:
    """Return the first position of the backlog: the reached one, or the first stored one if that is later."""
    return max(bounds.first, parse_position(reached[name])) if name in reached else bounds.first


def backlog_unit(cluster: Cluster) -> str:
    """Return the name of the unit in which the cluster counts a backlog, such as "messages" (also if it has no `operations`)."""
    return "messages" if cluster.operations is None else cluster.operations.backlog_unit
