"""Reads ranges of partitions concurrently, without a group; batches are merged in the order in which they arrive."""

import asyncio
from collections.abc import AsyncGenerator, Iterable, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from typing import TypeVar

from mqbridge.adapter.cluster import Cluster
from mqbridge.message import Message, Partition, Position
from mqbridge.net.tasks import cancel, spawn

T = TypeVar("T")
Chunk = tuple[Partition, list[Message]]
"""Consecutive messages of one partition; at least one."""


@dataclass(frozen=True, slots=True)
class Range:
    """A range of one partition: from `begin` up to, not including, `end`; without an end the reader follows new messages."""

    begin: Position
    end: Position | None = None


def read(
    cluster: Cluster,
    topic: str,
    ranges: Mapping[str, Range],
    *,
    msg_types: frozenset[str] = frozenset(),
    per_partition: int | None = None,
) -> AsyncGenerator[Chunk, None]:
    """Yield the messages of these ranges, given by partition name: only `msg_types` if any, at most `per_partition` of each.

    Close the generator (`aclose`) if it is not read to its end. Raises ClusterError, and GapError if data of a range was lost.
    """
    nonempty = {name: part for name, part in ranges.items() if part.end is None or part.begin < part.end}
    return _merged([_read_one(cluster, topic, name, part, msg_types, per_partition) for name, part in nonempty.items()])


async def _read_one(
    cluster: Cluster, topic: str, name: str, part: Range, msg_types: frozenset[str], limit: int | None
) -> AsyncGenerator[Chunk, None]:
    async with aclosing(cluster.read(topic, name, part.begin, part.end)) as batches:
        async for batch in batches:
            messages = [message for message in batch.messages if not msg_types or message.msg_type in msg_types][:limit]
            if messages:
                yield batch.partition, messages
            if limit is not None:
                limit -= len(messages)
                if limit == 0:
                    return


async def _merged(sources: Iterable[AsyncGenerator[T, None]]) -> AsyncGenerator[T, None]:
    """Yield the items of all sources as they arrive; each source is at most one item ahead, and all are closed at the end."""
    arrived: asyncio.Queue[T | Exception | None] = asyncio.Queue(maxsize=1)

    async def forward(source: AsyncGenerator[T, None]) -> None:
        end: Exception | None = None
        try:
            async with aclosing(source):
                async for item in source:
                    await arrived.put(item)
        except Exception as error:  # noqa: BLE001 - raised again below; a task that fails would be logged as a bug
            end = error
        await arrived.put(end)

    tasks = [spawn(forward(source), "read a partition") for source in sources]
    try:
        running = len(tasks)
        while running:
            item = await arrived.get()
            if isinstance(item, Exception):
                raise item
            if item is None:
                running -= 1
            else:
                yield item
    finally:
        await cancel(*tasks)
