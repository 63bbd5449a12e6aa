"""Clusters behind a listener: an official client sends to their topics, and reads them, through the listener only.

The clients are those for Pulsar, or those for RocketMQ.

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
from tests.kit.java import JavaProgram, Line
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
        self.behind = await stack.enter_async_context(Network(self.addresses))
        listener = ListenerProcess(self.name, self.options(), self._folder, network=self.behind)
        address = (HOST, listener.port)
        self.clients = await stack.enter_async_context(Network([address]))
        self.address = f"{HOST}:{self.clients.links[address].port}"
        self.listener = listener
        self.prepare()
        stack.push_async_callback(asyncio.to_thread, listener.kill)
        await asyncio.to_thread(listener.start)

    def options(self) -> ListenerOptions:
        """Return the options of the listener."""
        return ListenerOptions(self.kind, self.settings, owns_groups=self.owns_groups, deduplicate=True)

    def prepare(self) -> None:
        """Change the listener before it is started; `address` is that of the network before it."""

    @property
    def url(self) -> str:
        """The address for Pulsar clients."""
        return f"pulsar://{self.address}"

    def make_flow(self, cluster: Cluster, topic: str, partitions: int, load: Load) -> Flow | SdkFlow:
        """Return a producer that sends through the listener."""
        control = self._folder / f"{topic}.json"
        return SdkFlow("PulsarFlow", {"url": self.url}, f"persistent://public/default/{topic}", partitions, load, control)

    async def watch(self, stack: contextlib.AsyncExitStack, topic: str) -> None:
        """Consume a target through the listener, during all faults."""
        program = self._readers[topic] = stack.enter_context(await asyncio.to_thread(self.spawn_reader, topic))
        while not program.lines():  # clients do not repeat their first requests if those fail
            if not program.running:
                raise RuntimeError(f"the consumer of {topic} has ended: {program.stderr()}")
            await asyncio.sleep(READ_POLL_S)

    def spawn_reader(self, topic: str) -> JavaProgram:
        """Start to consume a topic."""
        return java.spawn(
            "PulsarConsume",
            url=self.url,
            topic=f"persistent://public/default/{topic}",
            subscription=SUBSCRIPTION,
            type="Failover",
            idle=0,
            receipts=True,
        )

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
            if "body" in line:
                yield Stored(self.partition_of(line), "sdk", base64.b64decode(line["body"]))

    def partition_of(self, line: Line) -> int:
        """Return the partition of a message that was consumed."""
        return int(line["id"]["partition"])


class AtRocketMQListener(AtListener):
    """A cluster with a listener for RocketMQ clients, where groups are those of the cluster."""

    def options(self) -> ListenerOptions:
        return ListenerOptions(self.kind, self.settings, serves="rocketmq", group="{group}")

    def prepare(self) -> None:
        """Let clients find the broker behind the network, too."""
        self.listener.advertise = self.address

    def make_flow(self, cluster: Cluster, topic: str, partitions: int, load: Load) -> Flow | SdkFlow:
        return SdkFlow("RocketFlow", {"name_servers": self.address}, topic, partitions, load, self._folder / f"{topic}.json")

    def spawn_reader(self, topic: str) -> JavaProgram:
        """Start to consume a topic, in order."""
        group = f"{SUBSCRIPTION}_{topic}"
        return java.spawn(
            "RocketConsume", name_servers=self.address, topic=topic, group=group, orderly=True, idle=0, announce=True
        )

    def partition_of(self, line: Line) -> int:
        return int(line["queue"])


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


class LogAtRocketMQListener(AtRocketMQListener, LogSystem):
    """A log behind a listener for RocketMQ clients."""

    name = "log_rmqlistener"


class RocketMQAtRocketMQListener(AtRocketMQListener, RocketMQSystem):
    """A RocketMQ behind a listener for RocketMQ clients."""

    name = "rocketmq_rmqlistener"
