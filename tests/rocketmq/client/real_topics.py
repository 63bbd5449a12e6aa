"""Helpers for tests of consuming from a real broker: a new topic and group, and members that read."""

import asyncio
from collections.abc import AsyncIterator, Callable
from functools import partial
from typing import Any
from uuid import uuid4

import pytest_asyncio

from mqbridge.net.tasks import cancel, spawn
from mqbridge.rocketmq.client.cluster_client import ClusterClient
from mqbridge.rocketmq.client.consumer.assigned_queue import AssignedQueue
from mqbridge.rocketmq.client.consumer.consumer_settings import ConsumerSettings
from mqbridge.rocketmq.client.consumer.pull_consumer import PullConsumer, join
from mqbridge.rocketmq.client.consumer.pulled_records import PulledRecords
from mqbridge.rocketmq.client.consumer.subscription import everything
from mqbridge.rocketmq.wire.bodies.queue import Queue
from tests.kit import conversation
from tests.kit.rocketmq import RocketMQ
from tests.patience import SERVER_PATIENCE_S

BROKER = "broker-a"
until = partial(conversation.until, patience_s=SERVER_PATIENCE_S, pause_s=0.01)


class ReadingMember:
    """A member that reads and acknowledges all messages of its queues.

    `received`: queue, offset and body of each message, in the order of arrival.
    """

    def __init__(self, consumer: PullConsumer) -> None:
        self.consumer = consumer
        self.received: list[tuple[Queue, int, bytes]] = []
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
            self.received += [(assigned.queue, record.queue_offset, record.body) for record in pulled.records]
            assigned.commit(pulled.next)

    @property
    def queues(self) -> list[int]:
        return sorted(queue.id for queue in self.consumer.held if not queue.topic.startswith("%"))

    async def close(self) -> None:
        await self.consumer.close()
        await cancel(*self._tasks)


class Environment:
    """A new topic and group, with clients and members that are closed at the end."""

    def __init__(self, server: RocketMQ, queues: int) -> None:
        self.server = server
        self.topic = server.take_topic(queues)
        self.group = f"g-{uuid4().hex[:8]}"
        self._clients: list[ClusterClient] = []
        self._closing: list[Any] = []

    @property
    def client_ids(self) -> list[str]:
        """The ids of the clients, in the order in which they were created."""
        return [client.client_id for client in self._clients]

    def queue(self, number: int = 0) -> Queue:
        return Queue(self.topic, BROKER, number)

    async def client(self) -> ClusterClient:
        client = ClusterClient([self.server.name_server])
        self._clients.append(client)
        await client.connect()
        return client

    async def send(self, *bodies: bytes, queue: int = 0, **stored: str) -> None:
        for body in bodies:
            await asyncio.to_thread(self.server.send, self.topic, body, queue=queue, properties=stored)
        await asyncio.to_thread(self.server.settle)

    async def join(self, **settings: Any) -> PullConsumer:
        merged = {"group": self.group, "subscriptions": (everything(self.topic),)} | settings
        consumer = await join(await self.client(), ConsumerSettings(**merged))
        self._closing.append(consumer)
        return consumer

    async def join_reading(self, **settings: Any) -> ReadingMember:
        member = ReadingMember(await self.join(**settings))
        self._closing.append(member)
        return member

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
async def new_environment(rocketmq: RocketMQ) -> AsyncIterator[Callable[[int], Environment]]:
    """A function that creates an Environment with a number of queues; all are closed after the test."""
    made: list[Environment] = []

    def make(queues: int = 1) -> Environment:
        made.append(Environment(rocketmq, queues))
        return made[-1]

    yield make
    for env in made:
        await env.close()


NewEnvironment = Callable[..., Environment]
