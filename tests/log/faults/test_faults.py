"""A few faults of each kind, with fixed seeds; `make log-faults` has many."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.log.faults import report, schedule, trace
from tests.log.faults.report import Result
from tests.log.faults.run import run, temporary_folder
from tests.log.faults.scene import Scene
from tests.log.faults.schedule import BY_NAME, Job

SEED = 4
FAULTS = {"kill": 2, "crash": 15, "full": 2, "bits": 15, "files": 3, "clocks": 2, "stopped": 2}


@pytest.fixture(scope="module")
def results() -> Iterator[list[Result]]:
    """The results of all faults; without a C compiler, some kinds have none."""
    folder = temporary_folder()
    library = trace.compile_library(folder)
    kinds = [kind for kind in FAULTS if library or not BY_NAME[kind].needs_trace]
    jobs = [job for kind in kinds for job in schedule.draw(SEED, FAULTS[kind], [kind])]
    yield run(jobs, folder, library, 2, print)
    shutil.rmtree(folder, ignore_errors=True)


@pytest.mark.parametrize("kind", BY_NAME)
def test_a_log_withstands_faults(kind: str, results: list[Result]) -> None:
    found = [result for result in results if result.kind == kind]
    if not found and BY_NAME[kind].needs_trace:
        pytest.skip("needs a C compiler")
    assert len(found) == FAULTS[kind]
    assert not [result for result in found if result.verdict.problems], "\n".join(report.failures(found))


def test_a_run_contains_the_single_fault() -> None:
    jobs = schedule.draw(7, 1000)
    assert sum(len(job.faults) for job in jobs) == 1000
    assert {job.kind for job in jobs} == BY_NAME.keys()
    for kind in BY_NAME:
        numbers = [fault for job in jobs if job.kind == kind for fault in job.faults]
        assert numbers == list(range(len(numbers)))
        single = schedule.single(7, kind, numbers[-1])
        assert any(job[:3] == single[:3] and single.faults[0] in job.faults for job in jobs)


def test_a_fault_is_the_same_in_each_run(tmp_path: Path) -> None:
    first, second = (Scene(*Job("bits", 7, 2, [50, 51]), tmp_path) for _ in range(2))
    assert first.rng.random() == second.rng.random()
    assert first.rng_of(50).random() == second.rng_of(50).random() != second.rng_of(51).random()
