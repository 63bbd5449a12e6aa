"""Consumes as a member of a consumer group, with one lane per assigned queue. Other members may be Java push consumers.

A lane delivers the batches of one assigned queue to the gateway, which acknowledges them at the lane.

Messages that members sent back are stored in the queues of the group's retry topic, which all topics of the group share;
`retry_queue` divides them among lanes, one per topic.
"""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from functools import partial

from mqbridge.adapter.inbound import LockOwners
from mqbridge.adapter.known_brokers import KnownBrokers
from mqbridge.adapter.tools.deadlines import resolve_deadline
from mqbridge.errors import MqbridgeError
from mqbridge.message import Partition
from mqbridge.net.tasks import cancel, spawn
from mqbridge.rocketmq.adapter.deadlines import close_by_deadline
from mqbridge.rocketmq.adapter.lane import RocketMQLane
from mqbridge.rocketmq.adapter.operations import partition_name
from mqbridge.rocketmq.adapter.retry_lane import RetryLane
from mqbridge.rocketmq.adapter.retry_queue import RetryQueue
from mqbridge.rocketmq.client.cluster_client import ClusterClient
from mqbridge.rocketmq.client.consumer.assigned_queue import AssignedQueue
from mqbridge.rocketmq.client.consumer.pull_consumer import PullConsumer
from mqbridge.rocketmq.client.consumer.sendback import SendBack


class RocketMQInbound:
    """A member of a group, which consumes `topics`. It closes its client when it is closed."""

    individual_ack = False
    """The group has only one offset per queue, so batches are acknowledged as a whole and in order."""

    def __init__(
        self,
        cluster: str,
        client: ClusterClient,
        consumer: PullConsumer,
        topics: Sequence[str],
        send_back: SendBack,
        known_brokers: KnownBrokers,
        lock_owners: LockOwners | None = None,
    ) -> None:
        """`lock_owners` has the record of our client id, which ends when all queues are released."""
        self._cluster, self._client, self._consumer = cluster, client, consumer
        self._known_brokers, self._lock_owners = known_brokers, lock_owners
        self._topics, self._send_back = topics, send_back
        self._retry_queues: list[RetryQueue] = []
        self._new_lanes: asyncio.Queue[RocketMQLane | RetryLane | MqbridgeError | None] = asyncio.Queue()
        """Lanes that `lanes` has not yielded yet, or the error that `lanes` raises; None ends the iteration of `lanes`."""
        self._close_task: asyncio.Task[None] | None = None
        self._accept_task = spawn(self._accept_queues(), f"queues of {consumer.name}")

    @property
    def pauses(self) -> Mapping[str, str]:
        """Why Brokers do not permit reading now, by partition or topic."""
        refusals = self._consumer.refusals.items()
        return {key if isinstance(key, str) else f"{key.topic}/{partition_name(key)}": why for key, why in refusals}

    async def lanes(self) -> AsyncIterator[RocketMQLane | RetryLane]:
        """Yield a lane for each assigned queue, and for each topic with messages that were sent back."""
        while (lane := await self._new_lanes.get()) is not None:
            if isinstance(lane, MqbridgeError):
                raise lane
            yield lane
        self._new_lanes.put_nowait(None)  # also end other iterators

    async def _accept_queues(self) -> None:
        """Create a lane for each assigned queue of a topic, and a RetryQueue for each assigned retry queue."""
        try:
            async for assigned in self._consumer.assigned_queues():
                topic = assigned.queue.topic
                if topic in self._topics:
                    name = partition_name(assigned.queue)
                    partition = Partition(self._cluster, topic, name, await self._partition_index(assigned))
                    self._new_lanes.put_nowait(RocketMQLane(partition, assigned))
                else:
                    # The other assigned queues are those of the retry topic.
                    send_back = partial(self._send_back.redeliver, assigned.queue)
                    # Forget retry queues that were revoked: `close` need not release them.
                    self._retry_queues = [queue for queue in self._retry_queues if not queue.assigned.revoked]
                    self._retry_queues.append(
                        RetryQueue(assigned, self._cluster, self._topics, self._new_lanes.put_nowait, send_back)
                    )
        except MqbridgeError as error:
            self._new_lanes.put_nowait(error)

    async def _partition_index(self, assigned: AssignedQueue) -> int:
        """Return the index of a queue in its topic."""
        topic = assigned.queue.topic
        route = await self._client.routes.get(topic)
        queues = [] if route is None else route.read_queues()
        return self._known_brokers.index(topic, partition_name(assigned.queue), list(map(partition_name, queues)))

    async def close(self, deadline: float | None = None) -> None:
        """Release all queues and leave the group, by the deadline (loop time; None: 30 s from now).

        A task does this, so it continues if the caller is cancelled. Later calls wait for this task; their deadline is ignored.
        """
        if self._close_task is None:
            self._close_task = spawn(self._close(resolve_deadline(deadline)), f"closing {self._consumer.name}")
        await asyncio.shield(self._close_task)

    async def _close(self, deadline: float) -> None:
        await asyncio.gather(*(queue.release(deadline) for queue in self._retry_queues))
        await self._consumer.close(deadline)
        if self._lock_owners is not None:
            await self._lock_owners.forget([self._client.client_id])
        await cancel(self._accept_task)
        self._new_lanes.put_nowait(None)
        await close_by_deadline(self._client.close(), deadline, self._consumer.name)
