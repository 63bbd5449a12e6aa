"""Rate limit of a route."""

import asyncio


class RateLimit:
    """A limit of units per second over all lanes of a route, with a burst of one second's worth."""

    def __init__(self, per_second: float) -> None:
        self._per_second = per_second
        self._free_at = 0.0

    async def take(self, units: int) -> None:
        """Wait until these units may go. A batch is never split; the wait comes after the batch that exceeded the limit."""
        loop = asyncio.get_running_loop()
        now = loop.time()
        start = max(self._free_at, now - 1.0)
        self._free_at = start + units / self._per_second
        if start > now:
            try:
                await asyncio.sleep(start - now)
            except asyncio.CancelledError:
                self._free_at -= units / self._per_second  # these units do not go: later callers need not wait for them
                raise
