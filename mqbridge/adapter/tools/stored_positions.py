"""Finds the messages of a source that a target has stored: reads the target backward and parses the stamped origins.

`source` is a source partition, and `writer` the writer that the origins name (see `OutboundSpec.writer`), or None for origins
that name none; messages of other writers are ignored. `prefix` is the prefix of these origins. `topic`, partition names and the
positions `since`, `bounds`, `begin` and `end` are those of the target; all other positions are source positions.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing

from mqbridge.adapter.cluster import Cluster
from mqbridge.adapter.reading import read
from mqbridge.adapter.tools.packed_positions import PackedPositions
from mqbridge.adapter.topics import Bounds
from mqbridge.errors import GapError
from mqbridge.message import Partition, Position, origin_prefix, position_of

log = logging.getLogger(__name__)

FIRST_WINDOW_MESSAGES, WINDOW_GROWTH = 256, 32
"""A partition is read backward in windows: the first one has the newest FIRST_WINDOW_MESSAGES. Each further window begins
WINDOW_GROWTH times as many messages before the end."""


async def last_stored(
    cluster: Cluster,
    topic: str,
    partitions: Mapping[int, str],
    source: Partition,
    since: Mapping[int, Position] | None = None,
    writer: str | None = None,
) -> dict[int, Position]:
    """Return the last source position that each target partition has stored, by partition index. Raises ClusterError.

    Implements `Outbound.resume`. `partitions` maps partition indexes to names. Each partition is read backward until a message of
    the source is found, down to the position `since` of the partition, or to its beginning. A partition without such a message
    is not in the result.
    """
    bounds = await cluster.bounds(topic)
    since = since or {}
    prefix = origin_prefix(source, writer)
    positions = await asyncio.gather(
        *(_last_stored_in(cluster, topic, name, bounds[name], prefix, since.get(index)) for index, name in partitions.items())
    )
    return {index: position for index, position in zip(partitions, positions, strict=True) if position is not None}


async def _last_stored_in(
    cluster: Cluster, topic: str, name: str, bounds: Bounds, prefix: str, since: Position | None
) -> Position | None:
    """Return the source position of the newest message from the source in one target partition; None if there is none."""
    async with aclosing(_backward_windows(cluster, topic, name, bounds, since)) as windows:
        async for begin, end in windows:
            last = None
            async for position in _positions(cluster, topic, name, begin, end, prefix):
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
    writer: str | None = None,
) -> dict[int, PackedPositions]:
    """Return all source positions from `first` on that each target partition has stored, by partition index.

    Messages of a source are stored in order. So reading a partition backward ends at the first window that has a message of the
    source before `first`, at the position `since` of the partition, or at its beginning. Raises ClusterError.
    """
    bounds = await cluster.bounds(topic)
    since = since or {}
    prefix = origin_prefix(source, writer)
    positions = await asyncio.gather(
        *(_stored_in(cluster, topic, name, bounds[name], prefix, first, since.get(index)) for index, name in partitions.items())
    )
    return dict(zip(partitions, positions, strict=True))


async def _stored_in(
    cluster: Cluster, topic: str, name: str, bounds: Bounds, prefix: str, first: Position, since: Position | None
) -> PackedPositions:
    """Return all source positions from `first` on in one target partition."""
    stored = PackedPositions()
    async with aclosing(_backward_windows(cluster, topic, name, bounds, since)) as windows:
        async for begin, end in windows:
            reached_earlier = False
            async for position in _positions(cluster, topic, name, begin, end, prefix):
                if position >= first:
                    stored.add(position)
                else:
                    reached_earlier = True
            if reached_earlier:
                break
    return stored


async def _positions(
    cluster: Cluster, topic: str, name: str, begin: Position, end: Position, prefix: str
) -> AsyncGenerator[Position, None]:
    """Yield the source positions of the messages with such origins that are stored from `begin` to `end` (exclusive).

    Messages that the target has lost are left out, so their sources count as not stored.
    """
    while begin < end:
        try:
            async with aclosing(read(cluster, topic, name, begin, end)) as batches:
                async for batch in batches:
                    begin = batch.next
                    for message in batch.messages:
                        if (position := position_of(message.origin, prefix)) is not None:
                            yield position
        except GapError as gap:
            if gap.resume is None or gap.resume <= begin:
                raise
            log.warning("%s, partition %s, has lost messages, which may be sent again: %s", topic, name, gap)
            begin = gap.resume
        else:
            return


async def _backward_windows(
    cluster: Cluster, topic: str, name: str, bounds: Bounds, since: Position | None
) -> AsyncGenerator[tuple[Position, Position], None]:
    """Yield the begin and the end of each window of a partition, the newest first, back to `since` or to the beginning."""
    count, end = FIRST_WINDOW_MESSAGES, bounds.next
    first = bounds.first if since is None else max(bounds.first, since)
    start: Position | None = None
    while end > first:
        previous_start, start = start, await _start_of_newest(cluster, topic, name, bounds, count)
        begin = max(first, min(end, start))
        if begin == end and start == previous_start:  # the cluster cannot count further back, or retention deleted the messages
            oldest = (await cluster.bounds(topic))[name].first
            begin = first = oldest if since is None else max(oldest, since)
        yield begin, end
        count, end = count * WINDOW_GROWTH, begin


async def _start_of_newest(cluster: Cluster, topic: str, name: str, bounds: Bounds, count: int) -> Position:
    """Return the position of the oldest of the partition's newest `count` messages; the beginning if the cluster cannot tell."""
    if cluster.operations is None:
        return bounds.first
    return (await cluster.operations.newest(topic, count)).get(name, bounds.first)
