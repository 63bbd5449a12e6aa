"""Budget of bytes in flight: bounds the gateway's memory, however far it lags behind a source.

The batches of a slow target occupy the budget until they are stored. The source is not read while the budget is full.
"""

import asyncio
import contextlib
from collections import deque


class Budget:
    """A limit of bytes in flight. A batch larger than the limit is admitted when nothing else is in flight."""

    def __init__(self, limit: int) -> None:
        """`limit` is in bytes."""
        self.limit = limit
        self.used = 0
        """Number of reserved bytes. An oversized batch, or `reserve_beyond_limit`, can raise it above the limit."""
        self._waiters: deque[tuple[asyncio.Future[None], int]] = deque()
        """Callers of `reserve` that wait for free bytes, first come, first served: a future and the requested bytes."""

    def try_reserve(self, size: int) -> bool:
        """Reserve `size` bytes if they are free and no other caller waits; return True if they were reserved."""
        if self._waiters or not self._fits(size):
            return False
        self.used += size
        return True

    async def reserve(self, size: int) -> None:
        """Wait until `size` bytes are free and reserve them; callers are served in the order of their calls."""
        if self.try_reserve(size):
            return
        future = asyncio.get_running_loop().create_future()
        waiter = (future, size)
        self._waiters.append(waiter)
        try:
            await future
        except asyncio.CancelledError:
            if future.done() and not future.cancelled():
                self.release(size)  # `_admit_waiters` had reserved them just before the cancellation
            else:
                with contextlib.suppress(ValueError):
                    self._waiters.remove(waiter)
                self._admit_waiters()  # a smaller request behind this one may fit
            raise

    def reserve_beyond_limit(self, size: int) -> None:
        """Reserve `size` bytes at once, because they are in memory already; the limit applies to later callers only."""
        self.used += size

    def release(self, size: int) -> None:
        """Release `size` bytes and admit the waiting callers that now fit."""
        self.used -= size
        self._admit_waiters()

    def _admit_waiters(self) -> None:
        """Reserve the bytes of the first waiters, as long as they fit, and wake them."""
        while self._waiters and self._fits(self._waiters[0][1]):
            future, size = self._waiters.popleft()
            if not future.cancelled():
                self.used += size
                future.set_result(None)

    def _fits(self, size: int) -> bool:
        return self.used == 0 or self.used + size <= self.limit
