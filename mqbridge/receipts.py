"""Combines the responses of several requests into the receipt of one `Outbound.send`."""

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from mqbridge.adapter.receipt import MessageFailure, Receipt
from mqbridge.errors import ClusterError, Failure
from mqbridge.message import Position

PositionsOf = Callable[[Any], Sequence[Position]]
"""Function that takes the response of a request and returns the positions of the request's messages."""


class ReceiptAggregator:
    """Makes the receipt of `count` messages from the responses of their requests; a FATAL failure fails the whole send."""

    __slots__ = ("_count", "_failures", "_fatal", "_open", "_stored", "future")

    def __init__(
        self, count: int, failures: Sequence[MessageFailure] = (), loop: asyncio.AbstractEventLoop | None = None
    ) -> None:
        self.future: asyncio.Future[Receipt] = (loop or asyncio.get_running_loop()).create_future()
        self._count = count
        self._failures = list(failures)
        self._open = 1
        self._stored: list[tuple[Sequence[int], PositionsOf, Any]] = []
        self._fatal: ClusterError | None = None

    def wait_for(self, sent: "asyncio.Future[Any]", indexes: Sequence[int], positions: PositionsOf) -> None:
        """Add a sent request, with the messages at `indexes`."""
        self._open += 1
        sent.add_done_callback(partial(self._answered, indexes, positions))

    def sent(self) -> "asyncio.Future[Receipt]":
        """Return the future of the receipt; call this once, after all requests were added."""
        self._finish()
        return self.future

    def _answered(self, indexes: Sequence[int], positions: PositionsOf, sent: "asyncio.Future[Any]") -> None:
        error = sent.exception()
        if error is None:
            self._stored.append((indexes, positions, sent.result()))
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
        self.future.set_result(Receipt(partial(_positions, self._count, self._stored), self._failures))


def _positions(count: int, stored: Sequence[tuple[Sequence[int], PositionsOf, Any]]) -> list[Position]:
    found: list[Position] = [()] * count
    for indexes, positions, answer in stored:
        for index, position in zip(indexes, positions(answer), strict=True):
            found[index] = position
    return found


def closed_outbound_future(what: str) -> "asyncio.Future[Receipt]":
    """Return a future that has failed already, for a send to a closed outbound."""
    future: asyncio.Future[Receipt] = asyncio.get_running_loop().create_future()
    future.set_exception(ClusterError(f"the outbound into {what} is closed", Failure.FATAL))
    return future
