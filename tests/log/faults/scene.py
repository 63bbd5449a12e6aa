"""The place of one or more faults: folders, random numbers, and the way from a log after a fault to a verdict."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tests.log.faults.children import Child, Died, Hang, call, start
from tests.log.faults.history import History, Recorder, history_of, read_records
from tests.log.faults.inspection import Observation, inspect
from tests.log.faults.judge import Rules, Verdict, judge
from tests.log.faults.workload import Workload, run

NAME = "log.db"
INSPECTION_S = 60.0
WORK_S = 60.0
"""Time after which a process hangs."""


@dataclass(frozen=True)
class Scene:
    """Faults of one kind that share what was prepared for them."""

    kind: str
    seed: int
    index: int
    faults: Sequence[int]
    """Numbers of the faults, within their kind."""
    folder: Path
    keeps: bool = False
    """Keep the files as they were after each fault, before they were read."""

    @property
    def rng(self) -> random.Random:
        """Random numbers for what the faults share."""
        return random.Random(f"{self.seed} {self.kind} scene {self.index}")

    def rng_of(self, fault: int) -> random.Random:
        """Random numbers of one fault."""
        return random.Random(f"{self.seed} {self.kind} {fault}")

    def stage(self, name: object) -> Stage:
        """Make an empty folder for a log."""
        folder = self.folder / f"{self.kind}-{name}"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        return Stage(folder, self.keeps)


@dataclass(frozen=True)
class Stage:
    """The folder of one log and of the records of its processes."""

    folder: Path
    keeps: bool = False

    @property
    def data(self) -> Path:
        """The folder of the log's files, which contains nothing else."""
        (self.folder / "data").mkdir(exist_ok=True)
        return self.folder / "data"

    @property
    def path(self) -> Path:
        """The database."""
        return self.data / NAME

    @property
    def errors(self) -> Path:
        """The standard error of all processes."""
        return self.folder / "errors.txt"

    def files(self) -> list[Path]:
        """Return the files of the log that exist now."""
        return sorted(self.data.glob(f"{NAME}*"))

    def start(self, workload: Workload, before: Callable[[], object] | None = None) -> Child:
        """Start a process; `before` runs in it first."""
        workload = replace(workload, path=workload.path if workload.path.is_absolute() else self.path)

        def work() -> None:
            if before is not None:
                before()
            run(workload, Recorder.to_file(self.folder / f"records-{workload.writer}.jsonl"))

        return start(work, self.errors)

    def history(self) -> History:
        """Return what all processes have recorded."""
        history = history_of(read_records(sorted(self.folder.glob("records-*.jsonl"))))
        if self.errors.exists() and (text := self.errors.read_text(errors="replace").strip()):
            history.problems.append(f"process failed: {text.splitlines()[-1]}")
        return history

    def inspect(
        self,
        topics: Mapping[int, int],
        groups: Sequence[str] = (),
        settings: Mapping[str, Any] | None = None,
        prepare: Callable[[], object] = lambda: None,
    ) -> Observation:
        """Read the log in a fresh process. A hang or the end of this process is one of the observed problems."""

        def observe() -> Observation:
            prepare()
            return inspect(self.path, settings or {}, topics, groups)

        if self.keeps:
            shutil.copytree(self.data, self.folder / "before")
        try:
            return call(observe, self.errors, INSPECTION_S)
        except Hang as error:
            return Observation(error=str(error), problems=[f"hang: {error}"])
        except Died as error:
            return Observation(error=str(error), problems=[f"process died: {error}"])

    def verdict(
        self,
        topics: Mapping[int, int],
        rules: Rules,
        groups: Sequence[str] = (),
        settings: Mapping[str, Any] | None = None,
        problems: Sequence[str] = (),
    ) -> Verdict:
        """Read the log, and judge it; `problems` were seen before."""
        history = self.history()
        history.problems += problems
        return judge(history, self.inspect(topics, groups, settings), rules)

    def remove(self) -> None:
        """Remove the folder, unless it is kept."""
        if not self.keeps:
            shutil.rmtree(self.folder, ignore_errors=True)


Verdicts = Iterator[tuple[int, Verdict]]
"""Number and verdict of each fault of a scene."""


def wait_for(child: Child, problems: list[str], seconds: float = WORK_S) -> int:
    """Wait until a process ends by itself; a hang is a problem. Return its exit code."""
    try:
        return child.wait(seconds)
    except Hang as error:
        problems.append(f"hang: {error}")
        return -9


def settings_of(rng: random.Random, **fixed: Any) -> dict[str, Any]:
    """Draw settings of a log."""
    return {"synchronous": rng.choice(("full", "normal")), **fixed}


def topics_of(rng: random.Random) -> dict[int, int]:
    """Draw the numbers of partitions of one to three topics."""
    return {topic: rng.randint(1, 3) for topic in range(rng.randint(1, 3))}
