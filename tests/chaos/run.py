"""One run: execute the schedule, wait for delivery, report the result."""

from __future__ import annotations

import asyncio
import signal
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from mqbridge.cli.process.exit_codes import INTERRUPTED, OK
from tests.chaos.ending import Ending
from tests.chaos.faults import FAULTS
from tests.chaos.judge import Verdict
from tests.chaos.schedule import Event, Schedule
from tests.chaos.systems import System
from tests.chaos.world import World, opened
from tests.kit.maven import say as progress

RIGHT_EXITS = (OK, INTERRUPTED, -signal.SIGTERM)
"""Exit codes of an instance after SIGTERM: it drained, or it was still starting."""
MB = 1 << 20
MOST_MB = 150
"""What an instance may hold resident, whatever happens to it."""


@dataclass(slots=True)
class Result:
    """What a run found; it is right when there are no `problems`."""

    schedule: Schedule
    verdicts: dict[str, Verdict] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    struck: int = 0
    """Faults that were executed."""
    most_bytes: int = 0
    """Resident memory of the larger instance at its largest."""
    recovered_s: float = 0.0
    """When the last message was stored, after the last fault."""
    seconds: float = 0.0

    def lines(self) -> list[str]:
        """For people."""
        found = [f"seed {self.schedule.seed}: {'FAILED' if self.problems else 'passed'}, {self.seconds:.0f} s"]
        found += [
            f"  {name}: {v.sent} sent, {v.arrived} stored, {v.repeated} of them repeated, {v.missing} missing, "
            f"{v.out_of_order} out of order, {v.stale} stale, {v.damaged} damaged"
            for name, v in self.verdicts.items()
        ]
        memory = f"at most {self.most_bytes // MB} MB resident"
        found += [f"  {self.struck} faults, all stored {self.recovered_s:.0f} s after the last; {memory}"]
        return found + [f"  PROBLEM: {problem} ({times} times)" for problem, times in Counter(self.problems).items()]


async def run(schedule: Schedule, systems: Mapping[str, System], folder: Path, checkout: Path | None = None) -> Result:
    """Play it against servers that run; logs of the instances stay in `folder`."""
    began = time.monotonic()
    result = Result(schedule)

    def say(text: str) -> None:
        progress(f"{time.monotonic() - began:6.1f} s  {text}")

    async with opened(schedule, systems, folder, say, checkout) as world:
        say("messages flow, the instances start")
        await _play(world, result)
        say("the last fault is over")
        ending = Ending(world)
        result.verdicts = await ending.wait()
        for name, verdict in result.verdicts.items():
            result.problems += [f"{name}: {problem}" for problem in verdict.problems(late_bytes=schedule.holds_bytes)]
            if world.directions[name].moved and not verdict.repeated:
                result.problems.append(f"{name}: the group was moved back, and nothing came again")
        result.problems += world.failures + ending.failures
        result.recovered_s = ending.recovered_s
        for instance in world.instances.values():
            async with instance.lock:
                await instance.terminate()
            result.problems += instance.failures
            result.problems += [f"{instance.name} wrote {problem}" for problem in instance.log_problems()]
            result.problems += [
                f"{instance.name} ended with status {status}" for status in instance.exits if status not in RIGHT_EXITS
            ]
            result.most_bytes = max(result.most_bytes, instance.most_bytes)
        if result.most_bytes > MOST_MB * MB:
            result.problems.append(f"{result.most_bytes // MB} MB were resident, more than {MOST_MB}")
    result.seconds = time.monotonic() - began
    return result


async def _play(world: World, result: Result) -> None:
    """Each fault in a task of its own, at its time."""

    async def strike(event: Event) -> None:
        await asyncio.sleep(max(0.0, event.at - world.now))
        if event.kind.where == "instance" and world.instances[event.where[0]].lock.locked():
            world.say(f"{event}: left out, {event.where[0]} is being struck")
            return
        world.say(str(event))
        result.struck += 1
        try:
            with world.strike(event):
                await FAULTS[event.kind.name](world, event)
        except Exception as error:  # noqa: BLE001 - the run goes on: what it shows until its end is worth more
            result.problems.append(f"the fault itself failed: {event}: {type(error).__name__}: {error}")
            world.say(result.problems[-1])

    await asyncio.gather(*map(strike, world.schedule.events))
    await asyncio.sleep(max(0.0, world.schedule.seconds - world.now))
