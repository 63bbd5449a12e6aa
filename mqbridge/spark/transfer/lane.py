"""A lane of the gateway's delivery over batches that somebody else reads."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Sequence

from mqbridge.adapter.receipt import MessageFailure, Receipt
from mqbridge.errors import LocalProtocolError
from mqbridge.message import Batch, Partition, Position
from mqbridge.net.tasks import cancel, collect_error, spawn
from mqbridge.spark.transfer.tally import Tally


class IteratorLane:
    """Batches of one source partition; those that are not acknowledged are kept, and received again after `rewind`.

    They are acknowledged in order, so what is kept is bounded by the budget of whoever delivers them.
    """

    def __init__(self, partition: Partition, batches: AsyncIterator[Batch], tally: Tally) -> None:
        self.partition = partition
        self.revoked = asyncio.Event()
        """Never set: nobody takes a range from its task."""
        self.done = asyncio.Event()
        """Set when the iterator has ended and everything is acknowledged."""
        self.error: BaseException | None = None
        """What the iterator raised."""
        self.acknowledged = 0
        """Batches."""
        self._batches, self._tally = batches, tally
        self._kept: deque[Batch] = deque()
        self._again = 0
        """So many of the batches that are kept are still to be received."""
        self._ended = False
        self._reading: asyncio.Task[Batch | None] | None = None
        """A task of its own: an iterator that is cancelled when its reader is would be of no further use."""

    @property
    def caught_up(self) -> bool:
        """The iterator has ended."""
        return self._ended

    async def first(self) -> Batch | None:
        """The batch that `receive` gives next; None when there is none."""
        if not self._again and not self._ended:
            await self._read()
        return self._kept[-self._again] if self._again else None

    def rewind(self) -> None:
        """Begin again with what is not acknowledged."""
        self._again = len(self._kept)

    async def receive(self) -> Batch:
        """The next batch; at the end it waits. Raises what the iterator raises."""
        batch = await self.first()
        if batch is None:
            self._look_done()
            await asyncio.Event().wait()
        assert batch is not None  # noqa: S101 - for the type checker
        self._again -= 1
        self._tally.begin(batch)
        return batch

    async def _read(self) -> None:
        if self._reading is None:
            self._reading = spawn(_next(self._batches), f"reading for {self.partition}", quiet=True)
        await asyncio.wait([self._reading])
        reading, self._reading = self._reading, None
        try:
            batch = reading.result()
        except Exception as error:
            self.error = error
            raise
        if batch is None:
            self._ended = True
        else:
            self._kept.append(batch)
            self._again += 1

    def acknowledge(self, batch: Batch, indexes: Sequence[int] | None = None, receipt: Receipt | None = None) -> None:  # noqa: ARG002
        """Let go of it."""
        if self._kept.popleft() is not batch or indexes is not None:
            raise LocalProtocolError(f"{self.partition}: batches are acknowledged as a whole and in order")
        self.acknowledged += 1
        self._tally.stored(batch)
        self._look_done()

    def _look_done(self) -> None:
        if self._ended and not self._kept:
            self.done.set()

    def reject(self, batch: Batch, failures: Sequence[MessageFailure] = (), delay_s: float = 0.0) -> None:
        """It is kept in any case."""

    async def close(self) -> None:
        """Read no more."""
        if (reading := self._reading) is not None:
            await cancel(reading)
            collect_error(reading)

    async def seek(self, position: Position) -> None:  # noqa: ARG002
        """Nobody can."""
        raise LocalProtocolError(f"{self.partition}: a range is read in order")

    async def release(self, deadline: float | None = None) -> None:
        """There is nobody to give it to."""


async def _next(batches: AsyncIterator[Batch]) -> Batch | None:
    async for batch in batches:
        return batch
    return None
