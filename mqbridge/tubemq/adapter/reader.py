"""Reader of one partition: each has a temporary group, in which it holds the partition itself.

Reading runs in a task of the reader, one batch at a time, so that a caller may stop waiting at any time: the next `receive` gets
the batch that the task has read. Cancelling a get instead would leave a pack at the Broker that nobody has seen.
"""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from datetime import tzinfo

from mqbridge.adapter.tools.deadlines import resolve_deadline
from mqbridge.errors import ClusterError, Failure, GapError, LaneRevoked
from mqbridge.message import Batch, Partition, Position
from mqbridge.net.tasks import cancel, mark_error_retrieved, spawn
from mqbridge.tubemq.adapter.inbound import batch_of
from mqbridge.tubemq.client.consumer.range_reader import MessagePosition, RangeReader
from mqbridge.tubemq.client.consumer.stable_range_reader import read_stable_range


class TubeMQReader:
    """Reads from a position on; with an end, a message has the same position each time it is read.

    Without an end, an index counts the messages from the begin of a pack, as in a lane. Reading can begin again at every such
    position, but may then find another position for the same message. The reader holds one batch at most, that of one get.
    `store_end` requests the offset that the next message of the partition's store will get, and `on_close` is called when the
    reader no longer needs its group.
    """

    def __init__(
        self,
        ranges: RangeReader,
        partition: Partition,
        begin: Position,
        end: Position | None,
        zone: tzinfo,
        store_end: Callable[[], Awaitable[int]],
        on_close: Callable[[], Awaitable[None]],
    ) -> None:
        self.partition = partition
        self._ranges, self._zone = ranges, zone
        self._store_end, self._on_close = store_end, on_close
        self._position = offset_and_index(begin)
        self._end = None if end is None else offset_and_index(end)
        self._batches: AsyncGenerator[Batch, None] | None = None
        """The batches from `_position` on; None before the first read, and after a seek or an error."""
        self._gap: GapError | None = None
        """The lost data before which reading has stopped, until a seek."""
        self._reading: asyncio.Task[Batch | None] | None = None
        """Reads the next batch; None if nobody has waited for one since the last one was returned."""
        self._lock = asyncio.Lock()
        """Held while a batch is read: a cancelled read ends before the next one begins."""
        self._closed = False

    @property
    def position(self) -> Position:
        """Position of the next message."""
        return self._position

    @property
    def caught_up(self) -> bool:
        """True if the last get found no data, and the position has reached the end of the store."""
        holds_batch = self._reading is not None and self._reading.done()
        return not holds_batch and self._ranges.caught_up

    async def receive(self) -> Batch | None:
        """Wait for the next batch; None at the end.

        Raises GapError, again until a seek, and ClusterError: FATAL once the reader is closed, else the next call tries again.
        """
        while not self._closed:
            if self._reading is None:
                self._reading = spawn(self._read(), f"tubemq reader of {self.partition}", log_errors=False)
            reading = self._reading
            await asyncio.wait([reading])
            if reading is not self._reading:  # a seek or `close` has cancelled it, or another caller has its batch
                continue
            self._reading = None
            if (batch := reading.result()) is not None:
                self._position = offset_and_index(batch.next)
            return batch
        raise ClusterError(f"the reader of {self.partition} is closed", Failure.FATAL)

    async def seek(self, position: Position) -> None:
        """Continue at this position. The next `receive` registers there; a `receive` that waits goes on from there."""
        self._position, self._gap = offset_and_index(position), None
        await self._stop_reading()

    async def close(self, deadline: float | None = None) -> None:
        """Release the partition at the Broker, by `deadline` (event loop time; None: CLOSE_S (30 s) from now)."""
        if self._closed:
            return
        self._closed = True
        deadline = resolve_deadline(deadline)
        try:
            await self._stop_reading()
        finally:
            await self._ranges.close(deadline)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout_at(deadline):
                await self._on_close()

    async def _stop_reading(self) -> None:
        """Cancel the read in progress and drop what it has read; the next one begins at `_position`."""
        reading, self._reading, self._batches = self._reading, None, None
        await cancel(reading)
        if reading is not None:
            mark_error_retrieved(reading)

    async def _read(self) -> Batch | None:
        """Read the next batch; None at the end."""
        async with self._lock:
            if self._gap is not None:
                raise self._gap
            batches = self._batches = self._batches or self._batches_from(self._position)
            try:
                return await anext(batches, None)
            except BaseException as error:
                self._batches = None  # a generator that has raised an error cannot go on
                if isinstance(error, LaneRevoked):
                    raise ClusterError(f"{self.partition} cannot be read now: {error}") from error
                if isinstance(error, GapError):
                    self._gap = error
                raise

    async def _batches_from(self, begin: MessagePosition) -> AsyncGenerator[Batch, None]:
        """Yield the batches from `begin` on."""
        partition, zone = self.partition, self._zone
        if self._end is None:
            async with aclosing(self._ranges.slices(begin, None)) as slices:
                async for found in slices:
                    yield batch_of(found.pack, found.first, found.last, found.next, partition, zone)
        else:
            async with aclosing(read_stable_range(self._ranges.slices, begin, self._end, self._store_end)) as stable_slices:
                async for part in stable_slices:
                    yield batch_of(part.pack, part.first, part.last, part.next, partition, zone, part.position)


def offset_and_index(position: Position) -> MessagePosition:
    """Return a position as (offset, index): the message that follows `index` others of the partition from this offset on.

    Raises ClusterError (FATAL) for a position of another system.
    """
    if len(position) != 2:
        raise ClusterError(f"{position} is not a position of TubeMQ: a position is offset:index", Failure.FATAL)
    offset, index = position
    return offset, index
