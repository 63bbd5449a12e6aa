"""Retries requests to a cluster after transient failures, because an error while Spark plans a batch would end the query."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import TypeVar

from mqbridge.errors import ClusterError, Failure, RequestTimeout
from mqbridge.net.backoff import Backoff

T = TypeVar("T")
log = logging.getLogger(__name__)

ATTEMPT_TIMEOUT_S = 60.0
"""Timeout of one attempt, for attempts that hang: the timeouts of the adapters are shorter."""
RESTART_TIMEOUT_S = 60.0
"""How long the planning of a batch waits for missing partitions before the query fails; less if `retryTimeout` is shorter.

Longer than a server restart, but a user can wait for it.
"""
DELETED_TIMEOUT_S = 3600.0
"""A task, and a query with failOnDataLoss=false, treat a partition that is missing for this time as deleted.

A shorter `retryTimeout` applies instead. Long, because a partition that is skipped too early loses its unread messages.
"""


class RetryTimer:
    """Waits between attempts, and raises an error if all attempts have failed for `retry_s` seconds. Needs a running loop."""

    def __init__(self, retry_s: float) -> None:
        self._retry_s = retry_s
        self._backoff = Backoff()
        self._failing_since: float | None = None
        """Loop time of the first failure since the last success; None if none has failed since then."""

    def reset(self) -> None:
        """Record a success: the next failure starts a new period of `retry_s`."""
        self._failing_since = None
        self._backoff.reset()

    async def wait(self, error: ClusterError, operation: str) -> None:
        """Wait before the next attempt. Raises `error` at once unless it is transient, and ClusterError after `retry_s`.

        `operation` names what failed, in the log line and the error, as in "listing topics in cluster 'main'".
        """
        if error.failure not in (Failure.RETRY, Failure.REFRESH):
            raise error
        now = asyncio.get_running_loop().time()
        self._failing_since = now if self._failing_since is None else self._failing_since
        if now - self._failing_since >= self._retry_s:
            raise ClusterError(f"{operation} failed for {self._retry_s:g} s (retryTimeout): {error}", error.failure) from error
        delay = self._backoff.delay()
        log.warning("%s failed, retrying in %.1f s: %s", operation, delay, error)
        await asyncio.sleep(delay)


async def request_with_retries(attempt: Callable[[], Awaitable[T]], retry_s: float, operation: str) -> T:
    """Return the result of the first successful attempt. Retries as `RetryTimer.wait` does, and raises its errors."""
    retry_timer = RetryTimer(retry_s)
    while True:
        try:
            async with asyncio.timeout(ATTEMPT_TIMEOUT_S):
                return await attempt()
        except TimeoutError:
            error: ClusterError = RequestTimeout(f"no response within {ATTEMPT_TIMEOUT_S:g} s")
        except ClusterError as raised:
            error = raised
        await retry_timer.wait(error, operation)
