"""Clusters behind a listener: the official client for Pulsar sends to their topics, and reads them, through the listener only.

Routes of the instances use the cluster directly. The listener's connections with clients and with the cluster have links of their
own, which faults cut and delay.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import time
from collections.abc import Iterator
from pathlib import Path

from mqbridge.adapter.cluster import Cluster
from tests.chaos.flow import Flow
from tests.chaos.instance import tracebacks
from tests.chaos.judge import Stored
from tests.chaos.schedule import Load
from tests.chaos.sdk_flow import SdkFlow
from tests.chaos.systems.log import LogSystem
from tests.chaos.systems.rocketmq import RocketMQSystem
from tests.chaos.systems.system import System
from tests.kit import java
from tests.kit.java import JavaProgram
from tests.kit.listener import ListenerOptions, ListenerProcess
from tests.kit.process import HOST
from tests.kit.tcp_proxy import Network

SUBSCRIPTION = "chaos"
READ_POLL_S = 0.5


class AtListener(System):
    """A cluster with a listener; combine it with the system of the cluster."""

    owns_groups = False
    listener: ListenerProcess
    clients: Network
    """The connections of clients with the listener."""
    behind: Network
    """The connections of the listener with the cluster."""

    async def enter(self, stack: contextlib.AsyncExitStack, folder: Path) -> None:
        """Start the listener and its networks."""
        await super().enter(stack, folder)
        self.lock = asyncio.Lock()
        self._folder = folder / self.name
        self._readers: dict[str, JavaProgram] = {}
        options = ListenerOptions(self.kind, self.settings, self.owns_groups, deduplicate=True)
        self.behind = await stack.enter_async_context(Network(self.addresses))
        listener = ListenerProcess(self.name, options, self._folder, network=self.behind)
        address = (HOST, listener.port)
        self.clients = await stack.enter_async_context(Network([address]))
        self.url = f"pulsar://{HOST}:{self.clients.links[address].port}"
        self.listener = listener
        stack.push_async_callback(asyncio.to_thread, listener.kill)
        await asyncio.to_thread(listener.start)

    def make_flow(self, cluster: Cluster, topic: str, partitions: int, load: Load) -> Flow | SdkFlow:
        """Return a producer that sends through the listener."""
        return SdkFlow(self.url, f"persistent://public/default/{topic}", partitions, load, self._folder / f"{topic}.json")

    async def watch(self, stack: contextlib.AsyncExitStack, topic: str) -> None:
        """Consume a target through the listener, during all faults."""
        program = await asyncio.to_thread(
            java.spawn,
            "PulsarConsume",
            url=self.url,
            topic=f"persistent://public/default/{topic}",
            subscription=SUBSCRIPTION,
            type="Failover",
            idle=0,
            receipts=True,
        )
        stack.enter_context(program)
        while not program.lines():  # the client does not repeat its first subscription if that fails
            if not program.running:
                raise RuntimeError(f"the consumer of {topic} has ended: {program.stderr()}")
            await asyncio.sleep(READ_POLL_S)
        self._readers[topic] = program

    async def heal(self) -> None:
        """Remove all faults of the listener, and start it if it does not run."""
        self.clients.heal()
        self.behind.heal()
        async with self.lock:
            if not self.listener.runs:
                await asyncio.to_thread(self.listener.start)

    def problems(self) -> list[str]:
        """Return the tracebacks in the listener's log."""
        return [f"{self.name} wrote {line}" for line in tracebacks(self.listener.text())]

    def read(self, topic: str, idle_s: int) -> Iterator[Stored]:
        """Yield what the consumer has got, once it has got nothing for a while."""
        program = self._readers[topic]
        count, since = -1, time.monotonic()
        while time.monotonic() < since + idle_s:
            if not program.running:
                raise RuntimeError(f"the consumer of {topic} has ended: {program.stderr()}")
            if (now := len(program.lines())) != count:
                count, since = now, time.monotonic()
            time.sleep(READ_POLL_S)
        for line in program.lines():
            if "done" not in line:
                continue
            yield Stored(line["id"]["partition"], "sdk", base64.b64decode(line["body"]))


class LogAtListener(AtListener, LogSystem):
    """A log behind a listener."""

    name = "log_listener"


class LogOwnListener(LogAtListener):
    """A log behind a listener that keeps the groups itself."""

    name = "log_own_listener"
    owns_groups = True


class RocketMQAtListener(AtListener, RocketMQSystem):
    """A RocketMQ behind a listener."""

    name = "rocketmq_listener"
