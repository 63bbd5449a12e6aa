"""Detects a stalled subscription: the broker delivers nothing although the topic has further entries.

Brokers have been seen to stall a failover subscription when its active consumer changes: they have permits and messages, but
deliver nothing until a new SUBSCRIBE. A waiting consumer cannot distinguish this from an idle topic, so it asks periodically.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable

from mqbridge.errors import ClusterError, ProtocolError
from mqbridge.net.connectivity import level_of
from mqbridge.net.tasks import cancel, spawn
from mqbridge.pulsar.wire.ids import EntryId

log = logging.getLogger(__name__)

MAX_INTERVAL_S = 300.0
"""Maximum interval between two requests about an idle topic, in seconds."""


class StallDetector:
    """Stall detector of one consumer, from `begin` to `end`. Subscribes again at most once for the same last entry of the topic.

    `is_listening` returns True if an entry could arrive now, `last_unreceived` returns the topic's last entry if it was not
    received yet, and `resubscribe` subscribes again.
    """

    def __init__(
        self,
        topic: str,
        silence_s: float,
        is_listening: Callable[[], bool],
        last_unreceived: Callable[[], Awaitable[EntryId | None]],
        resubscribe: Callable[[], None],
    ) -> None:
        self.heard = True
        """True if an entry or notice has arrived since the last check."""
        self.resumed = 0
        """Number of detected stalls."""
        self._topic, self._silence_s = topic, silence_s
        self._is_listening, self._last_unreceived, self._resubscribe = is_listening, last_unreceived, resubscribe
        self._interval_s = silence_s
        self._resubscribed_for: EntryId | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[None] | None = None
        self._ended = False

    def begin(self) -> None:
        """Start the periodic check."""
        if not self._ended:
            self._timer = asyncio.get_running_loop().call_later(self._interval_s, self._check)

    def end(self) -> None:
        """End the check."""
        self._ended = True
        if self._timer is not None:
            self._timer.cancel()

    async def stop(self) -> None:
        """End the check, and cancel a running request."""
        self.end()
        await cancel(self._task)

    def _check(self) -> None:
        heard, self.heard = self.heard, False
        if heard or not self._is_listening():
            self._interval_s = self._silence_s
            self.begin()
        else:
            self._task = spawn(self._ask(), f"stall check of {self._topic}")

    async def _ask(self) -> None:
        try:
            last = await self._last_unreceived()
        except (ClusterError, ProtocolError) as error:
            log.log(level_of(error, logging.INFO), "%s is silent, and its last entry is unknown: %s", self._topic, error)
        else:
            self._evaluate(last)
        self.begin()

    def _evaluate(self, last: EntryId | None) -> None:
        if self.heard or not self._is_listening():
            return
        if last is None or last == self._resubscribed_for:
            self._interval_s = min(2 * self._interval_s, max(MAX_INTERVAL_S, self._silence_s))
            return
        log.warning(
            "%s: no entry for %g s, although the topic has entries up to %s: subscribing again",
            self._topic,
            self._interval_s,
            last,
        )
        self._resubscribed_for = last
        self.resumed += 1
        self._resubscribe()
