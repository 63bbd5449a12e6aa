"""stopped: a member of a group is stopped for longer than its lease, at any moment or inside a transaction, and continues.

The group must skip nothing, and what the stopped member commits afterwards must not move the group.
"""

from __future__ import annotations

import random
import signal
import time
from functools import partial

from tests.log.faults import trace
from tests.log.faults.children import Child
from tests.log.faults.judge import Rules, Verdict, judge
from tests.log.faults.scene import Scene, Stage, Verdicts, settings_of, topics_of, wait_for
from tests.log.faults.workload import Workload

GROUP = "group"
LEASE_S = 0.3
FIRST_S = (0.1, 0.5)
LASTS_S = (LEASE_S * 1.2, LEASE_S * 4)
MAX_WRITES = 40
"""A stop inside a transaction begins after up to this many writes."""
BEGINS_S = 1.0
AFTER_S = (0.1, 0.5)


def run(scene: Scene) -> Verdicts:
    """Stop one of several members, once or twice."""
    for fault in scene.faults:
        rng, stage = scene.rng_of(fault), scene.stage(fault)
        yield fault, _stop(scene, stage, fault, rng)
        stage.remove()


def _stop(scene: Scene, stage: Stage, fault: int, rng: random.Random) -> Verdict:
    topics, finish = topics_of(rng), stage.folder / "finish"
    control = trace.Control(stage.folder / "control")
    can_trace = trace.is_available()
    settings = settings_of(rng, lease=f"{int(LEASE_S * 1000)}ms", busy_timeout=rng.choice(("200ms", "5s")))
    members = rng.randint(2, 3)
    children: list[Child] = []
    for index in range(members + 1):
        workload = Workload(
            path=stage.path,
            topics=topics,
            writer=index,
            seed=f"{scene.seed} stopped {fault} {index}",
            settings=settings,
            group=GROUP if index else None,
            drain_s=10.0,
            pause_s=0.01,
            max_payload=20_000,
            is_writer=index == 0 or rng.random() < 0.3,
            rejoins=index != 1 and rng.random() < 0.5,
            ends=finish.exists,
        )
        is_traced = index == 1 and can_trace
        children.append(stage.start(workload, partial(trace.start, stage.path, control=control.path) if is_traced else None))
    time.sleep(rng.uniform(*FIRST_S))
    stops = [_stop_once(children[1], control if can_trace else None, rng) for _ in range(rng.randint(1, 2))]
    finish.touch()
    problems: list[str] = []
    for child in children:
        wait_for(child, problems)
    history = stage.history()
    history.problems += problems
    verdict = judge(history, stage.inspect(topics, (GROUP,)), Rules(keeps_all=True))
    verdict.examples = [f"{text} [{', '.join(stops)}; {members} members]" for text in verdict.examples]
    verdict.notes.update(stops)
    return verdict


def _stop_once(child: Child, control: trace.Control | None, rng: random.Random) -> str:
    """Stop a process for longer than its lease; return where it was stopped."""
    where = "stops at any moment"
    if control is not None and rng.random() < 0.5:
        control.set(trace.STOP, after=rng.randrange(MAX_WRITES))
        deadline = time.monotonic() + BEGINS_S
        while time.monotonic() < deadline and not (is_stopped := child.is_stopped()):
            time.sleep(0.002)
        control.clear()
        where = "stops inside a transaction" if is_stopped else where
    child.signal(signal.SIGSTOP)
    time.sleep(rng.uniform(*LASTS_S))
    child.signal(signal.SIGCONT)
    time.sleep(rng.uniform(*AFTER_S))
    return where
