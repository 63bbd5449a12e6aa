"""Requests of clients about their groups: heartbeats, members, subscriptions, and locks of queues.

A client that consumes in order locks its queues before it pulls, and tries again 20 s later where it is refused. So a client that
was refused because this gateway does not have a queue yet is told to share the queues anew when it has got one: then it locks.
"""

import asyncio

from mqbridge.rocketmq.server.broker import Broker
from mqbridge.rocketmq.server.connection import ServedConnection
from mqbridge.rocketmq.server.refusals import CodedRefusal
from mqbridge.rocketmq.server.support import NO_POP, NO_SQL
from mqbridge.rocketmq.wire.allocation_strategies import averagely, circle, consistent_hash, divide
from mqbridge.rocketmq.wire.bodies.groups import CheckClient, ConsumerList, Heartbeat
from mqbridge.rocketmq.wire.bodies.pop import POP, Assignment, AssignmentQuery, Assignments, MessageRequestMode
from mqbridge.rocketmq.wire.bodies.queue import Queue
from mqbridge.rocketmq.wire.bodies.queue_locks import LockedQueues, LockRequest
from mqbridge.rocketmq.wire.codes import Code, Status
from mqbridge.rocketmq.wire.command import Command
from mqbridge.rocketmq.wire.headers.groups import GroupHeader, UnregisterHeader
from mqbridge.rocketmq.wire.tags import SQL92

_STRATEGIES = {"AVG": averagely, "AVG_BY_CIRCLE": circle, "CONSISTENT_HASH": consistent_hash}
LOCK_S = 60.0
"""How long a lock lives that its client does not renew: as with brokers."""


class GroupRequests:
    """See the module."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._locks: dict[str, dict[Queue, tuple[str, float]]] = {}
        """By group: which client has locked a queue, and until when (loop time)."""
        self._refused: dict[str, set[ServedConnection]] = {}
        """By group: the clients that could not lock a queue because it is not here."""
        self._sweep: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Begin to forget locks that have expired."""
        self._sweep = asyncio.get_running_loop().call_later(LOCK_S, self._forget_expired)

    def stop(self) -> None:
        """End that."""
        if self._sweep is not None:
            self._sweep.cancel()
            self._sweep = None

    def heartbeat(self, link: ServedConnection, request: Command) -> Command:
        """Serve HEART_BEAT."""
        self._broker.clients.heartbeat(link, Heartbeat.decode(request.body))
        return request.answer()

    def unregister(self, link: ServedConnection, request: Command) -> Command:
        """Serve UNREGISTER_CLIENT."""
        header = UnregisterHeader.decode(request.ext)
        self._broker.clients.unregister(header.client_id, header.producer_group, header.consumer_group, link)
        return request.answer()

    def members(self, _: ServedConnection, request: Command) -> Command:
        """Serve GET_CONSUMER_LIST_BY_GROUP."""
        header = GroupHeader.decode(request.ext)
        group = self._broker.clients.consumers.get(header.consumer_group)
        if group is None:
            raise CodedRefusal(f"group {header.consumer_group} has no consumers here", Status.SYSTEM_ERROR)
        return request.answer(body=ConsumerList(tuple(group.members)).encode())

    def check_client(self, _: ServedConnection, request: Command) -> Command:
        """Serve CHECK_CLIENT_CONFIG: whether a subscription is supported."""
        checked = CheckClient.decode(request.body)
        if checked.subscription.expression_type == SQL92:
            raise CodedRefusal(NO_SQL, Status.SYSTEM_ERROR)
        return request.answer()

    # --- locks ------------------------------------------------------------------------------------------------------------

    async def lock(self, link: ServedConnection, request: Command) -> Command:
        """Serve LOCK_BATCH_MQ: a queue that does not exist, or that another gateway has, cannot be locked here."""
        wanted = LockRequest.decode(request.body)
        for name in {queue.topic for queue in wanted.queues}:
            if self._broker.known_topic(name) is None:
                await self._broker.find_topic(name)
        now = asyncio.get_running_loop().time()
        locks = self._locks.get(wanted.group, {})
        locked = []
        for queue in wanted.queues:
            owner, until = locks.get(queue, (wanted.client_id, 0.0))
            if not self._is_here(wanted.group, queue):
                self._refused.setdefault(wanted.group, set()).add(link)
            elif owner == wanted.client_id or until <= now:
                locks[queue] = wanted.client_id, now + LOCK_S
                locked.append(queue)
        if locks:
            self._locks[wanted.group] = locks
        return request.answer(body=LockedQueues(tuple(locked)).encode())

    def _is_here(self, group: str, queue: Queue) -> bool:
        """Return True unless the queue is one of a group of the cluster, and not held here."""
        topic = self._broker.known_topic(queue.topic)
        if topic is None or queue.id not in topic.partitions:
            return False
        if self._broker.own_groups is not None:
            return True
        feed = self._broker.feed_of(group, topic, queue.id)
        return feed is not None and feed.is_held

    def on_queue_held(self, group: str) -> None:
        """Let clients that were refused lock the queue that this gateway has got now."""
        for link in self._refused.pop(group, ()):
            link.notify(Code.NOTIFY_CONSUMER_IDS_CHANGED, GroupHeader(group))

    def unlock(self, _: ServedConnection, request: Command) -> Command:
        """Serve UNLOCK_BATCH_MQ."""
        wanted = LockRequest.decode(request.body)
        locks = self._locks.get(wanted.group, {})
        for queue in wanted.queues:
            if queue in locks and locks[queue][0] == wanted.client_id:
                del locks[queue]
        if not locks:
            self._locks.pop(wanted.group, None)
        return request.answer()

    def _forget_expired(self) -> None:
        now = asyncio.get_running_loop().time()
        for group, locks in list(self._locks.items()):
            for queue in [queue for queue, (_, until) in locks.items() if until <= now]:
                del locks[queue]
            if not locks:
                del self._locks[group]
        for group, links in list(self._refused.items()):
            self._refused[group] = {link for link in links if link.alive}
            if not self._refused[group]:
                del self._refused[group]
        self.start()

    # --- assignments by the broker ------------------------------------------------------------------------------------------

    async def assignment(self, _: ServedConnection, request: Command) -> Command:
        """Serve QUERY_ASSIGNMENT: the queues of a client, always to be pulled."""
        query = AssignmentQuery.decode(request.body)
        topic = await self._broker.find_topic(query.topic)
        group = self._broker.clients.consumers.get(query.group)
        if topic is None or group is None or query.client_id not in group.members:
            return request.answer(body=Assignments(None).encode())
        queues = [Queue(query.topic, self._broker.name, index) for index in sorted(topic.partitions)]
        if group.is_broadcast:
            own = queues
        else:
            own = divide(_STRATEGIES.get(query.strategy, averagely), query.client_id, queues, group.members)
        return request.answer(body=Assignments(tuple(map(Assignment, own))).encode())

    def request_mode(self, _: ServedConnection, request: Command) -> Command:
        """Serve SET_MESSAGE_REQUEST_MODE."""
        if MessageRequestMode.decode(request.body).mode == POP:
            raise CodedRefusal(NO_POP, Status.NO_PERMISSION)
        return request.answer()
