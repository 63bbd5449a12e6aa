"""Consuming as a member of a push consumer group, beside Java members if there are any: a lane per assigned queue.

What members sent back comes in the group's retry queues, the messages of all its topics mixed; see `retries`.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from functools import partial

from mqbridge.adapter.deadlines import deadline_of
from mqbridge.errors import MqbridgeError
from mqbridge.message import Partition
from mqbridge.net.tasks import cancel, spawn
from mqbridge.rocketmq.adapter.deadlines import by_deadline
from mqbridge.rocketmq.adapter.lane import RocketMQLane
from mqbridge.rocketmq.adapter.retry_lane import RetryLane
from mqbridge.rocketmq.adapter.retry_queue import RetryQueue
from mqbridge.rocketmq.client.client import RocketmqClient
from mqbridge.rocketmq.client.consumer import GroupConsumer
from mqbridge.rocketmq.client.sendback import SendBack
from mqbridge.rocketmq.client.stream import QueueStream


class RocketMQInbound:
    """A member of a group; owns the client that it is a member with."""

    individual_ack = False

    def __init__(
        self, cluster: str, client: RocketmqClient, consumer: GroupConsumer, topics: Sequence[str], send_back: SendBack
    ) -> None:
        self._cluster, self._client, self._consumer = cluster, client, consumer
        self._topics, self._send_back = topics, send_back
        self._retries: list[RetryQueue] = []
        self._new: asyncio.Queue[RocketMQLane | RetryLane | MqbridgeError | None] = asyncio.Queue()
        self._closing: asyncio.Task[None] | None = None
        self._task = spawn(self._accept(), f"queues of {consumer.name}")

    async def lanes(self) -> AsyncIterator[RocketMQLane | RetryLane]:
        """Queues as the group's members divide them, and a lane per topic of what was sent back."""
        while (lane := await self._new.get()) is not None:
            if isinstance(lane, MqbridgeError):
                raise lane
            yield lane
        self._new.put_nowait(None)

    async def _accept(self) -> None:
        try:
            async for stream in self._consumer.streams():
                topic, broker, number = stream.queue
                if topic in self._topics:
                    partition = Partition(self._cluster, topic, f"{broker}:{number}", await self._index(stream))
                    self._new.put_nowait(RocketMQLane(partition, stream))
                else:
                    back = partial(self._send_back.later, stream.queue)
                    self._retries = [queue for queue in self._retries if not queue.stream.revoked]
                    self._retries.append(RetryQueue(stream, self._cluster, self._topics, self._new.put_nowait, back))
        except MqbridgeError as error:
            self._new.put_nowait(error)

    async def _index(self, stream: QueueStream) -> int:
        """The place of a queue among those of its topic; one that has just left the route gets the place behind the last."""
        route = await self._client.routes.get(stream.queue.topic)
        queues = [] if route is None else list(route.read_queues())
        return queues.index(stream.queue) if stream.queue in queues else len(queues)

    async def close(self, deadline: float | None = None) -> None:
        """Give everything back and leave. One task does that: a caller that is cancelled stops waiting for it."""
        if self._closing is None:
            at = deadline_of(deadline)
            self._closing = spawn(self._close(at), f"closing {self._consumer.name}")
        await asyncio.shield(self._closing)

    async def _close(self, deadline: float) -> None:
        await asyncio.gather(*(queue.release(deadline) for queue in self._retries))
        await self._consumer.close(deadline)
        await cancel(self._task)
        self._new.put_nowait(None)
        await by_deadline(self._client.close(), deadline, self._consumer.name)
