"""Reads partitions side by side as no group's member: exact ranges, merged in the order in which batches arrive."""

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
    """What to read of one partition: from `begin` up to, not including, `end`; without an end it is followed as it grows."""

    begin: Position
    end: Position | None = None


def read(
    cluster: Cluster,
    topic: str,
    ranges: Mapping[str, Range],
    *,
    msg_types: frozenset[str] = frozenset(),
    each: int | None = None,
) -> AsyncGenerator[Chunk, None]:
    """The messages of these ranges by partition name, only of these types if any is named, at most `each` of each partition.

    Close it (`aclose`) when it is not read to its end. Raises ClusterError, and GapError when data of a range was lost.
    """
    wanted = {name: one for name, one in ranges.items() if one.end is None or one.begin < one.end}
    return _merged([_read_one(cluster, topic, name, one, msg_types, each) for name, one in wanted.items()])


async def _read_one(
    cluster: Cluster, topic: str, name: str, wanted: Range, msg_types: frozenset[str], most: int | None
) -> AsyncGenerator[Chunk, None]:
    async with aclosing(cluster.read(topic, name, wanted.begin, wanted.end)) as batches:
        async for batch in batches:
            messages = [message for message in batch.messages if not msg_types or message.msg_type in msg_types][:most]
            if messages:
                yield batch.partition, messages
            if most is not None:
                most -= len(messages)
                if most == 0:
                    return


async def _merged(sources: Iterable[AsyncGenerator[T, None]]) -> AsyncGenerator[T, None]:
    """What the sources yield, in the order in which it arrives; each is at most one ahead, and all are closed at the end."""
    arrived: asyncio.Queue[T | Exception | None] = asyncio.Queue(maxsize=1)

    async def forward(source: AsyncGenerator[T, None]) -> None:
        end: Exception | None = None
        try:
            async with aclosing(source):
                async for one in source:
                    await arrived.put(one)
        except Exception as error:  # noqa: BLE001 - raised again below; a task that fails would be logged as a bug
            end = error
        await arrived.put(end)

    tasks = [spawn(forward(source), "read a partition") for source in sources]
    try:
        running = len(tasks)
        while running:
            one = await arrived.get()
            if isinstance(one, Exception):
                raise one
            if one is None:
                running -= 1
            else:
                yield one
    finally:
        await cancel(*tasks)
