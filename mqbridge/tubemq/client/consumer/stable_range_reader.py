"""Reads a range so that a message has the same position each time it is read.

A pack is the messages of one get response. It has only the offset at which its read began. Where the pack ends depends on the
data that the Broker has in memory, and on data that arrived meanwhile. So a position that counts messages from the start of a
pack could differ in the next read. Here, positions count messages from the start of a cell instead.

Offsets are byte offsets in the index of the store, which has an entry of fixed size for each message of the store's partitions.
The cells divide this index into parts of equal size; only the first cell starts where the range begins. Each cell is read exactly
to its end. A read that resumes at a position begins in the same cell, and so finds the same positions.
"""

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from typing import NamedTuple

from mqbridge.tubemq.client.consumer.pack_reader import Pack
from mqbridge.tubemq.client.consumer.partition_state import INDEX_ENTRY_BYTES
from mqbridge.tubemq.client.consumer.range_reader import MessagePosition, PackSlice

CELL_ENTRIES = 32_768
"""Number of index entries in a cell.

At the end of a cell, some data is fetched twice: the part of the last pack that is after the cell's end, half a pack on average,
and one more pack, whose first message shows where to cut the last pack. Cells are large enough that this costs little, and small
enough that an index in a cell has 15 bits (see `mqbridge.mapping.sequences`).
"""


class StableSlice(NamedTuple):
    """The messages of a pack from index `first` to index `last` (exclusive).

    `position` is the stable position of the message at `first`, `next` the stable position after the last message of the slice.
    """

    pack: Pack
    first: int
    last: int
    position: MessagePosition
    next: MessagePosition


ReadRange = Callable[[MessagePosition, MessagePosition], AsyncGenerator[PackSlice, None]]
"""Function that yields the messages of a range, such as `RangeReader.slices`."""


async def read_stable_range(
    read_range: ReadRange, begin: MessagePosition, end: MessagePosition, store_end: Callable[[], Awaitable[int]]
) -> AsyncGenerator[StableSlice, None]:
    """Yield the messages from `begin` to `end` (exclusive); each read of the range finds the same position for a message.

    `store_end` requests, from the Broker, the offset that the store's next message will get.
    """
    base, skip = begin  # the message after `skip` others from the offset `base` on
    # If the store has lost messages since `begin` and `end` were determined, it may end earlier. Then fewer messages can be
    # skipped, and the later cells do not exist. In all other cases the read stops at the end of the store by itself.
    if skip or _cell_end(base) < end[0]:
        current_end = await store_end()
        skip = min(skip, max(0, current_end - base) // INDEX_ENTRY_BYTES)
        if end[0] > current_end:
            end = (current_end, 0)
    # `base` is the offset from which positions are counted: the start of the current cell, or of the range in its first cell. The
    # index of `end` counts from the offset of `end`, so the read stops at that offset first; one more read, from there, gets the
    # messages up to the index.
    while (base, 0) < end:
        stop = end if base == end[0] else (min(_cell_end(base), end[0]), 0)
        index = 0
        async with aclosing(read_range((base, 0), stop)) as slices:
            async for pack_slice in slices:
                count = pack_slice.last - pack_slice.first
                skipped = min(skip, count)
                skip -= skipped
                position, index = (base, index + skipped), index + count
                # A position after the last message of a cell is that of the next cell's start; any other stays in this cell.
                ends_cell = stop == (_cell_end(base), 0) and pack_slice.next >= stop
                next_position = stop if ends_cell else (base, index)
                if skipped < count:
                    yield StableSlice(pack_slice.pack, pack_slice.first + skipped, pack_slice.last, position, next_position)
        if stop == end:
            return
        base = stop[0]


def _cell_end(offset: int) -> int:
    """Return the end offset of the cell that contains `offset`."""
    size = CELL_ENTRIES * INDEX_ENTRY_BYTES
    return (offset // size + 1) * size
