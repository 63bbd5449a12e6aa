"""Bytes in flight: what bounds the gateway's memory whatever the lag, and how fast it may go.

A slow target holds the bytes of its batches, so a source is not read further: slowness travels upstream and memory does not grow.
"""

import asyncio
import contextlib
from collections import deque


class Budget:
    """So many bytes may be in flight at once. One batch larger than all of it is let through alone."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.used = 0
        self._waiting: deque[tuple[asyncio.Future[None], int]] = deque()

    async def take(self, size: int) -> None:
        """Wait, in turn, until `size` bytes are free, and take them."""
        if not self._waiting and self._fits(size):
            self.used += size
            return
        future = asyncio.get_running_loop().create_future()
        entry = (future, size)
        self._waiting.append(entry)
        try:
            await future
        except asyncio.CancelledError:
            if future.done() and not future.cancelled():
                self.give(size)  # granted in the same turn in which we were cancelled
            else:
                with contextlib.suppress(ValueError):
                    self._waiting.remove(entry)
                self._grant()
            raise

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


class RateLimit:
    """At most so many units a second over all lanes of a route, with one second's worth of burst."""

    def __init__(self, per_second: float) -> None:
        self._per_second = per_second
        self._free_at = 0.0

    async def take(self, units: int) -> None:
        """Wait until these units may go. Whole batches go at once; the wait comes after the one that went over."""
        loop = asyncio.get_running_loop()
        now = loop.time()
        start = max(self._free_at, now - 1.0)
        self._free_at = start + units / self._per_second
        if start > now:
            await asyncio.sleep(start - now)
