"""Requests about offsets: those of queues, and those that groups have committed.

A commit of a consumer looks like one of a tool. So in a group of the cluster that has members here, or whose lane is held here,
commits go forwards only: the client may be a member that has connected again, whose timer commits before its first pull and its
heartbeat, or one of which a gateway that has just started knows nothing. Tools move such a group by a reset, and one without
members by a commit, too. Members that choose themselves from where they pull commit as they like.

What this rests on: a cluster moves a group without comparing. So commits that this gateway makes in the cluster are compared and
made one after the other, by group and topic; those of another gateway may come in between.
"""

import asyncio
import logging
from contextlib import AbstractAsyncContextManager
from typing import NamedTuple

from mqbridge.errors import MqbridgeError
from mqbridge.listener.keyed_locks import KeyedLocks
from mqbridge.listener.limits import limited
from mqbridge.listener.topics import ListenedTopic
from mqbridge.net.tasks import mark_error_retrieved, spawn
from mqbridge.rocketmq.server.broker import Broker
from mqbridge.rocketmq.server.connection import Served, ServedConnection
from mqbridge.rocketmq.server.group_starts import YOUNG_MESSAGES
from mqbridge.rocketmq.server.refusals import CodedRefusal
from mqbridge.rocketmq.server.support import NOT_MANAGED
from mqbridge.rocketmq.wire.codes import Status
from mqbridge.rocketmq.wire.command import Command
from mqbridge.rocketmq.wire.headers.offsets import (
    OffsetResult,
    QueryOffsetHeader,
    QueueHeader,
    SearchOffsetHeader,
    TimestampResult,
    UpdateOffsetHeader,
)

log = logging.getLogger(__name__)

UPPER = "UPPER"


class GroupCommit(NamedTuple):
    """A commit of a group in one queue, and whether it may move the group back."""

    offset: int
    may_go_back: bool

    def after(self, earlier: "GroupCommit | None") -> "GroupCommit":
        """Return both commits as one."""
        if earlier is None or self.may_go_back:
            return self
        return earlier._replace(offset=max(earlier.offset, self.offset))


class Committer(NamedTuple):
    """Who commits, as it is known when the commit comes: the connection may end before the commit is made.

    is_member       True for a client that is, or was, a member of the group
    is_returning    True for one that may be a member that has lost another connection
    chooses_itself  True for a member that may read again what the group has committed, as it likes
    """

    is_member: bool
    is_returning: bool
    chooses_itself: bool


class Offsets:
    """See the module."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._commits: dict[tuple[str, str], tuple[dict[int, GroupCommit], asyncio.Task[frozenset[int]]]] = {}
        """Commits that the cluster stores, by group and topic: those by queue that wait, and the task that makes them."""
        self._moving = KeyedLocks[tuple[str, str]]()
        """Held while commits are compared with what is committed, and made; by group and topic."""

    # --- queues -----------------------------------------------------------------------------------------------------------

    async def maximum(self, _: ServedConnection, request: Command) -> Command:
        """Serve GET_MAX_OFFSET: an unknown queue ends at 0, as with brokers."""
        bounds = await self._bounds(QueueHeader.decode(request.ext))
        return _offset(request, 0 if bounds is None else bounds[1])

    async def minimum(self, _: ServedConnection, request: Command) -> Command:
        """Serve GET_MIN_OFFSET."""
        bounds = await self._bounds(QueueHeader.decode(request.ext))
        return _offset(request, 0 if bounds is None else bounds[0])

    async def _bounds(self, header: QueueHeader | SearchOffsetHeader) -> tuple[int, int] | None:
        """Return the offset of the first message of a queue, and that of its next one; None if there is no such queue."""
        topic = await self._broker.find_topic(header.topic)
        if topic is None or header.queue_id not in topic.partitions:
            return None
        return await self._broker.bounds_of(topic, header.queue_id)

    async def search(self, _: ServedConnection, request: Command) -> Command:
        """Serve SEARCH_OFFSET_BY_TIMESTAMP."""
        header = SearchOffsetHeader.decode(request.ext)
        bounds = await self._bounds(header)
        if bounds is None or bounds[0] == bounds[1]:
            return _offset(request, 0 if bounds is None else bounds[0])
        topic = await self._broker.readable_topic(header.topic)
        is_upper = (header.boundary_type or "").upper() == UPPER
        number = await self.search_at(topic, header.queue_id, header.timestamp + is_upper)
        return _offset(request, max(bounds[0], number - 1) if is_upper else number)

    async def search_at(self, topic: ListenedTopic, queue: int, time_ms: int) -> int:
        """Return the offset of the first message that was stored at this time or later. Raises ClusterError."""
        position = await self._broker.services.partitions.position_at(topic, queue, max(0, time_ms))
        return self._broker.services.numbering.number(position)

    async def earliest_time(self, _: ServedConnection, request: Command) -> Command:
        """Serve GET_EARLIEST_MSG_STORETIME."""
        header = QueueHeader.decode(request.ext)
        topic = await self._broker.readable_topic(header.topic)
        self._broker.check_queue(topic, header.queue_id)
        first, end = await self._broker.bounds_of(topic, header.queue_id)
        stored_ms = None if first == end else await self.stored_ms(topic, header.queue_id, first)
        if stored_ms is None:
            raise CodedRefusal(f"queue {header.queue_id} of topic {header.topic} has no message", Status.SYSTEM_ERROR)
        return request.answer(Status.SUCCESS, TimestampResult(stored_ms).encode())

    async def stored_ms(self, topic: ListenedTopic, queue: int, number: int) -> int | None:
        """Return when the message with this offset was stored (ms since the epoch). Raises ClusterError."""
        reader = self._broker.open_reader(topic, queue)
        try:
            found = await reader.read(number, 1, 1)
        finally:
            await reader.close(asyncio.get_running_loop().time() + 1.0)
        if found.units:
            return found.units[0].published_ms
        return found.messages[0].publish_time if found.messages else None

    # --- groups -----------------------------------------------------------------------------------------------------------

    async def query(self, _: ServedConnection, request: Command) -> Command:
        """Serve QUERY_CONSUMER_OFFSET.

        A group without an offset begins at the first message of a queue that is young, whatever its client is told to do: so do
        brokers, as long as that message is in their memory.
        """
        header = QueryOffsetHeader.decode(request.ext)
        topic = await self._broker.find_topic(header.topic)
        if topic is not None and header.queue_id in topic.partitions:
            committed = await self._broker.committed_number(header.consumer_group, topic, header.queue_id)
            if committed is not None:
                return _offset(request, committed)
            first, end = await self._broker.bounds_of(topic, header.queue_id)
            if header.set_zero_if_not_found is not False and first == 0 < end <= YOUNG_MESSAGES:
                return _offset(request, 0)
        text = f"group {header.consumer_group} has no offset in queue {header.queue_id} of topic {header.topic}"
        raise CodedRefusal(text, Status.QUERY_NOT_FOUND)

    def update(self, link: ServedConnection, request: Command) -> Served:
        """Serve UPDATE_CONSUMER_OFFSET."""
        header = UpdateOffsetHeader.decode(request.ext)
        if header.commit_offset < 0:  # Go clients do that for queues from which they got nothing
            return request.answer()
        topic, who = self._broker.known_topic(header.topic), self._committer(link, header.consumer_group)
        if topic is not None and header.queue_id in topic.partitions and self._commit_at_once(link, who, header, topic):
            return request.answer()
        return self._update(link, who, request, header)

    def _committer(self, link: ServedConnection, group: str) -> Committer:
        clients = self._broker.clients
        known = clients.consumers.get(group)
        chooses_itself = known is not None and known.is_active(link)
        return Committer(clients.was_member(link, group), clients.is_returning(link, group), chooses_itself)

    def _commit_at_once(self, link: ServedConnection, who: Committer, header: UpdateOffsetHeader, topic: ListenedTopic) -> bool:
        """Commit where this takes no request to the cluster; return False if it does, or if the commit may be refused."""
        broker = self._broker
        group, queue, offset = header.consumer_group, header.queue_id, header.commit_offset
        if broker.is_being_reset(link, group, topic, queue, offset):
            return True
        if (own := broker.own_groups) is not None:
            own.commit(topic, queue, group, broker.position(offset), backwards=True)
            return True
        feed = broker.feed_of(group, topic, queue)
        if feed is None or not feed.is_held:
            return broker.is_shared(link, group, header.topic)  # another gateway has the queue, and commits in it
        if not self._may_commit(who):
            return False
        goes_back = feed.committed is not None and offset < feed.committed
        if goes_back and (not who.is_member or who.chooses_itself):
            return False
        broker.commit_lane(group, topic, queue, offset)
        return True

    async def _update(self, link: ServedConnection, who: Committer, request: Command, header: UpdateOffsetHeader) -> Command:
        topic = await self._broker.readable_topic(header.topic)
        self._broker.check_queue(topic, header.queue_id)
        if self._commit_at_once(link, who, header, topic):
            return request.answer()
        group = header.consumer_group
        if not self._may_commit(who):
            raise CodedRefusal(f"offsets of a group are committed by its members: {NOT_MANAGED}", Status.NO_PERMISSION)
        may_be_member = who.is_member or who.is_returning or self._is_shared(group, topic, header.queue_id)
        commit = GroupCommit(header.commit_offset, who.chooses_itself or not may_be_member)
        if not await self._move(group, topic, header.queue_id, commit) and not who.is_member:
            raise CodedRefusal(f"group {group} may have consumers here: only a reset moves it back", Status.SYSTEM_ERROR)
        return request.answer()

    def _may_commit(self, who: Committer) -> bool:
        return who.is_member or who.is_returning or self._broker.services.may_manage

    def _is_shared(self, group: str, topic: ListenedTopic, queue: int) -> bool:
        """Return True if members of a group may share topics here, or have done so until now: any client may be one of them."""
        if self._broker.clients.is_new:
            return True
        known = self._broker.clients.consumers.get(group)
        if known is not None and known.shared_topics:
            return True
        feed = self._broker.feed_of(group, topic, queue)
        return feed is not None and feed.is_held

    async def _move(self, group: str, topic: ListenedTopic, queue: int, commit: GroupCommit) -> bool:
        """Move a group of the cluster; return False if it is ahead of a commit that goes forwards only.

        The commits of a client for several queues are made together.
        """
        key = group, topic.name
        self._broker.position(commit.offset)  # raises CodedRefusal
        if key not in self._commits:
            task = spawn(self._move_all(key, topic), f"commit of {key}", log_errors=False)
            task.add_done_callback(mark_error_retrieved)
            self._commits[key] = {}, task
        commits, task = self._commits[key]
        commits[queue] = commit.after(commits.get(queue))
        return queue not in await asyncio.shield(task)

    def moving(self, group: str, topic: ListenedTopic) -> AbstractAsyncContextManager[None]:
        """Keep commits out of a block in which the group is moved: one that was compared before would undo that."""
        return self._moving.hold((group, topic.name))

    async def _move_all(self, key: tuple[str, str], topic: ListenedTopic) -> frozenset[int]:
        """Make the commits that wait, and return the queues in which the group is ahead of them."""
        await asyncio.sleep(0)  # so that commits which came together are made together
        async with self._moving.hold(key):
            commits, _ = self._commits.pop(key)
            try:
                return await self._make(key[0], topic, commits)
            except MqbridgeError as error:
                log.info("group %s cannot commit in topic %s now: %s", *key, error)
                raise

    async def _make(self, group: str, topic: ListenedTopic, commits: dict[int, GroupCommit]) -> frozenset[int]:
        """Make commits, and return the queues in which the group is ahead of them. Raises RequestRefused, ClusterError."""
        broker = self._broker
        targets = {queue: commit.offset for queue, commit in commits.items() if commit.may_go_back}
        ahead = set()
        if len(targets) < len(commits):
            committed = await self.committed(group, topic)
            for queue in commits.keys() - targets.keys():
                offset, present = commits[queue].offset, committed.get(queue)
                feed = broker.feed_of(group, topic, queue)
                if present is not None and offset < present:
                    ahead.add(queue)
                elif feed is not None and feed.is_held:  # since now
                    broker.commit_lane(group, topic, queue, offset)
                elif offset > (end := (await broker.bounds_of(topic, queue))[1]):  # it would get nothing from there
                    log.warning("group %s cannot commit %d in %s/%d, which ends at %d", group, offset, topic.name, queue, end)
                elif offset != present:
                    targets[queue] = offset
        if targets:
            positions = {queue: broker.position(targets[queue]) for queue in sorted(targets)}
            await broker.services.groups.move(topic, group, positions)
        return frozenset(ahead)

    async def committed(self, group: str, topic: ListenedTopic) -> dict[int, int]:
        """Return the committed offsets of a group, by queue: of lanes that are held here the newest. Raises ClusterError."""
        async with limited(f"reading the offsets of group {group} in topic {topic.name}"):
            positions = await self._broker.services.groups.committed(topic, group)
        numbers = {queue: self._broker.services.numbering.number(position) for queue, position in positions.items()}
        for queue in topic.partitions:
            feed = self._broker.feed_of(group, topic, queue)
            if feed is not None and feed.is_held and feed.committed is not None:
                numbers[queue] = feed.committed
        return numbers


def _offset(request: Command, offset: int) -> Command:
    return request.answer(Status.SUCCESS, OffsetResult(offset).encode())
