"""Groups of the backing cluster: a gateway is one member of each, and delivers the partitions that the group assigns to it.

A group is joined when its first consumer opens a feed, and left LINGER_S after the last one has released its own: clients that
lose their connection come back soon, and each join makes the group share its partitions anew. There is one membership for each
topic of a group (`open`), or one for all topics that its clients have named (`join`): some systems share partitions as they
should only if all members of a group read the same topics.

What this rests on: the cluster keeps positions of groups that have no members. A new group gets its position before it is joined,
so that it loses nothing that is sent before its first acknowledgement.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial

from mqbridge.adapter.cluster import Cluster
from mqbridge.adapter.inbound import AnnouncesRelease, Inbound, InboundLane, InboundSpec, Sharing, Start
from mqbridge.adapter.operations import GroupMaker, GroupRemover
from mqbridge.adapter.tools.deadlines import resolve_deadline, seconds_until
from mqbridge.errors import (
    ClusterError,
    Failure,
    LaneRevoked,
    LocalProtocolError,
    MqbridgeError,
    RefusalReason,
    RequestRefused,
)
from mqbridge.groups.membership import SharedMembership
from mqbridge.groups.store import GroupStore
from mqbridge.listener.feed import Feed
from mqbridge.listener.groups import GroupFeed, GroupNames, GroupStart, MakeFeed, Partitions
from mqbridge.listener.limits import LANE_BYTES, limited
from mqbridge.listener.sources import LaneSource
from mqbridge.listener.topics import ListenedTopic
from mqbridge.message import Position
from mqbridge.net.backoff import Backoff
from mqbridge.net.tasks import cancel, mark_error_retrieved, spawn

log = logging.getLogger(__name__)

LINGER_S = 5.0
"""How long a group is kept that has no consumers any more."""
RELEASE_WAIT_S = 5.0
"""How long a partition that the group takes away is kept, so that messages which are out can still be acknowledged."""
MAX_MEMBERSHIPS = 1000
"""Maximum number of groups and topics of which a listener is a member: each has connections of its own on some systems."""
LANE_PAUSE_S, MAX_LANE_PAUSE_S = 5.0, 300.0
"""Shortest and longest time until a group is joined anew because a partition of it could not be read."""
GRACE_S = 1.0
"""Time after the deadline that groups get which are left in time."""

MemberKey = tuple[str, str]
"""A topic and a group, by their names in the cluster."""


class _Member:
    """The membership in one group for one topic or more, with its feeds."""

    def __init__(self, topics: Sequence[ListenedTopic], group: str, backing_group: str, make_feed: MakeFeed) -> None:
        """`group` is the name that clients use, `backing_group` the one in the cluster."""
        self.group, self.backing_group, self.make_feed = group, backing_group, make_feed
        self.topics = {topic.backing: topic for topic in topics}
        """The topics, by their names in the cluster."""
        self.feeds: dict[tuple[str, str], GroupFeed] = {}
        """The feeds, by the topic's name in the cluster and the name of the partition."""
        self.users = 0
        self.linger: asyncio.TimerHandle | None = None
        self.membership: SharedMembership | None = None
        self.joining: asyncio.Task[None] | None = None
        self.leaving: asyncio.Future[None] | None = None
        """Done when the group was left; None while it is not being left."""
        self.is_to_be_deleted = False
        """True if the group was deleted in a partition; it is deleted when it has no users in the others either."""
        self.lane_timer: asyncio.TimerHandle | None = None
        """The timer that makes it join anew, because a lane has failed."""
        self.lane_pauses = Backoff(LANE_PAUSE_S, MAX_LANE_PAUSE_S)
        self.lane_failed_at = 0.0
        """Loop time at which a lane has failed last."""

    @property
    def keys(self) -> list[MemberKey]:
        """The keys by which it is found."""
        return [(backing, self.backing_group) for backing in self.topics]

    def learn(self, topic: ListenedTopic) -> None:
        """Take note of the partitions of a newer description of a topic."""
        known = self.topics[topic.backing]
        if not topic.partitions.items() <= known.partitions.items():
            self.topics[topic.backing] = replace(topic, partitions={**known.partitions, **topic.partitions})

    def feed(self, topic: str, partition: str, index: int) -> GroupFeed:
        """Return the feed of a partition, which is made if there is none; the topic is named as in the cluster."""
        if (topic, partition) not in self.feeds:
            self.feeds[topic, partition] = self.make_feed(self.topics[topic], index)
        return self.feeds[topic, partition]

    def check_joined(self) -> None:
        """Raise ClusterError if it could not be joined, and RequestRefused if it is being left."""
        assert self.joining is not None  # noqa: S101 - set before anybody opens a feed
        if self.leaving is not None or self.joining.cancelled():
            raise RequestRefused(f"the group {self.group} is being left", RefusalReason.NOT_READY)
        self.joining.result()

    def stop_timers(self) -> None:
        """Stop the timers that are set."""
        for timer in (self.linger, self.lane_timer):
            if timer is not None:
                timer.cancel()
        self.linger = self.lane_timer = None


class JoinedGroup:
    """A membership of several topics, see `BackingGroups.join`."""

    def __init__(self, member: _Member, release: Callable[[], None], leave: Callable[[], Awaitable[None]]) -> None:
        self._member, self._release, self.leave = member, release, leave

    @property
    def is_over(self) -> bool:
        """True if the group was left, because a topic of it was deleted, for example: join it anew."""
        return self._member.leaving is not None

    def feed(self, topic: ListenedTopic, partition: int) -> GroupFeed | None:
        """Return the feed of a partition; None if this gateway has never held it."""
        name = topic.partitions.get(partition)
        return None if name is None else self._member.feeds.get((topic.backing, name))

    async def finish(self, deadline: float) -> None:
        """Hand out nothing more in any partition, and wait for the consumers, until the deadline (loop time)."""
        await asyncio.gather(*(feed.finish(deadline) for feed in self._member.feeds.values() if feed.is_held))

    def release(self) -> None:
        """Use the membership no longer; the group is left LINGER_S later."""
        self._release()


class BackingGroups:
    """See the module, and `mqbridge.listener.groups.Groups`."""

    def __init__(
        self, cluster: Cluster, partitions: Partitions, names: GroupNames, store: GroupStore | None, member: str
    ) -> None:
        """`store` keeps what is acknowledged behind the group's position; `member` names this gateway for operators."""
        self._cluster, self._partitions, self._names = cluster, partitions, names
        self._store, self._member_name = store, member
        self._members: dict[MemberKey, _Member] = {}
        """The memberships, also those that are being left, and places that keep others from joining."""
        self._of: dict[GroupFeed, _Member] = {}
        """The member of each feed."""
        self._is_closed = False
        self.delete_unused: Callable[[ListenedTopic, str], Awaitable[None]] = self.delete
        """Deletes a group that was deleted in all partitions one after the other; whoever keeps more of it replaces this."""

    # --- feeds ---------------------------------------------------------------------------------------------------------

    async def open(self, topic: ListenedTopic, partition: int, group: str, start: GroupStart, sharing: Sharing) -> Feed:
        """Return the feed of a group, once it is joined."""
        name = topic.partition(partition)
        key = topic.backing, self._names.backing_name(topic, group)
        await self._wait_for_place(key)
        if self._is_closed:
            raise RequestRefused("the listener is being closed", RefusalReason.NOT_READY)
        member = self._members.get(key)
        if member is None:
            starts = {topic.backing: start}
            member = self._add_member([topic], group, key[1], starts, sharing, partial(self._make_feed, group))
        await self._use(member)
        try:
            member.learn(topic)
            feed = self._feed(member, topic.backing, name, partition)
            assert isinstance(feed, Feed)  # noqa: S101 - `_make_feed` makes such
        except BaseException:
            self._drop_user(member)
            raise
        return feed

    def _make_feed(self, group: str, topic: ListenedTopic, partition: int) -> Feed:
        return self._partitions.make_feed(topic, partition, group, self._store)

    async def join(
        self,
        topics: Sequence[ListenedTopic],
        group: str,
        starts: Mapping[str, GroupStart],
        sharing: Sharing,
        make_feed: MakeFeed,
    ) -> JoinedGroup:
        """Join a group with exactly these topics; lanes attach to feeds that `make_feed` makes. Raises as `open` does.

        `starts` are where a new group begins in each topic, by the topic's name in the cluster. No other membership of the group
        has one of these topics: the caller has left an earlier one.
        """
        backing_group = self._names.backing_name(topics[0], group)
        for topic in topics:
            await self._wait_for_place((topic.backing, backing_group))
        if self._is_closed:
            raise RequestRefused("the listener is being closed", RefusalReason.NOT_READY)
        if any((topic.backing, backing_group) in self._members for topic in topics):
            raise RequestRefused(f"the group {group} is joined already, with other topics", RefusalReason.BUSY)
        member = self._add_member(topics, group, backing_group, starts, sharing, make_feed)
        await self._use(member)
        return JoinedGroup(member, partial(self._drop_user, member), partial(self._leave, member))

    def _add_member(
        self,
        topics: Sequence[ListenedTopic],
        group: str,
        backing_group: str,
        starts: Mapping[str, GroupStart],
        sharing: Sharing,
        make_feed: MakeFeed,
    ) -> _Member:
        """Begin to join a group."""
        member = _Member(topics, group, backing_group, make_feed)
        self._members.update(dict.fromkeys(member.keys, member))
        member.joining = spawn(self._join(member, starts, sharing), f"join of {member.keys}", log_errors=False)
        member.joining.add_done_callback(mark_error_retrieved)
        return member

    async def _use(self, member: _Member) -> None:
        """Count a user of a membership, and wait until it is joined."""
        member.users += 1
        member.is_to_be_deleted = False
        if member.linger is not None:
            member.linger.cancel()
            member.linger = None
        try:
            assert member.joining is not None  # noqa: S101 - set with the member
            await asyncio.wait([member.joining])  # it goes on if this caller is cancelled
            member.check_joined()
        except BaseException:
            self._drop_user(member)
            raise

    async def _wait_for_place(self, key: MemberKey) -> None:
        """Wait until the group is joined or may be. Raises RequestRefused if there are too many memberships, ClusterError."""
        async with limited(f"waiting until group {key[1]} can be joined"):
            while True:
                member = self._members.get(key)
                if member is not None and member.leaving is not None:
                    await asyncio.wait([member.leaving])
                elif member is not None or len(self._members) < MAX_MEMBERSHIPS:
                    return
                else:
                    await self._make_room()

    async def _make_room(self) -> None:
        """Leave a group that has no consumers any more. Raises RequestRefused if all have some."""
        leaving = [member.leaving for member in self._members.values() if member.leaving is not None]
        unused = next((member for member in self._members.values() if member.linger is not None), None)
        if not leaving and unused is not None:
            leaving = [self._start_leaving(unused)]
        if not leaving:
            text = f"the listener is a member of {MAX_MEMBERSHIPS} groups already"
            raise RequestRefused(text, RefusalReason.NOT_ALLOWED)
        await asyncio.wait(leaving, return_when=asyncio.FIRST_COMPLETED)

    async def _join(self, member: _Member, starts: Mapping[str, GroupStart], sharing: Sharing) -> None:
        group, first = member.backing_group, Start.EARLIEST
        try:
            async with limited(f"creating group {group}"):
                for topic in member.topics.values():
                    first = await self._ensure_positions(topic, group, starts[topic.backing])
            supported = self._cluster.capabilities.sharing
            topics = tuple(member.topics)
            spec = InboundSpec(
                topics,
                group,
                first,
                max_bytes=LANE_BYTES,
                sharing=sharing if sharing in supported else None,
                member=self._member_name,
                lock_owners=None if self._store is None else self._partitions.lock_owners(min(topics), group, self._store),
                sent_back=False,
                keep_units=True,
                # Where members wait, they lock partitions, and nobody gets those of one that was killed before its locks expire.
                # That is worth it only where messages have an order.
                release_wait_s=0.0 if sharing is Sharing.SHARED else RELEASE_WAIT_S,
            )
            member.membership = SharedMembership(self._cluster, spec, partial(self._run_lane, member))
            await member.membership.join()
        except BaseException:
            if member.leaving is None:
                self._forget_member(member)
            raise

    def _forget_member(self, member: _Member) -> None:
        """Forget a member that has left, or could not join, with its feeds."""
        member.stop_timers()
        for feed in member.feeds.values():
            self._of.pop(feed, None)
        for key in member.keys:
            if self._members.get(key) is member:
                del self._members[key]

    async def _ensure_positions(self, topic: ListenedTopic, group: str, start: GroupStart) -> Start:
        """Give a new group a position in each partition: otherwise it would begin at the end again when it is joined next.

        Return where it begins in partitions without one: those that are added later are read from their first message on.
        """
        operations = self._cluster.operations
        if operations is None:
            return start if isinstance(start, Start) else Start.EARLIEST
        if await self._cluster.committed(topic.backing, group):
            return Start.EARLIEST
        positions = {name: await self._partitions.position_of(topic, index, start) for index, name in topic.partitions.items()}
        if await self._cluster.committed(topic.backing, group):
            return Start.EARLIEST  # another gateway has made it meanwhile, and may have answered its client already
        try:
            await operations.move(topic.backing, group, positions)
        except ClusterError as error:
            if error.failure is not Failure.FATAL:
                raise
            log.debug("group %s has members already, which have positions: %s", group, error)
        return Start.EARLIEST

    def _feed(self, member: _Member, topic: str, name: str, partition: int) -> GroupFeed:
        """Return the feed of a partition, whose topic is named as in the cluster."""
        feed = member.feed(topic, name, partition)
        if feed not in self._of:
            feed.on_failed = partial(self._on_lane_failed, member)
            self._of[feed] = member
        return feed

    async def _run_lane(self, member: _Member, lane: InboundLane, inbound: Inbound) -> None:
        """Feed a lane's messages to the consumers until the partition is revoked, or announced to be."""
        partition = lane.partition
        if (topic := member.topics.get(partition.topic)) is None:
            raise LocalProtocolError(f"group {member.backing_group} has got a lane of topic {partition.topic}")
        index = next((index for index, name in topic.partitions.items() if name == partition.name), None)
        if index is None:
            index = partition.index
            member.learn(replace(topic, partitions={index: partition.name}))
        feed = self._feed(member, partition.topic, partition.name, index)
        await feed.detach()  # of the lane before, which may still be releasing
        if member.leaving is not None or lane.revoked.is_set():
            return
        needs_contents = not self._cluster.capabilities.acknowledges_dropped
        source = LaneSource(lane, individual_ack=inbound.individual_ack, needs_contents=needs_contents)
        feed.attach(source)
        try:
            if isinstance(lane, AnnouncesRelease):
                waiters = [spawn(event.wait(), "release") for event in (lane.revoked, lane.releasing)]
                try:
                    await asyncio.wait(waiters, return_when=asyncio.FIRST_COMPLETED)
                finally:
                    await cancel(*waiters)
                if not lane.revoked.is_set():
                    await feed.finish(asyncio.get_running_loop().time() + RELEASE_WAIT_S)
            else:
                await lane.revoked.wait()
        finally:
            await feed.detach(source=source)  # the partition may have a newer lane already

    def _on_lane_failed(self, member: _Member) -> None:
        """Join anew after a pause: not every group assigns a partition again that was released."""
        now = asyncio.get_running_loop().time()
        if now - member.lane_failed_at > 2 * MAX_LANE_PAUSE_S:
            member.lane_pauses.reset()
        member.lane_failed_at = now
        if member.lane_timer is None and member.leaving is None:
            pause_s = member.lane_pauses.delay()
            member.lane_timer = asyncio.get_running_loop().call_later(pause_s, self._replace_lanes, member)

    def _replace_lanes(self, member: _Member) -> None:
        """Join anew if partitions are not read since their lanes have failed."""
        member.lane_timer = None
        failed = [feed for feed in member.feeds.values() if feed.problem is not None and not feed.is_held]
        if failed and member.leaving is None and member.membership is not None:
            member.membership.join_again(f"partition {failed[0].key.partition} could not be read: {failed[0].problem}")

    def release(self, feed: Feed) -> None:
        """Use a feed no longer; the group is left when nobody has come back after LINGER_S."""
        if (member := self._of.get(feed)) is not None:
            self._drop_user(member)

    def _drop_user(self, member: _Member) -> None:
        member.users -= 1
        if member.users or self._members.get(member.keys[0]) is not member or member.leaving is not None:
            return
        if member.is_to_be_deleted:
            spawn(self._delete_unused(member), f"deletion of {member.keys}")
        member.linger = asyncio.get_running_loop().call_later(LINGER_S, self._start_leaving, member)

    async def _delete_unused(self, member: _Member) -> None:
        """Delete a group that was deleted in all partitions which it was used in, unless it is used again."""
        if member.is_to_be_deleted and not member.users:
            for topic in member.topics.values():
                try:
                    await self.delete_unused(topic, member.group)
                except MqbridgeError as error:
                    log.warning("group %s of topic %s was not deleted: %s", member.group, topic.backing, error)

    def _start_leaving(self, member: _Member, deadline: float | None = None) -> "asyncio.Future[None]":
        """Return the task that leaves a group; from now on nobody gets a feed of it, until it has left."""
        member.stop_timers()
        if member.leaving is None:
            member.leaving = spawn(self._end(member, deadline), f"leaving {member.keys}")
        return member.leaving

    async def _leave(self, member: _Member, deadline: float | None = None) -> None:
        """Leave a group, which goes on if the caller is cancelled."""
        leaving = self._start_leaving(member, deadline)
        await asyncio.wait([leaving], timeout=seconds_until(deadline) + GRACE_S)

    async def _end(self, member: _Member, deadline: float | None) -> None:
        """Commit, release the partitions of a group, and forget its feeds."""
        try:
            await cancel(member.joining)
            await asyncio.gather(*(feed.detach(deadline) for feed in member.feeds.values()), return_exceptions=True)
            if member.membership is not None:
                await member.membership.close(deadline)
        finally:
            self._forget_member(member)

    # --- administration ------------------------------------------------------------------------------------------------

    async def exists(self, topic: ListenedTopic, group: str) -> bool:
        """Return True if the group has a position in the topic."""
        return bool(await self._cluster.committed(topic.backing, self._names.backing_name(topic, group)))

    async def names(self, topic: ListenedTopic) -> list[str]:
        """Return the names of the cluster's groups that the template can make."""
        if (operations := self._cluster.operations) is None:
            raise RequestRefused("the groups of this cluster cannot be listed", RefusalReason.NOT_ALLOWED)
        names = [self._names.client_name(topic, name) for name in await operations.groups(topic.backing)]
        return sorted(name for name in names if name is not None)

    async def create(self, topic: ListenedTopic, group: str, start: GroupStart) -> None:
        """Give a group positions in all partitions."""
        backing = self._names.backing_name(topic, group)
        async with limited(f"creating group {group} of topic {topic.name}"):
            if start is Start.EARLIEST and isinstance(self._cluster.operations, GroupMaker):
                await self._cluster.operations.create_group(topic.backing, backing)
            elif not await self.exists(topic, group):
                await self._ensure_positions(topic, backing, start)

    async def delete(self, topic: ListenedTopic, group: str, partition: int | None = None) -> None:
        """Delete a group; refused while it has consumers here, or members elsewhere."""
        key = topic.backing, self._names.backing_name(topic, group)
        operations = self._cluster.operations
        if not isinstance(operations, GroupRemover):
            raise RequestRefused("groups of this cluster cannot be deleted", RefusalReason.NOT_ALLOWED)
        async with limited(f"deleting group {group} of topic {topic.name}"):
            while (member := self._members.get(key)) is not None:
                if member.users and member.leaving is None:
                    if partition is None:
                        raise RequestRefused(f"the group {group} has consumers", RefusalReason.BUSY)
                    member.is_to_be_deleted = True
                    return
                await self._leave(member)
            async with self._alone(key, topic, group):
                try:
                    await operations.delete_group(topic.backing, key[1])
                except ClusterError as error:
                    if error.failure is Failure.FATAL:
                        raise RequestRefused(f"the group {group} is in use: {error}", RefusalReason.BUSY) from error
                    raise
                self._forget_states(topic, group)

    @asynccontextmanager
    async def _alone(self, key: MemberKey, topic: ListenedTopic, group: str) -> AsyncIterator[None]:
        """Keep the group from being joined here; it is not now."""
        place = self._members[key] = _Member([topic], group, key[1], partial(self._make_feed, group))
        place.leaving = asyncio.get_running_loop().create_future()
        try:
            yield
        finally:
            del self._members[key]
            place.leaving.set_result(None)

    def _forget_states(self, topic: ListenedTopic, group: str) -> None:
        if self._store is not None:
            for partition in topic.partitions:
                self._store.delete(self._partitions.key(topic, partition, group))

    async def move(self, topic: ListenedTopic, group: str, positions: Mapping[int, Position]) -> None:
        """Move a group: in the partitions that are held here through their lanes, and otherwise in the cluster."""
        await self._move(topic, group, positions, keeps_behind=False)

    async def advance(self, topic: ListenedTopic, group: str, positions: Mapping[int, Position]) -> None:
        """Acknowledge in the partitions that are held here through their feeds, and otherwise in the cluster."""
        await self._move(topic, group, positions, keeps_behind=True)

    async def _move(self, topic: ListenedTopic, group: str, positions: Mapping[int, Position], *, keeps_behind: bool) -> None:
        """Move a group; with `keeps_behind`, what is acknowledged behind the positions stays so."""
        key = topic.backing, self._names.backing_name(topic, group)
        async with limited(f"moving group {group} of topic {topic.name}"):
            while (member := self._members.get(key)) is not None and member.leaving is not None:
                await self._leave(member)
            if member is not None:
                await self._move_lanes(member, topic, positions, keeps_behind=keeps_behind)
                return
            if (operations := self._cluster.operations) is None:
                raise RequestRefused("groups of this cluster cannot be moved", RefusalReason.NOT_ALLOWED)
            named = {topic.partition(index): position for index, position in positions.items()}
            async with self._alone(key, topic, group):
                try:
                    await operations.move(topic.backing, key[1], named)
                except ClusterError as error:
                    if error.failure is Failure.FATAL:
                        raise RequestRefused(f"the group {group} cannot be moved now: {error}", RefusalReason.BUSY) from error
                    raise
                if not keeps_behind:
                    self._forget_states(topic, group)

    async def _move_lanes(
        self, member: _Member, topic: ListenedTopic, positions: Mapping[int, Position], *, keeps_behind: bool
    ) -> None:
        """Move a group that is joined. Raises RequestRefused before anything is moved if a partition is not held here."""
        feeds = {index: member.feeds.get((topic.backing, topic.partition(index))) for index in positions}
        for index, feed in feeds.items():
            if feed is None or not feed.is_held:
                text = f"another gateway has partition {index} of group {member.group}"
                raise RequestRefused(text, RefusalReason.NOT_READY)
        for index, feed in feeds.items():
            assert feed is not None  # noqa: S101 - as above
            try:
                await (feed.advance if keeps_behind else feed.seek)(positions[index])
            except LaneRevoked as error:
                raise RequestRefused(f"group {member.group} cannot be moved now: {error}", RefusalReason.NOT_READY) from error

    async def committed(self, topic: ListenedTopic, group: str) -> Mapping[int, Position]:
        """Return the positions that the cluster knows: those of this gateway appear there after a short delay."""
        positions = await self._cluster.committed(topic.backing, self._names.backing_name(topic, group))
        return {index: positions[name] for index, name in topic.partitions.items() if name in positions}

    async def leave(self, topic: ListenedTopic) -> None:
        """Leave the groups of a topic."""
        members = [member for key, member in self._members.items() if key[0] == topic.backing]
        await asyncio.gather(*map(self._leave, members), return_exceptions=True)

    async def forget(self, topic: ListenedTopic) -> None:
        """Leave the groups of a topic, and forget what the state file has of them."""
        await self.leave(topic)
        if self._store is not None:
            self._partitions.forget(topic, self._store)

    async def close(self, deadline: float | None = None) -> None:
        """Leave all groups, by the deadline (loop time), and join none any more."""
        self._is_closed, deadline = True, resolve_deadline(deadline)
        members = set(self._members.values())
        await asyncio.gather(*(self._leave(member, deadline) for member in members), return_exceptions=True)
