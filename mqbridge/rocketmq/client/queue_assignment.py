"""Assignment: which queues belong to this member, and the start offset of each.

Each member queries a broker for the members of the group and divides the queues with the same algorithm. The group's start
applies to the queues that a topic has when we join; a queue added later is read from its beginning.
"""

import asyncio

from mqbridge.errors import ClusterError, Failure
from mqbridge.rocketmq.client.admin import Admin
from mqbridge.rocketmq.client.allocation_strategies import divide
from mqbridge.rocketmq.client.base_client import BaseClient
from mqbridge.rocketmq.client.consumer_settings import ConsumerSettings, MessageModel, StartOffset
from mqbridge.rocketmq.client.membership import Membership
from mqbridge.rocketmq.client.offset_store import OffsetStore, start_of
from mqbridge.rocketmq.client.positions import Positions
from mqbridge.rocketmq.wire.bodies.queue import Queue

RETRY_TOPIC_S = 60.0
"""How long after joining a missing retry topic is checked every second; later with every rebalance."""


class QueueAssignment:
    """The assignment of queues to one member of a group."""

    def __init__(self, client: BaseClient, settings: ConsumerSettings, membership: Membership, store: OffsetStore) -> None:
        self._client, self._settings, self._membership, self._store = client, settings, membership, store
        self._positions = Positions(client)
        self._initial_queues: dict[str, frozenset[Queue]] = {}
        """The queues of each topic when we joined."""
        self._joined_at = 0.0
        self._loop = asyncio.get_running_loop()

    async def find_topics(self, reader: str) -> None:
        """Record the initial queues. Raises ClusterError: FATAL if a topic does not exist."""
        for subscription in self._settings.subscriptions:
            topic = subscription.topic
            route = await Admin(self._client).route(topic)
            if route is None:
                raise ClusterError(f"{reader} cannot read topic {topic}: no name server knows it", Failure.FATAL)
            self._initial_queues[topic] = frozenset(route.read_queues())

    def joined(self) -> None:
        """Note the time of joining the group."""
        self._joined_at = self._loop.time()

    def may_stay_missing(self, topic: str) -> bool:
        """Return True if a topic without a route can wait for the next rebalance: a retry topic that nothing created."""
        return topic not in self._initial_queues and self._loop.time() - self._joined_at > RETRY_TOPIC_S

    async def part_of(self, topic: str) -> tuple[list[Queue] | None, bool]:
        """Return our queues of a topic (None: keep those we hold), and True if we are the only member. Raises ClusterError."""
        if self._settings.model is MessageModel.ASSIGNED:
            return [queue for queue in self._settings.queues if queue.topic == topic], True
        # Our heartbeat creates the retry topic, which appears milliseconds later: a missing route is queried each time.
        route = await self._client.routes.get(topic) or await self._client.routes.get(topic, fresh=True)
        if route is None:
            return None, True
        if self._settings.model is MessageModel.BROADCASTING:
            return list(route.read_queues()), True
        members = await self._membership.members(route)
        if members is None:
            return None, True
        return divide(self._settings.strategy, self._client.client_id, route.read_queues(), members), len(members) == 1

    async def start_of(self, queue: Queue) -> tuple[int, bool]:
        """Return the start offset of a queue, and True if we chose it. Raises ClusterError."""
        given = self._settings.offsets.get(queue)
        if given is not None:
            return given, False
        stored = await self._store.load(queue)
        if stored is not None:
            return stored, False
        initial = self._initial_queues.get(queue.topic)
        came_later = self._settings.came_later
        added_later = initial is None or queue not in initial or (came_later is not None and came_later(queue))
        # All messages of a retry topic, and of a queue added later, are newer than the group's start.
        start = StartOffset.EARLIEST if added_later else self._settings.start
        return await start_of(self._positions, queue, start, self._settings.start_ms), True
