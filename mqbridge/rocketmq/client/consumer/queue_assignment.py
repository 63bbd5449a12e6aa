"""Assignment: which queues belong to this consumer, and the offset at which it starts each of them.

Each member queries a broker for the members of the group and divides the queues with the same algorithm. The setting `start`
applies to the queues that a topic has when we join; a queue that is added later is read from its beginning, or if its broker
came later, too, as `late_queues` says.
"""

import asyncio
import logging
import time

from mqbridge.errors import ClusterError, Failure
from mqbridge.rocketmq.client.admin.admin import Admin
from mqbridge.rocketmq.client.admin.positions import Positions
from mqbridge.rocketmq.client.admin.read_permission import why_unreadable
from mqbridge.rocketmq.client.connection.base_client import BaseClient
from mqbridge.rocketmq.client.consumer.consumer_settings import ConsumerSettings, MessageModel, StartOffset
from mqbridge.rocketmq.client.consumer.late_queues import late_start
from mqbridge.rocketmq.client.consumer.membership import Membership
from mqbridge.rocketmq.client.consumer.offset_store import OffsetStore, resolve_start
from mqbridge.rocketmq.wire.allocation_strategies import divide
from mqbridge.rocketmq.wire.bodies.queue import Queue

log = logging.getLogger(__name__)

RETRY_TOPIC_S = 60.0
"""Time after joining in which we rebalance every second while the group's retry topic (redelivered messages) has no route.

Later, we rebalance every 20 s, as usual.
"""


class QueueAssignment:
    """Computes the queues of one consumer, and their start offsets."""

    def __init__(self, client: BaseClient, settings: ConsumerSettings, membership: Membership, store: OffsetStore) -> None:
        self._client, self._settings = client, settings
        self._membership, self._store = membership, store
        self._positions = Positions(client)
        self._initial_queues: dict[str, frozenset[Queue]] = {}
        """The queues of each topic when we joined."""
        self.unreadable_topics: set[str] = set()
        """Topics whose route has no readable queue, as of the last query: no broker permits reading."""
        self._began_ms = 0
        """When the group started, ms since the epoch; from `record_initial_queues` on."""
        self._joined_at = 0.0
        """Loop time of `mark_joined`; 0 before it."""
        self._loop = asyncio.get_running_loop()

    async def record_initial_queues(self, consumer_name: str) -> None:
        """Record the queues that our topics have now, before we join. Raises ClusterError: FATAL if a topic does not exist."""
        self._began_ms = time.time_ns() // 1_000_000 if self._settings.began_ms is None else self._settings.began_ms
        for subscription in self._settings.subscriptions:
            topic = subscription.topic
            route = await Admin(self._client).route(topic)
            if route is None:
                raise ClusterError(f"{consumer_name} cannot read topic {topic}: no name server knows it", Failure.FATAL)
            self._initial_queues[topic] = frozenset(route.read_queues())
            if not self._initial_queues[topic]:
                log.warning("%s waits: %s", consumer_name, await why_unreadable(Admin(self._client), topic))

    @property
    def initial_queues(self) -> list[Queue]:
        """The queues that our topics had when we joined."""
        return [queue for queues in self._initial_queues.values() for queue in queues]

    def mark_joined(self) -> None:
        """Record that we have joined the group now."""
        self._joined_at = self._loop.time()

    def may_stay_missing(self, topic: str) -> bool:
        """Return True if a topic without a route needs no rebalance before the next regular one.

        Only a retry topic may stay missing, RETRY_TOPIC_S after joining: no broker has created it by then, and probably none will
        soon.
        """
        return topic not in self._initial_queues and self._loop.time() - self._joined_at > RETRY_TOPIC_S

    async def own_queues(self, topic: str) -> tuple[list[Queue] | None, bool]:
        """Return our queues of a topic, and True if we need not wait for another member to release them. Raises ClusterError.

        Returns None as the queues if the route or the members are unknown now. The caller then keeps the queues that it has, and
        ignores the second value.
        """
        if self._settings.model is MessageModel.ASSIGNED:
            return [queue for queue in self._settings.queues if queue.topic == topic], True
        # Our heartbeat makes brokers create the retry topic, and its route appears milliseconds later. So a missing route, which
        # `get` would return from the cache for 30 s, is queried again.
        route = await self._client.routes.get(topic) or await self._client.routes.get(topic, fresh=True)
        if route is None:
            return None, True
        self._note_readable(topic, is_readable=bool(route.read_queues()))
        if self._settings.model is MessageModel.BROADCASTING:
            return list(route.read_queues()), True
        members = await self._membership.members(route)
        if members is None:
            return None, True
        return divide(self._settings.strategy, self._client.client_id, route.read_queues(), members), len(members) == 1

    def _note_readable(self, topic: str, *, is_readable: bool) -> None:
        """Record whether a topic has a readable queue, and log a change."""
        if is_readable and topic in self.unreadable_topics:
            self.unreadable_topics.remove(topic)
            log.info("topic %s may be read again", topic)
        elif not is_readable and topic not in self.unreadable_topics and topic in self._initial_queues:
            self.unreadable_topics.add(topic)
            log.warning("topic %s: reading waits, because no broker permits it (a permission without read)", topic)

    async def start_offset(self, queue: Queue) -> tuple[int, bool]:
        """Return the offset at which to start a queue, and True if the group starts this queue for the first time.

        It is the first start if the settings contain no offset for the queue, and none is stored. Raises ClusterError.
        """
        configured_offset = self._settings.offsets.get(queue)
        if configured_offset is not None:
            return configured_offset, False
        stored_offset = await self._store.load(queue)
        if stored_offset is not None:
            return stored_offset, False
        queues = self._initial_queues.get(queue.topic)
        if queues is not None:  # None for the retry topic
            # `came_later` finds queues that were added before we joined, but after the group started.
            came_later = self._settings.came_later
            initial_queues = queues if came_later is None else {each for each in queues if not came_later(each)}
            if queue in initial_queues:
                return await resolve_start(self._positions, queue, self._settings.start, self._settings.start_ms), True
            if self._settings.start is StartOffset.LATEST and queue.broker not in {each.broker for each in initial_queues}:
                return await late_start(self._client, self._positions, queue, self._began_ms), True
        # The group must get all messages of a queue that was added after it started, and of its retry topic.
        return await resolve_start(self._positions, queue, StartOffset.EARLIEST, self._settings.start_ms), True
