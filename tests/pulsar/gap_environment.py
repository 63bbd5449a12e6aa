"""A Pulsar topic whose ledgers are deleted, and a gateway that copies it into a memory broker."""

import asyncio
import logging
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from mqbridge.adapter.outbound import OutboundSpec
from mqbridge.config.load import from_dict
from mqbridge.gateway.run import Gateway
from mqbridge.gateway.run_result import RunResult
from mqbridge.message import Batch, Message, Share
from mqbridge.pulsar.adapter.cluster import Pulsar
from mqbridge.pulsar.adapter.registration import ADAPTER
from mqbridge.pulsar.client.admin.admin import Admin
from mqbridge.pulsar.client.admin.admin_paths import path_of
from mqbridge.pulsar.wire.names import TopicName, parse_topic
from mqbridge.testing.memory.adapter.registration import ADAPTER as MEMORY
from mqbridge.testing.memory.broker import delete_broker, get_broker
from tests.gateway.world import everything
from tests.kit.pulsar import Pulsar as Server
from tests.patience import SERVER_PATIENCE_S

ADAPTERS = {"memory": MEMORY, "pulsar": ADAPTER}
IDLE_S = 0.5
"""A gateway ends after this time (s) without a message."""


class Environment:
    """A topic in a namespace of its own, and a gateway with a state file that copies it into a memory broker."""

    def __init__(self, server: Server, admin: Admin, folder: Path) -> None:
        self.server, self.admin, self._folder = server, admin, folder
        self.namespace = server.create_namespace("acme", f"gaps-{uuid4().hex[:6]}")
        self.topic = f"persistent://{self.namespace}/orders"
        self.partitions: tuple[TopicName, ...] = ()
        self._memory = f"gaps-{uuid4().hex}"
        self._sent = 0

    async def create(self, partitions: int) -> None:
        full = parse_topic(self.topic)
        await self.admin.create(full, partitions)
        self.partitions = tuple(full.partition(index) for index in range(partitions)) or (full,)

    def cluster(self, *, admin: bool = True) -> Pulsar:
        url = self.server.admin_url if admin else None
        cluster = ADAPTER.make_cluster("p", ADAPTER.cluster_model(service_url=self.server.service_url, admin_url=url))
        assert isinstance(cluster, Pulsar)
        return cluster

    def config(self, *, admin: bool = True, **source: Any) -> dict[str, Any]:
        addresses = {"service_url": self.server.service_url, "namespace": self.namespace} | (
            {"admin_url": self.server.admin_url} if admin else {}
        )
        clusters = {"p": {"system": "pulsar", **addresses}, "m": {"system": "memory", "broker": self._memory}}
        read_from = {"cluster": "p", "topic": self.topic, "group": "g"} | source
        return {
            "clusters": clusters,
            "routes": [{"name": "r", "from": read_from, "to": {"cluster": "m", "topic": "copy"}}],
            "state": str(self._folder / "state.db"),
            "http": {"enabled": False},
        }

    def gateway(self, *, admin: bool = True, **source: Any) -> Gateway:
        return Gateway(from_dict(self.config(admin=admin, **source), adapters=ADAPTERS), ADAPTERS)

    async def run(self, *, admin: bool = True) -> RunResult:
        """Start a gateway, deliver everything, and stop it."""
        async with asyncio.timeout(SERVER_PATIENCE_S):
            return await self.gateway(admin=admin).run(IDLE_S)

    async def send(self, count: int) -> None:
        """Store numbered messages, in each partition as many entries as messages."""
        cluster = self.cluster()
        outbound = await cluster.outbound(OutboundSpec(self.topic))
        for number in range(self._sent, self._sent + count):
            partition = number % outbound.partitions
            receipt = await outbound.send(partition, Share(Batch.of([Message(b"%d" % number)])))
            assert not receipt.failures
        self._sent += count
        await outbound.close()
        await cluster.close()

    @property
    def copied(self) -> list[int]:
        """The numbers of the messages in the target, sorted."""
        return everything(get_broker(self._memory), "copy")

    async def acknowledged(self) -> None:
        """Wait until the broker has every acknowledgement; one that is lost with an unload makes the broker deliver again."""
        async with asyncio.timeout(SERVER_PATIENCE_S):
            for partition in self.partitions:
                while (await self.admin.stats(partition)).backlog["g"]:
                    await asyncio.sleep(0.05)

    async def ledgers(self, partition: TopicName) -> list[int]:
        return [int(ledger["ledgerId"]) for ledger in (await self.admin.internal_stats(partition))["ledgers"]]

    async def delete_ledgers(self) -> None:
        """Close the open ledgers, as a rollover or restart of the broker does, and wait until the broker has deleted them."""
        closed = [set(await self.ledgers(partition)) for partition in self.partitions]
        for partition, old in zip(self.partitions, closed, strict=True):
            await self.admin.unload(partition)
            async with asyncio.timeout(SERVER_PATIENCE_S):
                while old & set(await self.ledgers(partition)):
                    await self.admin.stats(partition)
                    await self.admin.call("POST", f"{path_of(partition)}/trim")

    def delete_target(self) -> None:
        delete_broker(self._memory)


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Return the messages of warnings and errors, without those about the retention of the topic."""
    found = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    return [message for message in found if "time to live" not in message and "backlog quota" not in message]
