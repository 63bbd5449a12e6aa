"""Reads ranges of partitions concurrently, without a group; yields their messages in the order in which they arrive."""

import asyncio
from collections.abc import AsyncGenerator, Iterable, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from typing import TypeVar

from mqbridge.adapter import reading
from mqbridge.adapter.cluster import Cluster
from mqbridge.message import Message, Partition, Position
from mqbridge.net.tasks import cancel, spawn

T = TypeVar("T")
Chunk = tuple[Partition, list[Message]]
"""A partition, and one or more consecutive messages of it."""


@dataclass(frozen=True, slots=True)
class Range:
    """A range of one partition: from `begin` up to, not including, `end`; without an end, reading never stops."""

    begin: Position
    end: Position | None = None


def read(
    cluster: Cluster,
    topic: str,
    ranges: Mapping[str, Range],
    *,
    msg_types: frozenset[str] = frozenset(),
    limit_per_partition: int | None = None,
) -> AsyncGenerator[Chunk, None]:
    """Yield the messages of these ranges, which are given by partition name, in chunks of one partition each.

    With `msg_types`, only messages of these types are yielded; with `limit_per_partition`, at most that many of each partition,
    its first ones.

    Close the generator (`aclose`) if it is not read to its end. Raises ClusterError, and GapError if data of a range was lost.
    """
    nonempty = {name: span for name, span in ranges.items() if span.end is None or span.begin < span.end}
    return _merge([_read_range(cluster, topic, name, span, msg_types, limit_per_partition) for name, span in nonempty.items()])


async def _read_range(
    cluster: Cluster, topic: str, name: str, span: Range, msg_types: frozenset[str], remaining: int | None
) -> AsyncGenerator[Chunk, None]:
    """Yield the messages of one range; `remaining` is the number of messages that may still be yielded, None without a limit."""
    async with aclosing(reading.read(cluster, topic, name, span.begin, span.end)) as batches:
        async for batch in batches:
            messages = [message for message in batch.messages if not msg_types or message.msg_type in msg_types][:remaining]
            if messages:
                yield batch.partition, messages
            if remaining is not None:
                remaining -= len(messages)
                if remaining == 0:
                    return


async def _merge(sources: Iterable[AsyncGenerator[T, None]]) -> AsyncGenerator[T, None]:
    """Yield the items of all sources as they arrive, and close all sources at the end. Raises the first error of a source.

    Each source waits until its item has been put into the queue, which has room for one item.
    """
    queue: asyncio.Queue[T | Exception | None] = asyncio.Queue(maxsize=1)

    async def forward(source: AsyncGenerator[T, None]) -> None:
        last_item: Exception | None = None  # None tells the loop below that this source has ended
        try:
            async with aclosing(source):
                async for item in source:
                    await queue.put(item)
        except Exception as error:  # noqa: BLE001 - raised again below; a task that fails would be logged as a bug
            last_item = error
        await queue.put(last_item)

    tasks = [spawn(forward(source), "read a partition") for source in sources]
    try:
        running = len(tasks)
        while running:
            item = await queue.get()
            if isinstance(item, Exception):
                raise item
            if item is None:
                running -= 1
            else:
                yield item
    finally:
        await cancel(*tasks)
