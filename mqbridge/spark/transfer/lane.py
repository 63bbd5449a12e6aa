"""A lane for the batches of an iterator.

The gateway's delivery takes batches from lanes: a lane yields the batches of one source partition and takes their
acknowledgements. The gateway's own lanes belong to a consumer.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Sequence

from mqbridge.adapter.receipt import MessageFailure, Receipt
from mqbridge.errors import LocalProtocolError
from mqbridge.message import Batch, Partition, Position
from mqbridge.net.tasks import cancel, mark_error_retrieved, spawn
from mqbridge.spark.transfer.tally import Tally


class IteratorLane:
    """The lane of one source partition. It buffers unacknowledged batches, and `receive` returns them again after `rewind`.

    The budget of the delivery limits the unacknowledged batches, and so the buffer.
    """

    def __init__(self, partition: Partition, batches: AsyncIterator[Batch], tally: Tally) -> None:
        self.partition = partition
        self.revoked = asyncio.Event()
        """Never set: a task keeps its range until it ends."""
        self.done = asyncio.Event()
        """Set when the iterator is exhausted and all its batches are acknowledged."""
        self.error: BaseException | None = None
        """The error that the iterator raised; None if it has raised none."""
        self.acknowledged_batches = 0
        """How many batches were acknowledged: between two failures, a higher number shows progress."""
        self._batches, self._tally = batches, tally
        self._unacknowledged: deque[Batch] = deque()
        self._to_receive = 0
        """How many of the unacknowledged batches, counted from the newest, `receive` still has to return."""
        self._is_exhausted = False
        self._read_task: asyncio.Task[Batch | None] | None = None
        """Reads the next batch; None while none is read. A separate task, so that the iterator survives a cancelled `receive`."""

    @property
    def caught_up(self) -> bool:
        """Whether the iterator is exhausted, so that no batch follows those in the buffer."""
        return self._is_exhausted

    async def peek(self) -> Batch | None:
        """Return the batch that `receive` returns next, or None after the last one. Raises the errors of the iterator."""
        if not self._to_receive and not self._is_exhausted:
            await self._read()
        return self._unacknowledged[-self._to_receive] if self._to_receive else None

    def rewind(self) -> None:
        """Make `receive` start again with the oldest unacknowledged batch."""
        self._to_receive = len(self._unacknowledged)

    async def receive(self) -> Batch:
        """Return the next batch; after the last one, wait until the caller is cancelled. Raises the errors of the iterator."""
        batch = await self.peek()
        if batch is None:
            self._update_done()
            await asyncio.Event().wait()
        assert batch is not None  # noqa: S101 - for the type checker
        self._to_receive -= 1
        self._tally.begin_batch(batch)
        return batch

    async def _read(self) -> None:
        """Wait for the next batch of the iterator and add it to the buffer, or record that the iterator is exhausted."""
        if self._read_task is None:
            self._read_task = spawn(_next_batch(self._batches), f"reading for {self.partition}", log_errors=False)
        await asyncio.wait([self._read_task])
        finished_task, self._read_task = self._read_task, None
        try:
            batch = finished_task.result()
        except Exception as error:
            self.error = error
            raise
        if batch is None:
            self._is_exhausted = True
        else:
            self._unacknowledged.append(batch)
            self._to_receive += 1

    def acknowledge(self, batch: Batch, indexes: Sequence[int] | None = None, receipt: Receipt | None = None) -> None:  # noqa: ARG002
        """Remove a batch from the buffer, and count it.

        Raises LocalProtocolError unless it is the oldest batch, and acknowledged as a whole: `indexes` is None.
        """
        if self._unacknowledged.popleft() is not batch or indexes is not None:
            raise LocalProtocolError(f"{self.partition}: batches must be acknowledged as a whole and in order")
        self.acknowledged_batches += 1
        self._tally.finish_batch(batch)
        self._update_done()

    def _update_done(self) -> None:
        if self._is_exhausted and not self._unacknowledged:
            self.done.set()

    def reject(self, batch: Batch, failures: Sequence[MessageFailure] = (), delay_s: float = 0.0) -> None:
        """Do nothing: the batch stays in the buffer, and `receive` returns it again after `rewind`."""

    async def close(self) -> None:
        """Stop reading: cancel a read in progress."""
        if (read_task := self._read_task) is not None:
            await cancel(read_task)
            mark_error_retrieved(read_task)

    async def seek(self, position: Position) -> None:  # noqa: ARG002
        """Raise LocalProtocolError: an iterator cannot seek."""
        raise LocalProtocolError(f"{self.partition}: a range is read in order, without seeking")

    async def release(self, deadline: float | None = None) -> None:
        """Do nothing: no other consumer waits for the partition."""


async def _next_batch(batches: AsyncIterator[Batch]) -> Batch | None:
    async for batch in batches:
        return batch
    return None
