"""Keeps the order of requests to one broker.

A broker handles the requests of one connection concurrently, so a later request may take effect first. That does harm if the
later request undoes the earlier one: an UNLOCK that takes effect before its LOCK leaves the queue locked for a minute, and an
UNREGISTER_CLIENT that takes effect before a heartbeat leaves the broker with a member that does not exist.
"""

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable
from typing import TypeVar

from mqbridge.net.tasks import mark_error_retrieved, spawn

T = TypeVar("T")


class PerBrokerOrder:
    """Runs one request at a time per key (a broker's name or address), in the order of the calls."""

    def __init__(self) -> None:
        self._locks: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)

    async def run(self, key: str, request: Callable[[], Awaitable[T]]) -> T:
        """Await `request()` after all earlier requests with this key have ended; return its result or raise its error.

        `request` must limit its own time, because later requests wait for it. If the caller is cancelled, the request still runs
        in its turn.
        """
        task = spawn(self._run(key, request), f"rocketmq request in order at {key}", log_errors=False)
        task.add_done_callback(mark_error_retrieved)  # after a cancelled call, nobody else retrieves the error
        return await asyncio.shield(task)

    async def wait_for_earlier(self, key: str) -> None:
        """Wait until all earlier requests with this key have ended. Later requests do not wait for this caller."""
        async with self._locks[key]:
            pass

    async def _run(self, key: str, request: Callable[[], Awaitable[T]]) -> T:
        async with self._locks[key]:
            return await request()
