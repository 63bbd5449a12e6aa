"""The feeds of a subscription: that of its partition, and one of its messages that were parked and are due.

Shared and Key_Shared subscriptions get what is due first. A message that is not due is held in memory, or parked if its time is
far. The others get every message at once, as at a broker, so they have only the feed of the partition.
"""

import asyncio
import time
from collections.abc import Callable, Iterable
from typing import NamedTuple

from mqbridge.errors import RemoteProtocolError
from mqbridge.listener.delivered import Delivered
from mqbridge.listener.feed import Feed
from mqbridge.listener.parked import FIRST_NUMBER
from mqbridge.listener.parking import HOLD_S, Parking
from mqbridge.listener.topics import ListenedTopic
from mqbridge.pulsar.server.entries import delay_of

MAX_HELD_DELAY_S = 24 * 3600.0
"""Maximum time for which a timer is set; a unit that is due later is looked at again then."""


class GroupParking(NamedTuple):
    """Where the messages of a group's partition are parked."""

    parking: Parking
    topic: ListenedTopic
    partition: int


class SubscriptionFeeds:
    """See the module."""

    def __init__(self, main: Feed, parking: GroupParking | None = None) -> None:
        """Without `parking`, all messages that are not due are held in memory."""
        self.main = main
        self.due: Feed | None = None
        """The feed of what was parked and is due; None as long as there is no such topic."""
        self._parking = None if parking is None or not parking.parking.is_supported else parking

    @property
    def generations(self) -> tuple[int, int]:
        """Changes when one of the feeds has forgotten its units."""
        return self.main.generation, 0 if self.due is None else self.due.generation

    def of(self, delivered: Delivered) -> Feed:
        """Return the feed of a unit."""
        return self.due if self.due is not None and delivered.number >= FIRST_NUMBER else self.main

    def take(self, max_messages: int, max_bytes: int) -> list[Delivered]:
        """Take units: what was parked and is due comes first. See `Feed.take`."""
        if self.due is not None and (taken := self.due.take(max_messages, max_bytes)):
            return taken
        return self.main.take(max_messages, max_bytes)

    def find(self, number: int) -> Delivered | None:
        """Return the unit with this number that consumers can acknowledge."""
        if self.due is None or number < FIRST_NUMBER:
            return self.main.find(number)
        return self.due.find(number)

    def acknowledge(self, delivered: Delivered) -> None:
        """Acknowledge a unit."""
        self.of(delivered).acknowledge(delivered)

    def acknowledge_all(self, units: Iterable[tuple[Delivered, int | None]]) -> None:
        """Acknowledge messages of several units, see `Feed.acknowledge_all`."""
        if self.due is None:
            self.main.acknowledge_all(units)
            return
        units = list(units)
        self.main.acknowledge_all(each for each in units if each[0].number < FIRST_NUMBER)
        self.due.acknowledge_all(each for each in units if each[0].number >= FIRST_NUMBER)

    def give_back(self, delivered: Delivered, *, counted: bool, delay_s: float = 0.0) -> None:
        """Deliver a unit again, see `Feed.give_back`."""
        self.of(delivered).give_back(delivered, counted=counted, delay_s=delay_s)

    def count_redelivery(self, delivered: Delivered) -> None:
        """Count a delivery, see `Feed.count_redelivery`."""
        self.of(delivered).count_redelivery(delivered)

    def allow(self, size: int) -> None:
        """Permit each feed to hold more bytes, see `Feed.allow`: the parts of a large message come through one of them."""
        self.main.allow(size)
        if self.due is not None:
            self.due.allow(size)

    async def recorded(self) -> None:
        """Wait until what is acknowledged now is recorded, see `Feed.recorded`. Raises ClusterError."""
        await self.main.recorded()
        if self.due is not None:
            await self.due.recorded()

    async def finish(self, deadline: float) -> None:
        """Hand out nothing more, see `Feed.finish`."""
        await asyncio.gather(*(feed.finish(deadline) for feed in (self.main, self.due) if feed is not None))

    def hold_delayed(self, taken: Iterable[Delivered]) -> list[Delivered]:
        """Return the units that are due; the others come again when they are.

        A unit of which messages were acknowledged is not parked: they would come again with it.
        """
        due: list[Delivered] = []
        for each in taken:
            try:
                delay_s = delay_of(each)
            except RemoteProtocolError:  # the client finds out that it is damaged
                delay_s = 0.0
            if delay_s <= 0:
                due.append(each)
            elif delay_s > HOLD_S and self._parking is not None and each.number < FIRST_NUMBER and not each.acknowledged:
                parking, topic, partition = self._parking
                parking.park(self.main, each, topic, partition, round((time.time() + delay_s) * 1000))
            else:
                self.give_back(each, counted=False, delay_s=min(delay_s, MAX_HELD_DELAY_S))
        return due

    def add_due(self, feed: Feed, wake: Callable[[], None]) -> Callable[[], None]:
        """Read what is due, too; return the function that ends watching it."""
        self.due = feed
        return feed.watch(wake)
