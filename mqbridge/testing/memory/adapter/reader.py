"""Reader of one partition of a memory cluster, by offset."""

import asyncio

from mqbridge.errors import GapError
from mqbridge.message import Batch, Partition, Position
from mqbridge.testing.memory.adapter.inbound import make_batch
from mqbridge.testing.memory.broker import StoredPartition


class MemoryReader:
    """Reads the messages from an offset on, up to an end, if there is one, but not beyond the last message."""

    def __init__(
        self, stored: StoredPartition, partition: Partition, begin: Position, end: Position | None, batch_messages: int
    ) -> None:
        self.partition = partition
        self._stored, self._batch_messages = stored, batch_messages
        (self._offset,) = begin
        self._end = None if end is None else end[0]
        self._wake = asyncio.Event()
        """Set when messages are stored, and after a seek."""
        stored.readers.add(self._wake)

    @property
    def position(self) -> Position:
        """Offset of the next message."""
        return (self._offset,)

    @property
    def caught_up(self) -> bool:
        """True if every stored message was received."""
        return self._offset >= self._stored.next

    async def receive(self) -> Batch | None:
        """Return the next batch, None at the end; without an end, wait for messages. Raises GapError if they were deleted."""
        while True:
            self._wake.clear()
            if self._end is not None and self._offset >= min(self._end, self._stored.next):
                return None
            first = self._stored.first
            if self._offset < first:
                raise GapError(f"{self.partition}: offsets {self._offset} to {first - 1} were deleted; seek to {first}", (first,))
            limit = self._stored.next if self._end is None else min(self._end, self._stored.next)
            end = min(self._offset + self._batch_messages, limit)
            if end > self._offset:
                messages = self._stored.messages[self._offset - first : end - first]
                begin, self._offset = self._offset, end
                return make_batch(self.partition, messages, begin, end)
            await self._wake.wait()

    async def seek(self, position: Position) -> None:
        """Continue at this offset."""
        (self._offset,) = position
        self._wake.set()

    async def close(self, deadline: float | None = None) -> None:
        """Stop waiting for messages; `deadline` is not used: this takes no time."""
        self._stored.readers.discard(self._wake)
