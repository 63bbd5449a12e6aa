"""What all connections of the server share: the producers and the subscriptions of every partition, and requests about topics."""

import asyncio
import itertools
import logging
import re
import secrets
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from itertools import pairwise
from typing import NamedTuple

from mqbridge.adapter.formats import MAX_UNIT_MESSAGES
from mqbridge.adapter.inbound import Sharing, Start
from mqbridge.errors import LaneRevoked, MqbridgeError, RefusalReason, RequestRefused
from mqbridge.listener.groups import GroupStart
from mqbridge.listener.parking import LOOK_S
from mqbridge.listener.publishers import sender_partition
from mqbridge.listener.server import ServerCounts, Services
from mqbridge.message import Position
from mqbridge.net.backoff import Backoff
from mqbridge.net.tasks import spawn
from mqbridge.pulsar.server.consumer import ClientLink, ServedConsumer, ServedConsumerState
from mqbridge.pulsar.server.dispatchers import SLOTS
from mqbridge.pulsar.server.last_message import LastMessage, find_last
from mqbridge.pulsar.server.message_ids import MessageIds
from mqbridge.pulsar.server.producer import ServedProducer, ServedProducerState
from mqbridge.pulsar.server.producers import PartitionProducers, ProducerFenced
from mqbridge.pulsar.server.refusals import CodedRefusal, text_of
from mqbridge.pulsar.server.schemas import NO_VERSION, Schemas
from mqbridge.pulsar.server.subscription import ServedSubscription, SubscriptionState, Types
from mqbridge.pulsar.server.subscription_feeds import GroupParking
from mqbridge.pulsar.server.topic_epochs import TopicEpochs
from mqbridge.pulsar.server.topic_names import MAX_NAME_CHARS, OpenPartition, find_partition, parse_requested
from mqbridge.pulsar.wire import codes, ids, server_commands
from mqbridge.pulsar.wire.frame import DEFAULT_MAX_MESSAGE_SIZE, FRAME_PADDING
from mqbridge.pulsar.wire.names import parse_topic
from mqbridge.pulsar.wire.pb import PulsarApi_pb2 as pb
from mqbridge.pulsar.wire.schemas import RegisteredSchema, Schema
from mqbridge.pulsar.wire.topic_lists import topics_hash
from mqbridge.wire.bounded_pattern import Ambiguous, BoundedPattern

log = logging.getLogger(__name__)

MAX_LIMIT = DEFAULT_MAX_MESSAGE_SIZE + FRAME_PADDING
"""Maximum size of an entry, where the backing has no limit or does not tell it."""
MAX_SUBSCRIPTIONS = 20_000
"""Maximum number of subscriptions, counted by partition; each holds up to one batch of messages."""
CLOSED_TOPIC_S = 1.0
"""How long a topic that was closed refuses clients: one that came back at once would disturb its deletion."""
REQUEST_TIMEOUT_S = 120.0
"""Maximum time for a request; clients wait 30 s and ask again. A group of many partitions may take long to join."""
DUE_PAUSE_S = 60.0
"""Longest pause after what is due for a subscription could not be read."""
MAX_PATTERN_CHARS = 1000
"""Maximum length of a pattern that is applied here."""
MAX_RANGES = 1000
"""Maximum number of hash ranges of a consumer."""
MAX_ACK_SET_WORDS = -(-MAX_UNIT_MESSAGES // 64)
"""Maximum number of words of a bit set that are looked at: no entry has more messages."""
MAX_TIME_MS = (1 << 63) - 1
"""Times are stored as signed numbers."""
SHARING = {
    Types.Exclusive: Sharing.FAILOVER,
    Types.Failover: Sharing.FAILOVER,
    Types.Shared: Sharing.SHARED,
    Types.Key_Shared: Sharing.KEY_SHARED,
}
"""How gateways share a group of the backing, by the type of the subscription. An exclusive one may have a gateway in reserve."""

PartitionKey = tuple[str, int]
"""A partition: the topic's name in the backing, and the index of the partition."""


def compile_pattern(pattern: str) -> BoundedPattern | None:
    """Return the pattern of a client, for names without their scheme; None if it is not understood: clients filter themselves."""
    try:
        return BoundedPattern(pattern.removeprefix("persistent://")) if len(pattern) <= MAX_PATTERN_CHARS else None
    except (re.error, RecursionError, OverflowError, Ambiguous) as error:
        log.info("the pattern of a client is not understood, so it gets all topics: %s", text_of(error))
        return None


def check_wanted(producer: ServedProducer) -> None:
    """Raise RequestRefused if a producer was closed while it was opened."""
    if producer.state is ServedProducerState.CLOSED:
        raise RequestRefused("the producer was closed while it was opened", RefusalReason.NOT_READY)


def start_of(request: pb.CommandSubscribe) -> GroupStart:
    """Return where a new subscription begins."""
    if request.start_message_rollback_duration_sec:
        return min(max(0, round((time.time() - request.start_message_rollback_duration_sec) * 1000)), MAX_TIME_MS)
    return Start.EARLIEST if request.initialPosition == pb.CommandSubscribe.Earliest else Start.LATEST


def check_ranges(subscription: ServedSubscription, consumer: ServedConsumer) -> None:
    """Raise CodedRefusal if the hash ranges of a new consumer are invalid, or overlap those of another one."""
    if len(consumer.ranges) > MAX_RANGES:
        raise CodedRefusal(f"a consumer has at most {MAX_RANGES} hash ranges", codes.CONSUMER_ASSIGN)
    for first, last in consumer.ranges:
        if not 0 <= first <= last < SLOTS:
            raise CodedRefusal(f"the hash range {first} to {last} is not within 0 to {SLOTS - 1}", codes.CONSUMER_ASSIGN)
    ranges = sorted(each for other in (consumer, *subscription.consumers) for each in other.ranges)
    for (_, end), (first, last) in pairwise(ranges):
        if first <= end:
            raise CodedRefusal(f"the hash range {first} to {last} overlaps that of another consumer", codes.CONSUMER_ASSIGN)


class NamespaceTopics(NamedTuple):
    """The topics of a namespace, sorted; `is_filtered` if a pattern was applied."""

    names: list[str]
    hash: str
    is_filtered: bool


class Broker:
    """See the module."""

    def __init__(self, services: Services) -> None:
        self.services = services
        self.message_ids = MessageIds(services.numbering)
        self.schemas = Schemas(services.definitions)
        self.refused_requests = 0
        self.is_draining = False
        self._closed_until: dict[str, float] = {}
        """Topics that were closed a moment ago, with the loop time until which they stay so."""
        self.producers: dict[PartitionKey, PartitionProducers] = {}
        self.subscriptions: dict[tuple[PartitionKey, str], ServedSubscription] = {}
        """The durable subscriptions, by partition and name."""
        self.readers: set[ServedSubscription] = set()
        """The subscriptions that are not durable; each has one consumer."""
        self._owned: dict[ServedProducer, tuple[PartitionKey, PartitionProducers]] = {}
        self._partition_of: dict[ServedSubscription, OpenPartition] = {}
        self._due_tasks: dict[ServedSubscription, asyncio.Task[None]] = {}
        """Tasks that read what was parked and is due."""
        self._locks: dict[tuple[PartitionKey, str], tuple[asyncio.Lock, list[None]]] = {}
        self._epochs = TopicEpochs(services.notes)
        self._names = (f"{services.name}-{secrets.token_hex(4)}-{number}" for number in itertools.count())
        self._ended = [0] * 5
        """Totals of those that are gone: messages and bytes received, messages and bytes delivered, messages redelivered."""

    @property
    def max_message_bytes(self) -> int:
        """Maximum size of a payload, which clients are told. The backing's limit is one of the payload with its metadata."""
        return min(DEFAULT_MAX_MESSAGE_SIZE, (self.services.max_message_bytes() or MAX_LIMIT) - FRAME_PADDING)

    # --- topics -----------------------------------------------------------------------------------------------------------

    def check_serves(self, name: str) -> None:
        """Raise RequestRefused if a topic of this name cannot be served now."""
        if self.is_draining:
            raise RequestRefused("the listener is being stopped", RefusalReason.NOT_READY)
        requested = parse_requested(name)
        backing = self.services.topics.backing_name(requested.name)
        if backing is None:
            raise RequestRefused(f"topic {requested.name} is not served here", RefusalReason.TOPIC_MISSING)
        if self._closed_until.get(backing, 0.0) > asyncio.get_running_loop().time():
            raise RequestRefused(f"topic {requested.name} is being closed", RefusalReason.NOT_READY)

    async def partition_count(self, name: str, *, create: bool) -> int:
        """Return the number of partitions of a topic, 0 if it is not partitioned; with `create`, a missing one may be created.

        A topic without partitions is created when a producer or a consumer needs it: so do brokers.
        """
        self.check_serves(name)
        requested, topics = parse_requested(name), self.services.topics
        topic = await topics.find(requested.name)
        if topic is None:
            if not create or not topics.can_create or requested.partition >= 0:
                raise RequestRefused(f"topic {requested.name} does not exist", RefusalReason.TOPIC_MISSING)
            if topics.creates_one_partition:
                return 0
            topic = await topics.find_or_create(requested.name)
        if requested.partition >= 0:
            return 0
        return topic.count if topic.is_partitioned else 0

    async def list_namespace(self, namespace: str, pattern: str | None) -> NamespaceTopics:
        """Return the topics of a namespace, without their partitions, which clients ask for by themselves."""
        matches = None if pattern is None else compile_pattern(pattern)
        names = []
        for name in await self.services.topics.names():
            parsed = parse_topic(name)
            if f"{parsed.tenant}/{parsed.namespace}" == namespace and (matches is None or matches.fullmatch(parsed.path)):
                names.append(name)
        return NamespaceTopics(names, topics_hash(names), matches is not None)

    # --- schemas ----------------------------------------------------------------------------------------------------------

    async def find_schema(self, name: str, version: bytes | None) -> RegisteredSchema:
        """Return a schema of a topic; the latest one if `version` is None. Raises RequestRefused if there is none."""
        topic = parse_requested(name).name
        found = await (self.schemas.latest(topic) if version is None else self.schemas.version(topic, version))
        if found is None:
            raise RequestRefused(f"topic {topic} has no such schema", RefusalReason.TOPIC_MISSING)
        return found

    async def register_schema(self, name: str, schema: pb.Schema) -> bytes:
        """Register a schema of a topic that exists, and return its version."""
        topic = parse_requested(name).name
        if await self.services.topics.find(topic) is None:
            raise RequestRefused(f"topic {topic} does not exist", RefusalReason.TOPIC_MISSING)
        return await self.schemas.register(topic, Schema.from_wire(schema))

    async def _check_consumer_schema(self, partition: OpenPartition, schema: pb.Schema) -> None:
        """Check the schema of a new consumer; register it if the topic has none and is not in use."""
        key = partition.topic.backing
        in_use = any(backing == key for backing, _ in self.producers) or any(
            backing == key for (backing, _), _ in self.subscriptions
        )
        if not in_use:
            bounds = await self.services.partitions.bounds(partition.topic, partition.index)
            in_use = bounds.last is not None
        await self.schemas.check_consumer(partition.topic.name, Schema.from_wire(schema), in_use=in_use)

    # --- producers --------------------------------------------------------------------------------------------------------

    def make_producer(self, connection: ClientLink, request: pb.CommandProducer) -> ServedProducer:
        """Make a producer that is not open yet."""
        name = request.producer_name[:MAX_NAME_CHARS]
        is_named = bool(name) and request.user_provided_producer_name
        producer = ServedProducer(
            connection, request.producer_id, name or next(self._names), self.message_ids, epoch=request.epoch, is_named=is_named
        )
        producer.access_mode = request.producer_access_mode
        if request.HasField("topic_epoch"):
            producer.topic_epoch = request.topic_epoch
        return producer

    async def open_producer(self, producer: ServedProducer, request: pb.CommandProducer, on_waiting: Callable[[], None]) -> bytes:
        """Open a producer, and return the version of its schema; `on_waiting` is called if it has to wait for others.

        Afterwards it is open, unless its client has closed it. Raises RequestRefused, ClusterError.
        """
        self.check_serves(request.topic)
        if max(len(request.producer_name), len(request.initial_subscription_name)) > MAX_NAME_CHARS:
            raise RequestRefused("the name of the producer or of its subscription is too long", RefusalReason.NOT_ALLOWED)
        version = NO_VERSION
        async with asyncio.timeout(REQUEST_TIMEOUT_S):
            partition = await find_partition(self.services.topics, request.topic, create=True)
            if request.HasField("schema"):
                version = await self.schemas.register(partition.topic.name, Schema.from_wire(request.schema))
        check_wanted(producer)
        key = partition.topic.backing, partition.index
        producers = self.producers.get(key)
        if producers is None:
            producers = self.producers[key] = PartitionProducers(self._epochs.get(*key))
        self._owned[producer] = key, producers
        producers.users += 1
        try:
            if not await producers.add(producer, self._is_alive, self._send_away_producer):
                on_waiting()
                await producers.wait(producer)
            check_wanted(producer)
            async with asyncio.timeout(REQUEST_TIMEOUT_S):
                if producer.access_mode != pb.ProducerAccessMode.Shared:
                    await self._epochs.record(*key, producers.topic_epoch)
                await self._open_publisher(producer, partition, request.initial_subscription_name)
        except ProducerFenced as error:
            self._disown(producer)
            raise CodedRefusal(str(error), codes.PRODUCER_FENCED) from error
        except BaseException:
            self._disown(producer)
            raise
        return version

    async def _open_publisher(self, producer: ServedProducer, partition: OpenPartition, initial_subscription: str) -> None:
        sender = producer.name if producer.is_named and self.services.deduplicates else None
        if initial_subscription:
            await self.services.groups.create(partition.topic, initial_subscription, Start.EARLIEST)
        publisher = await self.services.publishers.open(partition.topic, partition.index, sender)
        try:
            check_wanted(producer)
        except RequestRefused:
            self.services.publishers.abandon(publisher)
            raise
        index = self.services.publishers.outbound_index(publisher, partition.index)
        producer.opened(publisher, index, None if sender is None else sender_partition(partition.topic, sender))

    async def _is_alive(self, producer: ServedProducer) -> bool:
        return await producer.link.is_alive()

    def _send_away_producer(self, producer: ServedProducer) -> None:
        producer.drop()

    def _disown(self, producer: ServedProducer) -> None:
        """Forget a producer."""
        producer.state = ServedProducerState.CLOSED
        if producer in self._owned:
            key, producers = self._owned.pop(producer)
            producers.remove(producer)
            producers.users -= 1
            if not producers.users:
                self._epochs.keep(*key, producers.topic_epoch)
                del self.producers[key]
            self._ended[0] += producer.received_messages
            self._ended[1] += producer.received_bytes

    async def close_producer(self, producer: ServedProducer) -> None:
        """Close a producer at its client's request, once everything that it has sent is answered."""
        publisher = producer.publisher
        if publisher is not None and producer in self._owned:
            await self.services.publishers.close(publisher)
        self._disown(producer)

    def drop_producer(self, producer: ServedProducer) -> None:
        """Close a producer whose client is gone, or opens it again: what is not sent to the backing yet is not stored."""
        is_owned = producer in self._owned
        self._disown(producer)
        if is_owned and producer.publisher is not None:
            self.services.publishers.abandon(producer.publisher)

    # --- consumers --------------------------------------------------------------------------------------------------------

    def make_consumer(self, connection: ClientLink, request: pb.CommandSubscribe) -> ServedConsumer:
        """Make a consumer that is not open yet. Raises RequestRefused for an invalid name."""
        is_in_order = request.subType in (Types.Exclusive, Types.Failover)
        ranges: tuple[tuple[int, int], ...] = ()
        if request.subType == Types.Key_Shared and request.keySharedMeta.keySharedMode == pb.KeySharedMode.STICKY:
            ranges = tuple((each.start, each.end) for each in request.keySharedMeta.hashRanges)
        return ServedConsumer(
            connection,
            request.consumer_id,
            request.consumer_name[:MAX_NAME_CHARS],
            self.message_ids,
            partition=parse_requested(request.topic).partition,
            priority=request.priority_level,
            epoch=request.consumer_epoch if is_in_order and request.HasField("consumer_epoch") else None,
            ranges=ranges,
        )

    async def subscribe(self, consumer: ServedConsumer, request: pb.CommandSubscribe) -> ServedSubscription:
        """Add a consumer to its subscription, which is opened if necessary. Raises RequestRefused, ClusterError."""
        self.check_serves(request.topic)
        if not request.subscription or len(request.subscription) > MAX_NAME_CHARS:
            raise RequestRefused("the name of the subscription is empty or too long", RefusalReason.NOT_ALLOWED)
        create = request.force_topic_creation
        partition = await find_partition(self.services.topics, request.topic, create=create)
        if request.HasField("schema"):
            await self._check_consumer_schema(partition, request.schema)
        if not request.durable:
            return await self._open_reader(partition, consumer, request)
        key = (partition.topic.backing, partition.index), request.subscription
        if request.subType == Types.Exclusive and (subscription := self.subscriptions.get(key)) is not None:
            await self._make_room(subscription, consumer.link)
        async with self._locked(key):
            subscription = self.subscriptions.get(key)
            if subscription is None:
                subscription = await self._open_subscription(partition, request)
            try:
                check_ranges(subscription, consumer)
                if consumer.state is ServedConsumerState.CLOSED:
                    raise RequestRefused("the consumer was closed while it was opened", RefusalReason.NOT_READY)
                subscription.add(request.subType, consumer)
            finally:
                self.end_if_unused(subscription)
        return subscription

    @asynccontextmanager
    async def _locked(self, key: tuple[PartitionKey, str]) -> AsyncIterator[None]:
        """Hold the lock of a subscription, which is opened, moved and ended by one request at a time."""
        lock, users = self._locks.setdefault(key, (asyncio.Lock(), []))
        users.append(None)
        try:
            async with lock:
                yield
        finally:
            users.pop()
            if not users:
                self._locks.pop(key, None)

    def _check_count(self) -> None:
        if len(self.subscriptions) + len(self.readers) >= MAX_SUBSCRIPTIONS:
            raise RequestRefused(f"the listener serves {MAX_SUBSCRIPTIONS} subscriptions already", RefusalReason.NOT_ALLOWED)

    async def _open_subscription(self, partition: OpenPartition, request: pb.CommandSubscribe) -> ServedSubscription:
        self._check_count()
        feed = await self.services.groups.open(
            partition.topic, partition.index, request.subscription, start_of(request), SHARING[request.subType]
        )
        subscription = ServedSubscription(
            request.subscription,
            partition.topic.name,
            partition.shown_index,
            feed,
            self.message_ids,
            is_durable=True,
            open_dead_letters=self.services.open_dead_letters,
            parking=GroupParking(self.services.parking, partition.topic, partition.index),
        )
        self._due_tasks[subscription] = spawn(
            self._read_due(subscription, partition, SHARING[request.subType]), f"what is due for {subscription.name}"
        )
        subscription.on_empty = lambda: self.end_if_unused(subscription)
        self.subscriptions[(partition.topic.backing, partition.index), request.subscription] = subscription
        self._partition_of[subscription] = partition
        return subscription

    async def _read_due(self, subscription: ServedSubscription, partition: OpenPartition, sharing: Sharing) -> None:
        """Read what was parked and is due for a subscription, as soon as there is a topic of it."""
        services, pauses = self.services, Backoff(1.0, DUE_PAUSE_S)
        found = asyncio.Event()
        stop = services.parking.watch(found.set)
        try:
            while True:
                found.clear()
                try:
                    topic = await services.parking.due_topic(partition.topic, subscription.name)
                    if topic is not None and partition.index in topic.partitions:
                        feed = await services.groups.open(topic, partition.index, subscription.name, Start.EARLIEST, sharing)
                        break
                except MqbridgeError as error:
                    log.warning("what is due for subscription %s is not read now: %s", subscription.name, error)
                    await asyncio.sleep(pauses.delay())
                    continue
                with suppress(TimeoutError):  # another gateway may have made it, or added partitions
                    async with asyncio.timeout(LOOK_S):
                        await found.wait()
        finally:
            stop()
        if subscription.state is SubscriptionState.ENDED:
            services.groups.release(feed)
        else:
            subscription.add_due(feed)

    async def _make_room(self, subscription: ServedSubscription, asking: ClientLink) -> None:
        """Find out if the consumer of an exclusive subscription is still there; one whose client is gone makes room.

        The caller does not hold the lock of the subscription, and others may change it meanwhile.
        """
        if subscription.type == Types.Exclusive and subscription.consumers:
            consumer = subscription.consumers[0]
            if consumer.link is not asking and not await consumer.link.is_alive():
                self.remove_consumer(consumer, subscription)

    async def _open_reader(
        self, partition: OpenPartition, consumer: ServedConsumer, request: pb.CommandSubscribe
    ) -> ServedSubscription:
        self._check_count()
        start: GroupStart | Position = start_of(request)
        if request.HasField("start_message_id"):
            start = await self._position_at(partition, request.start_message_id)
        feed = await self.services.partitions.open_reader(partition.topic, partition.index, start, request.subscription)
        subscription = ServedSubscription(
            request.subscription, partition.topic.name, partition.shown_index, feed, self.message_ids, is_durable=False
        )
        subscription.on_empty = lambda: self.end_if_unused(subscription)
        self._partition_of[subscription] = partition
        self.readers.add(subscription)
        if consumer.state is ServedConsumerState.CLOSED:
            self.end_if_unused(subscription)
            raise RequestRefused("the consumer was closed while it was opened", RefusalReason.NOT_READY)
        subscription.add(request.subType, consumer)
        return subscription

    def _start_at(self, message_id: pb.MessageIdData) -> GroupStart | Position:
        """Return where a message id is: at an entry or a message of its batch, or at an end of the partition."""
        entry = ids.entry_id(message_id)
        if entry[0] < 0:
            return Start.EARLIEST
        if self.message_ids.is_parked(entry):  # the end, where positions of unknown ids are, would skip what is not delivered
            raise RequestRefused("the message was delivered late, and has no place among the others", RefusalReason.NOT_ALLOWED)
        first = ids.from_words(message_id.ack_set[:MAX_ACK_SET_WORDS])
        skipped = (first & -first).bit_length() - 1 if first else 0
        position = self.message_ids.position_of(entry, skipped)
        return Start.LATEST if position is None else position

    def remove_consumer(self, consumer: ServedConsumer, subscription: ServedSubscription | None) -> None:
        """Remove a consumer that was closed, or whose connection is lost."""
        consumer.state = ServedConsumerState.CLOSED
        self._ended[2] += consumer.delivered_messages
        self._ended[3] += consumer.delivered_bytes
        self._ended[4] += consumer.redelivered_messages
        consumer.delivered_messages = consumer.delivered_bytes = consumer.redelivered_messages = 0
        if subscription is not None:
            subscription.remove(consumer)
            self.end_if_unused(subscription)

    def end_if_unused(self, subscription: ServedSubscription) -> None:
        """End a subscription that has no consumers; its group stays."""
        if subscription.consumers or subscription.state is not SubscriptionState.OPEN:
            return
        partition = self._partition_of.pop(subscription, None)
        if partition is None:
            return
        subscription.end()
        if subscription.is_durable:
            key = (partition.topic.backing, partition.index), subscription.name
            if self.subscriptions.get(key) is subscription:
                del self.subscriptions[key]
            self._due_tasks.pop(subscription).cancel()
            self.services.groups.release(subscription.feed)
            if subscription.feeds.due is not None:
                self.services.groups.release(subscription.feeds.due)
        else:
            self.readers.discard(subscription)
            spawn(subscription.feed.detach(), f"close of a reader of {subscription.topic}")

    async def unsubscribe(self, consumer: ServedConsumer, subscription: ServedSubscription, *, force: bool) -> None:
        """Delete the subscription of a consumer. Raises RequestRefused while it has others, unless `force` is True."""
        if not force and subscription.consumers != [consumer]:
            problem = "Unconnected or shared consumer attempting to unsubscribe"
            raise CodedRefusal(problem, codes.METADATA)
        partition = self._partition_of.get(subscription)
        if partition is None:
            return
        others = [each for each in subscription.consumers if each is not consumer]
        subscription.remove(consumer)
        if others:
            subscription.send_away()
        self.end_if_unused(subscription)
        if subscription.is_durable:
            key = (partition.topic.backing, partition.index), subscription.name
            try:
                async with self._locked(key):
                    if key not in self.subscriptions:
                        await self.services.parking.delete_group(partition.topic, subscription.name, partition.index)
            except BaseException:  # its client goes on with the consumer, and has to open it again
                consumer.link.send(server_commands.close_consumer(consumer.id))
                raise

    # --- positions --------------------------------------------------------------------------------------------------------

    async def seek(self, subscription: ServedSubscription, request: pb.CommandSeek) -> None:
        """Move a subscription to a message, or to a time, after which its client is told at once. Raises RequestRefused.

        Clients subscribe again as soon as their consumers are closed. If a consumer was open again before its client hears that
        the seek is done, the client would drop what it has received, and never ask for more. Raises ClusterError, too.
        """
        partition = self._partition_of.get(subscription)
        if partition is None:
            raise RequestRefused("the subscription has ended", RefusalReason.NOT_READY)
        position = await self._seek_target(partition, request)
        if not subscription.is_durable:  # the client subscribes again, and names the position itself
            subscription.send_away()
            return
        key = (partition.topic.backing, partition.index), subscription.name
        async with self._locked(key):  # a client that subscribes again meanwhile must hear of the seek first
            try:
                async with self.services.parking.moving(partition.topic, subscription.name, [partition.index]):
                    await subscription.seek(position)
            except LaneRevoked as error:
                raise RequestRefused(str(error), RefusalReason.NOT_READY) from error
            finally:
                self.end_if_unused(subscription)

    async def _seek_target(self, partition: OpenPartition, request: pb.CommandSeek) -> Position:
        partitions = self.services.partitions
        if request.HasField("message_publish_time"):
            time_ms = min(request.message_publish_time, MAX_TIME_MS)
            return await partitions.position_at(partition.topic, partition.index, time_ms)
        if not request.HasField("message_id"):
            raise CodedRefusal("SEEK names neither a message nor a time", codes.METADATA)
        return await self._position_at(partition, request.message_id)

    async def _position_at(self, partition: OpenPartition, message_id: pb.MessageIdData) -> Position:
        """Return the position of a message, or of the end of the partition that is nearest to it."""
        partitions = self.services.partitions
        start = self._start_at(message_id)
        if isinstance(start, Start):
            return await partitions.position_of(partition.topic, partition.index, start)
        assert isinstance(start, tuple)  # noqa: S101 - an id is never a time
        bounds = await partitions.bounds(partition.topic, partition.index)
        if not bounds.is_known:
            return start
        return min(max(start, bounds.first), bounds.next)

    async def last_message_id(self, subscription: ServedSubscription) -> LastMessage:
        """Return the id of the last message of a partition, and of the last one that the subscription has acknowledged."""
        partition = self._partition_of.get(subscription)
        if partition is None:
            raise RequestRefused("the subscription has ended", RefusalReason.NOT_READY)
        return await find_last(self.services, self.message_ids, partition, subscription.feed)

    # --- closing --------------------------------------------------------------------------------------------------------

    def subscriptions_of(self, backing: str, partition: int) -> list[ServedSubscription]:
        """Return the open subscriptions of a partition."""
        return [
            each
            for each in self.all_subscriptions()
            if each.feed.key.topic == backing and self._partition_of[each].index == partition
        ]

    def close_topic(self, backing: str) -> None:
        """Close all producers and consumers of a topic, and refuse new ones for CLOSED_TOPIC_S, while it is deleted."""
        now = asyncio.get_running_loop().time()
        self._closed_until = {topic: until for topic, until in self._closed_until.items() if until > now}
        self._closed_until[backing] = now + CLOSED_TOPIC_S
        for producer, ((topic, _), _) in list(self._owned.items()):
            if topic == backing:
                producer.drop()
        for subscription in list(self.all_subscriptions()):
            if subscription.feed.key.topic == backing:
                subscription.send_away()
                self.end_if_unused(subscription)

    # --- counts -----------------------------------------------------------------------------------------------------------

    def all_subscriptions(self) -> Iterator[ServedSubscription]:
        """Return all open subscriptions."""
        yield from self.subscriptions.values()
        yield from self.readers

    @property
    def counts(self) -> ServerCounts:
        """Present numbers and totals."""
        consumers = [consumer for each in self.all_subscriptions() for consumer in each.consumers]
        return ServerCounts(
            len(self._owned),
            len(consumers),
            self._ended[0] + sum(each.received_messages for each in self._owned),
            self._ended[1] + sum(each.received_bytes for each in self._owned),
            self._ended[2] + sum(each.delivered_messages for each in consumers),
            self._ended[3] + sum(each.delivered_bytes for each in consumers),
            self._ended[4] + sum(each.redelivered_messages for each in consumers),
            self.refused_requests,
        )

    def stats_of(
        self, request_id: int, consumer: ServedConsumer, subscription: ServedSubscription
    ) -> pb.CommandConsumerStatsResponse:
        """Return statistics of a consumer; rates are not measured."""
        return pb.CommandConsumerStatsResponse(
            request_id=request_id,
            consumerName=consumer.name,
            availablePermits=max(0, consumer.permits),
            unackedMessages=consumer.unacknowledged_messages,
            blockedConsumerOnUnackedMsgs=False,
            address=consumer.link.peer,
            type=subscription.type_name,
        )
