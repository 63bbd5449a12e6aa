"""Helpers of tests against real servers: a client that closes everything it opened, and a reader that records its packs."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from functools import partial
from typing import Any
from uuid import uuid4

from mqbridge.errors import LaneRevoked
from mqbridge.net.addresses import split_address
from mqbridge.net.tasks import spawn
from mqbridge.tubemq.client.connection.connection_pool import ConnectionPool
from mqbridge.tubemq.client.connection.master import Masters
from mqbridge.tubemq.client.consumer.pack_consumer import PackConsumer
from mqbridge.tubemq.client.consumer.pack_reader import Pack
from mqbridge.tubemq.client.consumer.partition import HeldPartition
from mqbridge.tubemq.client.producer.partition_sender import PartitionSender, open_partition_sender
from mqbridge.tubemq.client.producer.routes import Routes
from mqbridge.tubemq.wire.payload import checksum
from mqbridge.tubemq.wire.string_formats import DEFAULT_MASTER_PORT
from tests.kit import conversation
from tests.kit.tubemq import TubeMQ
from tests.patience import SERVER_PATIENCE_S


class Client:
    """Connections, Masters and routes of a cluster, closed in order."""

    def __init__(
        self, server: TubeMQ, stack: AsyncExitStack, connections: ConnectionPool | None = None, masters: str = ""
    ) -> None:
        self.server, self.stack = server, stack
        self.connections = connections or ConnectionPool()
        addresses = (masters or server.masters).split(",")
        self.masters = Masters([split_address(address, DEFAULT_MASTER_PORT) for address in addresses], self.connections)
        self.routes = Routes(self.masters, heartbeat_s=1.0)

    async def sender(self, topic: str, **settings: Any) -> PartitionSender:
        sender = await open_partition_sender(self.routes, self.connections, topic, **settings)
        self.stack.push_async_callback(sender.close)
        return sender

    async def consumer(
        self, topics: str, group: str = "", *, owners: "dict[str, RecordingReader] | None" = None, **settings: Any
    ) -> "RecordingReader":
        """Open a consumer of `topics`, separated by commas. Members that share `owners` notice when two own a partition."""
        consumer = PackConsumer(self.masters, group or fresh_group(), topics.split(","), heartbeat_s=0.5, **settings)
        await consumer.start()
        self.stack.push_async_callback(consumer.close)
        return RecordingReader(consumer, {} if owners is None else owners)


class RecordingReader:
    """Reads all partitions of a consumer and records the messages by partition; `judge` settles each pack."""

    def __init__(self, consumer: PackConsumer, owners: "dict[str, RecordingReader]") -> None:
        self.consumer = consumer
        self.owners = owners
        """The current reader of each partition, shared by all members of the group."""
        self.conflicts: list[str] = []
        """Partitions that another member still owned when this one acquired them or got a pack of them."""
        self.got: dict[str, list[bytes]] = {}
        """The data of the messages read, by partition name."""
        self.offsets: dict[str, list[int]] = {}
        """The offsets of the packs read, by partition name."""
        self.held: set[str] = set()
        """The names of the partitions held now."""
        self.judge: Callable[[HeldPartition, Pack], Awaitable[None] | None] = lambda partition, _: partition.confirm()
        self._task = spawn(self._run(), "test reading")
        self._tasks: list[asyncio.Task[None]] = []

    async def _run(self) -> None:
        async for partition in self.consumer.assignments():
            self._tasks.append(spawn(self._read(partition), f"test reading {partition}"))

    async def _read(self, partition: HeldPartition) -> None:
        name = partition.ref.name
        self.held.add(name)
        self._claim(name)
        try:
            while True:
                pack = await partition.fetch()
                self._claim(name)
                assert all(checksum(message.payLoadData) == message.checkSum for message in pack.messages)
                self.got.setdefault(name, []).extend(message.payLoadData for message in pack.messages)
                self.offsets.setdefault(name, []).append(pack.offset)
                if (judged := self.judge(partition, pack)) is not None:
                    await judged
        except LaneRevoked:
            self.held.discard(name)
            if self.owners.get(name) is self:
                del self.owners[name]

    def _claim(self, name: str) -> None:
        """Make this reader the owner of a partition; record a conflict if another one owns it."""
        if self.owners.setdefault(name, self) is not self:
            self.conflicts.append(name)

    @property
    def count(self) -> int:
        """Number of messages read, repeated ones included."""
        return sum(map(len, self.got.values()))


until = partial(conversation.until, patience_s=SERVER_PATIENCE_S, pause_s=0.02)


def fresh_group() -> str:
    return f"group-{uuid4().hex[:8]}"


def in_order(messages: list[bytes]) -> bool:
    """Check that first appearances are in order; messages that are read again may repeat."""
    seen = list(dict.fromkeys(messages))
    return seen == sorted(seen)
