"""Requests to one broker whose order counts.

A broker works on the requests of one connection side by side, so a later one may overtake. It must not when it undoes an earlier
one: an unlock that overtakes its lock leaves the queue locked for a minute, a farewell that overtakes a heartbeat leaves a member
that is gone. A caller that is cancelled stops waiting; what it sent stays in order until it is answered.
"""

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable
from typing import TypeVar

from mqbridge.net.tasks import collect_error, spawn

T = TypeVar("T")


class PerBrokerOrder:
    """One request at a time per key, first come first served."""

    def __init__(self) -> None:
        self._locks: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)

    async def take(self, key: str, request: Callable[[], Awaitable[T]]) -> T:
        """Call `request` when those before it have their answers. Raises what it raises; it must have a deadline of its own."""
        task = spawn(self._take(key, request), f"rocketmq request in order at {key}", quiet=True)
        task.add_done_callback(collect_error)
        return await asyncio.shield(task)

    async def wait(self, key: str) -> None:
        """Until those before have their answers; without holding up others, so that many may go on side by side."""
        async with self._locks[key]:
            pass

    async def _take(self, key: str, request: Callable[[], Awaitable[T]]) -> T:
        async with self._locks[key]:
            return await request()
