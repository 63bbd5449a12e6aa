"""Asking a cluster again while its failure is one that may pass: an exception in the source's process would end the query."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import TypeVar

from mqbridge.errors import ClusterError, Failure, RequestTimeout
from mqbridge.net.backoff import Backoff

T = TypeVar("T")
log = logging.getLogger(__name__)

ATTEMPT_S = 60.0
"""One question; adapters have shorter deadlines of their own."""
AWAY_S = 60.0
"""For how long partitions may be missing: longer than a server needs to restart, short of what people wait for an error."""
GONE_S = 3600.0
"""What is missing for so long while its cluster answers was deleted. Not less: what is given up too early is lost."""


class Patience:
    """Waits between attempts until `retry_s` have passed since the last one that worked. On an event loop only."""

    def __init__(self, retry_s: float) -> None:
        self._retry_s = retry_s
        self._backoff = Backoff()
        self._since: float | None = None

    def worked(self) -> None:
        """The time begins anew."""
        self._since = None
        self._backoff.reset()

    async def wait(self, error: ClusterError, what: str) -> None:
        """Before the next attempt. Raises the error when no other attempt helps, or the time is over."""
        if error.failure not in (Failure.RETRY, Failure.REFRESH):
            raise error
        now = asyncio.get_running_loop().time()
        self._since = now if self._since is None else self._since
        if now - self._since >= self._retry_s:
            raise ClusterError(f"{what} failed for {self._retry_s:g} s (retryTimeout): {error}", error.failure) from error
        delay = self._backoff.delay()
        log.warning("%s failed, trying again in %.1f s: %s", what, delay, error)
        await asyncio.sleep(delay)


async def persist(attempt: Callable[[], Awaitable[T]], retry_s: float, what: str) -> T:
    """The result of the first attempt that works. Raises ClusterError."""
    patience = Patience(retry_s)
    while True:
        try:
            async with asyncio.timeout(ATTEMPT_S):
                return await attempt()
        except TimeoutError:
            error: ClusterError = RequestTimeout(f"no answer within {ATTEMPT_S:g} s")
        except ClusterError as raised:
            error = raised
        await patience.wait(error, what)
