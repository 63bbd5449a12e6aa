"""crash: a power failure. One process writes with all its writes recorded; each fault is a possible state of the disk."""

from __future__ import annotations

import json
import random

from tests.log.faults import images, trace
from tests.log.faults.children import start
from tests.log.faults.history import Recorder, history_of
from tests.log.faults.images import MARK, SYNC, Operation
from tests.log.faults.judge import Rules, Verdict, judge
from tests.log.faults.scene import WORK_S, Scene, Stage, Verdicts, settings_of, topics_of
from tests.log.faults.workload import Workload
from tests.log.faults.workload import run as work

GROUP = "group"
LONG_SHARE = 0.15
"""Share of the runs that write enough for a checkpoint while the log is open: by many small transactions."""


class Recording:
    """The journal of a process that opened a log several times and wrote to it."""

    def __init__(self, scene: Scene) -> None:
        rng = scene.rng
        self.stage, self.topics = scene.stage(f"recording-{scene.index}"), topics_of(rng)
        self.settings = settings_of(rng)
        is_long = rng.random() < LONG_SHARE
        workload = Workload(
            path=self.stage.path,
            topics=self.topics,
            writer=1,
            seed=f"{scene.seed} crash {scene.index}",
            settings=self.settings,
            sends=rng.randint(300, 400) if is_long else rng.randint(15, 40),
            cycles=1 if is_long else rng.randint(1, 4),
            max_payload=2000 if is_long else 300_000,
            group=GROUP,
            in_flight=1 if is_long else rng.choice((1, 8)),
            drain_s=0.3,
            crashes=rng.random() < 0.5,
        )
        journal = self.stage.folder / "journal"

        def record() -> None:
            trace.start(self.stage.path, journal)
            work(workload, Recorder(trace.mark))

        start(record, self.stage.errors).wait(WORK_S)
        self.problems = self.stage.history().problems
        self.operations = images.parse(journal.read_bytes())

    def draw(self, rng: random.Random) -> int:
        """Draw the index of the operation before which the power fails: half of them around a sync or an acknowledgement."""
        points = [index for index, operation in enumerate(self.operations) if _is_special(operation)]
        share = rng.random()
        if points and rng.random() < 0.5:
            return min(len(self.operations), max(1, points[int(share * len(points))] + rng.randint(-1, 2)))
        return 1 + int(share * len(self.operations))


def _is_special(operation: Operation) -> bool:
    return operation.code == SYNC or (operation.code == MARK and operation.data.startswith((b'["ack"', b'["committed"')))


def run(scene: Scene) -> Verdicts:
    """Record a process once, and judge many states of its disk."""
    recording = Recording(scene)
    for fault in scene.faults:
        rng, stage = scene.rng_of(fault), scene.stage(fault)
        yield fault, _judge_image(recording, stage, rng)
        stage.remove()
    recording.stage.remove()


def _judge_image(recording: Recording, stage: Stage, rng: random.Random) -> Verdict:
    point = recording.draw(rng)
    for name, content in images.image(recording.operations, point, rng).items():
        (stage.data / name).write_bytes(content)
    records = [json.loads(line) for line in images.marks(recording.operations[:point]).splitlines()]
    history = history_of(records)
    history.problems += recording.problems
    is_full = recording.settings["synchronous"] == "full"
    rules = Rules(keeps_all=True) if is_full else Rules(keeps_prefix=True, keeps_working=True)
    topics = recording.topics if "open" in history.events else {}
    files = ", ".join(f"{path.name} {path.stat().st_size}" for path in stage.files())
    verdict = judge(history, stage.inspect(topics, (GROUP,) if topics else ()), rules)
    verdict.examples = [f"{text} [synchronous={recording.settings['synchronous']}, point {point}]" for text in verdict.examples]
    verdict.examples += [f"files before reading: {files}"] if verdict.problems else []
    return verdict
