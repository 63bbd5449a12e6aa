"""A lane of the gateway's delivery over batches that somebody else reads."""

import asyncio
from collections.abc import AsyncIterator, Sequence

from mqbridge.adapter.receipt import MessageFailure, Receipt
from mqbridge.message import Batch, Partition, Position


class IteratorLane:
    """Batches of one source partition; those that are not acknowledged are kept, and received again after `rewind`."""

    def __init__(self, partition: Partition, batches: AsyncIterator[Batch]) -> None:
        self.partition = partition
        self.revoked = asyncio.Event()
        self.done = asyncio.Event()
        """Set when the iterator has ended and everything is acknowledged."""
        raise NotImplementedError

    @property
    def caught_up(self) -> bool:
        """The iterator has ended."""
        raise NotImplementedError

    def rewind(self) -> None:
        """Begin again with what is not acknowledged."""

    async def receive(self) -> Batch:
        """The next batch. Raises what the iterator raises."""
        raise NotImplementedError

    def acknowledge(self, batch: Batch, indexes: Sequence[int] | None = None, receipt: Receipt | None = None) -> None:
        """Let go of it."""

    def reject(self, batch: Batch, failures: Sequence[MessageFailure] = (), delay_s: float = 0.0) -> None:
        """It is kept, with why."""

    async def seek(self, position: Position) -> None:
        """Not possible."""

    async def release(self, deadline: float | None = None) -> None:
        """Nothing to release."""
