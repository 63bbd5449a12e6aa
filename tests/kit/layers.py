"""Layers between a producer and its caller: each passes a result on in another iteration of the event loop."""

import asyncio
from collections.abc import Callable
from typing import Any

from mqbridge.adapter.tools.receipts import PositionsOf, ReceiptAggregator


def chained(future: "asyncio.Future[Any]", layers: int) -> "asyncio.Future[Any]":
    """Return a future with the result of `future`, which passes through this number of futures."""
    for _ in range(layers):
        outer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        future.add_done_callback(lambda inner, outer=outer: _pass_on(inner, outer))
        future = outer
    return future


def _pass_on(inner: "asyncio.Future[Any]", outer: "asyncio.Future[Any]") -> None:
    error = inner.exception()
    if outer.done():
        return
    if error is None:
        outer.set_result(inner.result())
    else:
        outer.set_exception(error)


class LayeredAggregator(ReceiptAggregator):
    """A `ReceiptAggregator` that gets the responses through more futures."""

    layers = 0
    """Number of futures between a response and the aggregator."""

    def add_request(self, response: "asyncio.Future[Any]", indexes: Any, positions_of: PositionsOf) -> None:
        super().add_request(chained(response, self.layers), indexes, positions_of)


def send_until_told(
    told: "asyncio.Future[Any]", failed: "asyncio.Future[Any]", send: Callable[[], "asyncio.Future[Any]"]
) -> "list[asyncio.Future[Any]]":
    """Call `send` in each iteration of the event loop from the end of `failed` to that of `told`; return the growing results.

    `send` stands for other callers, which do not know of the failure.
    """
    late: list[asyncio.Future[Any]] = []
    loop = asyncio.get_running_loop()

    def send_again(*_: Any) -> None:
        if not told.done():
            late.append(send())
            loop.call_soon(send_again)

    failed.add_done_callback(send_again)
    return late
