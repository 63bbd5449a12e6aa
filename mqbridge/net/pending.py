"""Pending requests of a connection, with one timer for all deadlines.

A timer or a task per request would be slower. Deadlines are checked every SWEEP_S, so a request may time out that much later than
its deadline.
"""

import asyncio
from collections.abc import Hashable
from typing import Generic, TypeVar

from mqbridge.errors import LocalProtocolError, RequestTimeout

SWEEP_S = 0.25
"""Interval of the timer that checks all deadlines."""

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class Pending(Generic[K, V]):
    """Futures of the responses, by request id. Created and used inside a running loop; `peer` names the server in errors."""

    def __init__(self, peer: str) -> None:
        self._peer = peer
        self._requests: dict[K, tuple[asyncio.Future[V], float, str]] = {}
        """Future, deadline (loop time) and name of each request, by id."""
        self._timer: asyncio.TimerHandle | None = None
        """The timer of the next sweep; None without requests."""
        self._loop = asyncio.get_running_loop()

    def __len__(self) -> int:
        return len(self._requests)

    def add(self, key: K, request_name: str, timeout: float) -> "asyncio.Future[V]":
        """Return a future for the response to the request with id `key`; `request_name` is for errors.

        The future fails with RequestTimeout if no response arrives within `timeout` seconds, plus at most SWEEP_S.

        Raises LocalProtocolError if a request with this id is pending already.
        """
        if key in self._requests:
            raise LocalProtocolError(f"request id {key!r} is already pending at {self._peer}")
        loop = self._loop
        future: asyncio.Future[V] = loop.create_future()
        self._requests[key] = (future, loop.time() + timeout, request_name)
        if self._timer is None:
            self._timer = loop.call_later(SWEEP_S, self._sweep)
        return future

    def resolve(self, key: K, value: V) -> bool:
        """Complete a request with its response; return False if it is no longer pending."""
        entry = self._requests.pop(key, None)
        if entry is None or entry[0].done():
            return False
        entry[0].set_result(value)
        return True

    def reject(self, key: K, error: Exception) -> bool:
        """Fail one request; return False if it is no longer pending."""
        entry = self._requests.pop(key, None)
        if entry is None or entry[0].done():
            return False
        entry[0].set_exception(error)
        return True

    def fail_all(self, error: Exception) -> None:
        """Fail every pending request with the error that ended the connection."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        requests, self._requests = self._requests, {}
        for future, _, _ in requests.values():
            if not future.done():
                future.set_exception(error)

    def _sweep(self) -> None:
        """Fail the requests whose deadline has passed, and remove those whose callers have given up (cancelled futures)."""
        loop = self._loop
        now = loop.time()
        finished = [key for key, (future, deadline, _) in self._requests.items() if deadline <= now or future.done()]
        for key in finished:
            future, _, request_name = self._requests.pop(key)
            if not future.done():
                future.set_exception(RequestTimeout(f"{self._peer} did not answer {request_name} in time"))
        self._timer = loop.call_later(SWEEP_S, self._sweep) if self._requests else None
