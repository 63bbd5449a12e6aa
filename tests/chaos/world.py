"""The world of one run: systems, directions with their flows, and two instances."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mqbridge.adapter.cluster import Cluster
from mqbridge.net.tasks import cancel, spawn
from tests.chaos.flow import Flow
from tests.chaos.instance import Instance
from tests.chaos.layout import Layout
from tests.chaos.schedule import Event, Schedule, clusters, ends
from tests.chaos.sdk_flow import SdkFlow
from tests.chaos.systems.system import REFRESH, System
from tests.kit.tcp_proxy import Link, Network

PARTITIONS = 4
AFTERMATH_S = 40.0
"""Maximum time for which a fault without leases may stop messages after its end."""
HARMLESS = ("burst", "no_directory", "cut")
"""Faults that stop no messages, or only for a moment if the servers are reachable."""

Say = Callable[[str], None]


@dataclass(slots=True)
class Strike:
    """A fault that was executed, with its times in seconds of the run."""

    event: Event
    begin: float
    end: float = float("inf")


@dataclass(slots=True)
class Direction:
    """A route: from a topic of one system to a topic of another."""

    name: str
    source: System
    target: System
    topic: str
    copy: str
    flow: Flow | SdkFlow
    layout: Layout
    moved: bool = False
    """True if the group was moved back while its members ran."""
    has_deletions: bool = False
    """True if an operator deleted messages that the group may not have read."""

    @property
    def group(self) -> str:
        """The group that the instances share."""
        return f"g_{self.copy}"

    def end(self, which: str) -> tuple[System, str]:
        """Return the system and the topic of the `source` or the `target`."""
        return (self.source, self.topic) if which == "source" else (self.target, self.copy)


class World:
    """State of a run; create it with `opened`."""

    def __init__(self, schedule: Schedule, systems: Mapping[str, System], folder: Path, say: Say, checkout: Path | None) -> None:
        self.schedule, self.systems, self.folder, self.say = schedule, systems, folder, say
        self.directions: dict[str, Direction] = {}
        self.instances: dict[str, Instance] = {}
        self.clusters: dict[str, Cluster] = {}
        """Clients of the producers, by system."""
        self.server_locks = {name: asyncio.Lock() for name in systems}
        """Held by faults that stop the servers of a system, and by faults that need these servers."""
        self.began = time.monotonic()
        self.failures: list[str] = []
        """Problems found during faults, such as messages that stopped although they should not."""
        self.lossy: set[str] = set()
        """Clusters whose broker was killed and may have lost acknowledged messages."""
        self.strikes: list[Strike] = []
        """The faults that have begun."""
        self._checkout = checkout

    @property
    def now(self) -> float:
        """Seconds since the start of this run."""
        return time.monotonic() - self.began

    @contextlib.contextmanager
    def strike(self, event: Event) -> Iterator[None]:
        """Record a fault while it is executed."""
        self.strikes.append(strike := Strike(event, self.now))
        try:
            yield
        finally:
            strike.end = self.now

    def is_alone(self, event: Event) -> bool:
        """Return True if no other fault that may stop messages overlapped a fault that ends now, or ended just before it."""
        (own,) = [each for each in self.strikes if each.event is event]
        return not any(
            each.end > own.begin - AFTERMATH_S and each.event.kind.name not in HARMLESS
            for each in self.strikes
            if each is not own
        )

    async def stored(self) -> dict[str, int]:
        """Return the number of messages that the running instances have stored since their start, by direction."""
        counts = dict.fromkeys(self.directions, 0)
        for instance in self.instances.values():
            for route in await instance.ask("/routes") or []:
                counts[route["name"]] += route["stored"]
        return counts

    def source_is_tubemq(self, system: str) -> bool:
        """Return True for a cluster with TubeMQ sources."""
        return self.systems[system].kind == "tubemq" and any(each.source.name == system for each in self.directions.values())

    def links(self, system: str) -> list[Link]:
        """Return the links of all instances to the brokers of this cluster."""
        return [instance.network.links[each] for instance in self.instances.values() for each in self.systems[system].brokers]

    @contextlib.contextmanager
    def paused(self, system: System) -> Iterator[None]:
        """Hold all bytes between every instance and the brokers of this cluster, so that it stores nothing."""
        links = self.links(system.name)
        for link in links:
            link.passes.clear()
        try:
            with system.blocked():
                yield
        finally:
            for link in links:
                link.passes.set()

    def flows(self, system: str) -> list[Flow | SdkFlow]:
        """Return the producers whose source is this system."""
        return [each.flow for each in self.directions.values() if each.source.name == system]

    async def open(self, stack: contextlib.AsyncExitStack) -> None:
        """Create topics, fill them with the backlog, and start the instances."""
        names = clusters(self.schedule.directions)
        for name in names:
            self.clusters[name] = await stack.enter_async_context(self.systems[name].open())
            await self.systems[name].enter(stack, self.folder)
        for name, load in self.schedule.loads.items():
            direction = self.directions[name] = await self._direction(name)
            await direction.target.watch(stack, direction.copy)
            await direction.flow.start()
            stack.push_async_callback(direction.flow.end)
            await direction.flow.burst(load.backlog)
        addresses = [each for name in names for each in self.systems[name].addresses]
        for name in self.schedule.instances:
            network = await stack.enter_async_context(Network(addresses))
            instance = Instance(name, self.folder / name, network, self.config, self.schedule.shutdown_s, self._checkout)
            self.instances[name] = instance
            stack.push_async_callback(instance.kill)
            watch = spawn(instance.watch(self.say), f"watch {name}")
            stack.push_async_callback(cancel, watch)
        self.began = time.monotonic()
        for name in self.schedule.instances if self.schedule.second_instance else self.schedule.instances[:1]:
            await self.instances[name].start()

    async def _direction(self, name: str) -> Direction:
        (source, target), layout = ends(name), self.schedule.layouts[name]
        unique = f"chaos_{source}_{target}_{time.time_ns()}"
        topic, copy = self.systems[source].source_topic(unique), f"{unique}_copy"
        for system, each in ((source, topic), (target, copy)):
            await self.systems[system].create(self.clusters[system], each, PARTITIONS, layout)
        cluster = self.clusters[source]
        flow = self.systems[source].make_flow(cluster, topic, PARTITIONS, self.schedule.loads[name])
        direction = Direction(name, self.systems[source], self.systems[target], topic, copy, flow, layout)
        await asyncio.to_thread(direction.source.register, topic, direction.group)
        return direction

    def config(self, instance: str, folder: Path) -> dict[str, Any]:
        """Return the configuration of an instance. Cluster names differ by instance, so an origin tells the writer."""
        systems = {end.name: end for each in self.directions.values() for end in (each.source, each.target)}
        return {
            "clusters": {f"{name}-{instance}": self._cluster(each) for name, each in systems.items()},
            "routes": [self._route(each, instance) for each in self.directions.values()],
            "state": str(folder / "state.db"),
            "shutdown_timeout": f"{self.schedule.shutdown_s}s",
        }

    def _cluster(self, system: System) -> dict[str, Any]:
        heartbeat = {"heartbeat": f"{self.schedule.heartbeat_s}s"} if system.kind == "tubemq" else {}
        return {"system": system.kind, **system.settings, **heartbeat}

    def _route(self, direction: Direction, instance: str) -> dict[str, Any]:
        source: dict[str, Any] = {
            "cluster": f"{direction.source.name}-{instance}",
            "topic": direction.topic,
            "group": direction.group,
            "refresh": REFRESH,
        }
        if direction.source.kind == "rocketmq":
            source["options"] = {"orderly": self.schedule.orderly}
        return {
            "name": direction.name,
            "from": source,
            "to": {
                "cluster": f"{direction.target.name}-{instance}",
                "topic": direction.copy,
                "partitions": {"by": direction.layout.by},
            },
            "delivery": {
                "in_flight_bytes": self.schedule.in_flight_bytes[instance],
                "rate": self.schedule.loads[direction.name].rate,
            },
        }


@contextlib.asynccontextmanager
async def opened(
    schedule: Schedule, systems: Mapping[str, System], folder: Path, say: Say, checkout: Path | None = None
) -> AsyncIterator[World]:
    """Create a world, with running producers and instances."""
    world = World(schedule, systems, folder, say, checkout)
    async with contextlib.AsyncExitStack() as stack:
        await world.open(stack)
        yield world


@contextlib.asynccontextmanager
async def all_instances_locked(world: World) -> AsyncIterator[None]:
    """Hold the locks of all instances."""
    async with contextlib.AsyncExitStack() as stack:
        for _, instance in sorted(world.instances.items()):
            await stack.enter_async_context(instance.lock)
        yield
