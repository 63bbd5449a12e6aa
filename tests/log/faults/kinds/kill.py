"""kill: kill -9 of one to three processes at random moments, while they append, commit, join and trim."""

from __future__ import annotations

import random
import signal
import time

from tests.log.faults.judge import Rules
from tests.log.faults.scene import Scene, Verdicts, settings_of, topics_of
from tests.log.faults.workload import Workload

FIRST_S = (0.1, 0.5)
"""Time of the first kill of a round."""
STAGGER_S = (0.0, 0.1)
"""Time between two kills."""
RETENTION_BYTES = 400_000
GROUP = "group"


def run(scene: Scene) -> Verdicts:
    """Kill all processes of a log, once or twice."""
    for fault in scene.faults:
        rng, stage = scene.rng_of(fault), scene.stage(fault)
        topics = topics_of(rng)
        retention_bytes = rng.choice((None, RETENTION_BYTES))
        settings = settings_of(rng, retention_bytes=retention_bytes, lease=rng.choice(("400ms", "5s")))
        processes = rng.randint(1, 3)
        for round_ in range(rng.randint(1, 2)):
            children = []
            for index in range(processes):
                workload = Workload(
                    path=stage.path,
                    topics=topics,
                    writer=round_ * 10 + index,
                    seed=f"{scene.seed} {fault} {round_} {index}",
                    settings=settings,
                    sends=rng.choice((0, 0, 30)),
                    cycles=1000,
                    group=rng.choice((GROUP, GROUP, None)),
                    drain_s=0.05,
                    pause_s=rng.choice((0, 0.002, 0.01)),
                    is_writer=index == 0 or rng.random() < 0.7,
                    ends=_Clock(rng),
                )
                children.append(stage.start(workload))
            time.sleep(rng.uniform(*FIRST_S))
            rng.shuffle(children)
            for child in children:
                child.signal(signal.SIGKILL)
                time.sleep(rng.uniform(*STAGGER_S))
            for child in children:
                child.kill()
        rules = Rules(keeps_all=True, retention_bytes=retention_bytes)
        yield fault, stage.verdict(topics, rules, (GROUP,), {"retention_bytes": retention_bytes})
        stage.remove()


class _Clock:
    """Ends the sending of a cycle after a while, so that the process opens the log again."""

    def __init__(self, rng: random.Random) -> None:
        self._seconds = rng.uniform(0.1, 0.5)
        self._began = 0.0

    def __call__(self) -> bool:
        """Return True at the end of a cycle."""
        now = time.monotonic()
        self._began = self._began or now
        if now - self._began < self._seconds:
            return False
        self._began = 0.0
        return True
