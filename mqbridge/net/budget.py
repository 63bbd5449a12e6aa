"""Budget of bytes in flight: bounds the gateway's memory whatever the lag.

The batches of a slow target occupy the budget until they are stored. The source is not read meanwhile, so memory does not grow.
"""

import asyncio
import contextlib
from collections import deque


class Budget:
    """A limit of bytes in flight. A batch larger than the limit is admitted when nothing else is in flight."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.used = 0
        self._waiting: deque[tuple[asyncio.Future[None], int]] = deque()

    def try_take(self, size: int) -> bool:
        """Take `size` bytes if they are free and no other caller waits; return whether they were taken."""
        if self._waiting or not self._fits(size):
            return False
        self.used += size
        return True

    async def take(self, size: int) -> None:
        """Wait until `size` bytes are free and take them; callers are served in the order of their calls."""
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
        """Count `size` bytes that are in memory already, even beyond the limit; later callers wait until there is room."""
        self.used += size

    def give(self, size: int) -> None:
        """Release `size` bytes and admit the callers that now fit."""
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
