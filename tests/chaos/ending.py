"""The end of a run: all faults are over, the remaining messages arrive, and the targets are judged."""

from __future__ import annotations

import asyncio
import time
from typing import Any

from tests.chaos.judge import Verdict, judge, numbers_by_partition
from tests.chaos.schedule import clusters
from tests.chaos.world import Direction, World

READY_S = 90.0
"""Maximum time after the last fault until an instance is ready. TubeMQ's Broker keeps a dead member's partitions for 35 s."""
DEADLINE_S = 180.0
"""Maximum time after the last fault until every message must be delivered.

RocketMQ brokers keep the queue locks of a dead member for a minute. A broker that was frozen may process a heartbeat after the
connection of the member has ended. It then lists the dead member for another 130 s, and no other member, in Java either, reads
its queues.
"""
IDLE_S, ROCKETMQ_IDLE_S = 70.0, 150.0
"""After this time without a stored message, missing messages count as lost; see DEADLINE_S for RocketMQ sources."""
NO_LEASE_DEADLINE_S = 40.0
"""The same as DEADLINE_S, for runs in which every departed member has unregistered."""
QUIET_S = 6.0
"""The targets are judged after this time without a stored message."""
POLL_S = 0.5
MAX_IDLE_CPU = 0.5
"""Maximum CPU use of an idle instance, as a share of one core."""
READER_IDLE_S = (8, 16, 32, 60)
"""A reader ends after this time without a message. A read is repeated with the next value if messages are missing in it: on a
busy machine a client may need longer to start, or to get its partitions."""
MAX_JUDGES = 3
"""Maximum number of Java programs that read targets concurrently."""


class Ending:
    """Waits for delivery after the last fault, and judges the targets. `failures` are problems that do not concern messages."""

    def __init__(self, world: World) -> None:
        self.failures: list[str] = []
        self.recovered_s = 0.0
        """Seconds from the last fault to the last stored message."""
        self._world, self._start = world, time.monotonic()
        self._stopped = False
        """True if a partition has stopped, so that its messages will not arrive."""
        self._reads = dict.fromkeys(world.directions, 0)
        """Number of reads of each target."""
        self._judges = asyncio.Semaphore(MAX_JUDGES)
        self._stored, self._stored_at = -1, 0.0
        """Number of stored messages at the last poll, and the time of its last change."""

    async def wait(self) -> dict[str, Verdict]:
        """Wait until the targets are complete or the deadline has passed; return the verdicts by direction."""
        await self._heal()
        await self._wait_ready(self._start + READY_S)
        verdicts = await self._judge_until_complete()
        limit = NO_LEASE_DEADLINE_S if self._world.schedule.leaves_no_lease else DEADLINE_S
        if self.recovered_s > limit:
            seconds = f"{self.recovered_s:.0f} s after the last fault, more than {limit:.0f}"
            self.failures.append(f"messages were still stored {seconds}")
        return verdicts

    async def _heal(self) -> None:
        """Remove all network faults, run exactly the instances `schedule.last`, and stop the producers."""
        for name, instance in self._world.instances.items():
            instance.network.heal()
            async with instance.lock:
                if name not in self._world.schedule.last:
                    await instance.terminate()
                elif not instance.runs:
                    await instance.start()
        for name in clusters(self._world.schedule.directions):
            await self._world.systems[name].heal()
        for direction in self._world.directions.values():
            direction.flow.check()
            await direction.flow.end()

    async def _judge_until_complete(self) -> dict[str, Verdict]:
        """Judge the targets, again and again while messages are missing that may still arrive."""
        verdicts: dict[str, Verdict] = {}
        has_rocketmq = any(direction.source.kind == "rocketmq" for direction in self._world.directions.values())
        idle_s = ROCKETMQ_IDLE_S if has_rocketmq else IDLE_S
        while True:
            await self._wait_quiet(self._start + DEADLINE_S)
            self.recovered_s = self._stored_at - self._start
            undecided = [name for name in self._world.directions if name not in verdicts or verdicts[name].missing]
            verdicts |= zip(undecided, await asyncio.gather(*map(self._verdict, undecided)), strict=True)
            missing = sum(each.missing for each in verdicts.values())
            waited = time.monotonic() - self._start
            self._world.say(f"{waited:.0f} s after the last fault {missing} messages are missing")
            is_late = self._stopped or waited > min(DEADLINE_S, self.recovered_s + idle_s)
            if not missing or (is_late and not any(self._may_read_more(name) for name in undecided if verdicts[name].missing)):
                return verdicts

    def _may_read_more(self, name: str) -> bool:
        """Return True if the last reader of a target may have ended too early: a more patient one reads it again."""
        return self._reads[name] < len(READER_IDLE_S)

    async def _verdict(self, name: str) -> Verdict:
        direction = self._world.directions[name]
        async with self._judges:
            held = await self._held(direction) if direction.source.name in self._world.lossy else None
            idle_s = READER_IDLE_S[min(self._reads[name], len(READER_IDLE_S) - 1)]
            stored = await asyncio.to_thread(list, direction.target.read(direction.copy, idle_s))
        self._reads[name] += 1
        flow = direction.flow
        return judge(flow.sent, stored, held, first=flow.first, by=direction.layout.by)

    async def _held(self, direction: Direction) -> list[set[int]]:
        """Return the numbers that a source still has whose broker was killed.

        The reader must have read as many messages as the source has: a number that it missed would count as lost.
        """
        for idle_s in READER_IDLE_S:
            stored = await asyncio.to_thread(list, direction.source.read(direction.topic, idle_s))
            count = await asyncio.to_thread(direction.source.message_count, direction.topic)
            if len(stored) >= count:
                return numbers_by_partition(direction.flow.sent, stored)
        raise RuntimeError(f"{direction.topic} has {count} messages, but only {len(stored)} of them could be read")

    async def _wait_ready(self, deadline: float) -> None:
        reasons: dict[str, Any] = dict.fromkeys(self._world.schedule.last)
        while True:
            for name in reasons:
                reasons[name] = await self._world.instances[name].ask("/health/ready")
            waiting = {name: status for name, status in reasons.items() if status is None or not status["ready"]}
            if not waiting:
                return
            if time.monotonic() > deadline:
                self._stopped = any(status and status["stopped"] for status in waiting.values())
                late = f"not ready {READY_S:.0f} s after the last fault"
                self.failures += [f"{name} is {late}: {status}" for name, status in waiting.items()]
                return
            await asyncio.sleep(POLL_S)

    async def _wait_quiet(self, deadline: float) -> None:
        """Wait until no message was stored for QUIET_S. Record instances that use much CPU time meanwhile."""
        since, used = time.monotonic(), self._cpu_s()
        while time.monotonic() < min(deadline, max(since, self._stored_at) + QUIET_S):
            stored = sum((await self._world.stored()).values())
            if stored != self._stored:
                since, used = time.monotonic(), self._cpu_s()
                self._stored, self._stored_at = stored, since
            await asyncio.sleep(POLL_S)
        seconds = time.monotonic() - since
        self.failures += [
            f"{name} used {after - used[name]:.1f} s of CPU time in {seconds:.0f} s without a message"
            for name, after in self._cpu_s().items()
            if seconds >= QUIET_S and after - used[name] > MAX_IDLE_CPU * seconds
        ]

    def _cpu_s(self) -> dict[str, float]:
        return {name: instance.cpu_s() for name, instance in self._world.instances.items()}
