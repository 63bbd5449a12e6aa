"""The partitions of a group that this gateway can hand to consumers, and where the group is in them.

`BackingLanes`: the group is one of the cluster, of which this gateway is a member: it has the partitions that the cluster gives
it, and loses them again. `OwnLanes`: the gateway keeps the group itself, and has every partition of its topics.

The Master gives partitions to consumers before these say where a new group begins. So a group that is new in the cluster begins
at the first message, and is moved to the end when the first consumer of a partition asks for that. What this rests on: this
gateway is the one that has made the group. At another one the group is not new, and a consumer that wants only new messages gets
the old ones, too: none is lost.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable
from functools import partial
from typing import NamedTuple, Protocol

from mqbridge.adapter.inbound import Start
from mqbridge.errors import LaneRevoked, MqbridgeError
from mqbridge.listener.backing_groups import BackingGroups
from mqbridge.listener.group_membership import BackingMembership, BackingMembershipState
from mqbridge.listener.groups import GroupStart
from mqbridge.listener.own_groups import OwnGroups
from mqbridge.listener.queue_feed import QueueFeed, QueueFeedState
from mqbridge.listener.topics import ListenedTopic
from mqbridge.net.tasks import spawn
from mqbridge.tubemq.server.broker import ServedBroker
from mqbridge.tubemq.server.refusals import CodedRefusal
from mqbridge.tubemq.wire import codes

log = logging.getLogger(__name__)

READY_S, STABLE_S = 3.0, 0.3
"""How long a consumer's registration waits for the partitions of its group, and how long they must be the same if there are fewer
than the topics have: clients ask for theirs right after it, and then 13 s later."""


class PartitionId(NamedTuple):
    """A partition, by the topic's name for clients and its index."""

    topic: str
    partition: int


class LaneStart(NamedTuple):
    """Where a consumer wants to begin.

    new     where a group begins that is new in the partition
    always  True if a known one begins there, too
    number  exactly this number (None: as the others say)
    """

    new: Start
    always: bool = False
    number: int | None = None


class GroupLanes(Protocol):
    """See the module."""

    def want(self, topics: Iterable[str]) -> None:
        """Have the partitions of exactly these topics, as far as they exist; none: end."""

    def available(self) -> set[PartitionId]:
        """Return the partitions that can be handed to consumers now."""

    @property
    def problem(self) -> str | None:
        """Why there are none; None if nothing is wrong."""

    async def wait_ready(self) -> None:
        """Wait until the partitions are there that can be expected. Raises CodedRefusal if the cluster permits no such group."""

    async def open(self, topic: ListenedTopic, index: int, start: LaneStart) -> tuple[QueueFeed, int]:
        """Return the feed of a partition, and the number up to which the group has consumed it.

        Raises CodedRefusal if it is not here, ClusterError.
        """

    async def move(self, topic: ListenedTopic, index: int, feed: QueueFeed, number: int) -> None:
        """Move the group in an open partition. Raises LaneRevoked, ClusterError."""

    def commit(self, topic: ListenedTopic, index: int, feed: QueueFeed, number: int) -> None:
        """Commit everything before a number in an open partition."""

    async def close(self, feed: QueueFeed) -> None:
        """Use the feed of a partition no longer."""

    async def finish(self, deadline: float) -> None:
        """Hand out nothing more, and wait for commits, until the deadline (loop time)."""

    async def end(self) -> None:
        """End; the owner of the groups leaves them."""


class OwnLanes:
    """See the module."""

    problem = None

    def __init__(self, broker: ServedBroker, group: str, groups: OwnGroups, on_lost: Callable[[QueueFeed], None]) -> None:
        """`on_lost` is called when a feed has failed: it is to be closed, and opened anew later."""
        self._broker, self._group, self._groups, self._on_lost = broker, group, groups, on_lost
        self._topics: frozenset[str] = frozenset()
        self._feeds: set[QueueFeed] = set()

    def want(self, topics: Iterable[str]) -> None:
        """Have the partitions of these topics."""
        self._topics = frozenset(topics)

    def available(self) -> set[PartitionId]:
        """Return all partitions of the topics, as they were found last."""
        found = {name: self._broker.known_topic(name) for name in self._topics}
        return {PartitionId(name, index) for name, topic in found.items() if topic is not None for index in topic.partitions}

    async def wait_ready(self) -> None:
        """Return at once: there is nothing to wait for."""

    async def open(self, topic: ListenedTopic, index: int, start: LaneStart) -> tuple[QueueFeed, int]:
        """Return a new feed, which reads from the recorded position on."""
        numbering = self._broker.services.numbering
        recorded = numbering.number(await self._groups.begin(topic, index, self._group, start.new))
        first, end = await self._broker.bounds_of(topic, index)
        number = recorded
        if start.number is not None:
            number = min(max(start.number, first), end)
        elif start.always:
            number = end
        if number != recorded:
            self._record(topic, index, number)
        partitions = self._broker.services.partitions
        feed = partitions.make_queue_feed(topic, index, self._group, partial(self._find_begin, topic, index))
        feed.on_failed = partial(self._on_lost, feed)
        position = self._broker.position(number)
        feed.attach(partitions.source(topic, index, position), position)
        self._feeds.add(feed)
        return feed, number

    def _record(self, topic: ListenedTopic, index: int, number: int) -> None:
        self._groups.commit(topic, index, self._group, self._broker.position(number), backwards=True)

    async def _find_begin(self, topic: ListenedTopic, index: int) -> int | None:
        positions = await self._groups.committed(topic, self._group)
        return None if index not in positions else self._broker.services.numbering.number(positions[index])

    async def move(self, topic: ListenedTopic, index: int, feed: QueueFeed, number: int) -> None:
        """Move the reader, and record it in the state file."""
        position = self._broker.position(number)
        await feed.seek(position)
        self._record(topic, index, number)
        await self._groups.advance(topic, self._group, {index: position})  # is there already: this waits until it is written

    def commit(self, topic: ListenedTopic, index: int, feed: QueueFeed, number: int) -> None:
        """Record the number."""
        feed.commit(number)
        self._groups.commit(topic, index, self._group, self._broker.position(number), backwards=False)

    async def close(self, feed: QueueFeed) -> None:
        """Close the reader."""
        self._feeds.discard(feed)
        await feed.detach()

    async def finish(self, deadline: float) -> None:
        """Wait for commits."""
        await asyncio.gather(*(feed.finish(deadline) for feed in self._feeds))

    async def end(self) -> None:
        """Close all readers."""
        await asyncio.gather(*(self.close(feed) for feed in list(self._feeds)))


class BackingLanes:
    """See the module."""

    def __init__(
        self,
        broker: ServedBroker,
        group: str,
        groups: BackingGroups,
        on_feed: Callable[[QueueFeed], None],
        on_change: Callable[[], None],
    ) -> None:
        """`on_feed` is called when this gateway gets or loses a partition, `on_change` when the membership begins or ends."""
        self._broker, self._group, self._groups = broker, group, groups
        self._on_feed, self._on_membership = on_feed, on_change
        self._membership = BackingMembership(group, broker.services, groups, self._make_feed, self._on_joined)
        self._new: set[PartitionId] = set()
        """Partitions in which the group was new when it was joined, and that no consumer has had yet."""
        self._changed = asyncio.Event()
        """Set when this gateway gets or loses a partition, or has joined."""

    @property
    def is_over(self) -> bool:
        """True if the group is not joined, and nobody wants that."""
        return self._membership.state is BackingMembershipState.OUT

    @property
    def problem(self) -> str | None:
        """Why the group is not joined; None if it is, or if nobody wants it."""
        return self._membership.problem

    def want(self, topics: Iterable[str]) -> None:
        """Be a member of the group for these topics."""
        self._membership.want(topics, self._find_start)

    async def _find_start(self, topic: ListenedTopic) -> GroupStart:
        if not await self._groups.exists(topic, self._group):
            self._new |= {PartitionId(topic.name, index) for index in topic.partitions}
        return Start.EARLIEST

    def _make_feed(self, topic: ListenedTopic, index: int) -> QueueFeed:
        partitions = self._broker.services.partitions
        feed = partitions.make_queue_feed(topic, index, self._group, partial(self._find_begin, topic, index))
        feed.on_change = self._on_feed_changed
        return feed

    async def _find_begin(self, topic: ListenedTopic, index: int) -> int | None:
        positions = await self._groups.committed(topic, self._group)
        return None if index not in positions else self._broker.services.numbering.number(positions[index])

    def _on_feed_changed(self, feed: QueueFeed) -> None:
        self._changed.set()
        self._on_feed(feed)

    def _on_joined(self) -> None:
        self._changed.set()
        self._on_membership()

    def available(self) -> set[PartitionId]:
        """Return the partitions that this gateway holds and is not about to lose."""
        return {
            PartitionId(topic.name, index)
            for topic in self._membership.topics
            for index in topic.partitions
            if (feed := self._membership.feed(topic, index)) is not None and feed.state is QueueFeedState.HELD
        }

    async def wait_ready(self) -> None:
        """Wait until the cluster has given this gateway partitions."""
        loop = asyncio.get_running_loop()
        until = loop.time() + READY_S
        while (now := loop.time()) < until and self._membership.is_permitted:
            held, topics = self.available(), list(self._membership.topics)
            if held and len(held) >= sum(len(topic.partitions) for topic in topics):
                return
            self._changed.clear()
            try:
                async with asyncio.timeout_at(min(until, now + STABLE_S) if held else until):
                    await self._changed.wait()
            except TimeoutError:
                return
        if not self._membership.is_permitted:
            raise CodedRefusal(self._membership.problem or "the cluster does not permit it", codes.GROUP_FORBIDDEN)

    def _held(self, topic: ListenedTopic, index: int) -> QueueFeed:
        feed = self._membership.feed(topic, index)
        if feed is None or feed.state is not QueueFeedState.HELD:
            text = f"another gateway has partition {index} of topic {topic.name} in group {self._group}"
            raise CodedRefusal(text, codes.PARTITION_OCCUPIED)
        return feed

    async def open(self, topic: ListenedTopic, index: int, start: LaneStart) -> tuple[QueueFeed, int]:
        """Return the feed of the lane that this gateway holds."""
        feed = self._held(topic, index)
        committed = feed.committed if feed.committed is not None else await self._find_begin(topic, index)
        first, end = await self._broker.bounds_of(topic, index)
        number = first if committed is None else min(max(committed, first), end)
        is_new = PartitionId(topic.name, index) in self._new and number == first  # not if another gateway has consumed some
        is_behind = self._broker.services.numbering.dense and committed is not None and committed < first  # a feed skips less
        wanted = number
        if start.number is not None:
            wanted = min(max(start.number, first), end)
        elif start.always or (is_new and start.new is Start.LATEST):
            wanted = end
        if wanted != number or is_behind:
            try:
                await self.move(topic, index, feed, wanted)
            except LaneRevoked as error:
                raise CodedRefusal(str(error), codes.PARTITION_OCCUPIED) from error
        self._new.discard(PartitionId(topic.name, index))
        return feed, wanted

    async def move(self, topic: ListenedTopic, index: int, feed: QueueFeed, number: int) -> None:  # noqa: ARG002 - of the protocol
        """Move the group in the cluster."""
        await feed.seek(self._broker.position(number))

    def commit(self, topic: ListenedTopic, index: int, feed: QueueFeed, number: int) -> None:  # noqa: ARG002 - of the protocol
        """Commit in the cluster; a number that the lane has not reached yet takes a request."""
        if not feed.commit(number):
            spawn(self._advance(feed, number), f"commit of {feed.key}")

    async def _advance(self, feed: QueueFeed, number: int) -> None:
        try:
            await feed.advance(self._broker.position(number))
        except MqbridgeError as error:
            log.warning("group %s cannot commit %d of %s now: %s", self._group, number, feed.key.partition, error)

    async def close(self, feed: QueueFeed) -> None:
        """Do nothing: the lane stays with the membership."""

    async def finish(self, deadline: float) -> None:
        """Wait for commits."""
        await self._membership.finish(deadline)

    async def end(self) -> None:
        """End the membership."""
        await self._membership.close()
