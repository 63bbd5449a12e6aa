"""clocks: the wall clock jumps by days, or starts in 1970, while old messages are dropped by their age. Nothing here is old."""

from __future__ import annotations

import random
import time
from functools import partial
from unittest import mock

from tests.log.faults.judge import Rules, Verdict, judge
from tests.log.faults.scene import Scene, Stage, Verdicts, settings_of, topics_of, wait_for
from tests.log.faults.workload import Workload

GROUP = "group"
RETENTION = "1h"
DAY_NS = 86_400 * 10**9
JUMP_SHARE = 0.3
"""Share of the times at which the clock is read at the end of a send, and jumps."""


class JumpingClock:
    """Replaces the wall clock of this process by one that is wrong by `offset_ns`."""

    def __init__(self, rng: random.Random) -> None:
        self._rng, self._real_ns = rng, time.time_ns
        self.offset_ns = 0

    def install(self) -> None:
        """Replace the wall clock until the process ends."""
        mock.patch.object(time, "time_ns", self.now_ns).start()
        mock.patch.object(time, "time", self.now).start()

    def now_ns(self) -> int:
        """Return the wrong time."""
        return self._real_ns() + self.offset_ns

    def now(self) -> float:
        """Return the wrong time in seconds."""
        return self.now_ns() / 1e9

    def jump(self, _: int = 0) -> None:
        """Go days forward or backward, to 1970, or back to the right time."""
        days = self._rng.choice((0, self._rng.randint(1, 400), -self._rng.randint(1, 400), None))
        self.offset_ns = -self._real_ns() if days is None else days * DAY_NS


def run(scene: Scene) -> Verdicts:
    """Let a process open the log several times, with another time each."""
    for fault in scene.faults:
        rng, stage = scene.rng_of(fault), scene.stage(fault)
        yield fault, _jump(scene, stage, fault, rng)
        stage.remove()


def _jump(scene: Scene, stage: Stage, fault: int, rng: random.Random) -> Verdict:
    topics, clock = topics_of(rng), JumpingClock(rng)
    clock.jump()
    jumps_while_open = rng.random() < 0.5
    workload = Workload(
        path=stage.path,
        topics=topics,
        writer=1,
        seed=f"{scene.seed} clocks {fault}",
        settings=settings_of(rng, retention=RETENTION),
        sends=rng.randint(5, 20),
        cycles=rng.randint(2, 5),
        group=GROUP,
        rejoins=False,
        drain_s=2.0,
        max_payload=20_000,
        before_cycle=clock.jump,
        ends=partial(_jump_sometimes, clock, rng if jumps_while_open else None),
    )
    problems: list[str] = []
    wait_for(stage.start(workload, before=clock.install), problems)
    clock.jump()
    history = stage.history()
    history.problems += problems
    seen = stage.inspect(topics, (GROUP,), {"retention": RETENTION}, prepare=clock.install)
    verdict = judge(history, seen, Rules(keeps_all=True))
    verdict.examples = [f"{text} [read {clock.offset_ns / DAY_NS:.0f} days from now]" for text in verdict.examples]
    return verdict


def _jump_sometimes(clock: JumpingClock, rng: random.Random | None) -> bool:
    """Let the clock jump now and then; never end the sending."""
    if rng is not None and rng.random() < JUMP_SHARE:
        clock.jump()
    return False
