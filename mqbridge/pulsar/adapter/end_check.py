"""Checks whether a lane has reached the end of its topic: requests the newest entry id while reading continues."""

import asyncio
import logging

from mqbridge.errors import ClusterError
from mqbridge.message import Partition
from mqbridge.net.connectivity import retry_log_level
from mqbridge.net.tasks import spawn
from mqbridge.pulsar.client.consumer.entry_consumer import EntryConsumer

log = logging.getLogger(__name__)

MIN_INTERVAL_S = 0.05
"""Minimum interval between two requests, in seconds. Measured on a topic whose messages arrived one by one, with short
pauses: without this limit, these checks were half of all requests to the broker."""
REDELIVERY_WAIT_S = 1.0
"""Time to wait for a redelivery before the next request, in seconds. The newest entry id does not tell whether redeliveries are
still to come, and on a shared subscription another member may receive them."""


class EndCheck:
    """End-of-topic check of one lane."""

    def __init__(self, partition: Partition, consumer: EntryConsumer) -> None:
        self._reached_in = 0
        """The consumer's subscribe number (`registrations`) when the broker reported no further entry; 0 if it did not."""
        self._partition, self._consumer = partition, consumer
        self._loop = asyncio.get_running_loop()
        self._version = 0
        """Incremented by `invalidate`; a response to a request of an older version is ignored."""
        self._next_request_at = 0.0
        """Loop time before which no request is sent."""
        self._request_task: asyncio.Task[None] | None = None

    @property
    def reached(self) -> bool:
        """True if the broker reported no further entry, none has arrived since, and the consumer has kept its connection."""
        return self._consumer.is_subscribed and self._reached_in == self._consumer.registrations

    def invalidate(self) -> None:
        """Forget the result, because an entry arrived or the read position changed."""
        self._reached_in = 0
        self._version += 1

    def expect_redelivery(self, delay_s: float) -> None:
        """Forget the result, because an entry will be redelivered after this delay; send no request before that."""
        self.invalidate()
        self._next_request_at = max(self._next_request_at, self._loop.time() + delay_s + REDELIVERY_WAIT_S)

    def check(self) -> float | None:
        """Start a request, unless one is running or the end is reached.

        Return the seconds to wait if it is too early for the next request, otherwise None. Call this while the receiver queue is
        empty. Raises an unexpected error of the previous request; a ClusterError was only logged.
        """
        if self.reached or (self._request_task is not None and not self._request_task.done()):
            return None
        if self._request_task is not None and not self._request_task.cancelled():
            self._request_task.result()
        if (pause := self._next_request_at - self._loop.time()) > 0:
            return pause
        self._request_task = spawn(self._request_end(self._version), f"end check of {self._partition}")
        return None

    async def _request_end(self, version: int) -> None:
        """Request the newest entry id and set `reached`; `version` is the version when the request was started."""
        try:
            is_stale = not await self._update(version)
        except ClusterError as error:  # only logged: if it ended the consumer, `PulsarLane.receive` raises it
            log.log(
                retry_log_level(error, logging.INFO),
                "partition %s: cannot find out whether all entries were read, checking again later: %s",
                self._partition,
                error,
            )
        except Exception:  # the woken lane calls `check`, which raises the error
            self._consumer.wake()
            raise
        else:
            if self.reached or is_stale:  # the woken lane repeats a stale request at once, not at its next regular check
                self._consumer.wake()
        finally:
            self._next_request_at = max(self._next_request_at, self._loop.time() + MIN_INTERVAL_S)

    async def confirm(self) -> bool:
        """Request the newest entry id again; return True if the end was reached before, and still is.

        The request is sent in any case, because it raises ClusterError if the broker cannot be asked.
        """
        if self.reached:
            await self._update(self._version)
            return self.reached
        await self._consumer.has_more()
        return False

    async def _update(self, version: int) -> bool:
        """Request the newest entry id and set the result; return False without effect if `version` is outdated by then."""
        registrations = self._consumer.registrations
        has_more = await self._consumer.has_more()
        if version != self._version:
            return False
        self._reached_in = 0 if has_more or self._consumer.queued else registrations
        return True

    def stop(self) -> None:
        """Cancel a running request."""
        if self._request_task is not None:
            self._request_task.cancel()
