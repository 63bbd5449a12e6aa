"""What a target holds of a source, read back from the origins that are stamped on its messages."""

import asyncio
from collections.abc import Mapping
from contextlib import aclosing

from mqbridge.adapter import Bounds, Cluster
from mqbridge.message import Partition, Position, position_of

FIRST_WINDOW, GROWTH = 256, 32
"""Messages to look at from the end of a partition, and how many times more each time that none was of the source."""


async def last_stored(cluster: Cluster, topic: str, partitions: Mapping[int, str], source: Partition) -> dict[int, Position]:
    """The last position of the source that each target partition holds, by index; see `Outbound.resume`. Raises ClusterError.

    A partition that holds nothing of the source is read to its beginning: only that proves it.
    """
    bounds = await cluster.bounds(topic)
    found = await asyncio.gather(*(_last_of(cluster, topic, name, bounds[name], source) for name in partitions.values()))
    return {index: position for index, position in zip(partitions, found, strict=True) if position is not None}


async def _last_of(cluster: Cluster, topic: str, name: str, bounds: Bounds, source: Partition) -> Position | None:
    count, first, end = FIRST_WINDOW, bounds.first, bounds.next
    counted: Position | None = None
    while end > first:
        before, counted = counted, await _counted_back(cluster, topic, name, bounds, count)
        begin = min(end, counted)
        if begin == end and counted == before:  # it does not count further back, or what is before that is gone by now
            begin = first = (await cluster.bounds(topic))[name].first
        found: Position | None = None
        async with aclosing(cluster.read(topic, name, begin, end)) as batches:
            async for batch in batches:
                for message in batch.messages:
                    found = position_of(message.origin, source) or found
        if found is not None or begin <= first:
            return found
        count, end = count * GROWTH, begin
    return None


async def _counted_back(cluster: Cluster, topic: str, name: str, bounds: Bounds, count: int) -> Position:
    if cluster.operations is None:
        return bounds.first
    return (await cluster.operations.newest(topic, count)).get(name, bounds.first)
