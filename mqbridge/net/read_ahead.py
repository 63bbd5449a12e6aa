"""Accounts for bytes that lanes have read ahead and that the core does not count yet: `InboundSpec.max_bytes`, over all lanes.

A lane takes budget before it reads, or before it hands out a batch, and gives it back at the next `receive`: the core calls that
only when its own budget has charged the batch before.
"""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from mqbridge.net.budget import Budget
from mqbridge.net.tasks import cancel, spawn

T = TypeVar("T")


class ReadAheadAccount:
    """The account of one lane. `gone` is the lane's `revoked`: nothing waits for budget after that."""

    def __init__(self, budget: Budget, gone: asyncio.Event) -> None:
        self.held_bytes = 0
        self._budget, self._gone = budget, gone
        self._end: tuple[int, ...] | None = None

    @property
    def limit(self) -> int:
        """Limit of all lanes together."""
        return self._budget.limit

    async def receive(self, receiving: Coroutine[Any, Any, T]) -> T:
        """Run the lane's receive coroutine. The caller counts the batch before; a failed receive holds nothing."""
        self.give_back()
        try:
            return await receiving
        except BaseException:
            self.give_back()
            raise

    async def take(self, size: int) -> None:
        """Take more bytes, waiting until they are free; take fewer only if the lane is revoked."""
        if self._budget.try_take(size):
            self.held_bytes += size
            return
        taking, gone = spawn(self._budget.take(size), "budget for a batch"), spawn(self._gone.wait(), "revocation")
        try:
            await asyncio.wait([taking, gone], return_when=asyncio.FIRST_COMPLETED)
        finally:
            if taking.done() and not taking.cancelled():  # `Budget.take` returns what it is granted if cancelled later
                self.held_bytes += size
            await cancel(taking, gone)

    def hand_out(self, size: int, end: tuple[int, ...]) -> None:
        """Record a batch of this size, which ends at `end`; bytes that were taken beyond it are given back."""
        self._budget.give(self.held_bytes - size)
        self.held_bytes, self._end = size, end

    def settled(self, end: tuple[int, ...]) -> None:
        """Record that the batch that ends at `end` is acknowledged or rejected."""
        if end == self._end:
            self.give_back()

    def give_back(self) -> None:
        """Give back all bytes: the core counts the batch now, or there is none."""
        if self.held_bytes:
            self._budget.give(self.held_bytes)
        self.held_bytes, self._end = 0, None
