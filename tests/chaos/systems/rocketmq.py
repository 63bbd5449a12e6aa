"""RocketMQ with two name servers and two brokers."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import time
from collections.abc import AsyncIterator, Iterator, Sequence

from mqbridge.adapter.cluster import Cluster
from mqbridge.errors import ServerRefused
from mqbridge.rocketmq.client.cluster_client import ClusterClient
from mqbridge.rocketmq.wire.bodies.configs import GroupConfig
from mqbridge.rocketmq.wire.bodies.queue import Queue
from tests.chaos.judge import Stored
from tests.chaos.layout import Layout
from tests.chaos.systems.system import REFRESH, System, address_of, new_group, writer_in
from tests.kit import java
from tests.kit import rocketmq_remoting as remoting
from tests.kit.rocketmq import RocketMQ

RESET_STEP_MS = 2000
READ_ONLY, READ_AND_WRITE = 4, 6
"""Permissions of a RocketMQ topic."""
MAX_MESSAGE_SIZE = 4 << 20
"""The default of a RocketMQ broker's `maxMessageSize`."""


class RocketMQSystem(System):
    """Two RocketMQ name servers and two brokers; faults stop the first broker, and each topic has queues at both."""

    name = kind = "rocketmq"

    def __init__(self, server: RocketMQ | None = None) -> None:
        server = self._rocketmq = self.server = server or RocketMQ(name_servers=2, brokers=2, heap_mb=384)
        self.settings = {
            "name_servers": list(server.name_servers),
            "brokers": list(server.broker_names),
            "refresh": REFRESH,
            "heartbeat": REFRESH,
        }
        self.brokers, self.broker = list(map(address_of, server.broker_addresses)), server.broker
        self.directories, self.directory_processes = (
            [address_of(one) for one in server.name_servers],
            server.name_server_processes,
        )

    async def create(self, cluster: Cluster, topic: str, partitions: int, layout: Layout) -> None:
        if layout.at_one_broker:
            await asyncio.to_thread(self._create_at_first, topic, partitions)
        else:
            await cluster.create(topic, partitions)

    def _create_at_first(self, topic: str, queues: int) -> None:
        server = self._rocketmq
        remoting.create_topic(server.broker_address, topic, queues, "")
        expected = {server.broker_names[0]: queues}
        is_known = lambda: all(server.queues(topic, each) == expected for each in server.name_servers)  # noqa: E731
        self.broker.wait_until(is_known, f"serving {topic}")

    async def delete(self, topic: str) -> None:
        async with self._client() as client:
            await client.admin.delete_topic(topic)

    @contextlib.asynccontextmanager
    async def group_paused(self, topic: str, group: str) -> AsyncIterator[None]:
        """Set `consumeEnable=false` of the group."""
        async with self._client() as client:
            await client.groups.create(GroupConfig(group, consume_enable=False))
            try:
                yield
            finally:
                await client.groups.create(GroupConfig(group, consume_enable=True))

    @contextlib.asynccontextmanager
    async def writes_refused(self, topic: str, *, partly: bool) -> AsyncIterator[None]:
        """Make the topic read-only at all brokers, or at the first."""
        addresses = self._rocketmq.broker_addresses[:1] if partly else self._rocketmq.broker_addresses
        await asyncio.to_thread(self._permit, addresses, topic, READ_ONLY)
        try:
            yield
        finally:
            await asyncio.to_thread(self._permit, addresses, topic, READ_AND_WRITE)

    def _permit(self, addresses: Sequence[str], topic: str, permissions: int) -> None:
        for address in addresses:
            config = remoting.topic_configs(address).get(topic)
            if config is not None:
                remoting.create_topic(address, topic, config["writeQueueNums"], "", perm=permissions)

    @contextlib.asynccontextmanager
    async def message_size_limited(self, limit: int) -> AsyncIterator[None]:
        await asyncio.to_thread(self._rocketmq.configure, {"maxMessageSize": limit})
        try:
            yield
        finally:
            await asyncio.to_thread(self._rocketmq.configure, {"maxMessageSize": MAX_MESSAGE_SIZE})

    @contextlib.asynccontextmanager
    async def _client(self) -> AsyncIterator[ClusterClient]:
        client = ClusterClient(self._rocketmq.name_servers)
        try:
            await client.connect()
            yield client
        finally:
            await client.close()

    async def move_running(self, topic: str, group: str, messages: int) -> bool:
        """Reset the group to a time before the committed offset of every queue, because brokers reset groups by time only."""
        async with self._client() as client:
            queues = [Queue(topic, name, each) for name, count in self._rocketmq.queues(topic).items() for each in range(count)]
            committed = [await client.positions.committed(queue, group) or 0 for queue in queues]
            time_ms = int(time.time() * 1000)
            while [at for queue, at in zip(queues, committed, strict=True) if await client.positions.at(queue, time_ms) > at]:
                time_ms -= RESET_STEP_MS
            try:
                after = await client.groups.reset(group, topic, time_ms)
            except ServerRefused:  # no instance has joined the group yet
                return False
            return any(after.get(queue, at) < at for queue, at in zip(queues, committed, strict=True))

    def read(self, topic: str, idle_s: int) -> Iterator[Stored]:
        name_servers = ";".join(self._rocketmq.name_servers)
        for line in java.run("RocketPull", name_servers=name_servers, topic=topic, group=new_group(), mode="pull", idle=idle_s)[
            :-1
        ]:
            origin = line["properties"].get("mqbridge.origin", "")
            names = self._rocketmq.broker_names
            partition = line["queue"] * len(names) + names.index(line["broker"])  # as mqbridge counts
            yield Stored(partition, writer_in(f"mqbridge.origin={origin}"), base64.b64decode(line["body"]))
