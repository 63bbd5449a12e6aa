"""Single requests to a connected cluster, without retries: topics, bounds, positions by time, samples, gaps.

A sample measures density: the messages per unit and the bytes per message. A unit is the smallest part of a partition that the
system counts, for example a message or a Pulsar entry.
"""

from collections.abc import Mapping, Sequence
from contextlib import aclosing

from mqbridge.adapter.cluster import Cluster
from mqbridge.adapter.reading import read
from mqbridge.adapter.topics import Bounds, Topic, UnitRange
from mqbridge.errors import ClusterError, ConfigError, Failure, GapError
from mqbridge.message import Position
from mqbridge.spark.source.admission import Density
from mqbridge.spark.source.offsets import PartitionKey
from mqbridge.spark.source.settings import TopicSelection

MAX_SAMPLE_ROWS = 256
"""A sample ends with the first batch that brings it to this number of messages."""


async def matching_topics(cluster: Cluster, selection: TopicSelection) -> tuple[str, ...]:
    """Return the selected names and the topics of the cluster that match a pattern, sorted. Raises ClusterError, ConfigError."""
    if not cluster.capabilities.list_topics:
        raise ConfigError(
            f"option subscribePattern: cluster {cluster.name!r} cannot list its topics",
            hint="Configure its admin_url, or use subscribe",
        )
    return tuple(selection.readable({*selection.names, *filter(selection.includes, await cluster.topics())}))


async def find_bounds(cluster: Cluster, topic: str) -> Mapping[str, Bounds] | None:
    """Return the bounds by partition name, or None if the topic does not exist. Raises ClusterError."""
    try:
        return await cluster.bounds(topic)
    except ClusterError as error:
        if error.failure is Failure.FATAL and await cluster.describe(topic) is None:
            return None
        raise


async def describe_topic(cluster: Cluster, topic: str) -> Topic:
    """Return the metadata of a topic. Raises ClusterError, FATAL if the topic does not exist, or nobody may read it."""
    metadata = await cluster.describe(topic)
    if metadata is None:
        raise ClusterError(f"there is no topic {topic!r} in cluster {cluster.name!r}", Failure.FATAL)
    if metadata.unreadable is not None:
        raise ClusterError(f"cannot read from cluster {cluster.name!r}: {metadata.unreadable}", Failure.FATAL)
    return metadata


async def positions_at_time(cluster: Cluster, topic: str, time_ms: int) -> Mapping[str, Position]:
    """Return, by partition name, the position of the first message stored at this time or later.

    Raises ClusterError, and ConfigError if the cluster cannot find positions by time.
    """
    if cluster.operations is None:
        raise ConfigError(
            f"cluster {cluster.name!r} cannot find positions by time",
            hint="Configure its admin_url, or use startingOffsets and endingOffsets",
        )
    return await cluster.operations.position_at(topic, time_ms)


async def sample_density(
    cluster: Cluster, key: PartitionKey, begin: Position, until: Position, unit_ranges: Sequence[UnitRange]
) -> Density | None:
    """Read the first messages between two positions, and return their density; None if there are no messages, or a gap.

    `unit_ranges` are the units between the positions. Raises ClusterError.
    """
    rows = size = 0
    sampled_from = sampled_until = begin
    try:
        async with aclosing(read(cluster, *key, begin, until)) as batches:
            async for batch in batches:
                if not rows:
                    sampled_from = batch.first  # leading units without messages do not count
                rows += batch.count
                size += batch.size
                sampled_until = batch.next
                if rows >= MAX_SAMPLE_ROWS:
                    break
    except GapError:  # the task that reads the range reports the gap
        return None
    sampled_until = min(sampled_until, until)
    units = sum(_units_before(unit_range, sampled_until) - _units_before(unit_range, sampled_from) for unit_range in unit_ranges)
    return Density(rows / units, size / rows) if rows and units else None


def _units_before(unit_range: UnitRange, position: Position) -> int:
    """Return the number of units of a unit range that begin before a position, by binary search."""
    low, high = 0, unit_range.count
    while low < high:
        middle = (low + high) // 2
        low, high = (middle + 1, high) if unit_range.position(middle) < position else (low, middle)
    return low


async def has_gap(cluster: Cluster, key: PartitionKey, begin: Position, end: Position) -> bool:
    """Return whether messages between `begin` and `end`, the first stored position, were lost. Raises ClusterError.

    If not, there was no message between them, and the cluster reads on without a GapError.
    """
    try:
        async with aclosing(read(cluster, *key, begin, end)) as batches:
            async for _ in batches:
                break
    except GapError:
        return True
    return False
