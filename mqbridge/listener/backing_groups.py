"""Groups of the backing cluster: a gateway is one member of each, and delivers the partitions that the group assigns to it.

A group is joined when its first consumer opens a feed, and left LINGER_S after the last one has released its own: clients that
lose their connection come back soon, and each join makes the group share its partitions anew.

What this rests on: the cluster keeps positions of groups that have no members. A new group gets its position before it is joined,
so that it loses nothing that is sent before its first acknowledgement.
"""

import asyncio
import logging
from collections.abc import Mapping
from functools import partial

from mqbridge.adapter.cluster import Cluster
from mqbridge.adapter.inbound import AnnouncesRelease, Inbound, InboundLane, InboundSpec, Sharing, Start
from mqbridge.adapter.operations import GroupMaker, GroupRemover
from mqbridge.errors import ClusterError, Failure, RefusalReason, RequestRefused
from mqbridge.groups.membership import SharedMembership
from mqbridge.groups.store import GroupStore
from mqbridge.listener.feed import Feed
from mqbridge.listener.groups import GroupNames, GroupStart, Partitions
from mqbridge.listener.limits import READ_BYTES
from mqbridge.listener.sources import LaneSource
from mqbridge.listener.topics import ListenedTopic
from mqbridge.message import Position
from mqbridge.net.tasks import cancel, spawn

log = logging.getLogger(__name__)

LINGER_S = 5.0
"""How long a group is kept that has no consumers any more."""
RELEASE_WAIT_S = 5.0
"""How long a partition that the group takes away is kept, so that messages which are out can still be acknowledged."""

MemberKey = tuple[str, str]
"""A topic and a group, by their names in the cluster."""


class _Member:
    """The membership in one group for one topic, with its feeds by partition name."""

    def __init__(self, topic: ListenedTopic, group: str) -> None:
        """`group` is the name that clients use."""
        self.topic, self.group = topic, group
        self.feeds: dict[str, Feed] = {}
        self.users = 0
        self.linger: asyncio.TimerHandle | None = None
        self.membership: SharedMembership | None = None
        self.joining: asyncio.Task[None] | None = None
        self.is_leaving = False
        self.is_to_be_deleted = False
        """True if the group was deleted in a partition; it is deleted when it has no users in the others either."""
        self.left = asyncio.Event()
        """Set when the group was left."""


class BackingGroups:
    """See the module, and `mqbridge.listener.groups.Groups`."""

    def __init__(
        self, cluster: Cluster, partitions: Partitions, names: GroupNames, store: GroupStore | None, member: str
    ) -> None:
        """`store` keeps what is acknowledged behind the group's position; `member` names this gateway for operators."""
        self._cluster, self._partitions, self._names = cluster, partitions, names
        self._store, self._member_name = store, member
        self._members: dict[MemberKey, _Member] = {}
        self._of: dict[Feed, _Member] = {}
        """The member of each feed."""

    # --- feeds ---------------------------------------------------------------------------------------------------------

    async def open(self, topic: ListenedTopic, partition: int, group: str, start: GroupStart, sharing: Sharing) -> Feed:
        """Return the feed of a group, once it is joined."""
        name = topic.partition(partition)
        key = topic.backing, self._names.backing_name(topic, group)
        while (member := self._members.get(key)) is not None and member.is_leaving:
            await member.left.wait()
        if member is None:
            member = self._members[key] = _Member(topic, group)
            member.joining = spawn(self._join(member, key, start, sharing), f"join of {key}", log_errors=False)
        member.users += 1
        member.is_to_be_deleted = False
        if member.linger is not None:
            member.linger.cancel()
            member.linger = None
        try:
            assert member.joining is not None  # noqa: S101 - set with the member
            await asyncio.shield(member.joining)
        except BaseException:
            self._drop_user(key, member)
            raise
        return self._feed(member, name, partition)

    async def _join(self, member: _Member, key: MemberKey, start: GroupStart, sharing: Sharing) -> None:
        try:
            await self._ensure_positions(member.topic, key[1], start)
            supported = self._cluster.capabilities.sharing
            spec = InboundSpec(
                (member.topic.backing,),
                key[1],
                max_bytes=READ_BYTES,
                sharing=sharing if sharing in supported else None,
                member=self._member_name,
                sent_back=False,
                keep_units=True,
                release_wait_s=RELEASE_WAIT_S,
            )
            member.membership = SharedMembership(self._cluster, spec, partial(self._run_lane, member))
            await member.membership.join()
        except BaseException:
            if self._members.get(key) is member:
                del self._members[key]
            member.is_leaving = True
            member.left.set()
            raise

    async def _ensure_positions(self, topic: ListenedTopic, group: str, start: GroupStart) -> None:
        """Give a new group a position in each partition: otherwise it would begin at the end again when it is joined next."""
        operations = self._cluster.operations
        if operations is None:
            return
        committed = await self._cluster.committed(topic.backing, group)
        missing = {index: name for index, name in topic.partitions.items() if name not in committed}
        if not missing or (committed and len(missing) < len(topic.partitions)):
            return  # partitions that were added are read from their first message on
        positions = {name: await self._partitions.position_of(topic, index, start) for index, name in missing.items()}
        try:
            await operations.move(topic.backing, group, positions)
        except ClusterError as error:
            if error.failure is not Failure.FATAL:
                raise
            log.debug("group %s has members already, which have positions: %s", group, error)

    def _feed(self, member: _Member, name: str, partition: int) -> Feed:
        if name not in member.feeds:
            feed = self._partitions.make_feed(member.topic, partition, member.group, self._store)
            member.feeds[name] = feed
            self._of[feed] = member
        return member.feeds[name]

    async def _run_lane(self, member: _Member, lane: InboundLane, inbound: Inbound) -> None:
        """Feed a lane's messages to the consumers until the partition is revoked, or announced to be."""
        index = next((index for index, name in member.topic.partitions.items() if name == lane.partition.name), None)
        if index is None:
            index = lane.partition.index
            member.topic = ListenedTopic(
                member.topic.name,
                member.topic.backing,
                {**member.topic.partitions, index: lane.partition.name},
                member.topic.is_partitioned,
            )
        feed = self._feed(member, lane.partition.name, index)
        await feed.detach()  # of the lane before, which may still be releasing
        if member.is_leaving or lane.revoked.is_set():
            return
        feed.attach(LaneSource(lane, individual_ack=inbound.individual_ack))
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
        await feed.detach()

    def release(self, feed: Feed) -> None:
        """Use a feed no longer; the group is left when nobody has come back after LINGER_S."""
        member = self._of[feed]
        self._drop_user((member.topic.backing, self._names.backing_name(member.topic, member.group)), member)

    def _drop_user(self, key: MemberKey, member: _Member) -> None:
        member.users -= 1
        if member.users or self._members.get(key) is not member or member.is_leaving:
            return
        if member.is_to_be_deleted:
            spawn(self.delete(member.topic, member.group), f"deletion of {key}")
        else:
            member.linger = asyncio.get_running_loop().call_later(
                LINGER_S, lambda: spawn(self._leave(key, member), f"leaving {key}")
            )

    async def _leave(self, key: MemberKey, member: _Member, deadline: float | None = None) -> None:
        """Leave a group: commit, release its partitions, and forget its feeds."""
        if member.is_leaving:
            await member.left.wait()
            return
        member.is_leaving = True
        if member.linger is not None:
            member.linger.cancel()
        try:
            await cancel(member.joining)
            await asyncio.gather(*(feed.detach(deadline) for feed in member.feeds.values()), return_exceptions=True)
            if member.membership is not None:
                await member.membership.close(deadline)
        finally:
            for feed in member.feeds.values():
                self._of.pop(feed, None)
            if self._members.get(key) is member:
                del self._members[key]
            member.left.set()

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
        if start is Start.EARLIEST and isinstance(self._cluster.operations, GroupMaker):
            await self._cluster.operations.create_group(topic.backing, backing)
        elif not await self.exists(topic, group):
            await self._ensure_positions(topic, backing, start)

    async def delete(self, topic: ListenedTopic, group: str, partition: int | None = None) -> None:
        """Delete a group; refused while it has consumers here, or members elsewhere."""
        key = topic.backing, self._names.backing_name(topic, group)
        if (member := self._members.get(key)) is not None:
            if member.users and partition is not None:
                member.is_to_be_deleted = True
                return
            if member.users:
                raise RequestRefused(f"the group {group} has consumers", RefusalReason.BUSY)
            await self._leave(key, member)
        if not isinstance(self._cluster.operations, GroupRemover):
            raise RequestRefused("groups of this cluster cannot be deleted", RefusalReason.NOT_ALLOWED)
        try:
            await self._cluster.operations.delete_group(topic.backing, key[1])
        except ClusterError as error:
            if error.failure is Failure.FATAL:
                raise RequestRefused(f"the group {group} is in use: {error}", RefusalReason.BUSY) from error
            raise
        self._forget_states(topic, group)

    def _forget_states(self, topic: ListenedTopic, group: str) -> None:
        if self._store is not None:
            for partition in topic.partitions:
                self._store.delete(self._partitions.key(topic, partition, group))

    async def move(self, topic: ListenedTopic, group: str, positions: Mapping[int, Position]) -> None:
        """Move a group: in the partitions that are held here through their lanes, and otherwise in the cluster."""
        key = topic.backing, self._names.backing_name(topic, group)
        member = self._members.get(key)
        if member is None:
            if (operations := self._cluster.operations) is None:
                raise RequestRefused("groups of this cluster cannot be moved", RefusalReason.NOT_ALLOWED)
            try:
                await operations.move(
                    topic.backing, key[1], {topic.partition(index): position for index, position in positions.items()}
                )
            except ClusterError as error:
                if error.failure is Failure.FATAL:
                    raise RequestRefused(f"the group {group} cannot be moved now: {error}", RefusalReason.BUSY) from error
                raise
            self._forget_states(topic, group)
            return
        for index, position in positions.items():
            feed = self._feed(member, topic.partition(index), index)
            if not feed.is_held:
                raise RequestRefused(f"another gateway has partition {index} of group {group}", RefusalReason.NOT_READY)
            await feed.seek(position)

    async def committed(self, topic: ListenedTopic, group: str) -> Mapping[int, Position]:
        """Return the positions that the cluster knows: those of this gateway appear there after a short delay."""
        positions = await self._cluster.committed(topic.backing, self._names.backing_name(topic, group))
        return {index: positions[name] for index, name in topic.partitions.items() if name in positions}

    async def forget(self, topic: ListenedTopic) -> None:
        """Leave the groups of a topic that is deleted."""
        members = [(key, member) for key, member in self._members.items() if key[0] == topic.backing]
        await asyncio.gather(*(self._leave(key, member) for key, member in members), return_exceptions=True)

    async def close(self, deadline: float | None = None) -> None:
        """Leave all groups, by the deadline (loop time)."""
        members = list(self._members.items())
        await asyncio.gather(*(self._leave(key, member, deadline) for key, member in members), return_exceptions=True)
