"""A cluster of a run: its addresses, processes and operator actions, and a reader that uses the official client."""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from mqbridge.adapter.cluster import Cluster
from mqbridge.message import Position
from tests.chaos.flow import Flow, SendInChunks
from tests.chaos.judge import Stored
from tests.chaos.layout import Layout
from tests.chaos.schedule import Load
from tests.chaos.sdk_flow import SdkFlow
from tests.e2e.support import opened
from tests.kit.process import JavaProcess
from tests.kit.started import Started
from tests.kit.tcp_proxy import Address

REFRESH = "2s"
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

    async def enter(self, stack: contextlib.AsyncExitStack, folder: Path) -> None:
        """Start what a run needs besides the servers; its logs are written to `folder`."""

    def make_flow(self, cluster: Cluster, topic: str, partitions: int, load: Load) -> Flow | SdkFlow:
        """Return a producer, with a client of `open`."""
        return Flow(cluster, topic, partitions, load, self.send_in_chunks(cluster))

    async def watch(self, stack: contextlib.AsyncExitStack, topic: str) -> None:
        """Take note of a target before its first message."""

    async def heal(self) -> None:
        """End all faults of what `enter` has started."""

    def problems(self) -> list[str]:
        """Return problems in the logs of what `enter` has started."""
        return []

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

    async def create(self, cluster: Cluster, topic: str, partitions: int, layout: Layout) -> None:
        """Create a topic with a client of `open`."""
        await cluster.create(topic, partitions)

    def send_in_chunks(self, cluster: Cluster) -> SendInChunks | None:
        """Return a function that sends messages in chunks with a client of `open`; None if the system has no chunks."""
        return None

    async def delete(self, topic: str) -> None:
        """Delete a topic under its producers and consumers."""
        raise NotImplementedError

    async def truncate(self, topic: str) -> None:
        """Delete all messages of a topic, also those that its groups have not read."""
        raise NotImplementedError

    def group_paused(self, topic: str, group: str) -> AbstractAsyncContextManager[None]:
        """Forbid a group, or all groups of a topic, to read."""
        raise NotImplementedError

    def writes_refused(self, topic: str, *, partly: bool) -> AbstractAsyncContextManager[None]:
        """Let the brokers refuse what is written to a topic; `partly`: only the first of several brokers."""
        raise NotImplementedError

    def message_size_limited(self, limit: int) -> AbstractAsyncContextManager[None]:
        """Lower the maximum size of a message, which is also that of a batch."""
        raise NotImplementedError

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


def address_of(text: str) -> Address:
    """Return the address in HOST:PORT or a URL."""
    parts = urlsplit(text if "//" in text else f"//{text}")
    assert parts.hostname is not None
    assert parts.port is not None
    return parts.hostname, parts.port


def new_group() -> str:
    """Return the name of a new group."""
    return f"judge_{time.time_ns()}"


def writer_in(text: str) -> str:
    """Return the instance that stamped the origin. Cluster names in the configurations of the instances differ."""
    found = _WRITER.search(text)
    return found[1] if found else "?"
