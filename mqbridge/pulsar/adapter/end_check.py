"""Whether a lane is at the end of its topic: the broker is asked for its newest entry, and reading goes on meanwhile."""

import asyncio
import logging

from mqbridge.errors import ClusterError
from mqbridge.message import Partition
from mqbridge.net.connectivity import level_of
from mqbridge.net.tasks import spawn
from mqbridge.pulsar.client.consumer import Consumer

log = logging.getLogger(__name__)

ASK_EVERY_S = 0.05
"""How often the broker is asked at most. Where messages come one after the other with pauses, a request for each pause was half
of all requests."""
AGAIN_S = 1.0
"""How long what is to come again is waited for before the broker is asked: the newest entry says nothing of it, and on a shared
subscription it may come to another member."""


class EndCheck:
    """Of one lane. `reached` is what the broker last said, and nothing has come since."""

    def __init__(self, partition: Partition, consumer: Consumer) -> None:
        self.reached = False
        self._partition, self._consumer = partition, consumer
        self._loop = asyncio.get_running_loop()
        self._moves = 0
        self._ask_at = 0.0
        self._asking: asyncio.Task[None] | None = None

    def moved(self) -> None:
        """Something came, or the place to read from is another one."""
        self.reached = False
        self._moves += 1

    def comes_again(self, delay_s: float) -> None:
        """Something is to be delivered again after this time."""
        self.moved()
        self._ask_at = max(self._ask_at, self._loop.time() + delay_s + AGAIN_S)

    def look(self) -> float | None:
        """Nothing waits: ask, unless that is under way. The seconds until it may be asked where that was done a moment ago.

        Raises what asking ended by, where that was no error of the cluster.
        """
        if self.reached or (self._asking is not None and not self._asking.done()):
            return None
        if self._asking is not None and not self._asking.cancelled():
            self._asking.result()
        if (pause := self._ask_at - self._loop.time()) > 0:
            return pause
        self._asking = spawn(self._ask(self._moves), f"the end of {self._partition}")
        return None

    async def _ask(self, moves: int) -> None:
        """`moves` is their number when this was to be asked."""
        try:
            has_more = await self._consumer.has_more()
        except ClusterError as error:  # what ends the consumer is told to who reads
            log.log(level_of(error, logging.INFO), "%s: %s", self._partition, error)
        except Exception:
            self._consumer.wake()
            raise
        else:
            is_stale = moves != self._moves
            self.reached = not (has_more or is_stale or self._consumer.waiting)
            if self.reached or is_stale:  # a stale answer is asked for again, sooner than who reads would look
                self._consumer.wake()
        finally:
            self._ask_at = max(self._ask_at, self._loop.time() + ASK_EVERY_S)

    def stop(self) -> None:
        """Ask no more."""
        if self._asking is not None:
            self._asking.cancel()
