"""The systems of a run: addresses, processes, an operator's actions, and the official reader of each."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import re
import shutil
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from mqbridge.adapter.cluster import Cluster
from mqbridge.message import Position
from mqbridge.rocketmq.client.cluster_client import ClusterClient
from mqbridge.rocketmq.wire.bodies.queue import Queue
from tests.chaos.judge import Stored
from tests.e2e.support import opened
from tests.kit import java
from tests.kit.process import JavaProcess
from tests.kit.pulsar import DEFAULT_NAMESPACE, Pulsar
from tests.kit.rocketmq import RocketMQ
from tests.kit.started import Started
from tests.kit.tcp_proxy import Address
from tests.kit.tubemq import TubeMQ
from tests.kit.tubemq_settings import TOKEN

REFRESH = "2s"
IDLE_S = 8
"""A reader is at the end when nothing came for so long: TubeMQ takes seconds to hand out partitions."""
TUBEMQ_INDEX_BYTES = 28
"""What one message adds to TubeMQ's offsets."""
RESET_STEP_MS = 2000
LEASE = "3s"
_WRITER = re.compile(r"mqbridge\.origin\W{1,3}[a-z]+-([a-z])\b")


class System(Started):
    """One running cluster; a subclass for each kind."""

    name: str
    server: Started
    settings: dict[str, Any]
    """The cluster as a configuration names it."""
    brokers: Sequence[Address]
    """Where messages go."""
    broker: JavaProcess
    """What holds the messages."""
    directories: Sequence[Address] = ()
    """Where clients ask for addresses, where that is a server of its own."""
    directory_processes: Sequence[JavaProcess] = ()
    others: Sequence[Address] = ()
    moves_running_groups = False
    unloads = False

    def start(self) -> None:
        """Start the servers and wait until they serve."""
        self.server.start()

    def kill(self) -> None:
        """End them at once."""
        self.server.kill()

    @property
    def addresses(self) -> list[Address]:
        """All that a gateway may dial."""
        return [*self.brokers, *self.directories, *self.others]

    def open(self) -> AbstractAsyncContextManager[Cluster]:
        """A client of ours, past every fault."""
        return opened(self.name, self.settings)

    def earlier(self, committed: Position, messages: int) -> Position:
        """A position about so many messages before this one, perhaps before the first."""
        return (max(0, committed[0] - messages),)

    async def move_running(self, topic: str, group: str, messages: int) -> bool:
        """As an operator: move a group that runs back by about so many messages; False when there was nothing to go back to."""
        raise NotImplementedError

    def unload(self, topic: str) -> None:
        """As an operator: let the broker close the topic; whoever uses it opens it again."""
        raise NotImplementedError

    def read(self, topic: str) -> Iterator[Stored]:
        """The whole topic, by the official client; blocks."""
        raise NotImplementedError


class TubeMQSystem(System):
    """Master and Broker."""

    name = "tubemq"

    def __init__(self) -> None:
        # Without the memory store it loses no acknowledged message, so every loss is the gateway's.
        server = self.server = TubeMQ(pool={}, memory_store=False)
        self.settings = {
            "masters": server.masters,
            "admin_url": server.admin_url,
            "admin_token": TOKEN,
            "heartbeat": REFRESH,
        }
        self.brokers, self.broker = [("127.0.0.1", server.broker_port)], server.broker
        self.directories, self.directory_processes = [_address(server.masters)], [server.master]
        self.others = [_address(server.admin_url), _address(server.broker_admin_url)]

    def earlier(self, committed: Position, messages: int) -> Position:
        return (max(0, committed[0] - messages * TUBEMQ_INDEX_BYTES), 0)

    def read(self, topic: str) -> Iterator[Stored]:
        master = self.settings["masters"]
        for line in java.run("TubeConsume", master=master, topic=topic, group=_reader(), idle=IDLE_S)[:-1]:
            partition = int(line["partition"].rpartition(":")[2])
            yield Stored(partition, _writer(line["attributes"] or ""), base64.b64decode(line["body"]))


class PulsarSystem(System):
    """A standalone broker."""

    name = "pulsar"
    moves_running_groups = True
    unloads = True

    def __init__(self) -> None:
        server = self._pulsar = self.server = Pulsar()
        self.settings = {"service_url": server.service_url, "admin_url": server.admin_url, "refresh": REFRESH}
        self.brokers, self.broker = [_address(server.service_url)], server.server
        self.others = [_address(server.admin_url)]

    def start(self) -> None:
        """Also retain messages that no subscription needs, because the judge reads them at the end."""
        super().start()
        forever = {"retentionTimeInMinutes": -1, "retentionSizeInMB": -1}
        self._pulsar.admin("POST", f"namespaces/{DEFAULT_NAMESPACE}/retention", forever)

    def earlier(self, committed: Position, messages: int) -> Position:
        ledger, entry, *_ = committed  # an entry of the gateway, or of our producer, holds several messages
        return (ledger, max(0, entry - max(1, messages // 20)), 0)

    async def move_running(self, topic: str, group: str, messages: int) -> bool:
        moved = False
        async with self.open() as cluster:
            marks = await cluster.committed(topic, group)
        for name, committed in marks.items():
            if committed[0] < 0:
                continue  # it has acknowledged nothing yet
            ledger, entry, *_ = self.earlier(committed, messages)
            moved |= entry < committed[1]
            place = {"ledgerId": ledger, "entryId": entry, "partitionIndex": -1}
            path = f"persistent/{DEFAULT_NAMESPACE}/{topic}-partition-{name}/subscription/{group}/resetcursor"
            await asyncio.to_thread(self._pulsar.admin, "POST", path, place)
        return moved

    def unload(self, topic: str) -> None:
        self._pulsar.admin("PUT", f"persistent/{DEFAULT_NAMESPACE}/{topic}/unload")

    def read(self, topic: str) -> Iterator[Stored]:
        url = self._pulsar.service_url
        for line in java.run("PulsarConsume", url=url, topic=topic, subscription=_reader(), idle=IDLE_S)[:-1]:
            origin = line["properties"].get("mqbridge.origin", "")
            yield Stored(line["id"]["partition"], _writer(f"mqbridge.origin={origin}"), base64.b64decode(line["body"]))


class RocketMQSystem(System):
    """Two name servers and a broker."""

    name = "rocketmq"
    moves_running_groups = True

    def __init__(self, server: RocketMQ | None = None) -> None:
        server = self._rocketmq = self.server = server or RocketMQ(name_servers=2)
        self.settings = {"name_servers": list(server.name_servers), "refresh": REFRESH, "heartbeat": REFRESH}
        self.brokers, self.broker = [_address(server.broker_address)], server.broker
        self.directories, self.directory_processes = [_address(one) for one in server.name_servers], server.name_server_processes

    async def move_running(self, topic: str, group: str, messages: int) -> bool:
        """Brokers go back by time: to a time from which every queue has something that is committed already."""
        client = ClusterClient(self._rocketmq.name_servers)
        try:
            await client.connect()
            queues = [Queue(topic, name, each) for name, count in self._rocketmq.queues(topic).items() for each in range(count)]
            committed = [await client.positions.committed(queue, group) or 0 for queue in queues]
            time_ms = int(time.time() * 1000)
            while [at for queue, at in zip(queues, committed, strict=True) if await client.positions.at(queue, time_ms) > at]:
                time_ms -= RESET_STEP_MS
            after = await client.groups.reset(group, topic, time_ms)
            return any(after.get(queue, at) < at for queue, at in zip(queues, committed, strict=True))
        finally:
            await client.close()

    def read(self, topic: str) -> Iterator[Stored]:
        name_servers = ";".join(self._rocketmq.name_servers)
        for line in java.run("RocketPull", name_servers=name_servers, topic=topic, group=_reader(), mode="pull", idle=IDLE_S)[
            :-1
        ]:
            origin = line["properties"].get("mqbridge.origin", "")
            yield Stored(line["queue"], _writer(f"mqbridge.origin={origin}"), base64.b64decode(line["body"]))


class LogSystem(System):
    """The embedded log: no servers and no network, but two processes at one file. Its judge is the project's own client."""

    name = "log"

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="mqbridge-chaos-log-"))
        self.settings = {"path": str(self.folder / "messages.db"), "lease": LEASE}
        self.brokers = []

    def start(self) -> None:
        pass

    def kill(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)

    def read(self, topic: str) -> Iterator[Stored]:
        yield from asyncio.run(self._read(topic))

    async def _read(self, topic: str) -> list[Stored]:
        found = []
        async with self.open() as cluster:
            bounds = await cluster.bounds(topic)
            for name, one in bounds.items():
                async with contextlib.aclosing(cluster.read(topic, name, one.first, one.next)) as batches:
                    async for batch in batches:
                        found += [
                            Stored(int(name), _writer(f"mqbridge.origin={message.origin}"), message.payload or b"")
                            for message in batch.messages
                        ]
        return found


SYSTEMS: dict[str, type[System]] = {each.name: each for each in (TubeMQSystem, PulsarSystem, RocketMQSystem, LogSystem)}


def _address(text: str) -> Address:
    """Of HOST:PORT or a URL."""
    parts = urlsplit(text if "//" in text else f"//{text}")
    assert parts.hostname is not None
    assert parts.port is not None
    return parts.hostname, parts.port


def _reader() -> str:
    """A group that nobody used."""
    return f"judge_{time.time_ns()}"


def _writer(text: str) -> str:
    """The instance that stamped the origin: each has names of its own for its clusters."""
    found = _WRITER.search(text)
    return found[1] if found else "?"
