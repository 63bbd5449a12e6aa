"""Locks by key, each of which exists only while somebody holds it or waits for it."""

import asyncio
from collections.abc import AsyncIterator, Hashable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)


class _CountedLock:
    """A lock, and the number of those that hold it or wait for it."""

    __slots__ = ("lock", "users")

    def __init__(self) -> None:
        self.lock, self.users = asyncio.Lock(), 0


class KeyedLocks(Generic[K]):
    """See the module."""

    def __init__(self) -> None:
        self._locks: dict[K, _CountedLock] = {}

    def __len__(self) -> int:
        """Return the number of locks that exist."""
        return len(self._locks)

    @asynccontextmanager
    async def hold(self, key: K) -> AsyncIterator[None]:
        """Hold the lock of a key."""
        counted = self._locks.setdefault(key, _CountedLock())
        counted.users += 1
        try:
            async with counted.lock:
                yield
        finally:
            counted.users -= 1
            if not counted.users:
                del self._locks[key]

    @asynccontextmanager
    async def hold_all(self, keys: list[K]) -> AsyncIterator[None]:
        """Hold the locks of several keys; all callers that hold more than one name them in the same order."""
        async with AsyncExitStack() as stack:
            for key in keys:
                await stack.enter_async_context(self.hold(key))
            yield
