"""Plans the ranges of partitions to read, for callers without an event loop.

It serves programs that do not use asyncio and divide the reading among processes; each process then calls `Cluster.read`.
"""

import asyncio
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

from mqbridge.adapter.cluster import Cluster
from mqbridge.adapter.inbound import Start
from mqbridge.adapter.registry import Adapter
from mqbridge.adapter.topics import Bounds
from mqbridge.errors import ClusterError, Failure
from mqbridge.message import Position

ReadLimit = Start | Mapping[str, Position]
"""Where reading begins or ends: one value for all partitions, or positions by partition name.

Without a position, a partition is read from its first message, or to its last.
"""


class ReadRange(NamedTuple):
    """A range of one partition, from `begin` up to, not including, `end`."""

    topic: str
    partition: str
    begin: Position
    end: Position


def plan_ranges(
    adapter: Adapter, config: Any, topics: Sequence[str], begin: ReadLimit = Start.EARLIEST, end: ReadLimit = Start.LATEST
) -> list[ReadRange]:
    """Return the ranges of these topics to read: one for each partition that has data between `begin` and `end`.

    `config` is a validated `Adapter.cluster_model`. Runs its own event loop in a thread, so callers may have one running already.
    Raises ClusterError, FATAL for a missing topic.
    """
    with ThreadPoolExecutor(1, thread_name_prefix="mqbridge-plan") as thread:
        return thread.submit(asyncio.run, _plan(adapter.make_cluster("plan", config), topics, begin, end)).result()


async def _plan(cluster: Cluster, topics: Sequence[str], begin: ReadLimit, end: ReadLimit) -> list[ReadRange]:
    await cluster.connect()
    try:
        found = await asyncio.gather(*(_bounds(cluster, topic) for topic in topics))
    finally:
        await cluster.close()
    ranges = [
        ReadRange(topic, name, _limit(begin, name, held, held.first), _limit(end, name, held, held.next))
        for topic, bounds in zip(topics, found, strict=True)
        for name, held in bounds.items()
    ]
    return [read_range for read_range in ranges if read_range.begin < read_range.end]


async def _bounds(cluster: Cluster, topic: str) -> Mapping[str, Bounds]:
    if await cluster.describe(topic) is None:
        raise ClusterError(f"the topic {topic!r} to read does not exist", Failure.FATAL)
    return await cluster.bounds(topic)


def _limit(limit: ReadLimit, name: str, held: Bounds, otherwise: Position) -> Position:
    if isinstance(limit, Start):
        return held.first if limit is Start.EARLIEST else held.next
    return limit.get(name, otherwise)
