"""The systems of a run: their addresses, processes and operator actions, and a reader that uses the official client."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import re
import shutil
import sqlite3
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from mqbridge.adapter.cluster import Cluster
from mqbridge.errors import ServerRefused
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
TUBEMQ_INDEX_BYTES = 28
"""Amount by which one message increases a TubeMQ offset."""
RESET_STEP_MS = 2000
SOURCES = "public/sources"
"""Namespace of Pulsar's source topics."""
SHORT_LEDGERS: dict[str, object] = {
    "managedLedgerMaxEntriesPerLedger": 300,
    "managedLedgerMinLedgerRolloverTimeMinutes": 0,
    "retentionCheckIntervalInSeconds": 5,
}
"""Settings with which ledgers are closed during a run, and deleted soon when every group has acknowledged them."""
LEASE = "3s"
LOCK_TIMEOUT_S = 1.0
"""Time to wait for the write lock of a log, which writers hold for milliseconds. The event loop waits too."""
_WRITER = re.compile(r"mqbridge\.origin\W{1,3}[a-z_]+-([a-z])\b")


class System(Started):
    """One running cluster; a subclass for each kind."""

    name: str
    """Name of the cluster."""
    kind: str
    """Name of the system in a configuration."""
    server: Started
    settings: dict[str, Any]
    """Settings of the cluster in a configuration."""
    brokers: Sequence[Address]
    """Addresses of the brokers."""
    broker: JavaProcess
    """Process that stores the messages."""
    directories: Sequence[Address] = ()
    """Addresses of separate servers that tell clients where brokers are: Masters, name servers."""
    directory_processes: Sequence[JavaProcess] = ()
    others: Sequence[Address] = ()
    """Further addresses, such as those of admin interfaces."""
    loses_memory = False
    """True if a killed broker loses acknowledged messages that are only in its memory."""

    def start(self) -> None:
        """Start the servers and wait until they serve."""
        self.server.start()

    def kill(self) -> None:
        """Kill the servers."""
        self.server.kill()

    @property
    def addresses(self) -> list[Address]:
        """All addresses to which a gateway may connect."""
        return [*self.brokers, *self.directories, *self.others]

    def open(self) -> AbstractAsyncContextManager[Cluster]:
        """Open a client of mqbridge that no network fault affects."""
        return opened(self.kind, self.settings)

    def earlier(self, committed: Position, messages: int) -> Position:
        """Return a position about this number of messages earlier; it may be before the first message."""
        return (max(0, committed[0] - messages),)

    async def move_running(self, topic: str, group: str, messages: int) -> bool:
        """Move a group back by about this number of messages while its members run. Return False if no position changed."""
        raise NotImplementedError

    def source_topic(self, name: str) -> str:
        """Return the topic name of a source."""
        return name

    def register(self, topic: str, group: str) -> None:
        """Create a group before the first message, if the system would otherwise delete messages before the group joins."""

    def unload(self, topic: str) -> None:
        """Let the broker close the topic. Its clients open it again."""
        raise NotImplementedError

    def message_count(self, topic: str) -> int:
        """Return the number of messages of a topic; only for systems whose broker may lose some. This blocks."""
        raise NotImplementedError

    def wait_stored(self, topic: str) -> None:
        """Wait until no acknowledged message of a topic is only in the broker's memory. This blocks."""

    @contextlib.contextmanager
    def blocked(self) -> Iterator[None]:
        """Let the system store nothing, if no network fault can do this."""
        yield

    def read(self, topic: str, idle_s: int) -> Iterator[Stored]:
        """Yield all messages of a topic, read with the official client until none comes for `idle_s` seconds. This blocks."""
        raise NotImplementedError


class TubeMQSystem(System):
    """A TubeMQ Master and a Broker with its default memory store: it acknowledges messages before they are in a file."""

    name = kind = "tubemq"
    loses_memory = True

    def __init__(self) -> None:
        server = self._tubemq = self.server = TubeMQ(pool={})
        self.settings = {"masters": server.masters, "admin_url": server.admin_url, "admin_token": TOKEN}
        self.brokers, self.broker = [("127.0.0.1", server.broker_port)], server.broker
        self.directories, self.directory_processes = [_address(server.masters)], [server.master]
        self.others = [_address(server.admin_url), _address(server.broker_admin_url)]

    def earlier(self, committed: Position, messages: int) -> Position:
        return (max(0, committed[0] - messages * TUBEMQ_INDEX_BYTES), 0)

    def message_count(self, topic: str) -> int:
        return self._tubemq.message_count(topic)

    def wait_stored(self, topic: str) -> None:
        self._tubemq.wait_stored(topic)

    def read(self, topic: str, idle_s: int) -> Iterator[Stored]:
        master = self.settings["masters"]
        for line in java.run("TubeConsume", master=master, topic=topic, group=_new_group(), idle=idle_s)[:-1]:
            partition = int(line["partition"].rpartition(":")[2])
            yield Stored(partition, _writer(line["attributes"] or ""), base64.b64decode(line["body"]))


class TubeMQTarget(TubeMQSystem):
    """The cluster of TubeMQ targets."""

    name = "tubemq_target"


class PulsarSystem(System):
    """A standalone Pulsar broker."""

    name = kind = "pulsar"

    def __init__(self) -> None:
        server = self._pulsar = self.server = Pulsar(SHORT_LEDGERS)
        self.settings = {"service_url": server.service_url, "admin_url": server.admin_url, "refresh": REFRESH}
        self.brokers, self.broker = [_address(server.service_url)], server.server
        self.others = [_address(server.admin_url)]

    def start(self) -> None:
        """Also retain messages of targets that no subscription needs, because the judge reads them at the end."""
        super().start()
        forever = {"retentionTimeInMinutes": -1, "retentionSizeInMB": -1}
        self._pulsar.admin("POST", f"namespaces/{DEFAULT_NAMESPACE}/retention", forever)
        self._pulsar.create_namespace(*SOURCES.split("/"))

    def source_topic(self, name: str) -> str:
        """Return a topic in a namespace with the default retention: what every group has acknowledged is deleted."""
        return f"persistent://{SOURCES}/{name}"

    def register(self, topic: str, group: str) -> None:
        earliest = {"ledgerId": -1, "entryId": -1, "partitionIndex": -1}
        self._pulsar.admin("PUT", f"{_path(topic)}/subscription/{group}", earliest)

    def earlier(self, committed: Position, messages: int) -> Position:
        ledger, entry, *_ = committed  # an entry of the gateway, or of our producer, holds several messages
        return (ledger, max(0, entry - max(1, messages // 20)), 0)

    async def move_running(self, topic: str, group: str, messages: int) -> bool:
        moved = False
        async with self.open() as cluster:
            marks = await cluster.committed(topic, group)
        for name, committed in marks.items():
            if committed[0] < 0:
                continue  # the group has acknowledged nothing in this partition yet
            ledger, entry, *_ = self.earlier(committed, messages)
            path = f"{_path(topic)}-partition-{name}"
            stats = await asyncio.to_thread(self._pulsar.admin, "GET", f"{path}/internalStats")
            if ledger not in [each["ledgerId"] for each in stats["ledgers"]]:
                continue  # the group has acknowledged the whole ledger, so it is deleted
            moved |= entry < committed[1]
            message_id = {"ledgerId": ledger, "entryId": entry, "partitionIndex": -1}
            await asyncio.to_thread(self._pulsar.admin, "POST", f"{path}/subscription/{group}/resetcursor", message_id)
        return moved

    def unload(self, topic: str) -> None:
        self._pulsar.admin("PUT", f"{_path(topic)}/unload")

    def read(self, topic: str, idle_s: int) -> Iterator[Stored]:
        url = self._pulsar.service_url
        for line in java.run("PulsarConsume", url=url, topic=topic, subscription=_new_group(), idle=idle_s)[:-1]:
            origin = line["properties"].get("mqbridge.origin", "")
            yield Stored(line["id"]["partition"], _writer(f"mqbridge.origin={origin}"), base64.b64decode(line["body"]))


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
        self.brokers, self.broker = list(map(_address, server.broker_addresses)), server.broker
        self.directories, self.directory_processes = [_address(one) for one in server.name_servers], server.name_server_processes

    async def move_running(self, topic: str, group: str, messages: int) -> bool:
        """Reset the group to a time before the committed offset of every queue, because brokers reset groups by time only."""
        client = ClusterClient(self._rocketmq.name_servers)
        try:
            await client.connect()
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
        finally:
            await client.close()

    def read(self, topic: str, idle_s: int) -> Iterator[Stored]:
        name_servers = ";".join(self._rocketmq.name_servers)
        for line in java.run("RocketPull", name_servers=name_servers, topic=topic, group=_new_group(), mode="pull", idle=idle_s)[
            :-1
        ]:
            origin = line["properties"].get("mqbridge.origin", "")
            names = self._rocketmq.broker_names
            partition = line["queue"] * len(names) + names.index(line["broker"])  # as mqbridge counts
            yield Stored(partition, _writer(f"mqbridge.origin={origin}"), base64.b64decode(line["body"]))


class LogSystem(System):
    """The embedded log: no servers and no network, but two processes that share one file. mqbridge's own client reads it."""

    name = kind = "log"

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="mqbridge-chaos-log-"))
        self._is_blocked = False
        self.settings = {"path": str(self.folder / "messages.db"), "lease": LEASE}
        self.brokers = []

    def start(self) -> None:
        pass

    def kill(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)

    @contextlib.contextmanager
    def blocked(self) -> Iterator[None]:
        """Hold the write lock of the file; do nothing if another pause holds it."""
        if self._is_blocked:
            yield
            return
        self._is_blocked = True
        with contextlib.closing(
            sqlite3.connect(self.settings["path"], isolation_level=None, timeout=LOCK_TIMEOUT_S)
        ) as connection:
            try:
                connection.execute("BEGIN IMMEDIATE")
                yield
            finally:
                self._is_blocked = False

    def read(self, topic: str, idle_s: int) -> Iterator[Stored]:
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


SYSTEMS: dict[str, type[System]] = {
    each.name: each for each in (TubeMQSystem, TubeMQTarget, PulsarSystem, RocketMQSystem, LogSystem)
}


def _path(topic: str) -> str:
    """Return the path of a topic, given by its name or its full name, in Pulsar's admin API."""
    return topic.replace("://", "/") if "://" in topic else f"persistent/{DEFAULT_NAMESPACE}/{topic}"


def _address(text: str) -> Address:
    """Return the address in HOST:PORT or a URL."""
    parts = urlsplit(text if "//" in text else f"//{text}")
    assert parts.hostname is not None
    assert parts.port is not None
    return parts.hostname, parts.port


def _new_group() -> str:
    """Return the name of a new group."""
    return f"judge_{time.time_ns()}"


def _writer(text: str) -> str:
    """Return the instance that stamped the origin. Cluster names in the configurations of the instances differ."""
    found = _WRITER.search(text)
    return found[1] if found else "?"
