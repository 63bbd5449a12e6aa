"""A source of a feed whose messages a test decides: single messages and units of several."""

import asyncio
from collections.abc import Sequence

from mqbridge.errors import GapError, LaneRevoked
from mqbridge.message import Batch, Message, Partition, Position, Unit

FORMAT = "test.unit"
PARTITION = Partition("log", "t", "0", 0)


class ScriptedSource:
    """Positions are offsets. A unit of n messages takes n offsets; its data are their numbers."""

    is_individual = needs_contents = False
    partition = PARTITION

    def __init__(self, *, batch_units: int = 3) -> None:
        self.lost = asyncio.Event()
        self.sizes: list[int] = []
        """Messages of each stored unit; 0: a single message without a unit."""
        self.deleted_before = 0
        self.committed = 0
        """Offset before which everything is acknowledged."""
        self.next = 0
        self.released = False
        self._batch_units = batch_units
        self._stored = asyncio.Event()

    @property
    def end(self) -> int:
        """Offset after the last message."""
        return sum(max(1, size) for size in self.sizes)

    @property
    def caught_up(self) -> bool:
        return self.next >= self.end

    def store(self, *sizes: int) -> None:
        """Store units of these sizes (0: a message without a unit)."""
        self.sizes += sizes
        self._stored.set()

    def resume(self) -> "ScriptedSource":
        """Return a source of the same messages that begins at the committed offset, as after a restart."""
        other = ScriptedSource(batch_units=self._batch_units)
        other.sizes, other.deleted_before = self.sizes, self.deleted_before
        other.committed = other.next = self.committed
        return other

    async def receive(self) -> Batch:
        while True:
            if self.lost.is_set():
                raise LaneRevoked("lost")
            if self.next < self.deleted_before:
                raise GapError("deleted", (self.deleted_before,))
            batch = self._batch()
            if batch is not None:
                await asyncio.sleep(0)
                (self.next,) = batch.next
                return batch
            self._stored.clear()
            await self._stored.wait()

    def _batch(self) -> Batch | None:
        """Return the next units of one kind, from the one that contains `next` on."""
        units: list[tuple[int, int]] = []
        offset = 0
        for size in self.sizes:
            count = max(1, size)
            if offset + count > self.next and len(units) < self._batch_units and (not units or (size == 0) == (units[0][1] == 0)):
                units.append((offset, size))
            elif units:
                break
            offset += count
        if not units:
            return None
        first, end = self.next, units[-1][0] + max(1, units[-1][1])
        messages = [Message(b"%d" % number, position=(number,)) for number in range(first, end)]
        made = None if units[0][1] == 0 else [_unit(offset, size, first) for offset, size in units]
        return Batch(
            PARTITION,
            messages,
            count=end - first,
            size=sum(len(message.payload or b"") for message in messages),
            first=(first,),
            next=(end,),
            format="messages" if made is None else FORMAT,
            units=None if made is None else lambda: made,
        )

    def acknowledge(self, batch: Batch, count: int) -> None:
        assert 0 < count <= batch.count
        assert batch.first[0] <= self.committed, "batches are acknowledged in order"
        self.committed = max(self.committed, batch.first[0] + count)

    def acknowledge_some(self, batch: Batch, indexes: Sequence[int], *, is_last: bool) -> None:
        raise AssertionError("acknowledges a prefix")

    async def seek(self, position: Position) -> None:
        await asyncio.sleep(0)
        (self.next,) = position
        self.committed = self.next
        self._stored.set()

    async def release(self, deadline: float | None = None) -> None:
        self.released = True
        self.lost.set()
        self._stored.set()


def _unit(offset: int, size: int, first: int) -> Unit:
    left_out = sum(1 << index for index in range(size) if offset + index < first)
    return Unit(" ".join(map(str, range(offset, offset + size))).encode(), size, None, (offset,), left_out)
