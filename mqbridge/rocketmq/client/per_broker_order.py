"""Keeps the order of requests to one broker.

A broker handles the requests of one connection concurrently, so a later one may overtake. It must not if it undoes an earlier
one: an unlock that overtakes its lock leaves the queue locked for a minute; an unregistration that overtakes a heartbeat leaves
a ghost member. A cancelled caller stops waiting; its request keeps its place until it is answered.
"""

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable
from typing import TypeVar

from mqbridge.net.tasks import collect_error, spawn

T = TypeVar("T")


class PerBrokerOrder:
    """One request at a time per key, first come, first served."""

    def __init__(self) -> None:
        self._locks: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)

    async def take(self, key: str, request: Callable[[], Awaitable[T]]) -> T:
        """Call `request` once those before it are answered. Raises its errors; it needs a deadline of its own."""
        task = spawn(self._take(key, request), f"rocketmq request in order at {key}", quiet=True)
        task.add_done_callback(collect_error)
        return await asyncio.shield(task)

    async def wait(self, key: str) -> None:
        """Wait until earlier requests are answered, without blocking others: many may continue concurrently."""
        async with self._locks[key]:
            pass

    async def _take(self, key: str, request: Callable[[], Awaitable[T]]) -> T:
        async with self._locks[key]:
            return await request()
