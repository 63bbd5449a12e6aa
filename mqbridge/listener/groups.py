"""What servers ask of the groups of a listener: feeds of their partitions, and administrative requests.

There are two kinds. Those of `backing` are groups of the backing cluster, which shares its partitions among all gateways; those
of `own` are kept by this gateway alone, in its state file.
"""

from collections.abc import Callable, Coroutine, Mapping
from dataclasses import replace
from typing import Any, Protocol

from mqbridge.adapter.cluster import Cluster
from mqbridge.adapter.inbound import Sharing, Start
from mqbridge.adapter.names import NameRule
from mqbridge.adapter.reader import LimitsBatches, PartitionReader
from mqbridge.adapter.topics import Bounds
from mqbridge.errors import ClusterError, Failure, RefusalReason, RequestRefused
from mqbridge.groups.acknowledged import Acknowledged
from mqbridge.groups.lock_owners import RecordedLockOwners
from mqbridge.groups.store import GroupKey, GroupStore
from mqbridge.listener.feed import Feed, FeedLimits
from mqbridge.listener.limits import READ_BYTES
from mqbridge.listener.parked import DueNumbering
from mqbridge.listener.queue_feed import QueueFeed
from mqbridge.listener.sources import FeedSource, ReaderSource
from mqbridge.listener.topics import ListenedTopic
from mqbridge.message import Partition, Position

GroupStart = Start | int
"""Where a new group begins: at an end of each partition, or at the messages stored at this time (ms since the epoch) or later."""


class GroupFeed(Protocol):
    """One partition of a group, to which the membership gives a source, and takes it away: see `Feed` and `QueueFeed`."""

    key: GroupKey
    problem: str | None
    """Why it does not read; None while it does, or while another gateway has the partition."""
    on_failed: Callable[[], None] | None
    """Called when the source was given up because of a problem: somebody has to attach one again."""

    @property
    def is_held(self) -> bool:
        """False while another gateway has the partition, or nobody."""

    def attach(self, source: FeedSource, begin: Position | None = None) -> None:
        """Read this source from now on; `begin` is the position of its first message, if that is known."""

    async def finish(self, deadline: float) -> None:
        """Hand out nothing more, and wait for the consumers, until the deadline (loop time)."""

    async def detach(self, deadline: float | None = None, *, source: FeedSource | None = None) -> None:
        """Give the source up, or this one only, and wait until it is released."""

    async def seek(self, position: Position) -> None:
        """Move the group to this position. Raises LaneRevoked, ClusterError."""

    async def advance(self, position: Position) -> None:
        """Acknowledge everything before a position. Raises LaneRevoked, ClusterError."""


MakeFeed = Callable[[ListenedTopic, int], GroupFeed]
"""Makes the feed of a partition (by its index) of a topic, without a source."""


class Groups(Protocol):
    """The groups of a listener. Partitions are named by the index by which clients count them.

    Every method raises RequestRefused, and ClusterError if the cluster fails.
    """

    async def open(self, topic: ListenedTopic, partition: int, group: str, start: GroupStart, sharing: Sharing) -> Feed:
        """Return the feed that all consumers of a group share; it is created if necessary, beginning at `start`.

        Call `release` once for each call. The feed may have no source yet, or lose it again: see `Feed.is_held`.
        """

    def release(self, feed: Feed) -> None:
        """Use a feed no longer. When nobody does, the group is left soon after."""

    async def exists(self, topic: ListenedTopic, group: str) -> bool:
        """Return True if the group has a position in the topic."""

    async def names(self, topic: ListenedTopic) -> list[str]:
        """Return the names of the groups that have positions in the topic, sorted."""

    async def create(self, topic: ListenedTopic, group: str, start: GroupStart) -> None:
        """Create a group that begins there; do nothing if it exists."""

    async def delete(self, topic: ListenedTopic, group: str, partition: int | None = None) -> None:
        """Delete a group in this topic, or in one partition of it. Refused with BUSY while it has consumers there.

        Where the group is one of the cluster, it is deleted as a whole, when its last partition is.
        """

    async def move(self, topic: ListenedTopic, group: str, positions: Mapping[int, Position]) -> None:
        """Move a group to these positions, by partition index."""

    async def committed(self, topic: ListenedTopic, group: str) -> Mapping[int, Position]:
        """Return the positions before which everything is acknowledged, by partition index, where they are known."""

    async def leave(self, topic: ListenedTopic) -> None:
        """Read a topic no longer, because it is going to be deleted; a consumer that comes later opens its feed anew."""

    async def forget(self, topic: ListenedTopic) -> None:
        """Forget everything about the groups of a topic, which was deleted or is being deleted."""

    async def advance(self, topic: ListenedTopic, group: str, positions: Mapping[int, Position]) -> None:
        """Acknowledge everything before these positions, by partition index; what is acknowledged behind them stays so."""

    async def close(self, deadline: float | None = None) -> None:
        """Commit, and leave all groups."""


class Partitions:
    """Reads the partitions of a listener's topics by position."""

    def __init__(self, cluster: Cluster, listener: str, format_name: str, limits: FeedLimits) -> None:
        """`format_name` is the format of units of the listener's protocol."""
        self._cluster, self._listener, self._format, self._limits = cluster, listener, format_name, limits

    def make_feed(self, topic: ListenedTopic, partition: int, group: str, store: GroupStore | None) -> Feed:
        """Make a feed without a source."""
        numbering = DueNumbering(self._cluster.numbering) if topic.is_due else self._cluster.numbering
        return Feed(self.key(topic, partition, group), self._format, numbering, store, self._limits)

    def make_queue_feed(
        self, topic: ListenedTopic, partition: int, group: str, find_begin: Callable[[], Coroutine[Any, Any, int | None]]
    ) -> QueueFeed:
        """Make a feed without a source for clients that pull at a number, see `QueueFeed`."""
        numbering = self._cluster.numbering

        async def find_bounds() -> tuple[int, int]:
            bounds = await self.bounds(topic, partition)
            return numbering.number(bounds.first), numbering.number(bounds.next)

        return QueueFeed(self.key(topic, partition, group), self._format, numbering, self._limits, find_begin, find_bounds)

    def key(self, topic: ListenedTopic, partition: int, group: str) -> GroupKey:
        """Return the key of a group's partition in the state file."""
        return GroupKey(self._listener, self._cluster.name, topic.backing, topic.partition(partition), group)

    def lock_owners(self, topic: str, group: str, store: GroupStore) -> RecordedLockOwners:
        """Return where the memberships in a group of the cluster are recorded that lock partitions."""
        return RecordedLockOwners(store, self._listener, self._cluster.name, topic, group)

    def forget(self, topic: ListenedTopic, store: GroupStore) -> None:
        """Delete what the state file has of all groups in a topic: positions of one that is made anew would not be theirs."""
        store.delete_topic(self._listener, self._cluster.name, topic.backing)

    def source(self, topic: ListenedTopic, partition: int, begin: Position) -> ReaderSource:
        """Make a source that reads a partition from a position on."""
        name = topic.partition(partition)

        async def open_reader(position: Position) -> PartitionReader:
            reader = await self._cluster.reader(topic.backing, name, position, max_bytes=READ_BYTES)
            if isinstance(reader, LimitsBatches):
                reader.batch_limit = self._limits.unacknowledged.reading
            return reader

        return ReaderSource(Partition(self._cluster.name, topic.backing, name, partition), open_reader, begin)

    def advanced(self, known: Acknowledged, position: Position) -> Acknowledged:
        """Return a state in which everything before a position is acknowledged, too."""
        ranges, partial = known.behind(self._cluster.numbering.number(position) - 1)
        return replace(known, mark=max(known.mark, position), ranges=ranges, partial=partial)

    async def open_reader(self, topic: ListenedTopic, partition: int, start: GroupStart | Position, name: str) -> Feed:
        """Return a feed of its own that nobody keeps a position of; end it with `Feed.detach`."""
        feed = self.make_feed(topic, partition, name, None)
        begin = start if isinstance(start, tuple) else await self.position_of(topic, partition, start)
        feed.attach(self.source(topic, partition, begin), begin)
        return feed

    async def position_of(self, topic: ListenedTopic, partition: int, start: GroupStart) -> Position:
        """Return the position at which a group begins."""
        if isinstance(start, int):
            return await self.position_at(topic, partition, start)
        bounds = await self.bounds(topic, partition)
        return bounds.first if start is Start.EARLIEST else bounds.next

    async def bounds(self, topic: ListenedTopic, partition: int) -> Bounds:
        """Return the bounds of a partition."""
        name = topic.partition(partition)
        return (await self._cluster.bounds(topic.backing, name))[name]

    async def position_at(self, topic: ListenedTopic, partition: int, time_ms: int) -> Position:
        """Return the position of the first message that was stored at this time (ms since the epoch) or later."""
        if (operations := self._cluster.operations) is None:
            raise RequestRefused("positions of a time are not known in this cluster", RefusalReason.NOT_ALLOWED)
        positions = await operations.position_at(topic.backing, time_ms)
        name = topic.partition(partition)
        if name not in positions:
            raise ClusterError(f"the position of a time is not known in partition {name} of {topic.backing}", Failure.RETRY)
        return positions[name]


class GroupNames:
    """How groups of clients are named in the cluster: by a template of `{group}` and `{topic}`, and the escape of names."""

    def __init__(self, template: str, rule: NameRule) -> None:
        self._template, self._rule = template, rule

    def backing_name(self, topic: ListenedTopic, group: str) -> str:
        """Return the name of a client's group in the cluster. Raises RequestRefused if it cannot exist there."""
        name = self._rule.escape(self._fill(topic, group))
        if (problem := self._rule.problem(name)) is not None:
            raise RequestRefused(f"the group {group} cannot exist in this cluster: {problem}", RefusalReason.INVALID_NAME)
        return name

    def client_name(self, topic: ListenedTopic, backing: str) -> str | None:
        """Return the client's name of a group of the cluster; None if the template makes no such name."""
        name = self._rule.unescape(backing)
        before, _, after = self._fill(topic, "\0").partition("\0")
        if len(name) <= len(before) + len(after) or not (name.startswith(before) and name.endswith(after)):
            return None
        group = name[len(before) : len(name) - len(after)]
        return group if self._rule.escape(self._fill(topic, group)) == backing else None

    def _fill(self, topic: ListenedTopic, group: str) -> str:
        return self._template.replace("{topic}", topic.backing).replace("{group}", group)
