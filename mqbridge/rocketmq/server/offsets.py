"""Requests about offsets: those of queues, and those that groups have committed.

A commit of a consumer looks like one of a tool. So in a group of the cluster that has members here, or whose lane is held here,
commits go forwards only: the client may be a member that has connected again, whose timer commits before its first pull and its
heartbeat. Tools move such a group by a reset, and one without members by a commit, too. Members that choose themselves from where
they pull commit as they like.
"""

import asyncio
import logging

from mqbridge.errors import MqbridgeError
from mqbridge.listener.topics import ListenedTopic
from mqbridge.message import Position
from mqbridge.net.tasks import mark_error_retrieved, spawn
from mqbridge.rocketmq.server.broker import Broker
from mqbridge.rocketmq.server.connection import Served, ServedConnection
from mqbridge.rocketmq.server.group_membership import YOUNG_MESSAGES
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


class Offsets:
    """See the module."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._moves: dict[tuple[str, str], tuple[dict[int, Position], asyncio.Task[None]]] = {}
        """Commits of groups that are not joined here, by group and topic: the newest positions by queue, and what moves them."""

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
        topic = self._broker.known_topic(header.topic)
        if topic is not None and header.queue_id in topic.partitions and self._commit_at_once(link, header, topic):
            return request.answer()
        return self._update(link, request, header)

    def _commit_at_once(self, link: ServedConnection, header: UpdateOffsetHeader, topic: ListenedTopic) -> bool:
        """Commit where this takes no request to the cluster; return False if it does, or if the commit may be refused."""
        broker = self._broker
        group, queue, offset = header.consumer_group, header.queue_id, header.commit_offset
        if broker.is_being_reset(link, group, topic, queue, offset):
            return True
        if (own := broker.own_groups) is not None:
            own.commit(topic, queue, group, broker.position(offset), backwards=True)
            return True
        is_member = broker.clients.was_member(link, group)
        feed = broker.feed_of(group, topic, queue)
        if feed is None or not feed.is_held:
            return broker.is_shared(link, group, header.topic)  # another gateway has the queue, and commits in it
        if not is_member and not broker.services.may_manage:
            return False
        goes_back = feed.committed is not None and offset < feed.committed
        if goes_back and (not is_member or self._chooses_itself(link, group)):
            return False
        broker.commit_lane(group, topic, queue, offset)
        return True

    async def _update(self, link: ServedConnection, request: Command, header: UpdateOffsetHeader) -> Command:
        topic = await self._broker.readable_topic(header.topic)
        self._broker.check_queue(topic, header.queue_id)
        if self._commit_at_once(link, header, topic):
            return request.answer()
        group = header.consumer_group
        is_member = self._broker.clients.was_member(link, group)
        if not is_member and not self._broker.services.may_manage:
            raise CodedRefusal(f"offsets of a group are committed by its members: {NOT_MANAGED}", Status.NO_PERMISSION)
        may_go_back = self._chooses_itself(link, group) or not (is_member or self._is_shared(group, topic, header.queue_id))
        queue, offset = header.queue_id, header.commit_offset
        committed = None if may_go_back else await self._broker.committed_number(group, topic, queue)
        if committed is None or committed < offset:
            await self._move(group, topic, queue, offset)
        elif offset < committed and not is_member:
            raise CodedRefusal(f"group {group} has consumers here: only a reset moves it back", Status.SYSTEM_ERROR)
        return request.answer()

    def _chooses_itself(self, link: ServedConnection, group: str) -> bool:
        """Return True if a client may read again what its group has committed, as it likes."""
        known = self._broker.clients.consumers.get(group)
        return known is not None and known.is_active(link)

    def _is_shared(self, group: str, topic: ListenedTopic, queue: int) -> bool:
        """Return True if members of a group share topics here, or have done so until now: any client may be one of them."""
        known = self._broker.clients.consumers.get(group)
        if known is not None and known.shared_topics:
            return True
        feed = self._broker.feed_of(group, topic, queue)
        return feed is not None and feed.is_held

    async def _move(self, group: str, topic: ListenedTopic, queue: int, offset: int) -> None:
        """Move a group of the cluster; the commits of a client for several queues are moved together."""
        key = group, topic.name
        position = self._broker.position(offset)
        if key not in self._moves:
            task = spawn(self._move_all(key, topic), f"commit of {key}", log_errors=False)
            task.add_done_callback(mark_error_retrieved)
            self._moves[key] = {}, task
        positions, task = self._moves[key]
        positions[queue] = position
        await asyncio.shield(task)

    async def _move_all(self, key: tuple[str, str], topic: ListenedTopic) -> None:
        await asyncio.sleep(0)  # so that commits which came together are moved together
        positions, _ = self._moves.pop(key)
        try:
            await self._broker.services.groups.move(topic, key[0], positions)
        except MqbridgeError as error:
            log.info("group %s cannot commit in topic %s now: %s", *key, error)
            raise


def _offset(request: Command, offset: int) -> Command:
    return request.answer(Status.SUCCESS, OffsetResult(offset).encode())
