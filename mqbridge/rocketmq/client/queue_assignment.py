"""Which queues are ours, and where to begin to read each of them.

Each member asks a broker who is in the group and divides the queues as all others do. What a topic has when we join began before
us: there the group's start applies; everything in a queue that came later is read.
"""

import asyncio

from mqbridge.errors import ClusterError, Failure
from mqbridge.rocketmq.client.admin import Admin
from mqbridge.rocketmq.client.base_client import BaseClient
from mqbridge.rocketmq.client.membership import Membership
from mqbridge.rocketmq.client.offsets import OffsetStore, start_of
from mqbridge.rocketmq.client.positions import Positions
from mqbridge.rocketmq.client.rebalance import divide
from mqbridge.rocketmq.client.spec import GroupSpec, Model, StartOffset
from mqbridge.rocketmq.wire.bodies.queue import Queue

RETRY_TOPIC_S = 60.0
"""How long after joining a missing retry topic is looked for every second; then with every round."""


class QueueAssignment:
    """The division of queues as one member of a group makes it."""

    def __init__(self, client: BaseClient, spec: GroupSpec, membership: Membership, store: OffsetStore) -> None:
        self._client, self._spec, self._membership, self._store = client, spec, membership, store
        self._positions = Positions(client)
        self._early: dict[str, frozenset[Queue]] = {}
        """The queues that each topic had when we joined."""
        self._joined_at = 0.0
        self._loop = asyncio.get_running_loop()

    async def find_topics(self, reader: str) -> None:
        """Learn which queues are there before us. Raises ClusterError: FATAL when a topic does not exist."""
        for subscription in self._spec.subscriptions:
            topic = subscription.topic
            route = await Admin(self._client).route(topic)
            if route is None:
                raise ClusterError(f"{reader} cannot read topic {topic}: no name server knows it", Failure.FATAL)
            self._early[topic] = frozenset(route.read_queues())

    def joined(self) -> None:
        """The group knows us from now on."""
        self._joined_at = self._loop.time()

    def may_stay_missing(self, topic: str) -> bool:
        """Whether a topic without a route needs no further look before the next round: a retry topic that nothing made."""
        return topic not in self._early and self._loop.time() - self._joined_at > RETRY_TOPIC_S

    async def part_of(self, topic: str) -> tuple[list[Queue] | None, bool]:
        """Our queues of a topic, None for those that we hold; and whether nobody else is in the group. Raises ClusterError."""
        if self._spec.model is Model.ASSIGNED:
            return [queue for queue in self._spec.queues if queue.topic == topic], True
        # The retry topic is made by our heartbeat, and shows some milliseconds later: what is missing is asked for each time.
        route = await self._client.routes.get(topic) or await self._client.routes.get(topic, fresh=True)
        if route is None:
            return None, True
        if self._spec.model is Model.BROADCASTING:
            return list(route.read_queues()), True
        members = await self._membership.members(route)
        if members is None:
            return None, True
        return divide(self._spec.strategy, self._client.client_id, route.read_queues(), members), len(members) == 1

    async def start_of(self, queue: Queue) -> tuple[int, bool]:
        """Where to begin, and whether that is our own choice. Raises ClusterError."""
        given = self._spec.offsets.get(queue)
        if given is not None:
            return given, False
        stored = await self._store.load(queue)
        if stored is not None:
            return stored, False
        early = self._early.get(queue.topic)
        told = self._spec.came_later
        late = early is None or queue not in early or (told is not None and told(queue))
        # All of a retry topic's messages, and of a queue that the topic got later, came after the group had its start.
        start = StartOffset.EARLIEST if late else self._spec.start
        return await start_of(self._positions, queue, start, self._spec.start_ms), True
