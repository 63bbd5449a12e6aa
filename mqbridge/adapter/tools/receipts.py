"""Combines the responses of several requests into the receipt of one `Outbound.send`."""

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from mqbridge.adapter.receipt import MessageFailure, Receipt
from mqbridge.errors import ClusterError, Failure
from mqbridge.message import Position

PositionsOf = Callable[[Any], Sequence[Position]]
"""Function that takes the response to a request and returns the positions of the request's messages."""


class ReceiptAggregator:
    """Makes the receipt of `count` messages from the responses to their requests; a FATAL failure fails the whole send.

    Add each request with `add_request`, then call `finish_adding` once. `failures` are those of messages that are in no request,
    for example because they cannot be encoded. `loop` is the running loop: passing it saves a look-up.
    """

    __slots__ = ("_count", "_failures", "_fatal", "_stored", "_unfinished", "future")

    def __init__(
        self, count: int, failures: Sequence[MessageFailure] = (), loop: asyncio.AbstractEventLoop | None = None
    ) -> None:
        self.future: asyncio.Future[Receipt] = (loop or asyncio.get_running_loop()).create_future()
        self._count = count
        self._failures = list(failures)
        self._unfinished = 1
        """Number of requests without a response, plus one until `finish_adding`."""
        self._stored: list[tuple[Sequence[int], PositionsOf, Any]] = []
        """Indexes, positions function and response of each request that succeeded."""
        self._fatal: ClusterError | None = None
        """The last FATAL error; `future` fails with it after the last response."""

    def add_request(self, response: "asyncio.Future[Any]", indexes: Sequence[int], positions_of: PositionsOf) -> None:
        """Add a request that contains the messages of the send at `indexes`; `response` is its future."""
        self._unfinished += 1
        response.add_done_callback(partial(self._on_response, indexes, positions_of))

    def finish_adding(self) -> "asyncio.Future[Receipt]":
        """Return the future of the receipt; call this once, after all requests were added."""
        self._count_finished()
        return self.future

    def _on_response(self, indexes: Sequence[int], positions_of: PositionsOf, response: "asyncio.Future[Any]") -> None:
        """Record the positions or the failures of a request's messages; an error that is no ClusterError counts as FATAL."""
        error = response.exception()
        if error is None:
            self._stored.append((indexes, positions_of, response.result()))
        elif isinstance(error, ClusterError) and error.failure is not Failure.FATAL:
            self._failures += [MessageFailure(index, error.failure, str(error)) for index in indexes]
        else:
            self._fatal = error if isinstance(error, ClusterError) else ClusterError(str(error), Failure.FATAL)
        self._count_finished()

    def _count_finished(self) -> None:
        """Count down `_unfinished`; at 0, complete `future` with the receipt, or with the FATAL error."""
        self._unfinished -= 1
        if self._unfinished or self.future.done():
            return
        if self._fatal is not None:
            self.future.set_exception(self._fatal)
            return
        self._failures.sort(key=lambda failure: failure.index)
        self.future.set_result(Receipt(partial(_positions, self._count, self._stored), self._failures))


def _positions(count: int, stored: Sequence[tuple[Sequence[int], PositionsOf, Any]]) -> list[Position]:
    """Return the position of each message; () for a message that was not stored."""
    positions: list[Position] = [()] * count
    for indexes, positions_of, response in stored:
        for index, position in zip(indexes, positions_of(response), strict=True):
            positions[index] = position
    return positions


def closed_outbound_future(target: str) -> "asyncio.Future[Receipt]":
    """Return a failed future, for a send to a closed outbound. `target` names the topic in the error: "topic 'a'"."""
    future: asyncio.Future[Receipt] = asyncio.get_running_loop().create_future()
    future.set_exception(ClusterError(f"the outbound into {target} is closed", Failure.FATAL))
    return future


def refused_whole(count: int, failures: Sequence[MessageFailure]) -> Receipt:
    """Return the receipt of a share of `count` messages that is refused as a whole (`OutboundSpec.whole_shares`).

    `failures` are those of the messages that cannot be stored; the others get a failure that names the first of them.
    """
    first, by_index = failures[0], {failure.index: failure for failure in failures}
    reason = f"message {first.index} of its batch cannot be stored, and the batch is stored whole or not at all: {first.reason}"
    return Receipt(
        [()] * count, [by_index.get(index) or MessageFailure(index, Failure.REFUSED, reason) for index in range(count)]
    )
