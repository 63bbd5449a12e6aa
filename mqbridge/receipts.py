"""One `Outbound.send` that became several requests, until all of them are answered."""

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any

from mqbridge.adapter import MessageFailure, Receipt
from mqbridge.errors import ClusterError, Failure
from mqbridge.message import Position


class Gathering:
    """Makes a receipt of the answers: the last position, and all failures; a FATAL one fails the whole."""

    __slots__ = ("_failures", "_fatal", "_open", "_position", "future")

    def __init__(self, failures: list[MessageFailure]) -> None:
        self.future: asyncio.Future[Receipt] = asyncio.get_running_loop().create_future()
        self._failures = failures
        self._open = 1
        self._position: Position = ()
        self._fatal: ClusterError | None = None

    def wait_for(self, sent: "asyncio.Future[Any]", indexes: range, position: Callable[[Any], Position]) -> None:
        """A request with the messages `indexes`; `position` gives the place of the last of them by the answer, or ()."""
        self._open += 1
        sent.add_done_callback(partial(self._answered, indexes, position))

    def sent(self) -> "asyncio.Future[Receipt]":
        """All requests are on their way."""
        self._finish()
        return self.future

    def _answered(self, indexes: range, position: Callable[[Any], Position], sent: "asyncio.Future[Any]") -> None:
        error = sent.exception()
        if error is None:
            self._position = max(self._position, position(sent.result()))
        elif isinstance(error, ClusterError) and error.failure is not Failure.FATAL:
            self._failures += [MessageFailure(index, error.failure, str(error)) for index in indexes]
        else:
            self._fatal = error if isinstance(error, ClusterError) else ClusterError(str(error), Failure.FATAL)
        self._finish()

    def _finish(self) -> None:
        self._open -= 1
        if self._open or self.future.done():
            return
        if self._fatal is not None:
            self.future.set_exception(self._fatal)
            return
        self._failures.sort(key=lambda failure: failure.index)
        self.future.set_result(Receipt(self._position, self._failures))


def closed(what: str) -> "asyncio.Future[Receipt]":
    """The answer of an outbound that was closed."""
    future: asyncio.Future[Receipt] = asyncio.get_running_loop().create_future()
    future.set_exception(ClusterError(f"the outbound into {what} is closed", Failure.FATAL))
    return future
