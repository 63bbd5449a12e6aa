"""Accounts for bytes that lanes have read ahead and that the core does not count yet: `InboundSpec.max_bytes`, over all lanes.

A lane takes budget before it reads, or before it hands out a batch, and releases it at the next `receive`. The core calls
`receive` only after its own budget has counted the previous batch.
"""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from mqbridge.net.budget import Budget
from mqbridge.net.tasks import cancel, spawn

T = TypeVar("T")


class ReadAheadAccount:
    """The read-ahead account of one lane. `gone` is the lane's `revoked` event: once it is set, `take` does not wait any more."""

    def __init__(self, budget: Budget, gone: asyncio.Event) -> None:
        self.held_bytes = 0
        self._budget, self._gone = budget, gone
        self._end: tuple[int, ...] | None = None

    @property
    def limit(self) -> int:
        """The limit that all lanes share, in bytes."""
        return self._budget.limit

    async def receive(self, receiving: Coroutine[Any, Any, T]) -> T:
        """Release the previous batch, which the caller counts now, and run the lane's receive coroutine.

        If it fails, all bytes are released.
        """
        self.give_back()
        try:
            return await receiving
        except BaseException:
            self.give_back()
            raise

    async def take(self, size: int) -> None:
        """Take `size` more bytes, and wait until they are free; take none if the lane is revoked meanwhile."""
        if self._budget.try_take(size):
            self.held_bytes += size
            return
        taking, gone = spawn(self._budget.take(size), "budget for a batch"), spawn(self._gone.wait(), "revocation")
        try:
            await asyncio.wait([taking, gone], return_when=asyncio.FIRST_COMPLETED)
        finally:
            if taking.done() and not taking.cancelled():  # if it is cancelled, `Budget.take` itself releases the bytes
                self.held_bytes += size
            await cancel(taking, gone)

    def hand_out(self, size: int, end: tuple[int, ...]) -> None:
        """Record a batch of `size` bytes that ends at `end`; bytes taken beyond `size` are released."""
        self._budget.give(self.held_bytes - size)
        self.held_bytes, self._end = size, end

    def settled(self, end: tuple[int, ...]) -> None:
        """Release the last batch if it ends at `end`: it is acknowledged or rejected."""
        if end == self._end:
            self.give_back()

    def give_back(self) -> None:
        """Release all bytes: the core counts the batch now, or there is no batch."""
        if self.held_bytes:
            self._budget.give(self.held_bytes)
        self.held_bytes, self._end = 0, None
