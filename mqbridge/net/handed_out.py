"""Bytes that an inbound has handed out and that nobody else counts yet: `InboundSpec.max_bytes`, all of its lanes together.

A lane takes room before it reads, or before it hands out what it has read, and gives it back when it is asked for the next batch:
the core asks only when it counts the one before itself.
"""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from mqbridge.net.budget import Budget
from mqbridge.net.tasks import cancel, spawn

T = TypeVar("T")


class HandedOut:
    """One lane's part of it. `gone` is the lane's `revoked`: nobody waits for room beyond that."""

    def __init__(self, budget: Budget, gone: asyncio.Event) -> None:
        self.held_bytes = 0
        self._budget, self._gone = budget, gone
        self._end: tuple[int, ...] | None = None

    @property
    def limit(self) -> int:
        """Of all lanes together."""
        return self._budget.limit

    async def receive(self, receiving: Coroutine[Any, Any, T]) -> T:
        """Run the lane's receiving: what was handed out before is the caller's by now, and what fails holds nothing."""
        self.give_back()
        try:
            return await receiving
        except BaseException:
            self.give_back()
            raise

    async def take(self, size: int) -> None:
        """Take so many bytes more, as soon as there is room for them; less only when the lane is gone."""
        if self._budget.try_take(size):
            self.held_bytes += size
            return
        taking, gone = spawn(self._budget.take(size), "room for a batch"), spawn(self._gone.wait(), "revocation")
        try:
            await asyncio.wait([taking, gone], return_when=asyncio.FIRST_COMPLETED)
        finally:
            if taking.done() and not taking.cancelled():  # one that is cancelled from here on gives back what it is granted
                self.held_bytes += size
            await cancel(taking, gone)

    def hand_out(self, size: int, end: tuple[int, ...]) -> None:
        """A batch of this size that ends there is handed out; what was taken beyond that is given back."""
        self._budget.give(self.held_bytes - size)
        self.held_bytes, self._end = size, end

    def settled(self, end: tuple[int, ...]) -> None:
        """The batch that ends there is acknowledged or rejected."""
        if end == self._end:
            self.give_back()

    def give_back(self) -> None:
        """The lane holds nothing that others do not count."""
        if self.held_bytes:
            self._budget.give(self.held_bytes)
        self.held_bytes, self._end = 0, None
