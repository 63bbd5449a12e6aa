"""A process that executes faults: it reads jobs from standard input, and writes the verdicts to standard output."""

from __future__ import annotations

import importlib
import itertools
import json
import os
import pickle
import sys
import time
import traceback
from collections.abc import Iterator
from pathlib import Path

from tests.log.faults.judge import Verdict
from tests.log.faults.report import Result
from tests.log.faults.scene import Scene
from tests.log.faults.schedule import Job


def execute(job: Job, folder: Path, *, keeps: bool) -> Iterator[Result]:
    """Execute a job; yield the result of each of its faults."""
    missing = list(job.faults)
    began = time.monotonic()
    try:
        module = importlib.import_module(f"tests.log.faults.kinds.{job.kind}")
        for fault, verdict in module.run(Scene(job.kind, job.seed, job.scene, job.faults, folder, keeps)):
            missing.remove(fault)
            yield Result(job.kind, job.seed, fault, time.monotonic() - began, verdict)
            began = time.monotonic()
    except Exception as error:  # noqa: BLE001 - the other jobs are executed
        traceback.print_exc()
        verdict = Verdict()
        verdict.problem(f"the fault itself failed: {type(error).__name__}: {error}")
        yield from (Result(job.kind, job.seed, fault, time.monotonic() - began, verdict) for fault in missing)


def main() -> None:
    """Execute jobs until standard input ends; write the results of each, and None after the last one."""
    folder, keeps = Path(sys.argv[1]), "keep" in sys.argv[2:]
    folder.mkdir(parents=True, exist_ok=True)
    results = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # whatever is printed goes to standard error
    for line in sys.stdin:
        for result in itertools.chain(execute(Job(*json.loads(line)), folder, keeps=keeps), [None]):
            pickle.dump(result, results)
            results.flush()


if __name__ == "__main__":
    main()
