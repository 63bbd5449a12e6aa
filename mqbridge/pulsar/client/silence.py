"""A subscription that goes silent although its topic goes on.

Brokers have been seen to strand a failover subscription when its active consumer changes: they have credit and messages, and
deliver none until somebody subscribes anew. A consumer that waits cannot tell this from an idle topic, so now and then it asks.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable

from mqbridge.errors import ClusterError, ProtocolError
from mqbridge.net.connectivity import level_of
from mqbridge.net.tasks import cancel, spawn
from mqbridge.pulsar.wire.ids import EntryId

log = logging.getLogger(__name__)

MOST_S = 300.0
"""The longest time between two questions about an idle topic."""


class SilenceWatch:
    """Of one consumer, from `begin` to `end`. A place up to which one new subscription brought nothing is no reason for another.

    `listens` says whether an entry could come now, `beyond` gives the topic's last entry if it was not received yet, and `resume`
    subscribes anew.
    """

    def __init__(
        self,
        topic: str,
        silence_s: float,
        listens: Callable[[], bool],
        beyond: Callable[[], Awaitable[EntryId | None]],
        resume: Callable[[], None],
    ) -> None:
        self.heard = True
        """Something has come since the last look."""
        self.resumed = 0
        """How often the subscription was found stranded."""
        self._topic, self._silence_s = topic, silence_s
        self._listens, self._beyond, self._resume = listens, beyond, resume
        self._wait_s = silence_s
        self._in_vain: EntryId | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[None] | None = None
        self._over = False

    def begin(self) -> None:
        """Look from now on."""
        if not self._over:
            self._timer = asyncio.get_running_loop().call_later(self._wait_s, self._look)

    def end(self) -> None:
        """Look no more."""
        self._over = True
        if self._timer is not None:
            self._timer.cancel()

    async def stop(self) -> None:
        """The same, and wait for a question that is on its way."""
        self.end()
        await cancel(self._task)

    def _look(self) -> None:
        heard, self.heard = self.heard, False
        if heard or not self._listens():
            self._wait_s = self._silence_s
            self.begin()
        else:
            self._task = spawn(self._ask(), f"silence of {self._topic}")

    async def _ask(self) -> None:
        try:
            last = await self._beyond()
        except (ClusterError, ProtocolError) as error:
            log.log(level_of(error, logging.INFO), "%s is silent, and its end is not known: %s", self._topic, error)
        else:
            self._judge(last)
        self.begin()

    def _judge(self, last: EntryId | None) -> None:
        if self.heard or not self._listens():
            return
        if last is None or last == self._in_vain:
            self._wait_s = min(2 * self._wait_s, max(MOST_S, self._silence_s))
            return
        log.warning(
            "%s: nothing has come for %g s, but the topic goes on to %s: subscribing anew", self._topic, self._wait_s, last
        )
        self._in_vain = last
        self.resumed += 1
        self._resume()
