"""Opens producers and consumers, and closes them with their client."""

import asyncio
from collections.abc import Callable, Coroutine, Generator
from contextlib import AsyncExitStack
from typing import Any, Generic, Protocol, TypeVar

from mqbridge.errors import ClusterError, Failure
from mqbridge.net.home_loop import HomeLoop


class Closable(Protocol):
    """A producer or a consumer."""

    @property
    def closed(self) -> bool:
        """True once `close` was called."""

    async def close(self, timeout: float = ...) -> None:
        """Close the producer or consumer; further calls do nothing."""


T = TypeVar("T", bound=Closable)
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
    """The open producers and consumers of one client, and whether the client is closed.

    `servers` are the servers of the client, for errors. `late_timeout_s` limits the closing of a producer or
    consumer whose opening ends only after the client was closed.
    """

    def __init__(self, servers: str, late_timeout_s: float = 0.0) -> None:
        self._servers, self._late_timeout_s = servers, late_timeout_s
        self._home = HomeLoop(f"the client ({servers})")
        self._opened: list[Closable] = []
        self.is_closed = False
        """True once the client closes: `begin_close` sets this."""

    def check_open(self) -> None:
        """Raise ClusterError if the client is closed, and WrongEventLoop if it belongs to another event loop."""
        if self.is_closed:
            raise ClusterError(f"the client is closed ({self._servers})", Failure.FATAL)
        self._home.check_running()

    def begin_close(self) -> bool:
        """Mark the client as closed; return False if nothing is left to close: it, or its event loop, was closed before.

        Raises WrongEventLoop if the client belongs to another event loop.
        """
        if self.is_closed:
            return False
        is_over = self._home.is_over()
        self.is_closed = True
        return not is_over

    async def register(self, opened: T) -> T:
        """Have `close` close a producer or consumer, and return it. If the client is closed already, close it now, and raise."""
        if self.is_closed:
            await opened.close(self._late_timeout_s)
            self.check_open()
        self._opened = [*(earlier for earlier in self._opened if not earlier.closed), opened]
        return opened

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
