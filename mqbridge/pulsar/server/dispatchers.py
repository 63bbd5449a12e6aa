"""How a subscription gives the units of its feed to its consumers: one dispatcher for each type of subscription.

A dispatcher is called whenever there may be something to deliver: a unit has come, a consumer has got permits, its connection can
be written again, or the consumers have changed. It never waits.
"""

from bisect import bisect_right, insort
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from mqbridge.errors import RemoteProtocolError
from mqbridge.listener.delivered import Delivered
from mqbridge.listener.delivered import State as UnitState
from mqbridge.listener.feed import Feed
from mqbridge.pulsar.server.consumer import ServedConsumer
from mqbridge.pulsar.server.entries import sticky_key_of
from mqbridge.pulsar.server.quarantine import Quarantine
from mqbridge.pulsar.server.subscription_feeds import SubscriptionFeeds
from mqbridge.pulsar.wire.hashing import murmur3_32

WRITE_BYTES = 1 << 20
"""Maximum bytes that are taken at once, and sent to a consumer with one write."""
SHARED_MESSAGES = 20
"""Messages that a consumer of a Shared subscription gets before it is the turn of the next one."""
SLOTS = 1 << 16
"""Number of hash slots of keys."""
POINTS = 100
"""Number of points of each consumer on the ring of slots."""
MAX_NAME_IN_POINT = 100
"""Maximum length of the part of a consumer's name by which its points are computed."""
MAX_WAITING_UNITS = 2000
"""Maximum number of units that a Key_Shared subscription has taken and cannot give to the consumer of their key yet."""


class Dispatcher(Protocol):
    """See the module. `consumers` are the open ones, in the order in which they were added."""

    consumers: Sequence[ServedConsumer]
    newest: int
    """Highest number of a unit that was delivered; -1 before the first. Shared subscriptions do not need it."""

    def set_consumers(self, consumers: Sequence[ServedConsumer]) -> None:
        """Deliver to these consumers from now on."""

    def removed(self, consumer: ServedConsumer) -> None:
        """Deliver what a consumer had to others; it was removed from the consumers before."""

    def redeliver(self, consumer: ServedConsumer, units: Iterable[Delivered]) -> None:
        """Deliver these units of a consumer again, because it has asked for that."""

    def acknowledged(self, delivered: Delivered, consumer: ServedConsumer) -> None:
        """Take note that a consumer has acknowledged all of a unit."""

    def end(self) -> None:
        """Give the units back to the feed that were taken and no consumer has: nothing is dispatched any more."""

    def forget(self) -> None:
        """Forget all units: a feed has forgotten its own."""

    def dispatch(self) -> None:
        """Deliver what can be delivered."""


class OneConsumerDispatcher:
    """Exclusive and Failover: one consumer gets everything, in order."""

    def __init__(
        self, feed: Feed, quarantine: Quarantine, choose: Callable[[Sequence[ServedConsumer]], ServedConsumer | None]
    ) -> None:
        """`choose` returns the consumer that gets everything."""
        self.consumers: Sequence[ServedConsumer] = ()
        self.newest = -1
        self.active: ServedConsumer | None = None
        self._feed, self._quarantine, self._choose = feed, quarantine, choose

    def set_consumers(self, consumers: Sequence[ServedConsumer]) -> None:
        """Choose the active consumer; everything that is not acknowledged is delivered to the new one."""
        self.consumers = consumers
        chosen = self._choose(consumers)
        if chosen is not self.active:
            before, self.active = self.active, chosen
            if before is not None:
                self.removed(before)

    def removed(self, consumer: ServedConsumer) -> None:
        """Deliver again what a consumer had."""
        for each in consumer.take_back():
            self._feed.give_back(each, counted=False)

    def redeliver(self, consumer: ServedConsumer, units: Iterable[Delivered]) -> None:  # noqa: ARG002 - all of them
        """Deliver everything that is not acknowledged again, in order, whatever units are named: so do brokers."""
        self.removed(consumer)

    def acknowledged(self, delivered: Delivered, consumer: ServedConsumer) -> None:
        """Do nothing more."""

    def end(self) -> None:
        """Do nothing: it has no units that no consumer has."""

    def forget(self) -> None:
        """Forget what the active consumer has."""
        self.newest = -1
        for consumer in self.consumers:
            consumer.take_back()

    def dispatch(self) -> None:
        """Give the active consumer what its permits allow."""
        while (consumer := self.active) is not None and consumer.can_take:
            taken = self._feed.take(consumer.permits, WRITE_BYTES)
            if not taken:
                return
            self.newest = max(self.newest, taken[-1].number)
            good = self._quarantine.without_defects(taken)
            for each, reason in consumer.deliver(good, counts_deliveries=False):
                self._quarantine.put_away(each, reason)


class SharedDispatcher:
    """Shared: the consumers get units in turn."""

    newest = -1

    def __init__(self, feeds: SubscriptionFeeds, quarantine: Quarantine) -> None:
        self.consumers: Sequence[ServedConsumer] = ()
        self._feeds, self._quarantine = feeds, quarantine
        self._next = 0
        """Index of the consumer whose turn it is."""

    def set_consumers(self, consumers: Sequence[ServedConsumer]) -> None:
        """Share the units among these consumers."""
        self.consumers = consumers

    def removed(self, consumer: ServedConsumer) -> None:
        """Deliver again what a consumer had; that does not count as a delivery, as brokers do not count it."""
        for each in consumer.take_back():
            self._feeds.give_back(each, counted=False)

    def redeliver(self, consumer: ServedConsumer, units: Iterable[Delivered]) -> None:
        """Deliver these units again, to any consumer."""
        for each in units:
            consumer.out.pop(each.number, None)
            each.taker = None
            self._feeds.give_back(each, counted=True)

    def acknowledged(self, delivered: Delivered, consumer: ServedConsumer) -> None:
        """Do nothing more."""

    def end(self) -> None:
        """Do nothing: it has no units that no consumer has."""

    def forget(self) -> None:
        """Forget what the consumers have; what is of the other feed comes again."""
        for consumer in self.consumers:
            self.removed(consumer)

    def dispatch(self) -> None:
        """Give units to consumers in turn, while one of those with the highest priority can take any."""
        while (consumer := self._pick()) is not None:
            taken = self._feeds.take(min(consumer.permits, SHARED_MESSAGES), WRITE_BYTES)
            if not taken:
                return
            due = self._feeds.hold_delayed(self._quarantine.without_defects(taken))
            if due:
                for each, reason in consumer.deliver(due, counts_deliveries=True):
                    self._quarantine.put_away(each, reason)
                self._next = self.consumers.index(consumer) + 1

    def _pick(self) -> ServedConsumer | None:
        """Return the next consumer that can take a unit; one of a lower priority only if no other can."""
        count = len(self.consumers)
        if count == 1:
            return self.consumers[0] if self.consumers[0].can_take else None
        ready = [self.consumers[(self._next + offset) % count] for offset in range(count)]
        ready = [consumer for consumer in ready if consumer.can_take]
        return min(ready, key=lambda consumer: consumer.priority, default=None)


class KeySharedDispatcher:
    """Key_Shared: each hash slot of keys belongs to one consumer, and the units of a slot are delivered in order.

    A slot that gets another owner waits until the consumer that has units of it has acknowledged them, or is gone. Units that
    cannot be delivered yet wait here, by slot and in the order of their numbers; those of other slots pass them.
    """

    newest = -1

    def __init__(self, feeds: SubscriptionFeeds, quarantine: Quarantine) -> None:
        self.consumers: Sequence[ServedConsumer] = ()
        self._feeds, self._quarantine = feeds, quarantine
        self._points: dict[ServedConsumer, list[tuple[int, ServedConsumer]]] = {}
        """The points of each consumer on the ring: to compute them takes a while."""
        self._ring: list[tuple[int, ServedConsumer]] | None = []
        """The points of all consumers, ascending; a slot belongs to the consumer of the next point. None: not sorted yet."""
        self._ranges: list[tuple[int, int, ServedConsumer]] = []
        """The ranges of all consumers, ascending; they do not overlap."""
        self._waiting: OrderedDict[int, list[Delivered]] = OrderedDict()
        """Units that were taken from the feed and are not delivered, by slot, in the order of their numbers."""
        self._waiting_count = 0
        self._holders: dict[int, tuple[ServedConsumer, int]] = {}
        """The consumer that has units of a slot, and how many."""
        self._slots: dict[int, int] = {}
        """The slot of each unit that is waiting or delivered, by number."""

    def set_consumers(self, consumers: Sequence[ServedConsumer]) -> None:
        """Divide the slots among these consumers: by their ranges if they have any, otherwise by points that their names give."""
        self.consumers = consumers
        self._points = {each: self._points.get(each) or points_of(each) for each in consumers if not each.ranges}
        self._ring = None
        self._ranges = sorted(
            ((first, last, each) for each in consumers for first, last in each.ranges), key=lambda taken: taken[:2]
        )

    def _owner(self, slot: int) -> ServedConsumer | None:
        """Return the consumer to which a slot belongs; None if no range has it."""
        if self._ranges:
            index = bisect_right(self._ranges, slot, key=lambda taken: taken[0]) - 1
            return self._ranges[index][2] if index >= 0 and slot <= self._ranges[index][1] else None
        if self._ring is None:
            self._ring = sorted((point for points in self._points.values() for point in points), key=lambda point: point[0])
        if not self._ring:
            return None
        index = bisect_right(self._ring, slot, key=lambda point: point[0])
        return self._ring[index % len(self._ring)][1]

    def removed(self, consumer: ServedConsumer) -> None:
        """Let what a consumer had wait for the new owners, before all later units of the same keys."""
        for each in consumer.take_back():
            slot = self._slots[each.number]
            self._release(slot)
            self._wait(slot, each)

    def redeliver(self, consumer: ServedConsumer, units: Iterable[Delivered]) -> None:
        """Deliver these units again, before all later ones of the same keys that wait."""
        for each in units:
            consumer.out.pop(each.number, None)
            each.taker = None
            slot = self._slots[each.number]
            self._release(slot)
            self._wait(slot, each)
            self._feeds.count_redelivery(each)

    def acknowledged(self, delivered: Delivered, consumer: ServedConsumer) -> None:  # noqa: ARG002 - the slot knows it
        """Release the slot when nothing of it is delivered any more."""
        self._release(self._slots.pop(delivered.number))

    def end(self) -> None:
        """Give back what waits."""
        for units in self._waiting.values():
            for each in units:
                del self._slots[each.number]
                self._feeds.give_back(each, counted=False)
        self._waiting.clear()
        self._waiting_count = 0

    def forget(self) -> None:
        """Forget everything; what is of the other feed comes again."""
        for consumer in self.consumers:
            for each in consumer.take_back():
                self._feeds.give_back(each, counted=False)
        for units in self._waiting.values():
            for each in units:
                self._feeds.give_back(each, counted=False)
        self._waiting.clear()
        self._holders.clear()
        self._slots.clear()
        self._waiting_count = 0

    def _release(self, slot: int) -> None:
        """Count one delivered unit of a slot less."""
        consumer, count = self._holders[slot]
        if count > 1:
            self._holders[slot] = consumer, count - 1
        else:
            del self._holders[slot]

    def _wait(self, slot: int, delivered: Delivered) -> None:
        insort(self._waiting.setdefault(slot, []), delivered, key=lambda each: each.number)
        self._waiting_count += 1
        self._slots[delivered.number] = slot

    def dispatch(self) -> None:
        """Deliver what waits and can be delivered now, then new units."""
        self._deliver_waiting()
        while self._waiting_count < MAX_WAITING_UNITS and any(consumer.can_take for consumer in self.consumers):
            taken = self._feeds.take(max(1, min(SHARED_MESSAGES, MAX_WAITING_UNITS - self._waiting_count)), WRITE_BYTES)
            if not taken:
                return
            for each in self._feeds.hold_delayed(self._quarantine.without_defects(taken)):
                self._wait(_slot_of(each), each)
            self._deliver_waiting()

    def _deliver_waiting(self) -> None:
        """Deliver the units of each slot whose owner can take them, in order."""
        deliveries: dict[ServedConsumer, list[Delivered]] = {}
        planned: dict[ServedConsumer, int] = {}
        for slot in list(self._waiting):
            owner = self._owner(slot)
            holder = self._holders.get(slot)
            if owner is None or (holder is not None and holder[0] is not owner):
                continue
            units = self._waiting[slot]
            sent = 0
            while sent < len(units) and owner.can_take and planned.get(owner, 0) < owner.permits:
                each = units[sent]
                sent += 1
                if each.state is UnitState.DONE:  # it was acknowledged after a consumer had lost it
                    del self._slots[each.number]
                    continue
                deliveries.setdefault(owner, []).append(each)
                planned[owner] = planned.get(owner, 0) + each.remaining.bit_count()
                count = self._holders[slot][1] if slot in self._holders else 0
                self._holders[slot] = owner, count + 1
            self._waiting_count -= sent
            if sent == len(units):
                del self._waiting[slot]
            else:
                del units[:sent]
        for consumer, units in deliveries.items():
            for each, reason in consumer.deliver(units, counts_deliveries=True):
                self._release(self._slots.pop(each.number))
                self._quarantine.put_away(each, reason)


def points_of(consumer: ServedConsumer) -> list[tuple[int, ServedConsumer]]:
    """Return the points of a consumer on the ring, which its name and connection give."""
    name = f"{consumer.name[:MAX_NAME_IN_POINT]}-{consumer.link.peer}-{consumer.id}"
    return [(murmur3_32(f"{name}-{point}".encode()) % SLOTS, consumer) for point in range(POINTS)]


def _slot_of(delivered: Delivered) -> int:
    try:
        key = sticky_key_of(delivered)
    except RemoteProtocolError:  # the client finds out that it is damaged
        key = b""
    return murmur3_32(key) % SLOTS
