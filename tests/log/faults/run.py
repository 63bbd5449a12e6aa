"""Executes all faults of a run in several worker processes."""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import queue
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO

from tests.log.faults.judge import Verdict
from tests.log.faults.report import Result
from tests.log.faults.schedule import Job

PROGRESS_S = 10.0
SHARED_MEMORY = Path("/dev/shm")
MIN_FREE_BYTES = 2 << 30


def temporary_folder() -> Path:
    """Return a new folder: in memory if there is room, because most faults sync files very often."""
    is_roomy = SHARED_MEMORY.is_dir() and os.access(SHARED_MEMORY, os.W_OK)
    if is_roomy:
        status = os.statvfs(SHARED_MEMORY)
        is_roomy = status.f_bavail * status.f_frsize >= MIN_FREE_BYTES
    return Path(tempfile.mkdtemp(prefix="mqbridge-faults-", dir=SHARED_MEMORY if is_roomy else None))


def run(
    jobs: Sequence[Job],
    folder: Path,
    library: Path | None,
    workers: int,
    say: Callable[[str], None],
    on_result: Callable[[Result], None] = lambda _: None,
    *,
    keeps: bool = False,
) -> list[Result]:
    """Execute the jobs; `library` is that of `trace`, None without a compiler. `keeps`: the files of all faults are kept."""
    waiting: queue.SimpleQueue[Job] = queue.SimpleQueue()
    finished: queue.SimpleQueue[Result | None] = queue.SimpleQueue()
    for job in jobs:
        waiting.put(job)
    threads = [
        threading.Thread(
            target=_serve, args=([str(folder / f"worker-{index}"), *(["keep"] if keeps else [])], library, waiting, finished)
        )
        for index in range(workers)
    ]
    for thread in threads:
        thread.start()
    results = _collect(finished, len(threads), sum(len(job.faults) for job in jobs), say, on_result)
    for thread in threads:
        thread.join()
    return sorted(results, key=lambda result: (result.kind, result.fault))


def _collect(
    finished: queue.SimpleQueue[Result | None],
    workers: int,
    faults: int,
    say: Callable[[str], None],
    on_result: Callable[[Result], None],
) -> list[Result]:
    """Return the results of all workers; tell the progress now and then."""
    results: list[Result] = []
    began = said = time.monotonic()
    while workers:
        result = finished.get()
        if result is None:
            workers -= 1
            continue
        results.append(result)
        on_result(result)
        if (now := time.monotonic()) - said >= PROGRESS_S:
            said = now
            failed = sum(bool(each.verdict.problems) for each in results)
            say(f"{now - began:6.1f} s  {len(results)} of {faults} faults, {failed} failed")
    return results


def _serve(
    arguments: list[str], library: Path | None, waiting: queue.SimpleQueue[Job], finished: queue.SimpleQueue[Result | None]
) -> None:
    """Let one worker process with these arguments execute jobs until there are none."""
    environment = os.environ | ({"LD_PRELOAD": str(library)} if library else {})
    command = [sys.executable, "-m", "tests.log.faults.worker", *arguments]
    try:
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment) as worker:
            assert worker.stdin is not None
            assert worker.stdout is not None
            with contextlib.suppress(queue.Empty, BrokenPipeError):  # no more jobs; the worker has ended: the others go on
                while True:
                    job = waiting.get_nowait()
                    worker.stdin.write(json.dumps(job).encode() + b"\n")
                    worker.stdin.flush()
                    _receive(worker.stdout, job, finished)
    finally:
        finished.put(None)


def _receive(stream: IO[bytes], job: Job, finished: queue.SimpleQueue[Result | None]) -> None:
    """Pass the results of a job on."""
    missing = set(job.faults)
    while (result := _load(stream)) is not None:
        missing.discard(result.fault)
        finished.put(result)
    for fault in missing:
        verdict = Verdict()
        verdict.problem("the fault itself failed: its worker ended, see above")
        finished.put(Result(job.kind, job.seed, fault, 0.0, verdict))


def _load(stream: IO[bytes]) -> Result | None:
    """Return the next result of a worker; None after the last one of a job, and if the worker has ended."""
    try:
        result: Result | None = pickle.load(stream)
    except EOFError:
        return None
    return result
