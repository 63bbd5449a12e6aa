"""Reads a range so that a message has the same position each time it is read.

A pack has only the offset at which its read began. Where the pack ends depends on the Broker: on the data it has in memory, and
on data that arrived meanwhile. So indexes are not counted from the start of a pack, but from the start of a cell. The cells are a
fixed grid over the index of the store; only the first cell starts where the range begins. Each cell is read exactly to its end.
A read that resumes at one of these positions begins in the same cell, and finds the same positions.
"""

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from typing import NamedTuple

from mqbridge.tubemq.client.master import Masters
from mqbridge.tubemq.client.partition_reader import Pack
from mqbridge.tubemq.client.range_reader import INDEX_ENTRY_BYTES, MessagePosition, read_range
from mqbridge.tubemq.wire.string_formats import PartitionRef

CELL_ENTRIES = 32_768
"""Number of index entries in a cell. At the end of a cell some data is fetched twice (half a pack, and one more read); cells are
large enough that this matters little, and small enough that an index has 15 bits (see `mqbridge.pulsar.mapping.sequences`)."""


class StableSlice(NamedTuple):
    """The messages from `first` to `last` (exclusive) of a pack, the first one's position, and the position after the last."""

    pack: Pack
    first: int
    last: int
    position: MessagePosition
    next: MessagePosition


async def read_stable_range(
    masters: Masters,
    ref: PartitionRef,
    group: str,
    begin: MessagePosition,
    end: MessagePosition,
    store_end: Callable[[], Awaitable[int]],
) -> AsyncGenerator[StableSlice, None]:
    """Like `read_range`, but with stable positions; `store_end` returns the offset of the store's next message."""
    base, skip = begin
    if skip or _cell_end(base) < end[0]:
        current_end = await store_end()
        skip = min(skip, max(0, current_end - base) // INDEX_ENTRY_BYTES)  # the Broker may have lost messages
        if end[0] > current_end:
            end = (current_end, 0)
    while (base, 0) < end:
        stop = end if base == end[0] else (min(_cell_end(base), end[0]), 0)
        index = 0
        async with aclosing(read_range(masters, ref, group, (base, 0), stop)) as slices:
            async for found in slices:
                count = found.last - found.first
                skipped = min(skip, count)
                skip -= skipped
                position, index = (base, index + skipped), index + count
                # Only at the end of a cell does the position switch to the next cell.
                ends_cell = found.next >= stop == (_cell_end(base), 0)
                following = stop if ends_cell else (base, index)
                if skipped < count:
                    yield StableSlice(found.pack, found.first + skipped, found.last, position, following)
        if stop == end:
            return
        base = stop[0]


def _cell_end(offset: int) -> int:
    """Return the end offset of the cell that contains `offset`."""
    size = CELL_ENTRIES * INDEX_ENTRY_BYTES
    return (offset // size + 1) * size
