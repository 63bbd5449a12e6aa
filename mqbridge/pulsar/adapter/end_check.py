"""End-of-topic check of a lane: asks the broker for the newest entry while reading continues."""

import asyncio
import logging

from mqbridge.errors import ClusterError
from mqbridge.message import Partition
from mqbridge.net.connectivity import level_of
from mqbridge.net.tasks import spawn
from mqbridge.pulsar.client.entry_consumer import EntryConsumer

log = logging.getLogger(__name__)

MIN_INTERVAL_S = 0.05
"""Minimum interval between two requests, in seconds. With single messages and pauses between them, a request for each pause was
half of all requests."""
REDELIVERY_WAIT_S = 1.0
"""Wait for a redelivery before the next request, in seconds: the newest entry does not show redeliveries, and on a shared
subscription another member may get them."""


class EndCheck:
    """End-of-topic check of one lane. `reached` is True if the broker had no further entry and none has arrived since."""

    def __init__(self, partition: Partition, consumer: EntryConsumer) -> None:
        self.reached = False
        self._partition, self._consumer = partition, consumer
        self._loop = asyncio.get_running_loop()
        self._version = 0
        """Incremented by `invalidate`."""
        self._next_request_at = 0.0
        self._request: asyncio.Task[None] | None = None

    def invalidate(self) -> None:
        """Forget the result, because an entry arrived or the read position changed."""
        self.reached = False
        self._version += 1

    def expect_redelivery(self, delay_s: float) -> None:
        """Forget the result, because an entry will be redelivered after this delay."""
        self.invalidate()
        self._next_request_at = max(self._next_request_at, self._loop.time() + delay_s + REDELIVERY_WAIT_S)

    def check(self) -> float | None:
        """Start a request unless one is running; return the seconds to wait if the last one was a moment ago.

        Call it when no entry waits. Raises the unexpected error of the previous request (not a cluster's error).
        """
        if self.reached or (self._request is not None and not self._request.done()):
            return None
        if self._request is not None and not self._request.cancelled():
            self._request.result()
        if (pause := self._next_request_at - self._loop.time()) > 0:
            return pause
        self._request = spawn(self._ask(self._version), f"end check of {self._partition}")
        return None

    async def _ask(self, version: int) -> None:
        """Ask the broker; `version` is the version when the request was started."""
        try:
            has_more = await self._consumer.has_more()
        except ClusterError as error:  # `receive` raises the error that ends the consumer
            log.log(level_of(error, logging.INFO), "%s: %s", self._partition, error)
        except Exception:
            self._consumer.wake()
            raise
        else:
            is_stale = version != self._version
            self.reached = not (has_more or is_stale or self._consumer.waiting)
            if self.reached or is_stale:  # wake the reader, which repeats a stale request sooner than by its timeout
                self._consumer.wake()
        finally:
            self._next_request_at = max(self._next_request_at, self._loop.time() + MIN_INTERVAL_S)

    def stop(self) -> None:
        """Cancel a running request."""
        if self._request is not None:
            self._request.cancel()
