"""Tracks the outage of one queue, from its first failed send to the next stored message."""

import asyncio
import logging
from collections.abc import Callable

from mqbridge.errors import MqbridgeError, ServerRefused
from mqbridge.net.backoff import Backoff
from mqbridge.net.connectivity import Connectivity
from mqbridge.net.failing_sends import FailingSends
from mqbridge.rocketmq.wire.codes import Status

log = logging.getLogger(__name__)

MIN_RETRY_S = 0.02
"""Pause before the first retry. An overloaded broker accepts sends again within milliseconds."""
MAX_RETRY_S = 5.0
"""Longest pause between retries. A restarting broker needs seconds."""
AVOID_S = 5.0
"""For this time after a failure, a queue is not chosen for messages that may go to any queue."""


class SendOutage:
    """The outage of one queue, if there is one now: its duration, the pauses between retries, and one warning per outage.

    `name` is the queue's label. After `max_elapsed_s` without a stored message, waiting sends fail (None: never).
    """

    def __init__(self, name: str, max_elapsed_s: float | None, connectivity: Connectivity) -> None:
        self._name, self._max_elapsed_s, self._connectivity = name, max_elapsed_s, connectivity
        self._time: Callable[[], float] = asyncio.get_running_loop().time
        self._backoff = Backoff(MIN_RETRY_S, MAX_RETRY_S)
        self.failing = FailingSends()
        """The failures since a message was stored."""
        self._since: float | None = None
        """Loop time of the first failure, or of the first one after `restart_time_limit`; None without an outage."""
        self._avoid_until = 0.0
        """Loop time until which `is_recent` is true; 0 if no send has failed since the last success."""
        self._warned = False
        """True once an error of this outage was logged as a warning (or at the level that `Connectivity` chose)."""

    @property
    def is_recent(self) -> bool:
        """True if a send failed in the last AVOID_S seconds and none was stored since."""
        return self._avoid_until > self._time()

    def record_failure(self) -> bool:
        """Record a failed send; return True if nothing was stored for `max_elapsed_s`, so that waiting sends must fail."""
        now = self._time()
        self._avoid_until = now + AVOID_S
        if self._since is None:
            self._since = now
        return self._max_elapsed_s is not None and now - self._since >= self._max_elapsed_s

    def restart_time_limit(self) -> None:
        """Start `max_elapsed_s` again at the next failure: all waiting sends have failed, and new sends get the whole time."""
        self._since = None

    def record_success(self) -> None:
        """Record that a message was stored, which ends the outage."""
        if self._avoid_until > 0.0:  # a send has failed since the last success; `restart_time_limit` clears only `_since`
            self._since = None
            self._avoid_until = 0.0
            self._warned = False
            self._backoff.reset()
            self.failing.clear()

    async def wait(self, error: MqbridgeError) -> None:
        """Log the error and pause before the next retry.

        Only the first error of an outage is a warning. There is none while the broker is only busy, or while the cluster has an
        outage that `Connectivity` logs.
        """
        level = logging.DEBUG if self._warned or is_busy(error) else self._connectivity.retry_log_level(error, logging.WARNING)
        self._warned |= level > logging.DEBUG
        delay_s = self._backoff.delay()
        log.log(level, "a send to queue %s failed, retrying in %.2f s: %s", self._name, delay_s, error)
        await asyncio.sleep(delay_s)


def is_busy(error: MqbridgeError) -> bool:
    """Return True if the broker refused the send because it is overloaded."""
    return isinstance(error, ServerRefused) and error.code == Status.SYSTEM_BUSY
