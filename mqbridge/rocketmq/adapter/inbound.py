"""Consumes as a member of a push consumer group, possibly beside Java members: a lane per assigned queue.

Messages that members sent back arrive in the group's retry queues, where all its topics are mixed; see `retry_queue`.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from functools import partial

from mqbridge.adapter.deadlines import resolve_deadline
from mqbridge.errors import MqbridgeError
from mqbridge.message import Partition
from mqbridge.net.tasks import cancel, spawn
from mqbridge.rocketmq.adapter.deadlines import by_deadline
from mqbridge.rocketmq.adapter.lane import RocketMQLane
from mqbridge.rocketmq.adapter.retry_lane import RetryLane
from mqbridge.rocketmq.adapter.retry_queue import RetryQueue
from mqbridge.rocketmq.client.assigned_queue import AssignedQueue
from mqbridge.rocketmq.client.cluster_client import ClusterClient
from mqbridge.rocketmq.client.pull_consumer import PullConsumer
from mqbridge.rocketmq.client.sendback import SendBack


class RocketMQInbound:
    """A member of a group; owns its client."""

    individual_ack = False

    def __init__(
        self, cluster: str, client: ClusterClient, consumer: PullConsumer, topics: Sequence[str], send_back: SendBack
    ) -> None:
        self._cluster, self._client, self._consumer = cluster, client, consumer
        self._topics, self._send_back = topics, send_back
        self._retries: list[RetryQueue] = []
        self._new_lanes: asyncio.Queue[RocketMQLane | RetryLane | MqbridgeError | None] = asyncio.Queue()
        self._closing: asyncio.Task[None] | None = None
        self._task = spawn(self._accept(), f"queues of {consumer.name}")

    async def lanes(self) -> AsyncIterator[RocketMQLane | RetryLane]:
        """Yield a lane for each assigned queue, and for each topic with messages that were sent back."""
        while (lane := await self._new_lanes.get()) is not None:
            if isinstance(lane, MqbridgeError):
                raise lane
            yield lane
        self._new_lanes.put_nowait(None)

    async def _accept(self) -> None:
        try:
            async for assigned in self._consumer.assigned_queues():
                topic, broker, number = assigned.queue
                if topic in self._topics:
                    partition = Partition(self._cluster, topic, f"{broker}:{number}", await self._index(assigned))
                    self._new_lanes.put_nowait(RocketMQLane(partition, assigned))
                else:
                    send_back = partial(self._send_back.later, assigned.queue)  # a retry queue
                    self._retries = [queue for queue in self._retries if not queue.assigned.revoked]
                    self._retries.append(RetryQueue(assigned, self._cluster, self._topics, self._new_lanes.put_nowait, send_back))
        except MqbridgeError as error:
            self._new_lanes.put_nowait(error)

    async def _index(self, assigned: AssignedQueue) -> int:
        """Return the index of a queue in its topic; a queue that has just left the route gets the index behind the last."""
        route = await self._client.routes.get(assigned.queue.topic)
        queues = [] if route is None else list(route.read_queues())
        return queues.index(assigned.queue) if assigned.queue in queues else len(queues)

    async def close(self, deadline: float | None = None) -> None:
        """Release all queues and leave the group, in one task: a cancelled caller only stops waiting for it."""
        if self._closing is None:
            at = resolve_deadline(deadline)
            self._closing = spawn(self._close(at), f"closing {self._consumer.name}")
        await asyncio.shield(self._closing)

    async def _close(self, deadline: float) -> None:
        await asyncio.gather(*(queue.release(deadline) for queue in self._retries))
        await self._consumer.close(deadline)
        await cancel(self._task)
        self._new_lanes.put_nowait(None)
        await by_deadline(self._client.close(), deadline, self._consumer.name)
