"""One run: execute the schedule, wait for delivery, report the result."""

from __future__ import annotations

import asyncio
import signal
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from mqbridge.cli.process.exit_codes import INTERRUPTED, OK, STOPPED
from tests.chaos.ending import Ending
from tests.chaos.faults import FAULTS
from tests.chaos.faults.listeners import listener_of
from tests.chaos.judge import Verdict
from tests.chaos.schedule import Event, Schedule, clusters, ends
from tests.chaos.systems.system import System
from tests.chaos.world import World, opened
from tests.kit.maven import say as progress

EXPECTED_EXITS = (OK, INTERRUPTED, -signal.SIGTERM)
"""Exit codes of an instance after SIGTERM: it delivered its messages, or it was still starting."""
MB = 1 << 20
MAX_MB = 150
"""Maximum resident memory of an instance."""
SUMMED = ("sent", "repeated", "missing", "out_of_order")
"""The counts of a verdict that are summed over all directions."""

AT_CLUSTER = ("system", "directory", "end", "missing", "limit")
AT_SOURCE = ("pause", "pausable_group", "deletable", "truncatable")
AT_TARGET = ("refusing",)
"""Kinds of targets (`Kind.where`) of faults that need the servers of a cluster: a cluster, or an end of a direction."""


@dataclass(slots=True)
class Result:
    """Result of a run. The run passed if `problems` is empty."""

    schedule: Schedule
    verdicts: dict[str, Verdict] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    struck: Counter[str] = field(default_factory=Counter)
    """Number of faults that were executed, by name."""
    skipped: int = 0
    """Number of faults that another one prevented."""
    peak_bytes: int = 0
    """Peak resident memory of the larger instance."""
    recovered_s: float = 0.0
    """Seconds from the last fault to the last stored message."""
    stops: int = 0
    """How often a partition or a route stopped."""
    seconds: float = 0.0

    def lines(self) -> list[str]:
        """Return the result as text."""
        found = [f"seed {self.schedule.seed}: {'FAILED' if self.problems else 'passed'}, {self.seconds:.0f} s"]
        found += [
            f"  {name}: {v.sent} sent, {v.arrived} stored, {v.repeated} of them repeated, {v.missing} missing, "
            f"{v.out_of_order} out of order, {v.stale} stale, {v.damaged} damaged, {v.lost} lost at the source"
            for name, v in self.verdicts.items()
        ]
        sums = {name: sum(getattr(v, name) for v in self.verdicts.values()) for name in SUMMED}
        found += [f"  all: {', '.join(f'{count} {name}' for name, count in sums.items())}".replace("_", " ")]
        memory = f"at most {self.peak_bytes // MB} MB resident"
        faults = f"{self.struck.total()} faults, {self.skipped} skipped"
        found += [f"  {faults}, all stored {self.recovered_s:.0f} s after the last; {self.stops} stops; {memory}"]
        found += [f"  {', '.join(f'{count} {name}' for name, count in sorted(self.struck.items()))}"]
        return found + [f"  PROBLEM: {problem} ({times} times)" for problem, times in Counter(self.problems).items()]


async def run(schedule: Schedule, systems: Mapping[str, System], folder: Path, checkout: Path | None = None) -> Result:
    """Execute a schedule with servers that run already. The logs of the instances are written to `folder`."""
    began = time.monotonic()
    result = Result(schedule)

    def say(text: str) -> None:
        progress(f"{time.monotonic() - began:6.1f} s  {text}")

    async with opened(schedule, systems, folder, say, checkout) as world:
        say("the producers and the instances have started")
        await _play(world, result)
        say("the last fault is over")
        ending = Ending(world)
        result.verdicts = await ending.wait()
        for name, verdict in result.verdicts.items():
            result.problems += [f"{name}: {problem}" for problem in verdict.problems(allows_stale=schedule.allows_stale)]
            direction = world.directions[name]
            if direction.moved and not direction.has_deletions and not verdict.repeated:
                result.problems.append(f"{name}: the group was moved back, but no message was repeated")
        result.problems += world.failures + ending.failures
        result.problems += [problem for name in clusters(schedule.directions) for problem in systems[name].problems()]
        result.recovered_s = ending.recovered_s
        deletions = [text for each in world.directions.values() if each.has_deletions for text in (each.name, each.topic)]
        for instance in world.instances.values():
            async with instance.lock:
                await instance.terminate()
            result.problems += instance.failures
            written = instance.log_problems(allows_loss=bool(world.lossy), deletions=deletions)
            result.problems += [f"{instance.name} wrote {problem}" for problem in written]
            result.stops += instance.stops()
            expected = (*EXPECTED_EXITS, STOPPED) if deletions else EXPECTED_EXITS
            result.problems += [f"{instance.name} ended with status {each}" for each in instance.exits if each not in expected]
            result.peak_bytes = max(result.peak_bytes, instance.peak_bytes)
        if result.peak_bytes > MAX_MB * MB:
            result.problems.append(f"{result.peak_bytes // MB} MB were resident, more than {MAX_MB}")
    result.seconds = time.monotonic() - began
    return result


async def _play(world: World, result: Result) -> None:
    """Execute all faults, each in a task of its own at its time."""

    async def strike(event: Event) -> None:
        await asyncio.sleep(max(0.0, event.at - world.now))
        if busy := _busy(world, event):
            world.say(f"{event}: skipped, another fault of {busy} is in progress")
            result.skipped += 1
            return
        world.say(str(event))
        result.struck[event.kind.name] += 1
        try:
            with world.strike(event):
                await FAULTS[event.kind.name](world, event)
        except Exception as error:  # noqa: BLE001 - the run continues, to show its other problems
            result.problems.append(f"the fault itself failed: {event}: {type(error).__name__}: {error}")
            world.say(result.problems[-1])

    await asyncio.gather(*map(strike, world.schedule.events))
    await asyncio.sleep(max(0.0, world.schedule.seconds - world.now))


def _busy(world: World, event: Event) -> str | None:
    """Return the instance or the cluster of a fault that another fault has stopped; None if the fault can begin."""
    subject, kind = event.where[0], event.kind.where
    if kind in AT_SOURCE or kind in AT_TARGET:
        subject = ends(subject)[kind in AT_TARGET]
    locks = {"instance": {name: instance.lock for name, instance in world.instances.items()}}
    locks |= dict.fromkeys((*AT_CLUSTER, *AT_SOURCE, *AT_TARGET), world.server_locks)
    lock = locks.get(kind, {}).get(subject)
    if kind == "listener":
        lock = listener_of(world, subject).lock
    return subject if lock is not None and lock.locked() else None
