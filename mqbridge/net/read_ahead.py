"""Limits the bytes that all lanes of an inbound together have read ahead to `InboundSpec.max_bytes`.

A lane reads one partition for the core, which is the package `delivery`. It reserves bytes of this budget before it returns a
batch (a lane of a log, before it reads the file), and releases them at the next `receive`. The core calls `receive` only after
its own budget has counted the previous batch.
"""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from mqbridge.net.budget import Budget
from mqbridge.net.tasks import cancel, spawn

T = TypeVar("T")


class ReadAheadAccount:
    """The bytes that one lane has reserved. `reserve` stops waiting when `revoked`, the lane's own event, is set."""

    def __init__(self, budget: Budget, revoked: asyncio.Event) -> None:
        self.held_bytes = 0
        """Number of reserved bytes."""
        self._budget, self._revoked = budget, revoked
        self._batch_end: tuple[int, ...] | None = None
        """Position after the last returned batch (`Batch.next`), while its bytes are reserved."""

    @property
    def limit(self) -> int:
        """The limit that all lanes of the inbound share, in bytes."""
        return self._budget.limit

    async def receive(self, receive_batch: Coroutine[Any, Any, T]) -> T:
        """Release the previous batch, which the core counts now, and await `receive_batch`, the lane's own coroutine.

        If the coroutine fails or is cancelled, all bytes are released.
        """
        self.release()
        try:
            return await receive_batch
        except BaseException:
            self.release()
            raise

    async def reserve(self, size: int) -> None:
        """Wait until `size` more bytes are free and reserve them.

        If the lane is revoked first, return without them: the caller checks `revoked` before it returns a batch.
        """
        if self._budget.try_reserve(size):
            self.held_bytes += size
            return
        reserving = spawn(self._budget.reserve(size), "budget for a batch")
        revoked = spawn(self._revoked.wait(), "revocation")
        try:
            await asyncio.wait([reserving, revoked], return_when=asyncio.FIRST_COMPLETED)
        finally:
            if reserving.done() and not reserving.cancelled():  # when cancelled, `Budget.reserve` itself releases the bytes
                self.held_bytes += size
            await cancel(reserving, revoked)

    def record_batch(self, size: int, end: tuple[int, ...]) -> None:
        """Record that the lane returns a batch whose `Batch.next` is `end`; release the reserved bytes beyond its `size`.

        The lane has reserved at least `size` bytes.
        """
        self._budget.release(self.held_bytes - size)
        self.held_bytes, self._batch_end = size, end

    def release_batch(self, end: tuple[int, ...]) -> None:
        """Release the bytes of the acknowledged or rejected batch whose `Batch.next` is `end`, if it was returned last."""
        if end == self._batch_end:
            self.release()

    def release(self) -> None:
        """Release all bytes: the core counts the batch now, or there is no batch."""
        if self.held_bytes:
            self._budget.release(self.held_bytes)
        self.held_bytes, self._batch_end = 0, None
