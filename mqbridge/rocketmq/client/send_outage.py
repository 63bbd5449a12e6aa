"""Outage of one queue: its begin, the backoff between retries, and one warning per outage."""

import asyncio
import logging
from collections.abc import Callable

from mqbridge.errors import MqbridgeError, ServerRefused
from mqbridge.net.backoff import Backoff
from mqbridge.net.connectivity import Connectivity
from mqbridge.rocketmq.wire.codes import Status

log = logging.getLogger(__name__)

FIRST_RETRY_S = 0.02
MAX_RETRY_S = 5.0
"""An overloaded broker accepts sends again within milliseconds; a restarting broker needs seconds."""
AVOID_S = 5.0
"""How long a failed queue is not chosen for messages that may go to any queue."""


class SendOutage:
    """Lasts from a queue's first failure to the next stored message; `name` is the queue's label."""

    def __init__(self, name: str, max_elapsed_s: float | None, connectivity: Connectivity) -> None:
        self._name, self._max_elapsed_s, self._connectivity = name, max_elapsed_s, connectivity
        self._time: Callable[[], float] = asyncio.get_running_loop().time
        self._backoff = Backoff(FIRST_RETRY_S, MAX_RETRY_S)
        self._since: float | None = None
        self._avoid_until = 0.0
        self._warned = False

    @property
    def is_recent(self) -> bool:
        """True if a send failed in the last seconds and none was stored since."""
        return self._avoid_until > self._time()

    def failed(self) -> bool:
        """Record a failure; return True if nothing was stored for the allowed time."""
        now = self._time()
        self._avoid_until = now + AVOID_S
        if self._since is None:
            self._since = now
        return self._max_elapsed_s is not None and now - self._since >= self._max_elapsed_s

    def reported(self) -> None:
        """Waiting sends have failed; later sends get the whole time again."""
        self._since = None

    def stored(self) -> None:
        """A message was stored."""
        if self._since is not None:
            self._since, self._avoid_until, self._warned = None, 0.0, False
            self._backoff.reset()

    async def wait(self, error: MqbridgeError) -> None:
        """Pause before the next try. Warns once per outage, but not of a busy broker or a cluster that is away."""
        level = logging.DEBUG if self._warned or is_busy(error) else self._connectivity.level_of(error, logging.WARNING)
        self._warned |= level > logging.DEBUG
        log.log(level, "send to %s failed, retrying later: %s", self._name, error)
        await asyncio.sleep(self._backoff.delay())


def is_busy(error: MqbridgeError) -> bool:
    """Return True if the broker is overloaded."""
    return isinstance(error, ServerRefused) and error.code == Status.SYSTEM_BUSY
