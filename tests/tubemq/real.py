"""What tests against real servers share: a client that closes what it opened, and a reader that notes what it got."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from functools import partial
from typing import Any
from uuid import uuid4

from mqbridge.errors import LaneRevoked
from mqbridge.net.dial import split_address
from mqbridge.net.tasks import spawn
from mqbridge.tubemq.client.consumer import Consumer
from mqbridge.tubemq.client.master import DEFAULT_PORT, Masters
from mqbridge.tubemq.client.partition import HeldPartition
from mqbridge.tubemq.client.partition_reader import Pack
from mqbridge.tubemq.client.producer import Producer, Sender
from mqbridge.tubemq.client.routes import Routes
from mqbridge.tubemq.client.sessions import Sessions
from mqbridge.tubemq.wire.payload import checksum
from tests.kit import conversation
from tests.kit.tubemq import TubeMQ
from tests.patience import SERVER_PATIENCE_S


class Client:
    """Everything that a process needs of a cluster, closed in order."""

    def __init__(self, server: TubeMQ, stack: AsyncExitStack, sessions: Sessions | None = None, masters: str = "") -> None:
        self.server, self.stack = server, stack
        self.sessions = sessions or Sessions()
        addresses = (masters or server.masters).split(",")
        self.masters = Masters([split_address(address, DEFAULT_PORT) for address in addresses], self.sessions)
        self.routes = Routes(self.masters, heartbeat_s=1.0)
        self.producer = Producer(self.routes, self.sessions)

    async def sender(self, topic: str, **settings: Any) -> Sender:
        sender = await self.producer.sender(topic, **settings)
        self.stack.push_async_callback(sender.close)
        return sender

    async def consumer(
        self, topics: str, group: str = "", *, owners: "dict[str, Reading] | None" = None, **settings: Any
    ) -> "Reading":
        """`topics` are separated by commas. Members of one group may share `owners`, to notice when two own a partition."""
        consumer = Consumer(self.masters, group or fresh_group(), topics.split(","), heartbeat_s=0.5, **settings)
        await consumer.start()
        self.stack.push_async_callback(consumer.close)
        return Reading(consumer, {} if owners is None else owners)


class Reading:
    """Reads all partitions of a consumer and notes what it got, by partition; `judge` says what becomes of a pack."""

    def __init__(self, consumer: Consumer, owners: "dict[str, Reading]") -> None:
        self.consumer = consumer
        self.owners = owners
        """Who reads each partition now, of all members that share it."""
        self.conflicts: list[str] = []
        """Partitions that another member owned when we got them, or got a pack of them."""
        self.got: dict[str, list[bytes]] = {}
        self.offsets: dict[str, list[int]] = {}
        self.held: set[str] = set()
        self.judge: Callable[[HeldPartition, Pack], Awaitable[None] | None] = lambda session, _: session.confirm()
        self._task = spawn(self._run(), "test reading")
        self._tasks: list[asyncio.Task[None]] = []

    async def _run(self) -> None:
        async for session in self.consumer.assignments():
            self._tasks.append(spawn(self._read(session), f"test reading {session}"))

    async def _read(self, session: HeldPartition) -> None:
        name = session.ref.name
        self.held.add(name)
        self._owns(name)
        try:
            while True:
                pack = await session.fetch()
                self._owns(name)
                assert all(checksum(message.payLoadData) == message.checkSum for message in pack.messages)
                self.got.setdefault(name, []).extend(message.payLoadData for message in pack.messages)
                self.offsets.setdefault(name, []).append(pack.offset)
                if (judged := self.judge(session, pack)) is not None:
                    await judged
        except LaneRevoked:
            self.held.discard(name)
            if self.owners.get(name) is self:
                del self.owners[name]

    def _owns(self, name: str) -> None:
        if self.owners.setdefault(name, self) is not self:
            self.conflicts.append(name)

    @property
    def count(self) -> int:
        return sum(map(len, self.got.values()))


until = partial(conversation.until, patience_s=SERVER_PATIENCE_S, pause_s=0.02)


def fresh_group() -> str:
    return f"group-{uuid4().hex[:8]}"


def in_order(messages: list[bytes]) -> bool:
    """Every first appearance comes in order: what is read again may repeat."""
    seen = list(dict.fromkeys(messages))
    return seen == sorted(seen)
