"""A subscription of one partition: its feed, and the consumers that share it.

    OPEN      consumers are added, and units are delivered to them
    MOVING    a seek: consumers are sent away, and nothing is delivered until it has ended
    ENDED     its feed was released; a consumer that comes later gets another subscription

        seek begins         OPEN -> MOVING
        seek ends           MOVING -> OPEN
        end                 OPEN -> ENDED

Whenever the feed forgets its units (a lost partition, a seek, a source that begins anew), what the clients have does not count
any more. CLOSE_CONSUMER tells them to drop it and to subscribe again: otherwise they would process it a second time.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from enum import Enum

from mqbridge.errors import RefusalReason, RequestRefused
from mqbridge.listener.delivered import Delivered
from mqbridge.listener.delivered import State as UnitState
from mqbridge.listener.feed import Feed
from mqbridge.listener.server import OpenDeadLetters
from mqbridge.message import Position
from mqbridge.pulsar.server.consumer import ServedConsumer, ServedConsumerState
from mqbridge.pulsar.server.dispatchers import Dispatcher, KeySharedDispatcher, OneConsumerDispatcher, SharedDispatcher
from mqbridge.pulsar.server.message_ids import MessageIds
from mqbridge.pulsar.server.quarantine import Quarantine
from mqbridge.pulsar.server.subscription_feeds import GroupParking, SubscriptionFeeds
from mqbridge.pulsar.wire import server_commands
from mqbridge.pulsar.wire.hashing import murmur3_32
from mqbridge.pulsar.wire.ids import entry_id, from_words, full_mask
from mqbridge.pulsar.wire.pb.PulsarApi_pb2 import CommandSubscribe, MessageIdData

log = logging.getLogger(__name__)

Types = CommandSubscribe
"""Namespace of the subscription types, such as `Types.Shared`."""
CHUNK_ROOM = 2
"""Bytes that a feed may hold for each byte of an incomplete chunked message: each part has metadata, which a backing may store
with more of its own, and parts may be small."""
NOTE_S = 1.0
"""Time after which a consumer of a failover subscription is told whether it is active, if it asks for no messages."""
MAX_CONSUMERS = 1000
"""Maximum number of consumers of a subscription in one partition."""


class SubscriptionState(Enum):
    """The state of a subscription, see the module."""

    OPEN = "open"
    MOVING = "moving"
    ENDED = "ended"


class ServedSubscription:
    """See the module. The owner opens and releases the feed."""

    def __init__(
        self,
        name: str,
        topic: str,
        partition: int,
        feed: Feed,
        message_ids: MessageIds,
        *,
        is_durable: bool,
        open_dead_letters: OpenDeadLetters | None = None,
        parking: GroupParking | None = None,
    ) -> None:
        """`topic` is its name for clients; `partition` is -1 if it is not partitioned. For dead letters, see `Quarantine`."""
        self.state = SubscriptionState.OPEN
        self.name, self.topic, self.partition, self.feed, self.is_durable = name, topic, partition, feed, is_durable
        self.type: int = Types.Exclusive
        """The type that the present consumers have."""
        self.consumers: list[ServedConsumer] = []
        self._ids = message_ids
        self.feeds = SubscriptionFeeds(feed, parking)
        self.quarantine = Quarantine(topic, self.feeds, open_dead_letters)
        self._dispatcher: Dispatcher = self._make_dispatcher()
        self._generations = self.feeds.generations
        self._stop_watching = [feed.watch(self._on_feed)]
        self.on_empty: Callable[[], None] = lambda: None
        """Called soon after all consumers were sent away."""
        self._chunked_bytes = 0
        """Bytes of the chunked messages of which consumers have got a part."""
        self._told_active: ServedConsumer | None = None
        """The consumer that was told last that it is the active one."""

    @property
    def type_name(self) -> str:
        """The name of its type, as in statistics of brokers."""
        return Types.SubType.Name(self.type)

    @property
    def is_shared(self) -> bool:
        """True if its consumers share the messages."""
        return self.type in (Types.Shared, Types.Key_Shared)

    # --- consumers ------------------------------------------------------------------------------------------------------

    def check(self, subscription_type: int, consumer: ServedConsumer) -> None:
        """Raise RequestRefused if a consumer of this type cannot be added."""
        if not self.consumers:
            return
        if subscription_type != self.type:
            raise RequestRefused(f"subscription {self.name} has consumers of another type", RefusalReason.BUSY)
        if subscription_type == Types.Exclusive:
            raise RequestRefused(f"exclusive subscription {self.name} has a consumer already", RefusalReason.BUSY)
        if len(self.consumers) >= MAX_CONSUMERS:
            raise RequestRefused(f"subscription {self.name} has {MAX_CONSUMERS} consumers", RefusalReason.NOT_ALLOWED)
        if bool(self.consumers[0].ranges) != bool(consumer.ranges):
            raise RequestRefused(f"subscription {self.name} has another Key_Shared mode", RefusalReason.BUSY)

    def add(self, subscription_type: int, consumer: ServedConsumer) -> None:
        """Add a consumer, which gets units from now on. Raises RequestRefused, see `check`."""
        self.check(subscription_type, consumer)
        if not self.consumers and subscription_type != self.type:
            self.type = subscription_type
            self._dispatcher.end()
            self._dispatcher = self._make_dispatcher()
        consumer.state = ServedConsumerState.OPEN
        self.consumers.append(consumer)
        self._dispatcher.set_consumers(list(self.consumers))

    def remove(self, consumer: ServedConsumer) -> None:
        """Remove a consumer; what it had is delivered to others."""
        consumer.state = ServedConsumerState.CLOSED
        if consumer not in self.consumers:
            return
        self.consumers.remove(consumer)
        self._dispatcher.set_consumers(list(self.consumers))
        self._dispatcher.removed(consumer)
        self.tell_active()
        self.dispatch()

    def _make_dispatcher(self) -> Dispatcher:
        if self.type == Types.Shared:
            return SharedDispatcher(self.feeds, self.quarantine)
        if self.type == Types.Key_Shared:
            return KeySharedDispatcher(self.feeds, self.quarantine)
        return OneConsumerDispatcher(self.feed, self.quarantine, self._choose_active)

    def _choose_active(self, consumers: Sequence[ServedConsumer]) -> ServedConsumer | None:
        """Choose as brokers do: partitions are spread over the consumers of the highest priority, sorted by name."""
        if not consumers:
            return None
        highest = min(consumer.priority for consumer in consumers)
        ordered = sorted((each for each in consumers if each.priority == highest), key=lambda each: each.name)
        number = self.partition if self.partition >= 0 else murmur3_32(self.topic.encode())
        return ordered[number % len(ordered)]

    def announce(self, consumer: ServedConsumer) -> None:
        """Deliver to a consumer that was added, and tell it soon whether it is active. Its client was told that it is open.

        The client for Go drops what comes right behind the response to SUBSCRIBE, because it has not noted the consumer yet. A
        broker says who is active a second later; here, as soon as the client asks for messages.
        """
        if self.type == Types.Failover:
            asyncio.get_running_loop().call_later(NOTE_S, self._on_ready, consumer)
        self.tell_active()
        self.dispatch()

    def grant(self, consumer: ServedConsumer, permits: int) -> None:
        """Add permits of a consumer; `dispatch` delivers what they allow."""
        consumer.grant(permits)
        self._on_ready(consumer)

    def _on_ready(self, consumer: ServedConsumer) -> None:
        """Tell a consumer whether it is active, if this is the first time."""
        if consumer.is_ready or consumer.state is not ServedConsumerState.OPEN:
            return
        self.tell_active()
        consumer.is_ready = True
        if self.type == Types.Failover:
            is_active = self._is_active(consumer)
            consumer.link.send(server_commands.active_consumer_change(consumer.id, is_active=is_active))

    def _is_active(self, consumer: ServedConsumer) -> bool:
        dispatcher = self._dispatcher
        return isinstance(dispatcher, OneConsumerDispatcher) and dispatcher.active is consumer and self.feed.is_held

    def tell_active(self) -> None:
        """Tell the consumers of a failover subscription which of them is active; none is while the partition is not held.

        Those that are not ready are told when they are.
        """
        if self.type != Types.Failover or not isinstance(self._dispatcher, OneConsumerDispatcher):
            return
        active = self._dispatcher.active if self.feed.is_held else None
        if active is self._told_active:
            return
        before, self._told_active = self._told_active, active
        if before is not None and before.is_ready and before.state is ServedConsumerState.OPEN:
            before.link.send(server_commands.active_consumer_change(before.id, is_active=False))
        if active is not None and active.is_ready:
            active.link.send(server_commands.active_consumer_change(active.id, is_active=True))

    def send_away(self) -> list[ServedConsumer]:
        """Close all consumers: their clients drop what they have, and subscribe again. Returns those that were closed."""
        away, self.consumers = self.consumers, []
        for consumer in away:
            consumer.state = ServedConsumerState.CLOSED
            consumer.link.send(server_commands.close_consumer(consumer.id))
        self._told_active = None
        self._dispatcher.set_consumers(())
        for consumer in away:
            self._dispatcher.removed(consumer)
        asyncio.get_running_loop().call_soon(self.on_empty)
        return away

    # --- delivery -------------------------------------------------------------------------------------------------------

    def _on_feed(self) -> None:
        """Handle a change of the feed: units that have come, or a source that was lost or found."""
        if self.state is SubscriptionState.ENDED:
            return
        if self._generations != self.feeds.generations:
            self._generations = self.feeds.generations
            self._dispatcher.forget()
            if self.state is SubscriptionState.OPEN and self.consumers:
                log.info("subscription %s of %s: the partition was lost, its consumers subscribe again", self.name, self.topic)
                self.send_away()
        self.tell_active()
        self.dispatch()

    def dispatch(self) -> None:
        """Deliver what can be delivered."""
        if self.state is SubscriptionState.OPEN and self._generations == self.feeds.generations:
            self._dispatcher.dispatch()
            chunked = sum(each.chunked_bytes() for each in self.consumers if each.chunked or each.largest_chunked[0])
            if chunked != self._chunked_bytes:
                self._chunked_bytes = chunked
                self.feeds.allow(CHUNK_ROOM * chunked)

    # --- acknowledgements -----------------------------------------------------------------------------------------------

    def acknowledge(self, message_ids: Iterable[MessageIdData]) -> None:
        """Acknowledge single entries, or messages of batches."""
        found: list[tuple[Delivered, int | None]] = []
        number_of, find = self._ids.number_of, self.feeds.find
        for each in message_ids:
            entry = entry_id(each)
            delivered = find(number_of(entry)) if self._ids.is_possible(entry) else None
            if delivered is None:
                continue
            bits = None
            if each.ack_set:
                if delivered.count == 1:
                    continue  # the entry has messages that cannot be told apart here, and some are not acknowledged
                bits = full_mask(delivered.count) & ~from_words(each.ack_set)
            found.append((delivered, bits))
        if found:
            self.feeds.acknowledge_all(found)
        for delivered, _ in found:
            if delivered.state is UnitState.DONE:
                taker = delivered.taker
                if isinstance(taker, ServedConsumer) and taker.out.pop(delivered.number, None) is not None:
                    self._dispatcher.acknowledged(delivered, taker)

    def acknowledge_queued(self, message_ids: Iterable[MessageIdData]) -> None:
        """Acknowledge entries as `acknowledge` does, except for those that a consumer, or nobody any more, has."""
        queued = UnitState.QUEUED, UnitState.DELAYED
        possible = [each for each in message_ids if self._ids.is_possible(entry_id(each))]
        found = [(each, self.feeds.find(self._ids.number_of(entry_id(each)))) for each in possible]
        self.acknowledge([each for each, delivered in found if delivered is not None and delivered.state in queued])

    def acknowledge_to(self, message_id: MessageIdData, consumer: ServedConsumer) -> None:
        """Acknowledge everything up to an entry, or up to messages of a batch. Does nothing on shared subscriptions."""
        if self.is_shared:
            log.warning("subscription %s of %s: cumulative acknowledgement on a shared subscription", self.name, self.topic)
            return
        entry = entry_id(message_id)
        is_before = entry[1] == -1  # nothing of this ledger, but everything before it
        if not self._ids.is_possible((entry[0], 0) if is_before else entry):
            return
        number = self._ids.number_of(entry)
        delivered = None if is_before else self.feed.find(number)
        if delivered is not None:
            self.feed.acknowledge_to(number)
            self.acknowledge([message_id])
        elif number <= self._dispatcher.newest:  # beyond it, it may be an id of an earlier topic of this name
            self.feed.acknowledge_to(number if is_before else number + 1)
        consumer.forget_done()

    def redeliver(self, consumer: ServedConsumer, message_ids: Sequence[MessageIdData], epoch: int | None) -> None:
        """Deliver these entries again, or all that the consumer has if there are none."""
        if epoch is not None:
            consumer.epoch = max(consumer.epoch or 0, epoch)
        if message_ids and self.is_shared:
            entries = [entry for each in message_ids if self._ids.is_possible(entry := entry_id(each))]
            numbers = dict.fromkeys(map(self._ids.number_of, entries))
            units = [consumer.out[number] for number in numbers if number in consumer.out]
        else:
            units = list(consumer.out.values())
        self._dispatcher.redeliver(consumer, [each for each in units if each.state is UnitState.OUT])
        self.dispatch()

    def add_due(self, feed: Feed) -> None:
        """Deliver what was parked and is due, too; the owner opens and releases this feed as the other one."""
        self._stop_watching.append(self.feeds.add_due(feed, self._on_feed))
        self._generations = self._generations[0], feed.generation
        self.dispatch()

    # --- moving ---------------------------------------------------------------------------------------------------------

    async def seek(self, position: Position) -> None:
        """Send the consumers away, and continue at this position. Raises RequestRefused, LaneRevoked, ClusterError."""
        if self.state is not SubscriptionState.OPEN:
            raise RequestRefused(f"subscription {self.name} is being moved", RefusalReason.NOT_READY)
        if not self.feed.is_held:
            raise RequestRefused(
                f"another gateway has this partition of subscription {self.name}, or nobody", RefusalReason.NOT_READY
            )
        self.state = SubscriptionState.MOVING
        try:
            self.send_away()
            await self.feed.seek(position)
            await self.feed.recorded()
        finally:
            self.state = SubscriptionState.OPEN
            self._generations = self.feeds.generations
            self._dispatcher.end()  # without effect after a seek that has succeeded
            self._dispatcher.forget()
            self.dispatch()

    def end(self) -> None:
        """End: the feed is released."""
        self.state = SubscriptionState.ENDED
        for stop in self._stop_watching:
            stop()
        self._dispatcher.end()

    async def finish(self, deadline: float) -> None:
        """Deliver nothing more, and wait until the clients have acknowledged what they have, or until the deadline."""
        self._dispatcher.end()
        await self.feeds.finish(deadline)
