"""Checks whether a lane has reached the end of its topic: requests the newest entry id, whenever the gateway asks.

Nothing else sends this request while a lane is read. A lane by itself does not know whether its topic has more entries: a broker
does not say so. When lanes checked it themselves, with each receiver queue that ran empty, an idle partition cost up to 20
requests a second, although only the end of a run asks.
"""

import asyncio
from collections.abc import Awaitable, Callable

from mqbridge.pulsar.client.consumer.entry_consumer import EntryConsumer

REDELIVERY_WAIT_S = 1.0
"""Time to wait for a redelivery until the end may be confirmed, in seconds. The newest entry id does not tell whether
redeliveries are still to come, and on a shared subscription another member may receive them."""


class EndCheck:
    """End-of-topic check of one lane or reader.

    `has_more` asks the broker whether the topic has an entry that was not received; None: the consumer does.
    """

    def __init__(self, consumer: EntryConsumer, has_more: Callable[[], Awaitable[bool]] | None = None) -> None:
        self._consumer = consumer
        self._has_more = has_more
        self._reached_in = 0
        """The consumer's subscribe number (`registrations`) when the broker reported no further entry; 0 if it did not."""
        self._version = 0
        """Incremented by `invalidate`; a response to a request of an older version is ignored."""
        self._loop = asyncio.get_running_loop()
        self._no_end_before = 0.0
        """Loop time before which a redelivery may still come, so that the end cannot be reached."""

    @property
    def reached(self) -> bool:
        """True if the last `confirm` found no further entry, none has arrived since, and the consumer has kept its connection."""
        consumer = self._consumer
        has_received = consumer.queued or consumer.incomplete
        return consumer.is_subscribed and self._reached_in == consumer.registrations and not has_received

    def invalidate(self) -> None:
        """Forget the result, because an entry was taken or the read position changed."""
        self._reached_in = 0
        self._version += 1

    def expect_redelivery(self, delay_s: float) -> None:
        """Forget the result, because an entry will be redelivered after this delay; the end is not reached before that."""
        self.invalidate()
        self._no_end_before = max(self._no_end_before, self._loop.time() + delay_s + REDELIVERY_WAIT_S)

    async def confirm(self) -> bool:
        """Request the newest entry id; return True if everything up to this entry was received. Raises ClusterError.

        The request is also sent if a redelivery is expected, because it raises ClusterError if the broker cannot be asked.
        """
        version, registrations = self._version, self._consumer.registrations
        may_be_reached = self._loop.time() >= self._no_end_before
        has_more = await (self._has_more or self._consumer.has_more)()
        if version == self._version:
            self._reached_in = registrations if may_be_reached and not has_more else 0
        return self.reached
