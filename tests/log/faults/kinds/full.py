"""full: the disk is full, or writing fails, from the n-th write on, and works again after a while.

The process goes on sending, reading and committing meanwhile. A second process starts and reads while nothing can be written.
"""

from __future__ import annotations

import errno
import random
import time
from functools import partial

from tests.log.faults import trace
from tests.log.faults.children import Child
from tests.log.faults.history import History
from tests.log.faults.inspection import Reading
from tests.log.faults.judge import Rules, Verdict, judge
from tests.log.faults.messages import topic_name
from tests.log.faults.probe import ProbeResult, probe
from tests.log.faults.scene import Scene, Stage, Verdicts, settings_of, topics_of, wait_for
from tests.log.faults.trace import Flags
from tests.log.faults.workload import Workload

GROUP = "group"
MAX_WRITES = 250
"""The failure begins after up to this many writes."""
BEGINS_S = 3.0
"""Maximum time until the first write fails."""
LASTS_S = (0.1, 0.7)
AFTER_S = 0.2
"""For how long the process sends after there is room again."""
MUST_OPEN_ALONE = False
"""A process that is the only one must be able to read while the disk is full. SQLite needs room for its -shm file."""
FAILURES = (
    (errno.ENOSPC, Flags.ONLY_GROWTH),
    (errno.ENOSPC, Flags.ONLY_GROWTH | Flags.SHORT),
    (errno.ENOSPC, Flags.NONE),
    (errno.EIO, Flags.NONE),
    (errno.EIO, Flags.SYNCS),
)


def run(scene: Scene) -> Verdicts:
    """Let writes fail for a while."""
    for fault in scene.faults:
        rng, stage = scene.rng_of(fault), scene.stage(fault)
        yield fault, _fail(scene, stage, fault, rng)
        stage.remove()


def _fail(scene: Scene, stage: Stage, fault: int, rng: random.Random) -> Verdict:
    topics, control = topics_of(rng), trace.Control(stage.folder / "control")
    finish = stage.folder / "finish"
    workload = Workload(
        path=stage.path,
        topics=topics,
        writer=1,
        seed=f"{scene.seed} full {fault}",
        settings=settings_of(rng),
        group=GROUP,
        drain_s=8.0,
        pause_s=rng.choice((0.0005, 0.002, 0.006)),
        in_flight=rng.choice((8, 50)),
        max_payload=rng.choice((5_000, 300_000)),
        rejoins=False,
        ends=finish.exists,
    )
    child = stage.start(workload, before=partial(trace.start, stage.path, control=control.path))
    error, flags = rng.choice(FAILURES)
    _wait_until_open(stage, child)
    control.set(trace.REFUSE, error=error, after=rng.randrange(MAX_WRITES), flags=flags)
    deadline = time.monotonic() + BEGINS_S
    while control.refused == 0 and time.monotonic() < deadline and child.is_alive():
        time.sleep(0.002)
    problems: list[str] = []
    before = stage.history()
    until = time.monotonic() + rng.uniform(*LASTS_S)
    result = probe(stage, topics, partial(trace.start, stage.path, control=control.path)) if child.is_alive() else None
    time.sleep(max(0.0, until - time.monotonic()))
    is_alive = child.is_alive()
    control.clear()
    time.sleep(AFTER_S)
    finish.touch()
    wait_for(child, problems)
    if result is not None:
        problems += [f"{text} beside a process that writes" for text in _missing(before, result)]
    refused = control.refused
    if not is_alive:
        problems.append("ended: the process did not outlive the failing writes")
    history = stage.history()
    control.set(trace.REFUSE, error=errno.ENOSPC, flags=Flags.ONLY_GROWTH)
    alone = probe(stage, topics, partial(trace.start, stage.path, control=control.path))
    control.clear()
    unread = _missing(history, alone)
    if MUST_OPEN_ALONE:
        problems += [f"{text} by the only process" for text in unread]
    history.problems += problems + _unfinished(history)
    verdict = judge(history, stage.inspect(topics, (GROUP,)), Rules(keeps_all=True))
    verdict.notes["operations that failed"] = refused
    verdict.notes["logs that the only process cannot read on a full disk"] = len(unread)
    verdict.notes["faults without a failed operation"] = int(not refused)
    verdict.examples = [f"{text} [{errno.errorcode[error]}, {flags!r}]" for text in verdict.examples]
    return verdict


def _wait_until_open(stage: Stage, child: Child) -> None:
    while child.is_alive() and "open" not in stage.history().events:
        time.sleep(0.005)


def _missing(before: History, result: ProbeResult) -> list[str]:
    """Return what a process that started while nothing could be written did not read."""
    if isinstance(result, str):
        return [f"not read while writing fails: {result}"]
    lost = [
        (ack.id, result.get(key, Reading()).error)
        for key in before.acks
        for offset, ack in before.all_acks(key)
        if result.get(key, Reading()).messages.get(offset, (None, 0))[0] != ack.id
    ]
    return [f"not read while writing fails: {len(lost)} messages, such as {lost[0][0]}: {lost[0][1]}"] if lost else []


def _unfinished(history: History) -> list[str]:
    """Return what was not stored or committed after writes worked again."""
    found = []
    acknowledged = {ack.id for key in history.acks for _, ack in history.all_acks(key)}
    if missing := [id_ for id_ in history.sizes if id_ not in acknowledged]:
        found.append(f"not stored: {len(missing)} messages after writes worked again, such as {missing[0]}")
    for (group, topic, partition), position in history.acknowledged.items():
        if history.confirmed((group, topic, partition)) < position:
            found.append(f"not committed: position {position} of {group} in {topic_name(topic)}/{partition}")
    if not history.events["done"]:
        found.append("ended: the process did not finish its work")
    return found
