"""Nothing can be stored in a queue: since when, when to try again, and whether that was told."""

import asyncio
import logging
from collections.abc import Callable

from mqbridge.errors import MqbridgeError, ServerRefused
from mqbridge.net.backoff import Backoff
from mqbridge.net.connectivity import Connectivity
from mqbridge.rocketmq.wire.codes import Status

log = logging.getLogger(__name__)

FIRST_RETRY_S = 0.02
MOST_RETRY_S = 5.0
"""An overloaded broker takes sends again within milliseconds; one that restarts needs seconds."""
AVOID_S = 5.0
"""How long a queue that failed is not chosen for messages that may go to any."""


class SendOutage:
    """From a queue's first failure to the next message that is stored; `name` is the queue's, for people."""

    def __init__(self, name: str, max_elapsed_s: float | None, connectivity: Connectivity) -> None:
        self._name, self._max_elapsed_s, self._connectivity = name, max_elapsed_s, connectivity
        self._time: Callable[[], float] = asyncio.get_running_loop().time
        self._backoff = Backoff(FIRST_RETRY_S, MOST_RETRY_S)
        self._since: float | None = None
        self._avoid_until = 0.0
        self._told = False

    @property
    def is_recent(self) -> bool:
        """Whether something failed in the last seconds, and nothing was stored since."""
        return self._avoid_until > self._time()

    def failed(self) -> bool:
        """One more failure; whether nothing was stored for as long as is allowed."""
        now = self._time()
        self._avoid_until = now + AVOID_S
        if self._since is None:
            self._since = now
        return self._max_elapsed_s is not None and now - self._since >= self._max_elapsed_s

    def reported(self) -> None:
        """What waited has failed; what is sent later gets the whole time anew."""
        self._since = None

    def stored(self) -> None:
        """A message was stored."""
        if self._since is not None:
            self._since, self._avoid_until, self._told = None, 0.0, False
            self._backoff.reset()

    async def wait(self, error: MqbridgeError) -> None:
        """Pause before the next try. Says why once per outage; a broker that is busy, or away with its cluster, is no news."""
        level = logging.DEBUG if self._told or is_busy(error) else self._connectivity.level_of(error, logging.WARNING)
        self._told |= level > logging.DEBUG
        log.log(level, "sending to %s goes on later: %s", self._name, error)
        await asyncio.sleep(self._backoff.delay())


def is_busy(error: MqbridgeError) -> bool:
    """Whether the broker has too much to do for the moment."""
    return isinstance(error, ServerRefused) and error.code == Status.SYSTEM_BUSY
