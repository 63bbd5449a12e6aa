"""Reads one partition from any number on, for a client that keeps its own position. No group is moved by it."""

import asyncio
import logging
from collections.abc import Callable

from mqbridge.adapter.numbering import Numbering
from mqbridge.errors import ClusterError, GapError
from mqbridge.listener.limits import UnacknowledgedBytes
from mqbridge.listener.numbered import NumberedBatch, Slice
from mqbridge.listener.sources import ReaderSource
from mqbridge.message import Batch, Position

log = logging.getLogger(__name__)


class NumberReader:
    """See the module. One task reads at a time; `close` it at the end."""

    def __init__(
        self,
        open_source: Callable[[Position], ReaderSource],
        numbering: Numbering,
        unit_format: str,
        memory: UnacknowledgedBytes,
    ) -> None:
        """`open_source` opens the partition at a position; `memory` counts the bytes of what was read and not taken yet."""
        self._open_source, self._numbering, self._format, self._memory = open_source, numbering, unit_format, memory
        self._source: ReaderSource | None = None
        self._next: int | None = None
        """Number of the message that the source delivers next."""
        self._after = 0
        """A number from which on there is no message before `_next`."""
        self._read: NumberedBatch | None = None
        """The last batch, until all of it was taken."""
        self._held_bytes = 0
        self.used_at = 0.0
        """Loop time at which it was used last."""
        self.gaps = 0
        """Number of times that it went on behind lost messages."""

    def follows(self, number: int) -> bool:
        """Return True if reading from this number on needs no seek."""
        return self._is_next(number) or self.is_ready(number)

    def _is_next(self, number: int) -> bool:
        return self._next is not None and self._after <= number <= self._next

    def is_ready(self, number: int) -> bool:
        """Return True if `take` has messages from this number on."""
        return self._read is not None and self._read.first <= number <= self._read.last

    def take(self, number: int, max_messages: int, max_bytes: int) -> Slice:
        """Return what was read already from a number on, see `is_ready`."""
        assert self._read is not None  # noqa: S101 - `is_ready`
        taken = self._read.cut(number, max_messages, max_bytes)
        if taken.next >= self._read.end or self._memory.is_full:  # the rest is read again: there may be many readers
            self._let_go()
        return taken

    async def read(self, number: int, max_messages: int, max_bytes: int) -> Slice:
        """Wait for messages with this number or a larger one; cancelling loses none. Raises ClusterError."""
        self.used_at = asyncio.get_running_loop().time()
        if not self.is_ready(number):
            number = max(number, await self._receive(number))
        return self.take(number, max_messages, max_bytes)

    async def _receive(self, number: int) -> int:
        """Read the next batch, from this number on, and return the number of its first message."""
        self._let_go()
        if self._source is None:
            self._source = self._open_source(self._numbering.position(number))
            self._next = self._after = number
        elif not self._is_next(number):
            await self._source.seek(self._numbering.position(number))
            self._next = self._after = number
        batch = await self._receive_past_gaps(self._source)
        self._read = NumberedBatch(batch, self._numbering, self._format)
        self._next, self._after = self._read.end, self._read.last + 1
        self._held_bytes = batch.held_bytes
        self._memory.add(self._held_bytes)
        return self._read.first

    async def _receive_past_gaps(self, source: ReaderSource) -> Batch:
        """Receive a batch, behind lost messages if there are some. Raises ClusterError."""
        while True:
            try:
                return await source.receive()
            except GapError as gap:
                if gap.resume is None:
                    raise ClusterError(str(gap)) from gap
                self.gaps += 1
                log.warning("a client continues without lost messages of %s: %s", source.partition, gap)
                await source.seek(gap.resume)
                self._next = self._after = self._numbering.number(gap.resume)

    def _let_go(self) -> None:
        self._read = None
        self._memory.release(self._held_bytes)
        self._held_bytes = 0

    async def close(self, deadline: float | None = None) -> None:
        """End reading."""
        self._let_go()
        source, self._source = self._source, None
        if source is not None:
            await source.release(deadline)
