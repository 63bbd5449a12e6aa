"""Budget of bytes in flight: bounds the gateway's memory whatever the lag.

A slow target holds the bytes of its batches, so the source is not read further: backpressure travels upstream and memory does not
grow.
"""

import asyncio
import contextlib
from collections import deque


class Budget:
    """A limit of bytes in flight. A batch larger than the limit is let through alone."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.used = 0
        self._waiting: deque[tuple[asyncio.Future[None], int]] = deque()

    def try_take(self, size: int) -> bool:
        """Take `size` bytes if they are free and no caller waits."""
        if self._waiting or not self._fits(size):
            return False
        self.used += size
        return True

    async def take(self, size: int) -> None:
        """Wait until `size` bytes are free, first come first served, and take them."""
        if self.try_take(size):
            return
        future = asyncio.get_running_loop().create_future()
        entry = (future, size)
        self._waiting.append(entry)
        try:
            await future
        except asyncio.CancelledError:
            if future.done() and not future.cancelled():
                self.give(size)  # granted in the same loop iteration in which we were cancelled
            else:
                with contextlib.suppress(ValueError):
                    self._waiting.remove(entry)
                self._grant()
            raise

    def overdraw(self, size: int) -> None:
        """Take `size` bytes that are held already, free or not. The next caller waits until all fit."""
        self.used += size

    def give(self, size: int) -> None:
        """Return bytes."""
        self.used -= size
        self._grant()

    def _grant(self) -> None:
        while self._waiting and self._fits(self._waiting[0][1]):
            future, size = self._waiting.popleft()
            if not future.cancelled():
                self.used += size
                future.set_result(None)

    def _fits(self, size: int) -> bool:
        return self.used == 0 or self.used + size <= self.limit
