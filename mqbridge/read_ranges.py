"""Plans the ranges of partitions to read, for synchronous callers.

The callers divide the ranges among processes, and each process reads its ranges with `Cluster.read`.
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
"""The begin or the end of reading: one `Start` for all partitions, or positions by partition name.

`Start.EARLIEST` is the position of a partition's first message, `Start.LATEST` the position after its last one at present. A
partition that the mapping does not contain is read from its first message, or up to its last.
"""


class ReadRange(NamedTuple):
    """A range of one partition: the messages at positions from `begin` (inclusive) to `end` (exclusive)."""

    topic: str
    partition: str
    begin: Position
    end: Position


def plan_ranges(
    adapter: Adapter, config: Any, topics: Sequence[str], begin: ReadLimit = Start.EARLIEST, end: ReadLimit = Start.LATEST
) -> list[ReadRange]:
    """Return the ranges of these topics to read: one for each partition that has messages between `begin` and `end`.

    `config` is a validated `Adapter.cluster_model`. Planning runs an event loop in a thread of its own, so it also works if the
    caller's thread runs a loop. Raises ClusterError, FATAL for a missing topic.
    """
    with ThreadPoolExecutor(1, thread_name_prefix="mqbridge-plan") as thread:
        cluster = adapter.make_cluster("plan", config)  # `plan` is its name in logs and errors
        return thread.submit(asyncio.run, _plan(cluster, topics, begin, end)).result()


async def _plan(cluster: Cluster, topics: Sequence[str], begin: ReadLimit, end: ReadLimit) -> list[ReadRange]:
    await cluster.connect()
    try:
        topic_bounds = await asyncio.gather(*(_bounds(cluster, topic) for topic in topics))
    finally:
        await cluster.close()
    ranges = [
        ReadRange(
            topic, name, _limit_position(begin, name, bounds, bounds.first), _limit_position(end, name, bounds, bounds.next)
        )
        for topic, bounds_by_name in zip(topics, topic_bounds, strict=True)
        for name, bounds in bounds_by_name.items()
    ]
    return [read_range for read_range in ranges if read_range.begin < read_range.end]


async def _bounds(cluster: Cluster, topic: str) -> Mapping[str, Bounds]:
    if await cluster.describe(topic) is None:
        raise ClusterError(f"the topic {topic!r} does not exist, so it cannot be read", Failure.FATAL)
    return await cluster.bounds(topic)


def _limit_position(limit: ReadLimit, name: str, bounds: Bounds, default: Position) -> Position:
    """Return the position of this limit in the partition `name`; `default` if `limit` is a mapping without the partition."""
    if isinstance(limit, Start):
        return bounds.first if limit is Start.EARLIEST else bounds.next
    return limit.get(name, default)
