"""How fast a route may go."""

import asyncio


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
            try:
                await asyncio.sleep(start - now)
            except asyncio.CancelledError:
                self._free_at -= units / self._per_second  # they do not go: those behind need not wait for them
                raise
