"""Everything of one run: systems, directions with their flows, two instances, and the end when nothing is left to come."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mqbridge.adapter import Cluster
from mqbridge.net.tasks import cancel, spawn
from tests.chaos.flow import Flow
from tests.chaos.instance import Instance
from tests.chaos.judge import Verdict, judge
from tests.chaos.schedule import INSTANCES, Event, Schedule
from tests.chaos.systems import REFRESH, System
from tests.kit.tcp_proxy import Network

PARTITIONS = 4
READY_S = 90.0
"""How long after the last fault an instance may be not ready: TubeMQ's Broker keeps a dead member's partitions for 35 s."""
DEADLINE_S = 150.0
"""How long after the last fault everything must be delivered: a dead member's locks at RocketMQ's Brokers end after a minute."""
IDLE_S = 75.0
"""What is not stored when nothing was for so long will not come any more."""
IN_ORDER_S = 40.0
"""The same where every member that left said so."""
QUIET_S = 6.0
"""When nothing was stored for so long it is time to judge."""
LOOK_S = 0.5
BUSY = 0.5
"""Part of a processor that an instance with nothing to do does not use."""
AFTERMATH_S = 20.0
"""How long a fault may keep messages from moving after its end, where no lease has to run out."""
HARMLESS = ("burst", "no_directory")
JUDGES = 3
"""Java programs at a time."""

Say = Callable[[str], None]


@dataclass(slots=True)
class Strike:
    """A fault as it took place, in seconds of the run."""

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
    flow: Flow

    @property
    def group(self) -> str:
        """The group that the instances share."""
        return f"g_{self.topic}"

    def end(self, which: str) -> tuple[System, str]:
        """A system and its topic: of the source or the target."""
        return (self.source, self.topic) if which == "source" else (self.target, self.copy)


class World:
    """Use `opened`."""

    def __init__(self, schedule: Schedule, systems: Mapping[str, System], folder: Path, say: Say, checkout: Path | None) -> None:
        self.schedule, self.systems, self.folder, self.say = schedule, systems, folder, say
        self.directions: dict[str, Direction] = {}
        self.instances: dict[str, Instance] = {}
        self.server_locks = {name: asyncio.Lock() for name in systems}
        """Held by whoever has a system's servers down, or needs them to answer."""
        self.began = time.monotonic()
        self.recovered_s = 0.0
        """When the last message was stored, after the last fault."""
        self._moved, self._moved_at = -1, 0.0
        """What was stored when it was looked at, and when that was last different."""
        self.failures: list[str] = []
        """What should have gone on during a fault, and did not."""
        self._strikes: list[Strike] = []
        self._checkout = checkout
        self._judges = asyncio.Semaphore(JUDGES)

    @property
    def now(self) -> float:
        """Seconds of this run."""
        return time.monotonic() - self.began

    @contextlib.contextmanager
    def strike(self, event: Event) -> Iterator[None]:
        """A fault takes place."""
        self._strikes.append(strike := Strike(event, self.now))
        try:
            yield
        finally:
            strike.end = self.now

    def is_alone(self, event: Event) -> bool:
        """Whether nothing else that may stop messages took place during a fault that ends now, or shortly before it began."""
        (own,) = [each for each in self._strikes if each.event is event]
        return not any(
            each.end > own.begin - AFTERMATH_S and each.event.kind.name not in HARMLESS
            for each in self._strikes
            if each is not own
        )

    async def stored(self) -> dict[str, int]:
        """By direction, what the instances that run have stored in this life."""
        counts = dict.fromkeys(self.directions, 0)
        for instance in self.instances.values():
            for route in await instance.ask("/routes") or []:
                counts[route["name"]] += route["stored"]
        return counts

    def flows(self, system: str) -> list[Flow]:
        """The producers of a system."""
        return [each.flow for each in self.directions.values() if each.source.name == system]

    async def open(self, stack: contextlib.AsyncExitStack) -> None:
        """Make topics, fill them with the backlog, start the instances."""
        systems = {name for direction in self.schedule.directions for name in direction.split("-")}
        clusters = {name: await stack.enter_async_context(self.systems[name].open()) for name in sorted(systems)}
        for name in self.schedule.directions:
            direction = self.directions[name] = await self._direction(name, clusters)
            await direction.flow.start()
            stack.push_async_callback(direction.flow.end)
            await direction.flow.burst(self.schedule.backlog)
        addresses = [each for name in sorted(systems) for each in self.systems[name].addresses]
        for name in INSTANCES:
            network = await stack.enter_async_context(Network(addresses))
            instance = Instance(name, self.folder / name, network, self.config, self.schedule.shutdown_s, self._checkout)
            self.instances[name] = instance
            stack.push_async_callback(instance.kill)
            watch = spawn(instance.watch(self.say), f"watch {name}")
            stack.push_async_callback(cancel, watch)
        self.began = time.monotonic()
        for name in INSTANCES if self.schedule.second_instance else INSTANCES[:1]:
            await self.instances[name].start()

    async def _direction(self, name: str, clusters: Mapping[str, Cluster]) -> Direction:
        source, target = name.split("-")
        topic = f"chaos_{source}_{target}_{time.time_ns()}"
        for system, each in ((source, topic), (target, f"{topic}_copy")):
            await clusters[system].create(each, PARTITIONS)
        flow = Flow(clusters[source], topic, PARTITIONS, self.schedule.per_second)
        return Direction(name, self.systems[source], self.systems[target], topic, f"{topic}_copy", flow)

    def config(self, instance: str, folder: Path) -> dict[str, Any]:
        """The configuration of an instance: its names of the clusters are its own, so that an origin tells who wrote it."""
        systems = {end.name: end for each in self.directions.values() for end in (each.source, each.target)}
        return {
            "clusters": {f"{name}-{instance}": {"system": name, **each.settings} for name, each in systems.items()},
            "routes": [self._route(each, instance) for each in self.directions.values()],
            "state": str(folder / "state.db"),
            "shutdown_timeout": f"{self.schedule.shutdown_s}s",
        }

    def _route(self, direction: Direction, instance: str) -> dict[str, Any]:
        source: dict[str, Any] = {
            "cluster": f"{direction.source.name}-{instance}",
            "topic": direction.topic,
            "group": direction.group,
            "refresh": REFRESH,
        }
        if direction.source.name == "rocketmq":
            source["options"] = {"orderly": self.schedule.orderly}
        return {
            "name": direction.name,
            "from": source,
            "to": {"cluster": f"{direction.target.name}-{instance}", "topic": direction.copy, "partitions": {"by": "identity"}},
            "delivery": {"in_flight_bytes": self.schedule.in_flight_bytes[instance], "rate": self.schedule.rate},
        }

    # --- the end ------------------------------------------------------------------------------------------------------

    async def finish(self) -> tuple[dict[str, Verdict], list[str]]:
        """Heal everything, let both instances run, wait for what is left to come: verdicts by direction, other failures."""
        over = time.monotonic()
        for instance in self.instances.values():
            instance.network.heal()
            async with instance.lock:
                if not instance.runs:
                    await instance.start()
        for direction in self.directions.values():
            direction.flow.check()
            await direction.flow.end()
        failures = await self._all_ready(over + READY_S)
        limit = IN_ORDER_S if self.schedule.in_order else DEADLINE_S
        verdicts: dict[str, Verdict] = {}
        while True:
            await self._quiet(over + DEADLINE_S)
            self.recovered_s = self._moved_at - over
            undecided = [name for name in self.directions if name not in verdicts or verdicts[name].missing]
            verdicts |= zip(undecided, await asyncio.gather(*map(self._verdict, undecided)), strict=True)
            missing = sum(each.missing for each in verdicts.values())
            waited = time.monotonic() - over
            self.say(f"{waited:.0f} s after the last fault {missing} messages are missing")
            if not missing or waited > min(DEADLINE_S, self.recovered_s + IDLE_S):
                break
        if self.recovered_s > limit:
            failures.append(f"something was still stored {self.recovered_s:.0f} s after the last fault, more than {limit:.0f}")
        return verdicts, failures

    async def _verdict(self, name: str) -> Verdict:
        direction = self.directions[name]
        async with self._judges:
            stored = await asyncio.to_thread(list, direction.target.read(direction.copy))
        return judge(direction.flow.sent, stored)

    async def _all_ready(self, deadline: float) -> list[str]:
        reasons: dict[str, Any] = dict.fromkeys(self.instances)
        while True:
            for name, instance in self.instances.items():
                reasons[name] = await instance.ask("/health/ready")
            waiting = {name: said for name, said in reasons.items() if said is None or not said["ready"]}
            if not waiting:
                return []
            if time.monotonic() > deadline:
                return [f"{name} is not ready {READY_S:.0f} s after the last fault: {said}" for name, said in waiting.items()]
            await asyncio.sleep(LOOK_S)

    async def _quiet(self, deadline: float) -> None:
        """Until nothing was stored for QUIET_S, from now on."""
        since, used = time.monotonic(), self._cpu_s()
        while time.monotonic() < min(deadline, max(since, self._moved_at) + QUIET_S):
            stored = sum((await self.stored()).values())
            if stored != self._moved:
                since, used = time.monotonic(), self._cpu_s()
                self._moved, self._moved_at = stored, since
            await asyncio.sleep(LOOK_S)
        seconds = time.monotonic() - since
        self.failures += [
            f"{name} used {after - used[name]:.1f} s of processor time in {seconds:.0f} s in which nothing came"
            for name, after in self._cpu_s().items()
            if seconds >= QUIET_S and after - used[name] > BUSY * seconds
        ]

    def _cpu_s(self) -> dict[str, float]:
        return {name: instance.cpu_s() for name, instance in self.instances.items()}


@contextlib.asynccontextmanager
async def opened(
    schedule: Schedule, systems: Mapping[str, System], folder: Path, say: Say, checkout: Path | None = None
) -> AsyncIterator[World]:
    """A world in which messages flow."""
    world = World(schedule, systems, folder, say, checkout)
    async with contextlib.AsyncExitStack() as stack:
        await world.open(stack)
        yield world
