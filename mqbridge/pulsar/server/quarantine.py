"""Messages that cannot be sent to clients: they are stored in the listener's dead-letter topic, and then acknowledged.

A subscription hands them over as it takes them from its feed, so that they are never delivered, and delay no others. While the
dead-letter topic cannot be written, they wait and are tried again. A reader only skips them: it has no position that would tell
the next reader that they have been stored.
"""

import asyncio
import logging
from collections.abc import Sequence

from mqbridge.adapter.receipt import MessageFailure
from mqbridge.errors import ClusterError, Failure
from mqbridge.listener.delivered import Delivered
from mqbridge.listener.server import OpenDeadLetters
from mqbridge.message import Message
from mqbridge.net.tasks import spawn
from mqbridge.pulsar.server.entries import defect_of
from mqbridge.pulsar.server.subscription_feeds import SubscriptionFeeds

log = logging.getLogger(__name__)

STORE_TIMEOUT_S = 30.0
"""Maximum time for storing a dead letter; then it is tried again."""
RETRY_S = 10.0
"""Pause until a message comes again whose dead letter was not stored."""
MAX_STORING = 100
"""Maximum number of dead letters of a subscription that are being stored; further messages come again after RETRY_S."""


class Quarantine:
    """See the module; of one subscription."""

    def __init__(self, topic: str, feeds: SubscriptionFeeds, open_dead_letters: OpenDeadLetters | None) -> None:
        """`topic` is its name for clients. Without `open_dead_letters`, the messages are skipped."""
        self.stored = 0
        """Number of messages that were stored as dead letters."""
        self.skipped = 0
        """Number of messages that were only skipped."""
        self._topic, self._feeds, self._open = topic, feeds, open_dead_letters
        self._storing = 0

    def without_defects(self, taken: Sequence[Delivered]) -> list[Delivered]:
        """Return the units that were taken and can be delivered; the others are put away."""
        good: list[Delivered] = []
        for each in taken:
            if (reason := defect_of(each)) is None:
                good.append(each)
            else:
                self.put_away(each, reason)
        return good

    def put_away(self, delivered: Delivered, reason: str) -> None:
        """Put a message away that a subscription has taken and cannot deliver: nobody else acknowledges it from now on."""
        message, delivered.is_withheld = delivered.message, True
        if message is None or self._open is None:
            self.skipped += 1
            log.warning("a message of %s is skipped, because it cannot be read: %s", self._topic, reason)
            self._feeds.acknowledge(delivered)
        elif self._storing >= MAX_STORING:
            self._feeds.give_back(delivered, counted=False, delay_s=RETRY_S)
        else:
            self._storing += 1
            spawn(self._store(self._open, delivered, message, reason), f"dead letter of {self._topic}")

    async def _store(self, open_dead_letters: OpenDeadLetters, delivered: Delivered, message: Message, reason: str) -> None:
        source = delivered.held.batch.partition
        try:
            async with asyncio.timeout(STORE_TIMEOUT_S):
                letters = await open_dead_letters()
                share = letters.make(self._topic, [message], [MessageFailure(0, Failure.REFUSED, reason)], source)
                receipt = await letters.send(letters.partition_of(source), share)
            problem = receipt.failures[0].reason if receipt.failures else None
        except (ClusterError, TimeoutError) as error:
            problem = str(error) or repr(error)
        finally:
            self._storing -= 1
        if problem is None:
            self.stored += 1
            log.warning("a message of %s cannot be read, and is a dead letter in %s: %s", self._topic, letters.label, reason)
            self._feeds.acknowledge(delivered)
        else:
            log.error("a message of %s cannot be read (%s), nor stored as a dead letter: %s", self._topic, reason, problem)
            self._feeds.give_back(delivered, counted=False, delay_s=RETRY_S)
