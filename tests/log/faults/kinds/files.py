"""files: a file of an open log is removed, renamed, replaced by a copy, cut to nothing, or gets a second name.

What was acknowledged before the process could notice may be lost: the fault has taken it away on purpose. Acknowledgements after
that must hold, or the log must say that they do not. A process that ends with SIGBUS says enough: SQLite maps the -shm file.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import time
from pathlib import Path

from tests.log.faults.children import Child
from tests.log.faults.judge import Rules, Verdict, judge
from tests.log.faults.scene import NAME, Scene, Stage, Verdicts, settings_of, topics_of, wait_for
from tests.log.faults.workload import Workload

GROUP = "group"
ACTIONS = ("unlink", "rename", "replace", "truncate", "link")
NOTICE_S = 0.4
"""Time after which a process must have noticed what happened to its files: many polls."""
FIRST_S = (0.05, 0.3)
GOES_ON_S = 0.3
"""For how long the processes go on after they must have noticed."""
SECOND_SHARE = 0.4
"""Share of the faults after which a second process opens the log."""


def run(scene: Scene) -> Verdicts:
    """Take a file away from a process that uses it."""
    for fault in scene.faults:
        rng, stage = scene.rng_of(fault), scene.stage(fault)
        yield fault, _take(scene, stage, fault, rng)
        stage.remove()


def _take(scene: Scene, stage: Stage, fault: int, rng: random.Random) -> Verdict:
    topics, finish = topics_of(rng), stage.folder / "finish"

    def workload(writer: int, path: Path) -> Workload:
        return Workload(
            path=path,
            topics=topics,
            writer=writer,
            seed=f"{scene.seed} files {fault} {writer}",
            settings=settings_of(rng, poll="20ms", busy_timeout="1s"),
            group=GROUP,
            drain_s=0.3,
            pause_s=0.004,
            rejoins=False,
            max_payload=50_000,
            ends=finish.exists,
        )

    children = [stage.start(workload(1, stage.path))]
    while children[0].is_alive() and "ack" not in stage.history().events:
        time.sleep(0.005)
    time.sleep(rng.uniform(*FIRST_S))
    action, second = rng.choice(ACTIONS), stage.path
    if action == "link":
        target = stage.path
        second = stage.folder / "linked" / "other.db"
        second.parent.mkdir()
        os.link(stage.path, second)
    else:
        target = _draw_target(stage, rng)
        _act(action, target, stage.folder / "moved")
    at_ns = time.monotonic_ns()
    if action == "link" or rng.random() < SECOND_SHARE:
        children.append(stage.start(workload(2, second)))
    time.sleep(NOTICE_S + GOES_ON_S)
    problems: list[str] = []
    _end(children, finish, problems, kills=rng.random() < 0.3)
    history = stage.history()
    history.problems += problems
    seen = stage.inspect(topics, (GROUP,))
    seen.opening += [text for said_ns, text in history.said if said_ns > at_ns]
    verdict = judge(history, seen, Rules(forgives_before_ns=at_ns + int(NOTICE_S * 1e9)))
    verdict.examples = [f"{text} [{action} {target.name}, {len(children)} processes]" for text in verdict.examples]
    died = [child.status for child in children if child.status and child.status not in (-signal.SIGKILL, 1)]
    verdict.notes.update(f"processes that ended by {signal.Signals(-status).name}" for status in died if status < 0)
    verdict.notes[f"{action} {'database' if target.name == NAME else target.name.removeprefix(NAME)}"] = 1
    return verdict


def _draw_target(stage: Stage, rng: random.Random) -> Path:
    """Draw a file of the log: the database, or one beside it."""
    others = [path for path in stage.files() if path != stage.path]
    return rng.choice([stage.path, *others])


def _act(action: str, target: Path, moved: Path) -> None:
    if action == "unlink":
        target.unlink(missing_ok=True)
    elif action == "rename":
        target.rename(moved)
    elif action == "truncate":
        os.truncate(target, 0)
    else:
        shutil.copyfile(target, moved)
        moved.replace(target)


def _end(children: list[Child], finish: Path, problems: list[str], *, kills: bool) -> None:
    """End the processes in order, or kill them."""
    if kills:
        for child in children:
            child.kill()
        return
    finish.touch()
    for child in children:
        wait_for(child, problems)
