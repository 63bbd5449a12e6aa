"""Opens producers and consumers, and closes them with their client."""

import asyncio
from collections.abc import Callable, Coroutine, Generator
from contextlib import AsyncExitStack
from typing import Any, Generic, Protocol, TypeVar


class Closable(Protocol):
    """A producer or a consumer."""

    @property
    def closed(self) -> bool:
        """True once `close` was called."""

    async def close(self, timeout: float = ...) -> None:
        """Close the producer or consumer; further calls do nothing."""


T_co = TypeVar("T_co", bound=Closable, covariant=True)


class Opening(Generic[T_co]):
    """A producer or consumer that is not open yet.

    `await` opens and returns it; `async with` also closes it.
    """

    def __init__(self, open_function: Callable[[], Coroutine[Any, Any, T_co]]) -> None:
        self._open = open_function
        self._opened: T_co | None = None

    def __await__(self) -> Generator[Any, None, T_co]:
        return self._open().__await__()

    async def __aenter__(self) -> T_co:
        self._opened = await self._open()
        return self._opened

    async def __aexit__(self, *_: object) -> None:
        if self._opened is not None:
            await self._opened.close()


class OpenedByClient:
    """The open producers and consumers of one client."""

    def __init__(self) -> None:
        self._opened: list[Closable] = []

    def add(self, opened: Closable) -> None:
        """Add a producer or consumer, and forget those that are closed."""
        self._opened = [earlier for earlier in self._opened if not earlier.closed]
        self._opened.append(opened)

    async def close(self, timeout: float) -> None:
        """Close all, the last opened one first, within `timeout` seconds in total. All are closed, even if one raises."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout

        async def close(opened: Closable) -> None:
            await opened.close(max(0.0, deadline - loop.time()))

        async with AsyncExitStack() as stack:
            for opened in self._opened:
                stack.push_async_callback(close, opened)
            self._opened = []
