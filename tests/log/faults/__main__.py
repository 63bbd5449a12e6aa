"""`make log-faults`: random storage faults for the embedded log, and a judge that reads what is left.

python -m tests.log.faults --seed 7 --faults 1000
python -m tests.log.faults --seed 7 --faults 200 --only bits,files     only these kinds of faults
python -m tests.log.faults --seed 7 --only bits --fault 17             repeat one fault
python -m tests.log.faults --seed 7 --faults 50 --verbose              tell every failure at once
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import time
from pathlib import Path

from tests.log.faults import report, schedule, trace
from tests.log.faults.run import run, temporary_folder


def parser() -> argparse.ArgumentParser:
    """The command line."""
    top = argparse.ArgumentParser(
        prog="python -m tests.log.faults", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    top.add_argument("--seed", type=int, default=None, help="default: the current time")
    top.add_argument("--faults", type=int, default=1000, help="the number of faults (1000)")
    top.add_argument("--only", type=_kinds, default=(), help=f"one or more of {', '.join(schedule.BY_NAME)}")
    top.add_argument("--fault", type=int, default=None, help="only the fault with this number; requires one kind in --only")
    top.add_argument("--workers", type=int, default=os.cpu_count() or 2, help="processes that execute faults")
    top.add_argument("--folder", type=Path, default=None, help="keep the files of all faults in this folder")
    top.add_argument("--verbose", action="store_true", help="tell every failure at once")
    return top


def main() -> None:
    """Execute the faults; exit with 1 if one failed."""
    arguments = parser().parse_args()
    if arguments.fault is not None and len(arguments.only) != 1:
        parser().error("--fault requires one kind in --only")
    seed = int(time.time()) if arguments.seed is None else arguments.seed
    folder = (arguments.folder or temporary_folder()).resolve()
    folder.mkdir(parents=True, exist_ok=True)
    began = time.monotonic()
    try:
        library = trace.compile_library(folder)
        jobs = schedule.draw(seed, arguments.faults, arguments.only, can_trace=library is not None)
        if arguments.fault is not None:
            jobs = [schedule.single(seed, arguments.only[0], arguments.fault)]
        if library is None:
            skipped = ", ".join(kind.name for kind in schedule.KINDS if kind.needs_trace)
            _say(f"no C compiler: skipping {skipped}")
        _say(f"seed {seed}, {sum(len(job.faults) for job in jobs)} faults, {arguments.workers} workers, logs in {folder}")
        on_result = _tell if arguments.verbose else lambda _: None
        workers = min(arguments.workers, len(jobs))
        results = run(jobs, folder, library, workers, _say, on_result, keeps=arguments.folder is not None)
    finally:
        if arguments.folder is None:
            shutil.rmtree(folder, ignore_errors=True)
    failed = [result for result in results if result.verdict.problems]
    print("\n".join(report.failures(results)))
    print("\n".join(report.table(results)))
    _say(f"seed {seed}: {'FAILED' if failed else 'passed'}, {len(results)} faults, {time.monotonic() - began:.0f} s")
    sys.exit(1 if failed else 0)


def _tell(result: report.Result) -> None:
    if result.verdict.problems:
        _say("\n".join(report.failure(result)))


def _say(text: str) -> None:
    print(text, flush=True)


def _kinds(text: str) -> tuple[str, ...]:
    chosen = tuple(filter(None, text.split(",")))
    if unknown := set(chosen) - schedule.BY_NAME.keys():
        raise argparse.ArgumentTypeError(f"{', '.join(sorted(unknown))}: not one of {', '.join(schedule.BY_NAME)}")
    return chosen


if __name__ == "__main__":
    main()
