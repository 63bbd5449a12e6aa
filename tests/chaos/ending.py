"""The end of a run: all faults are over, the remaining messages arrive, and the targets are judged."""

from __future__ import annotations

import asyncio
import time
from typing import Any

from tests.chaos.judge import Verdict, judge
from tests.chaos.world import World

READY_S = 90.0
"""How long after the last fault an instance may be not ready: TubeMQ's Broker keeps a dead member's partitions for 35 s."""
DEADLINE_S = 180.0
"""How long after the last fault everything must be delivered.

A dead member's locks at RocketMQ's Brokers end after a minute. A Broker that handles a heartbeat behind its connection's end,
as one does that was frozen, lists that member for 130 s more, and nobody else reads its queues. Java's members wait as long.
"""
IDLE_S = 150.0
"""If nothing was stored for this time, missing messages are lost."""
NO_LEASES_S = 40.0
"""The same limit if every departed member has unregistered."""
QUIET_S = 6.0
"""If nothing was stored for this time, the targets are judged."""
LOOK_S = 0.5
BUSY = 0.5
"""Part of a processor that an instance with nothing to do does not use."""
JUDGES = 3
"""Java programs at a time."""


class Ending:
    """Waits for delivery from the end of the last fault on. `failures` are problems other than with messages."""

    def __init__(self, world: World) -> None:
        self.failures: list[str] = []
        self.recovered_s = 0.0
        """When the last message was stored, after the last fault."""
        self._world, self._over = world, time.monotonic()
        self._judges = asyncio.Semaphore(JUDGES)
        self._moved, self._moved_at = -1, 0.0
        """What was stored when it was looked at, and when that was last different."""

    async def wait(self) -> dict[str, Verdict]:
        """The verdicts, by direction."""
        await self._heal()
        await self._all_ready(self._over + READY_S)
        verdicts = await self._judged()
        limit = NO_LEASES_S if self._world.schedule.no_leases else DEADLINE_S
        if self.recovered_s > limit:
            seconds = f"{self.recovered_s:.0f} s after the last fault, more than {limit:.0f}"
            self.failures.append(f"something was still stored {seconds}")
        return verdicts

    async def _heal(self) -> None:
        """The network is as it should be, the last instances run, nothing new comes."""
        for name, instance in self._world.instances.items():
            instance.network.heal()
            async with instance.lock:
                if name not in self._world.schedule.last:
                    await instance.terminate()
                elif not instance.runs:
                    await instance.start()
        for direction in self._world.directions.values():
            direction.flow.check()
            await direction.flow.end()

    async def _judged(self) -> dict[str, Verdict]:
        """Judge, and again as long as something is missing that may still come."""
        verdicts: dict[str, Verdict] = {}
        while True:
            await self._quiet(self._over + DEADLINE_S)
            self.recovered_s = self._moved_at - self._over
            undecided = [name for name in self._world.directions if name not in verdicts or verdicts[name].missing]
            verdicts |= zip(undecided, await asyncio.gather(*map(self._verdict, undecided)), strict=True)
            missing = sum(each.missing for each in verdicts.values())
            waited = time.monotonic() - self._over
            self._world.say(f"{waited:.0f} s after the last fault {missing} messages are missing")
            if not missing or waited > min(DEADLINE_S, self.recovered_s + IDLE_S):
                return verdicts

    async def _verdict(self, name: str) -> Verdict:
        direction = self._world.directions[name]
        async with self._judges:
            stored = await asyncio.to_thread(list, direction.target.read(direction.copy))
        return judge(direction.flow.sent, stored)

    async def _all_ready(self, deadline: float) -> None:
        reasons: dict[str, Any] = dict.fromkeys(self._world.schedule.last)
        while True:
            for name in reasons:
                reasons[name] = await self._world.instances[name].ask("/health/ready")
            waiting = {name: status for name, status in reasons.items() if status is None or not status["ready"]}
            if not waiting:
                return
            if time.monotonic() > deadline:
                status = f"not ready {READY_S:.0f} s after the last fault"
                self.failures += [f"{name} is {status}: {reason}" for name, reason in waiting.items()]
                return
            await asyncio.sleep(LOOK_S)

    async def _quiet(self, deadline: float) -> None:
        """Until nothing was stored for QUIET_S, from now on."""
        since, used = time.monotonic(), self._cpu_s()
        while time.monotonic() < min(deadline, max(since, self._moved_at) + QUIET_S):
            stored = sum((await self._world.stored()).values())
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
        return {name: instance.cpu_s() for name, instance in self._world.instances.items()}
