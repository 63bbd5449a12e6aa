"""The event loop to which a client belongs.

Sockets, timers and futures work in one event loop only. Used from another one they hang, or fail with "Event loop is closed", far
from the mistake: a client that is kept over two calls of `asyncio.run`, or that is shared by threads. So clients, and what they
open, check their loop first.
"""

import asyncio
import threading
from asyncio import _get_running_loop  # unlike `get_running_loop`, it costs no exception without a loop, and half the time

from mqbridge.errors import WrongEventLoop


class HomeLoop:
    """The event loop of an object: the running one, or else the one of its first use. `owner` names the object in errors."""

    __slots__ = ("_loop", "_owner", "_thread")

    def __init__(self, owner: str) -> None:
        self._owner = owner
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = ""
        """Name of the thread in which the object was made or used first."""
        if (loop := _get_running_loop()) is not None:
            self._bind(loop)

    def check(self) -> None:
        """Raise WrongEventLoop if another event loop runs in this thread than at the first use, or none."""
        loop = _get_running_loop()
        if loop is not self._loop or loop is None:
            if self._loop is not None or loop is None:
                raise self._error(loop)
            self._bind(loop)

    def check_running(self) -> None:
        """Like `check`, but accept that no event loop runs: the caller uses no loop yet."""
        if _get_running_loop() is not None:
            self.check()

    def is_over(self) -> bool:
        """Return True if the event loop was closed, so that nothing of the object is left. Raises WrongEventLoop, see `check`."""
        if self._loop is not None and self._loop.is_closed():
            return True
        self.check_running()
        return False

    def _bind(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop, self._thread = loop, threading.current_thread().name

    def _error(self, running: asyncio.AbstractEventLoop | None) -> WrongEventLoop:
        here = threading.current_thread().name
        if self._loop is None:
            return WrongEventLoop(f"{self._owner} was used in thread {here!r}, where no event loop runs: use it in a coroutine")
        used = f"in thread {here!r}, where {'no' if running is None else 'another'} event loop runs"
        if self._loop.is_closed():
            return WrongEventLoop(
                f"{self._owner} was made or used first in an event loop of thread {self._thread!r}, which is closed, and now "
                f"used {used}: each call of asyncio.run makes a new event loop; make a client in each, or run everything in one"
            )
        return WrongEventLoop(
            f"{self._owner} belongs to an event loop of thread {self._thread!r}, and was used {used}: make a client in each "
            "event loop, or pass the call to that loop with asyncio.run_coroutine_threadsafe or loop.call_soon_threadsafe"
        )
