"""Limits the rate of a route, in messages or bytes per second."""

import asyncio


class RateLimit:
    """A limit of units (messages or bytes) per second over all partitions of a route, with bursts of up to one second's units."""

    def __init__(self, per_second: float) -> None:
        self._per_second = per_second
        self._free_at = 0.0
        """Loop time from which the next units are allowed; a time in the past means that units are unused."""

    async def take(self, units: int) -> None:
        """Wait until the limit allows these units. A batch is never split: it may exceed the limit, and then later calls wait."""
        loop = asyncio.get_running_loop()
        now = loop.time()
        start = max(self._free_at, now - 1.0)  # at most one second's unused units are allowed as a burst
        self._free_at = start + units / self._per_second
        if start > now:
            try:
                await asyncio.sleep(start - now)
            except asyncio.CancelledError:
                self._free_at -= units / self._per_second  # these units are not sent: later callers need not wait for them
                raise
