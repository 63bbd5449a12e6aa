"""Futures between a producer and its caller: each passes the result on in another iteration of the event loop."""

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


def layered_aggregator(layers: int, responses: "list[asyncio.Future[Any]]") -> type[ReceiptAggregator]:
    """Return a `ReceiptAggregator` that gets its responses through more futures, and adds each to `responses`."""

    class LayeredAggregator(ReceiptAggregator):
        def add_request(self, response: "asyncio.Future[Any]", indexes: Any, positions_of: PositionsOf) -> None:
            responses.append(response)
            super().add_request(chained(response, layers), indexes, positions_of)

    return LayeredAggregator


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
