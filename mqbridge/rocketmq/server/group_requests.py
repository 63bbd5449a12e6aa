"""Requests of clients about their groups: heartbeats, members, subscriptions, and locks of queues."""

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
from mqbridge.rocketmq.wire.codes import Status
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
        self._swept_at = 0.0
        """Loop time at which expired locks were forgotten last."""

    def heartbeat(self, link: ServedConnection, request: Command) -> Command:
        """Serve HEART_BEAT."""
        self._broker.clients.heartbeat(link, Heartbeat.decode(request.body))
        return request.answer()

    def unregister(self, _: ServedConnection, request: Command) -> Command:
        """Serve UNREGISTER_CLIENT."""
        header = UnregisterHeader.decode(request.ext)
        self._broker.clients.unregister(header.client_id, header.producer_group, header.consumer_group)
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

    def lock(self, _: ServedConnection, request: Command) -> Command:
        """Serve LOCK_BATCH_MQ: a queue that another gateway has cannot be locked here."""
        wanted = LockRequest.decode(request.body)
        now = asyncio.get_running_loop().time()
        if now > self._swept_at + LOCK_S:
            self._sweep(now)
        locks = self._locks.get(wanted.group, {})
        locked = []
        for queue in wanted.queues:
            owner, until = locks.get(queue, (wanted.client_id, 0.0))
            if (owner == wanted.client_id or until <= now) and self._is_here(wanted.group, queue):
                locks[queue] = wanted.client_id, now + LOCK_S
                locked.append(queue)
        if locks:
            self._locks[wanted.group] = locks
        return request.answer(body=LockedQueues(tuple(locked)).encode())

    def _is_here(self, group: str, queue: Queue) -> bool:
        """Return True unless the queue is one of a group of the cluster, and not held here."""
        if self._broker.own_groups is not None:
            return True
        topic = self._broker.known_topic(queue.topic)
        feed = None if topic is None else self._broker.feed_of(group, topic, queue.id)
        return feed is not None and feed.is_held

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

    def _sweep(self, now: float) -> None:
        """Forget locks that have expired."""
        self._swept_at = now
        for group, locks in list(self._locks.items()):
            for queue in [queue for queue, (_, until) in locks.items() if until <= now]:
                del locks[queue]
            if not locks:
                del self._locks[group]

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
