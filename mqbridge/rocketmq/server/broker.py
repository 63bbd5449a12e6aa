"""What all connections of the server share: its clients, the groups that they make, and the queues of topics."""

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from math import inf

from mqbridge.adapter.receipt import MessageFailure
from mqbridge.errors import Failure, MqbridgeError, RefusalReason, RequestRefused
from mqbridge.listener.backing_groups import BackingGroups
from mqbridge.listener.group_membership import BackingMembership, BackingMembershipState
from mqbridge.listener.number_reader import NumberReader
from mqbridge.listener.own_groups import OwnGroups
from mqbridge.listener.queue_feed import QueueFeed
from mqbridge.listener.server import ServerCounts, Services
from mqbridge.listener.topics import ListenedTopic
from mqbridge.message import Message, Partition, Position, Unit
from mqbridge.net.tasks import spawn
from mqbridge.rocketmq.mapping.sdk_units import unit_of_message
from mqbridge.rocketmq.mapping.served_records import RecordPlace, encode_served
from mqbridge.rocketmq.mapping.unit_format import NAME
from mqbridge.rocketmq.server.clients import Clients, ConsumerGroup
from mqbridge.rocketmq.server.connection import ServedConnection
from mqbridge.rocketmq.server.group_starts import find_start
from mqbridge.rocketmq.server.physical_offsets import QueueName, block_ends, physical_base
from mqbridge.rocketmq.server.refusals import CodedRefusal
from mqbridge.rocketmq.server.topic_names import CLUSTER_NAME, RETRY_PREFIX, SYSTEM_TOPICS, is_made_by_listener, is_valid
from mqbridge.rocketmq.wire.codes import Status
from mqbridge.rocketmq.wire.properties import Name, join
from mqbridge.rocketmq.wire.record import MAX_MESSAGE_BYTES

log = logging.getLogger(__name__)

ADDED = join([(Name.MSG_REGION, "DefaultRegion"), (Name.CLUSTER, CLUSTER_NAME), (Name.TRACE_ON, "true")]).encode()
"""Properties that a broker adds to each message."""
RESET_S = 30.0
"""How long commits are ignored after a group was moved, unless its client commits at the new offset before."""
MAX_KNOWN_TOPICS = 20_000
"""Maximum number of topics whose partitions are remembered for commits."""


class GroupSignal:
    """Set when what this gateway holds for a group changes, or who its members are; and the number of those that wait for it."""

    __slots__ = ("event", "waiting")

    def __init__(self) -> None:
        self.event, self.waiting = asyncio.Event(), 0


class Broker:
    """See the module."""

    def __init__(self, services: Services) -> None:
        self.services = services
        self.name = f"mqbridge-{services.name}"
        """The name of the one broker that clients see; the same at every gateway with this listener."""
        self.is_draining = False
        self.clients = Clients(self._on_group, self._on_producer)
        self.clients.on_not_expected = self._signal
        self.on_feed_changed: Callable[[str, str, str, bool], None] = lambda *_: None
        """Called when this gateway gets or loses a queue of a group; the server sets this."""
        self.on_forgotten: Callable[[str], None] = lambda _: None
        """Called when a topic was deleted, by its name; the server sets this."""
        self.on_producer_group: Callable[[str, bool], None] = lambda *_: None
        """Called when a producer group gets its first member, or loses its last one; `Transactions` sets this."""
        self._memberships: dict[str, BackingMembership] = {}
        self._signals: dict[str, GroupSignal] = {}
        """By group, while somebody waits; replaced when it is set."""
        self._topics: dict[str, ListenedTopic] = {}
        """Topics that were found, by name."""
        self._retry_tasks: dict[str, asyncio.Task[None]] = {}
        """Tasks that make the retry topics of groups."""
        self._resets: dict[tuple[ServedConnection, str, str, int], tuple[int, float]] = {}
        """By client, group, topic in the cluster and queue: an offset to which the group was moved, and how long (loop time)
        commits at others are ignored."""
        self.totals: Counter[str] = Counter()
        """Totals: messages and bytes received and delivered, and messages delivered again."""

    # --- topics -----------------------------------------------------------------------------------------------------------

    @property
    def max_message_bytes(self) -> int:
        """Maximum size of a body."""
        return min(MAX_MESSAGE_BYTES, self.services.max_message_bytes() or MAX_MESSAGE_BYTES)

    async def find_topic(self, name: str) -> ListenedTopic | None:
        """Return a topic; None if it does not exist. Raises ClusterError."""
        if name in SYSTEM_TOPICS:
            return None
        topic = await self.services.topics.find(name)
        if topic is not None:
            if len(self._topics) >= MAX_KNOWN_TOPICS:
                self._topics.clear()
            self._topics[name] = topic
        return topic

    async def readable_topic(self, name: str) -> ListenedTopic:
        """Return a topic. Raises CodedRefusal if it does not exist, and ClusterError."""
        topic = await self.find_topic(name)
        if topic is None:
            raise topic_missing(name)
        return topic

    async def writable_topic(self, name: str) -> ListenedTopic:
        """Return a topic to which a client sends, which is created if it may be. Raises RequestRefused, ClusterError."""
        if not is_valid(name):
            raise CodedRefusal(f"messages cannot be sent to topic {name[:200]!r}", Status.MESSAGE_ILLEGAL)
        topic = await self.find_topic(name)
        if topic is not None:
            return topic
        if is_made_by_listener(name):
            return await self.services.topics.create(name, 1, is_partitioned=True)
        try:
            return await self.services.topics.find_or_create(name)
        except RequestRefused as error:
            if error.reason is RefusalReason.TOPIC_MISSING:
                raise topic_missing(name) from error
            raise

    def known_topic(self, name: str) -> ListenedTopic | None:
        """Return a topic as it was found last, which may be outdated; None if it was not found yet."""
        return self._topics.get(name)

    def forget_topic(self, name: str) -> None:
        """Forget a topic that was deleted, and what clients have open in it."""
        self._topics.pop(name, None)
        self.on_forgotten(name)

    def check_queue(self, topic: ListenedTopic, queue: int) -> None:
        """Raise CodedRefusal if a topic has no such queue."""
        if queue not in topic.partitions:
            problem = f"topic {topic.name} has no queue {queue}: its queues are 0 to {topic.count - 1}"
            raise CodedRefusal(problem, Status.INVALID_PARAMETER)

    def encode(
        self,
        topic: ListenedTopic,
        queue: int,
        host: bytes,
        units: Sequence[Unit],
        numbers: Sequence[int],
        tags: frozenset[str] = frozenset(),
    ) -> tuple[bytes, int]:
        """Return units as records for a client that has reached us at this host, and how many have one of the tags.

        Raises RemoteProtocolError for a unit that is damaged.
        """
        name, pieces, total, begin = queue_name(topic, queue), [], 0, 0
        for end in block_ends(numbers):
            base = physical_base(name, numbers[begin])
            place = RecordPlace(topic.name.encode(), queue, host, base, ADDED)
            body, count = encode_served(units[begin:end], numbers[begin:end], place, tags)
            pieces.append(body)
            total, begin = total + count, end
        return pieces[0] if len(pieces) == 1 else b"".join(pieces), total

    async def bounds_of(self, topic: ListenedTopic, queue: int) -> tuple[int, int]:
        """Return the offset of the first message of a queue, and that of its next one. Raises ClusterError.

        Offsets at the begin that no message has are left out.
        """
        bounds = await self.services.partitions.bounds(topic, queue)
        number = self.services.numbering.number
        first, end = number(bounds.first), number(bounds.next)
        for begin, after in bounds.left_out:
            if begin <= first < after:
                first = min(after, end)
        return first, end

    def open_reader(self, topic: ListenedTopic, queue: int) -> NumberReader:
        """Return a reader of a queue, which reads from any number on."""
        services = self.services
        source = partial(services.partitions.source, topic, queue)
        return NumberReader(source, services.numbering, NAME, services.memory)

    def units_of(self, messages: Sequence[Message], topic: ListenedTopic, queue: int) -> list[Unit]:
        """Return messages that were not stored by clients of this protocol as units."""
        source = Partition(self.services.cluster, topic.backing, topic.partition(queue), queue)
        return [unit_of_message(message, source) for message in messages]

    def quarantine(self, topic: ListenedTopic, queue: int, number: int, unit: Unit, problem: str) -> None:
        """Store a unit that cannot be read as a dead letter; clients go on behind it."""
        log.error("message %d of %s/%d cannot be read, and is skipped: %s", number, topic.backing, queue, problem)
        spawn(self._put_away(topic, queue, number, unit, problem), f"quarantine of {topic.backing}/{queue}/{number}")

    async def _put_away(self, topic: ListenedTopic, queue: int, number: int, unit: Unit, problem: str) -> None:
        source = Partition(self.services.cluster, topic.backing, topic.partition(queue), queue)
        message = Message(unit.data, position=self.services.numbering.position(number))
        try:
            letters = await self.services.open_dead_letters()
            failure = MessageFailure(0, Failure.REFUSED, problem)
            receipt = await letters.send(0, letters.make(str(source), [message], [failure], source))
            if receipt.failures:
                log.error("it is no dead letter either: %s", receipt.failures[0].reason)
        except MqbridgeError as error:
            log.error("it is no dead letter either: %s", error)  # noqa: TRY400 - expected

    # --- groups -----------------------------------------------------------------------------------------------------------

    @property
    def own_groups(self) -> OwnGroups | None:
        """The groups, if this gateway keeps them itself."""
        groups = self.services.groups
        return groups if isinstance(groups, OwnGroups) else None

    def _on_group(self, group: ConsumerGroup) -> None:
        """Follow what the members of a group want."""
        retry = next((each for each in group.shared_topics if each.startswith(RETRY_PREFIX)), None)
        if retry is not None and retry not in self._topics and retry not in self._retry_tasks:
            task = self._retry_tasks[retry] = spawn(self._make_retry_topic(group, retry), f"topic {retry}")
            task.add_done_callback(lambda _: self._retry_tasks.pop(retry, None))
        if retry not in self._retry_tasks:
            self._follow(group)
        self._signal(group.name)

    async def _make_retry_topic(self, group: ConsumerGroup, name: str) -> None:
        """Make the retry topic of a group, so that it is a part of the membership from the begin."""
        try:
            await self.writable_topic(name)
        except MqbridgeError as error:
            log.warning("the retry topic of group %s cannot be created now: %s", group.name, error)
        self._retry_tasks.pop(name, None)
        self._follow(self.clients.consumers.get(group.name, group))  # others may be its members now

    def _follow(self, group: ConsumerGroup) -> None:
        """Be a member of a group for what its members want."""
        groups = self.services.groups
        if not isinstance(groups, BackingGroups) or self.is_draining:
            return
        membership = self._memberships.get(group.name)
        if membership is None:
            if not group.shared_topics:
                return
            membership = self._memberships[group.name] = BackingMembership(
                group.name, self.services, groups, partial(self._make_feed, group.name), partial(self._on_membership, group.name)
            )
        membership.want(group.shared_topics, partial(find_start, self.services, group.consume_from))
        self._forget_membership(group.name)

    def _on_membership(self, group: str) -> None:
        """Wake those that wait for a queue of a group, and forget a membership that nobody wants any more."""
        self._forget_membership(group)
        self._signal(group)

    def _forget_membership(self, group: str) -> None:
        """Forget a membership if it is over, and the group has no members."""
        membership = self._memberships.get(group)
        if membership is not None and membership.state is BackingMembershipState.OUT and group not in self.clients.consumers:
            del self._memberships[group]

    def _make_feed(self, group: str, topic: ListenedTopic, partition: int) -> QueueFeed:
        services = self.services
        feed = services.partitions.make_queue_feed(topic, partition, group, partial(self._find_begin, group, topic, partition))
        feed.on_change = partial(self._on_feed, group)
        return feed

    async def _find_begin(self, group: str, topic: ListenedTopic, queue: int) -> int | None:
        positions = await self.services.groups.committed(topic, group)
        return None if queue not in positions else self.services.numbering.number(positions[queue])

    def _on_feed(self, group: str, feed: QueueFeed) -> None:
        self._signal(group)
        self.on_feed_changed(group, feed.key.topic, feed.key.partition, feed.is_held)

    def _signal(self, group: str) -> None:
        """Wake those that wait for a queue of a group, or to be a member."""
        if (signal := self._signals.pop(group, None)) is not None:
            signal.event.set()

    async def _wait_signal(self, group: str) -> None:
        """Wait until something changes for a group."""
        signal = self._signals.setdefault(group, GroupSignal())
        signal.waiting += 1
        try:
            await signal.event.wait()
        finally:
            signal.waiting -= 1
            if not signal.waiting and self._signals.get(group) is signal:
                del self._signals[group]

    def is_shared(self, link: ServedConnection, group: str, topic: str) -> bool:
        """Return True if a client gets the messages of a topic from the lanes of its group, also if that is not joined yet."""
        known = self.clients.consumers.get(group)
        return known is not None and isinstance(self.services.groups, BackingGroups) and known.shares(link, topic)

    def feed_of(self, group: str, topic: ListenedTopic, queue: int) -> QueueFeed | None:
        """Return the lane of a queue; None if this gateway has not held it yet."""
        membership = self._memberships.get(group)
        return None if membership is None else membership.feed(topic, queue)

    async def wait_for_feed(self, group: str, topic: ListenedTopic, queue: int) -> QueueFeed:
        """Wait until this gateway has got a queue for the first time; the caller limits the time."""
        while (feed := self.feed_of(group, topic, queue)) is None:
            await self._wait_signal(group)
        return feed

    def is_expected(self, link: ServedConnection, group: str) -> bool:
        """Return True if a client will get the messages of a group's lanes once it has sent a heartbeat."""
        return isinstance(self.services.groups, BackingGroups) and self.clients.is_expected(link, group)

    async def wait_for_heartbeat(self, link: ServedConnection, group: str) -> None:
        """Wait while a client is expected to become a member of its group; the caller limits the time."""
        while self.is_expected(link, group):
            until = self.clients.expected_until(link, group)
            with suppress(TimeoutError):
                async with asyncio.timeout_at(None if until == inf else until):
                    await self._wait_signal(group)

    async def committed_number(self, group: str, topic: ListenedTopic, queue: int) -> int | None:
        """Return the offset that a group has committed; None if it has none. Raises ClusterError."""
        feed = self.feed_of(group, topic, queue)
        if feed is not None and feed.is_held and feed.committed is not None:
            return feed.committed
        return await self._find_begin(group, topic, queue)

    def commit_pulled(self, link: ServedConnection, group: str, topic_name: str, queue: int, offset: int) -> None:
        """Commit what a pull carries: never backwards."""
        own = self.own_groups
        if own is None and not self.is_shared(link, group, topic_name):
            self.clients.expect(link, group)  # clients that assign themselves queues, and tools, commit with no pull
            return
        topic = self._topics.get(topic_name)
        if topic is None or queue not in topic.partitions or self.is_being_reset(link, group, topic, queue, offset):
            return
        if own is not None:
            own.commit(topic, queue, group, self.position(offset), backwards=False)
        else:
            self.commit_lane(group, topic, queue, offset)

    def begin_reset(self, link: ServedConnection, group: str, topic: ListenedTopic, queue: int, target: int) -> None:
        """Ignore what a client commits in this queue until it goes on at this offset, but for RESET_S at most."""
        self._resets[link, group, topic.backing, queue] = target, asyncio.get_running_loop().time() + RESET_S

    def end_reset(self, link: ServedConnection, group: str, topic: ListenedTopic, queue: int) -> None:
        """End that, because the group was not moved."""
        self._resets.pop((link, group, topic.backing, queue), None)

    def drop(self, link: ServedConnection) -> None:
        """Forget a connection that has ended."""
        self.clients.drop(link)
        for key in [key for key in self._resets if key[0] is link]:
            del self._resets[key]

    def is_being_reset(self, link: ServedConnection, group: str, topic: ListenedTopic, queue: int, offset: int) -> bool:
        """Return True if a commit at this offset comes from a client that does not know yet that the group was moved."""
        key = link, group, topic.backing, queue
        target, until = self._resets.get(key, (offset, 0.0))
        if key in self._resets and (offset == target or asyncio.get_running_loop().time() > until):
            del self._resets[key]
        return key in self._resets

    def commit_lane(self, group: str, topic: ListenedTopic, queue: int, offset: int) -> None:
        """Commit in a lane that is held here; what is not held is another gateway's, and nothing is committed."""
        feed = self.feed_of(group, topic, queue)
        if feed is not None and feed.is_held and not feed.commit(offset):
            spawn(self._advance(feed, offset), f"commit of {feed.key}")

    async def _advance(self, feed: QueueFeed, offset: int) -> None:
        try:
            await feed.advance(self.position(offset))
        except MqbridgeError as error:
            log.warning("group %s cannot commit offset %d of %s now: %s", feed.key.group, offset, feed.key.partition, error)

    def membership_problem(self, group: str) -> str | None:
        """Return why a group of the cluster is not joined; None if it is, or if nobody wants it."""
        membership = self._memberships.get(group)
        return None if membership is None else membership.problem

    def position(self, number: int) -> Position:
        """Return the position with a number. Raises CodedRefusal if there is none."""
        try:
            return self.services.numbering.position(number)
        except ValueError as error:
            raise CodedRefusal(f"{number} is not an offset: {error}", Status.SYSTEM_ERROR) from error

    def _on_producer(self, group: str, is_here: bool) -> None:
        self.on_producer_group(group, is_here)

    # --- figures ----------------------------------------------------------------------------------------------------------

    def count_delivered(self, topic: str, messages: int, size: int) -> None:
        """Count delivered messages; those of a retry topic were delivered before."""
        self.totals["delivered_messages"] += messages
        self.totals["delivered_bytes"] += size
        if topic.startswith(RETRY_PREFIX):
            self.totals["redelivered_messages"] += messages

    def count_received(self, messages: int, size: int) -> None:
        """Count received messages."""
        self.totals["received_messages"] += messages
        self.totals["received_bytes"] += size

    @property
    def counts(self) -> ServerCounts:
        """Present numbers and totals."""
        return ServerCounts(
            producers=sum(map(len, self.clients.producers.values())),
            consumers=sum(len(group.connected) for group in self.clients.consumers.values()),
            **self.totals,
        )

    async def finish(self, deadline: float) -> None:
        """Hand out nothing more, and wait until what clients have is committed, or until the deadline (loop time)."""
        await asyncio.gather(*(membership.finish(deadline) for membership in self._memberships.values()))

    async def close(self) -> None:
        """End the memberships; the owner of the groups leaves them."""
        await asyncio.gather(*(membership.close() for membership in self._memberships.values()))


def queue_name(topic: ListenedTopic, queue: int) -> QueueName:
    """Return the name of a queue in the cluster."""
    return QueueName(topic.backing, topic.partition(queue))


def topic_missing(name: str) -> CodedRefusal:
    """Return the refusal of a request for a topic that does not exist."""
    return CodedRefusal(f"topic {name} does not exist", Status.TOPIC_NOT_EXIST)
