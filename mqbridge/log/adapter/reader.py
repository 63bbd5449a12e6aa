"""Reader of one partition of a log, by offset, as no group's member.

As with a lane, nothing is read before `receive` is called, and a receive reads what one batch needs. So an idle reader holds
nothing.
"""

import asyncio
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

from mqbridge.errors import ClusterError, Failure
from mqbridge.log.adapter.batches import make_batch
from mqbridge.log.adapter.lane import RECEIVE_BYTES, RECEIVE_MESSAGES
from mqbridge.log.adapter.unit_formats import prepare_formats
from mqbridge.log.store import read
from mqbridge.log.store.database import Store
from mqbridge.message import Batch, Partition, Position


class LogReader:
    """Reads the messages from an offset on, up to an end, if there is one, but not beyond the last message."""

    def __init__(
        self, store: Store, id_: int, partition: Partition, begin: Position, end: Position | None, max_bytes: int
    ) -> None:
        """`id_` is the row id of the partition in the file. Raises ClusterError for a begin that no message can have."""
        self.partition = partition
        self._store, self._id = store, id_
        (self._offset,) = begin
        read.check_offset(self._offset)
        self._end = None if end is None else end[0]
        self.batch_limit: Callable[[], AbstractContextManager[int]] = lambda: nullcontext(max_bytes)
        self._seeks = 0
        """Number of seeks: rows that were read for an earlier position are discarded."""
        self._caught_up = False
        self._closed = False
        self._wake = asyncio.Event()
        """Set when the partition may have grown, after a seek, and when the reader is closed."""
        store.tails.watch(id_, self._wake)

    @property
    def position(self) -> Position:
        """Offset of the next message."""
        return (self._offset,)

    @property
    def caught_up(self) -> bool:
        """True if the last read reached the end of the partition."""
        return self._caught_up

    async def confirm_caught_up(self) -> bool:
        """Read at the next offset; return True if there is no row. Raises ClusterError if the file cannot be read."""
        seeks, offset = self._seeks, self._offset
        found = await self._store.rows(self._id, offset, 1, 1)
        return not found.rows and (seeks, offset) == (self._seeks, self._offset)

    async def receive(self) -> Batch | None:
        """Return the next rows as a batch; None at the end. Raises ClusterError, also when the reader is closed, and GapError.

        A range ends early if the partition ends before it, or if it ends inside the jump of a restored file.
        """
        while True:
            if self._closed:
                raise ClusterError(f"the reader of {self.partition} is closed", Failure.FATAL)
            if self._end is not None and self._offset >= self._end:
                return None
            self._wake.clear()
            seeks = self._seeks
            self._caught_up = False
            with self.batch_limit() as max_bytes:
                found = await self._store.rows(self._id, self._offset, min(RECEIVE_BYTES, max_bytes), RECEIVE_MESSAGES)
                if found.format is not None:
                    await prepare_formats()
            if seeks != self._seeks or self._closed:
                continue
            if self._end is not None and (not found.rows or found.offset >= self._end):
                self._caught_up = not found.rows
                return None
            if found.rows:
                return self._make_batch(found)
            self._caught_up = True
            self._offset = found.tail  # beyond the offset only behind the jump of a restored file
            await self._wake.wait()  # set if the partition has grown since the read

    def _make_batch(self, found: read.Rows) -> Batch:
        base, count, _ = found.rows[-1]
        self._offset = base + count if self._end is None else min(self._end, base + count)
        self._caught_up = self._offset >= found.tail
        return make_batch(self.partition, found, self._offset)

    async def seek(self, position: Position) -> None:
        """Continue at this offset. Raises ClusterError for an offset that no message can have."""
        (offset,) = position
        read.check_offset(offset)
        self._offset = offset
        self._seeks += 1
        self._caught_up = False
        self._wake.set()

    async def close(self, deadline: float | None = None) -> None:
        """End the reader and a waiting `receive`; `deadline` is not used: this takes no time."""
        self._closed = True
        self._store.tails.unwatch(self._id, self._wake)
        self._wake.set()
