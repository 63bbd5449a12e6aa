"""Detector of stalled subscriptions: the broker delivers nothing although the topic has further entries.

Brokers have been seen to stall a failover subscription when its active consumer changes: although the consumer has granted
permits and the topic has messages, the broker delivers nothing until a new SUBSCRIBE. A waiting consumer cannot distinguish a
stall from an idle topic by itself. So it periodically requests the id of the topic's last entry; if it has not received that
entry, it subscribes again.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable

from mqbridge.errors import ClusterError, ProtocolError
from mqbridge.net.connectivity import retry_log_level
from mqbridge.net.tasks import cancel, spawn
from mqbridge.pulsar.client.consumer.consumer_state import ConsumerState
from mqbridge.pulsar.wire.ids import EntryId

log = logging.getLogger(__name__)

MAX_INTERVAL_S = 300.0
"""The interval between checks of an idle topic doubles up to this many seconds, or stays at `silence_s` if that is longer."""


class StallDetector:
    """Stall detector of one consumer, active from the first `schedule_check` until the consumer's `state` is over.

    `name` is the topic and the subscription, for log lines. A check requests the topic's last entry if no entry has arrived
    during an interval, which is `silence_s` seconds at first. `can_receive` returns True if the broker could deliver an entry
    now. `find_unreceived` returns the topic's last entry, or None if nothing is left to receive. `resubscribe` sends a new
    SUBSCRIBE; it is called at most once for the same last entry.
    """

    def __init__(
        self,
        name: str,
        silence_s: float,
        state: ConsumerState,
        can_receive: Callable[[], bool],
        find_unreceived: Callable[[], Awaitable[EntryId | None]],
        resubscribe: Callable[[], None],
    ) -> None:
        self.has_news = True
        """True if an entry has arrived, or this consumer has become active, since the last check; set by the consumer."""
        self.stalls = 0
        """Number of detected stalls."""
        self._name, self._silence_s = name, silence_s
        self._state = state
        self._can_receive, self._find_unreceived = can_receive, find_unreceived
        self._resubscribe = resubscribe
        self._interval_s = silence_s
        """Seconds from one check to the next; `silence_s` again once there was news."""
        self._resubscribed_for: EntryId | None = None
        """The topic's last entry when `resubscribe` was called last; None before the first call."""
        self._timer: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[None] | None = None

    def schedule_check(self) -> None:
        """Schedule the next check after the current interval, unless the consumer is over."""
        if not self._state.is_over:
            self._timer = asyncio.get_running_loop().call_later(self._interval_s, self._on_timer)

    def stop(self) -> None:
        """Cancel the next check; a check in progress continues unless `close` cancels it."""
        if self._timer is not None:
            self._timer.cancel()

    async def close(self) -> None:
        """Cancel the next check, and a check in progress."""
        self.stop()
        await cancel(self._task)

    def _on_timer(self) -> None:
        """Begin a check; if there was news or no entry could arrive, wait for the shortest interval again instead."""
        had_news, self.has_news = self.has_news, False
        if had_news or not self._can_receive():
            self._interval_s = self._silence_s
            self.schedule_check()
        else:
            self._task = spawn(self._check(), f"stall check of {self._name}")

    async def _check(self) -> None:
        try:
            last = await self._find_unreceived()
        except (ClusterError, ProtocolError) as error:
            log.log(
                retry_log_level(error, logging.INFO),
                "topic %s: no entry has arrived, and requesting the topic's last entry failed, trying again in %g s: %s",
                self._name,
                self._interval_s,
                error,
            )
        else:
            self._evaluate(last)
        self.schedule_check()

    def _evaluate(self, last: EntryId | None) -> None:
        """Subscribe again if the topic's `last` entry was not received.

        Check less often if nothing is left to receive (`last` is None), or if subscribing again for this entry did not help.
        """
        if self.has_news or not self._can_receive():  # changed during the request
            return
        if last is None or last == self._resubscribed_for:
            self._interval_s = min(2 * self._interval_s, max(MAX_INTERVAL_S, self._silence_s))
            return
        log.warning(
            "topic %s: no entry has arrived for %g s, although the topic has entries up to %s: subscribing again",
            self._name,
            self._interval_s,
            last,
        )
        self._resubscribed_for = last
        self.stalls += 1
        self._resubscribe()
