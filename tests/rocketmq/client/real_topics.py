"""Topics, groups and members at a real broker, for the tests of consuming."""

import asyncio
from collections.abc import AsyncIterator, Callable
from functools import partial
from typing import Any
from uuid import uuid4

import pytest_asyncio

from mqbridge.net.tasks import cancel, spawn
from mqbridge.rocketmq.client.assigned_queue import AssignedQueue
from mqbridge.rocketmq.client.cluster_client import ClusterClient
from mqbridge.rocketmq.client.consumer_settings import ConsumerSettings
from mqbridge.rocketmq.client.pull_consumer import PullConsumer, join
from mqbridge.rocketmq.client.pulled_records import PulledRecords
from mqbridge.rocketmq.client.subscription import everything
from mqbridge.rocketmq.wire.bodies.queue import Queue
from tests.kit import conversation
from tests.kit.rocketmq import RocketMQ
from tests.patience import SERVER_PATIENCE_S

BROKER = "broker-a"
until = partial(conversation.until, patience_s=SERVER_PATIENCE_S, pause_s=0.01)


class Reading:
    """A member that reads everything it gets, and what it read."""

    def __init__(self, consumer: PullConsumer) -> None:
        self.consumer = consumer
        self.got: list[tuple[Queue, int, bytes]] = []
        self._tasks = [spawn(self._streams(), "reading")]

    async def _streams(self) -> None:
        async for assigned in self.consumer.assigned_queues():
            self._tasks.append(spawn(self._read(assigned), f"reading {assigned}"))

    async def _read(self, assigned: AssignedQueue) -> None:
        while not assigned.revoked:
            pulled = assigned.take()
            if pulled is None:
                await assigned.wait_for_change(1.0)
                continue
            self.got += [(assigned.queue, record.queue_offset, record.body) for record in pulled.records]
            assigned.commit(pulled.next)

    @property
    def queues(self) -> list[int]:
        return sorted(queue.id for queue in self.consumer.held if not queue.topic.startswith("%"))

    async def close(self) -> None:
        await self.consumer.close()
        await cancel(*self._tasks)


class Place:
    """A fresh topic and group, and clients that are closed at the end."""

    def __init__(self, kit: RocketMQ, queues: int) -> None:
        self.kit = kit
        self.topic = kit.take_topic(queues)
        self.group = f"g-{uuid4().hex[:8]}"
        self._clients: list[ClusterClient] = []
        self._closing: list[Any] = []

    @property
    def client_ids(self) -> list[str]:
        """Of the clients so far, in their order."""
        return [client.client_id for client in self._clients]

    def queue(self, number: int = 0) -> Queue:
        return Queue(self.topic, BROKER, number)

    async def client(self) -> ClusterClient:
        client = ClusterClient([self.kit.name_server])
        self._clients.append(client)
        await client.connect()
        return client

    async def send(self, *bodies: bytes, queue: int = 0, **stored: str) -> None:
        for body in bodies:
            await asyncio.to_thread(self.kit.send, self.topic, body, queue=queue, properties=stored)
        await asyncio.to_thread(self.kit.settle)

    async def join(self, **settings: Any) -> PullConsumer:
        said = {"group": self.group, "subscriptions": (everything(self.topic),)} | settings
        consumer = await join(await self.client(), ConsumerSettings(**said))
        self._closing.append(consumer)
        return consumer

    async def reading(self, **settings: Any) -> Reading:
        reading = Reading(await self.join(**settings))
        self._closing.append(reading)
        return reading

    async def assigned(self, **settings: Any) -> AssignedQueue:
        return await stream_of(await self.join(**settings), self.queue())

    async def close(self) -> None:
        for each in reversed(self._closing):
            await each.close()
        for client in self._clients:
            await client.close()


async def stream_of(consumer: PullConsumer, queue: Queue) -> AssignedQueue:
    await until(lambda: queue in consumer.held)
    return consumer.held[queue]


async def receive(assigned: AssignedQueue) -> PulledRecords:
    async with asyncio.timeout(SERVER_PATIENCE_S):
        return await assigned.receive()


def bodies_of(pulled: PulledRecords) -> list[bytes]:
    return [record.body for record in pulled.records]


@pytest_asyncio.fixture
async def places(rocketmq: RocketMQ) -> AsyncIterator[Callable[[int], Place]]:
    made: list[Place] = []

    def make(queues: int = 1) -> Place:
        made.append(Place(rocketmq, queues))
        return made[-1]

    yield make
    for place in made:
        await place.close()


Places = Callable[..., Place]
