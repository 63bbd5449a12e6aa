"""Reads a range so that a message has the same position each time it is read.

A pack has only the offset at which its read began, and its end depends on the Broker: on the data it has in memory, and on data
that arrived since. So positions are not counted within packs but within cells of a fixed grid over the index of the store; the
first cell is cut off where the range begins. Reading goes cell by cell, each exactly to its end. A read that resumes at one of
these positions begins in the same cell, and finds the same positions.
"""

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from typing import NamedTuple

from mqbridge.tubemq.client.master import Masters
from mqbridge.tubemq.client.partition_reader import Pack
from mqbridge.tubemq.client.range_reader import INDEX_ENTRY_BYTES, MessagePosition, read_range
from mqbridge.tubemq.wire.string_formats import PartitionRef

CELL_ENTRIES = 32_768
"""Index entries in a cell: so many that the data fetched twice at its end (half a pack, and one read behind it) matters little,
and so few that an index has 15 bits (see `mqbridge.pulsar.mapping.sequences`)."""


class StableSlice(NamedTuple):
    """The messages from `first` to `last` (exclusive) of a pack, the position of the first of them and the one behind them."""

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
    """Like `read_range`; `store_end` returns the next offset of the store."""
    base, skip = begin
    if skip or _cell_end(base) < end[0]:
        held = await store_end()
        skip = min(skip, max(0, held - base) // INDEX_ENTRY_BYTES)  # each message has an entry, unless the Broker lost it
        if end[0] > held:
            end = (held, 0)
    while (base, 0) < end:
        stop = end if base == end[0] else (min(_cell_end(base), end[0]), 0)
        index = 0
        async with aclosing(read_range(masters, ref, group, (base, 0), stop)) as slices:
            async for found in slices:
                count = found.last - found.first
                left_out = min(skip, count)
                skip -= left_out
                position, index = (base, index + left_out), index + count
                # A cell is left only at its end: a read that resumes inside a cell keeps counting in that cell.
                ends_cell = found.next >= stop == (_cell_end(base), 0)
                following = stop if ends_cell else (base, index)
                if left_out < count:
                    yield StableSlice(found.pack, found.first + left_out, found.last, position, following)
        if stop == end:
            return
        base = stop[0]


def _cell_end(offset: int) -> int:
    """Return the end of an offset's cell."""
    size = CELL_ENTRIES * INDEX_ENTRY_BYTES
    return (offset // size + 1) * size
