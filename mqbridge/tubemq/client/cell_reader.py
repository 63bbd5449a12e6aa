"""Reads a range so that a message has the same position whenever it is read again.

A pack has only the offset at which its read began, and where packs end is the Broker's affair: it differs with what it has in
memory, and with what has come since. So messages are not counted within packs but within cells: those of a fixed grid over the
index of the store, the first of which is cut off where the range begins. Reading goes cell by cell, each exactly to its end.
Whoever goes on from one of these positions begins in the same cell, and finds the others as they were.
"""

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from typing import NamedTuple

from mqbridge.tubemq.client.master import Masters
from mqbridge.tubemq.client.partition_reader import Pack
from mqbridge.tubemq.client.range_reader import INDEX_ENTRY_BYTES, Place, read_range
from mqbridge.tubemq.wire.text import PartitionRef

CELL_ENTRIES = 32_768
"""Entries of the index in a cell: so many that what is fetched twice where one ends (half a pack, and a look behind it) counts
little, and so few that an index has 15 bits (see `mqbridge.pulsar.mapping.sequences`)."""


class CellSlice(NamedTuple):
    """The messages from `first` to `last` (exclusive) of a pack, the position of the first of them and the one behind them."""

    pack: Pack
    first: int
    last: int
    position: Place
    next: Place


async def read_cells(
    masters: Masters, ref: PartitionRef, group: str, begin: Place, end: Place, store_end: Callable[[], Awaitable[int]]
) -> AsyncGenerator[CellSlice, None]:
    """As `read_range`; `store_end` asks for the next offset of the store."""
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
                # A cell is left only at its end: whoever goes on where a range ended within it counts on in it.
                ends_cell = found.next >= stop == (_cell_end(base), 0)
                following = stop if ends_cell else (base, index)
                if left_out < count:
                    yield CellSlice(found.pack, found.first + left_out, found.last, position, following)
        if stop == end:
            return
        base = stop[0]


def _cell_end(offset: int) -> int:
    """Where the cell of an offset ends."""
    size = CELL_ENTRIES * INDEX_ENTRY_BYTES
    return (offset // size + 1) * size
