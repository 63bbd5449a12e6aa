"""Fuzz every target for some time, then check that memory does not grow; prints progress, and a summary at the end."""

import argparse
import importlib
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from tests.fuzz.worker import RSS_LIMIT_MB

SYSTEMS = ("tubemq", "pulsar", "rocketmq")
ROOT = Path(__file__).resolve().parents[2]
MORE_S = 90
"""A worker that is so much later than its time hangs."""
PROGRESS_S = 10
REPLAY_S = 3
FLAT_MB = 24
"""Growth while the same inputs are read again and again. A leak of 100 bytes per input is hundreds of MiB in that time."""
WITHOUT = """\
Nothing was fuzzed: atheris is not installed in this environment ({python}).
It has wheels for CPython 3.11 to 3.14 on x86-64 Linux; `pip install 'mqbridge[fuzz]'` gets one where there is one. Elsewhere
`pytest tests/fuzz` replays the seeds and what was found before, and the hypothesis tests damage bytes at random."""


class Outcome(NamedTuple):
    """What became of a target. `problem` is empty when all is well."""

    name: str
    seconds: float
    runs: int
    corpus: int
    peak: float
    growth: float
    problem: str


def names() -> Iterator[str]:
    """Every target."""
    for system in SYSTEMS:
        yield from importlib.import_module(f"tests.fuzz.{system}").TARGETS


def main() -> int:
    """1 when something was found, 2 when nothing could be fuzzed."""
    arguments = parse()
    if not installed():
        print(WITHOUT.format(python=f"Python {sys.version.split()[0]}, {sys.platform}"))
        return 2
    chosen = [name for name in names() if any(part in name for part in arguments.only or [""])]
    folder = arguments.folder or Path(tempfile.mkdtemp(prefix="mqbridge-fuzz-"))
    print(f"{len(chosen)} targets, {arguments.seconds} s each; corpus and finds are in {folder}", flush=True)
    outcomes = [run(name, folder / name, arguments.seconds) for name in chosen]
    summarize(outcomes)
    return int(any(outcome.problem for outcome in outcomes))


def installed() -> bool:
    """Whether there is a fuzzer."""
    try:
        import atheris  # noqa: F401
    except ImportError:
        return False
    return True


def parse() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--seconds", type=int, default=60, help="for each target (default 60)")
    parser.add_argument("--only", action="append", metavar="PART", help="targets whose name has this part; may be repeated")
    parser.add_argument("--folder", type=Path, help="keep the corpus here and go on with it; a new temporary folder by default")
    return parser.parse_args()


def run(name: str, folder: Path, seconds: int) -> Outcome:
    """Fuzz one target, then replay its corpus."""
    folder.mkdir(parents=True, exist_ok=True)
    began = time.monotonic()
    problem = work("fuzz", name, folder, seconds)
    took, fuzzed = time.monotonic() - began, numbers(folder)
    growth = 0.0
    if not problem:
        problem = work("replay", name, folder, REPLAY_S)
        growth = numbers(folder)["growth"]
        if growth > FLAT_MB:
            problem = f"memory grew by {growth:.0f} MB while the same inputs were read again"
    outcome = Outcome(name, took, int(fuzzed["runs"]), len(list((folder / "corpus").iterdir())), fuzzed["peak"], growth, problem)
    print(line(outcome), flush=True)
    return outcome


def work(mode: str, name: str, folder: Path, seconds: int) -> str:
    """Run a worker and report on it; why it failed, or nothing."""
    argv = [sys.executable, "-m", "tests.fuzz.worker", mode, name, str(folder), str(seconds)]
    with (folder / f"{mode}.log").open("w+b") as log:
        process = subprocess.Popen(argv, cwd=ROOT, stdout=log, stderr=log)
        try:
            wait(process, name, folder, seconds)
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()
        log.seek(0)
        output = log.read().decode(errors="replace")
    return "" if process.returncode == 0 else failure_text(process.returncode, output, folder)


def wait(process: "subprocess.Popen[bytes]", name: str, folder: Path, seconds: int) -> None:
    """Until it ends or has hung for too long; a line of progress now and then."""
    end = time.monotonic() + seconds + MORE_S
    while time.monotonic() < end:
        try:
            process.wait(PROGRESS_S)
        except subprocess.TimeoutExpired:
            now = numbers(folder)
            print(f"  {name}: {now['runs']:,.0f} inputs, {now['rss']:.0f} MB", flush=True)
        else:
            return


def numbers(folder: Path) -> dict[str, float]:
    """Return the last lines of the worker's output."""
    path = folder / "status.json"
    known: dict[str, float] = json.loads(path.read_text()) if path.exists() else {"runs": 0, "rss": 0, "peak": 0, "growth": 0}
    return known


def failure_text(status: int, output: str, folder: Path) -> str:
    """Return the end of a failed worker's output, and the bytes that made it fail."""
    found = sorted((folder / "found").glob("*"), key=lambda path: path.stat().st_mtime)
    inputs = f"\n  input {found[-1]}: {found[-1].read_bytes()[:300].hex()}" if found else ""
    start = max(output.rfind("Uncaught Python exception"), output.rfind("Traceback"), 0)
    return f"exit status {status}{inputs}\n  " + "\n  ".join(output[start:].strip().splitlines()[-25:])


def line(one: Outcome) -> str:
    """A row of the summary."""
    result = "FAILED" if one.problem else "ok"
    speed = one.runs / max(one.seconds, 1e-9)
    memory = f"peak {one.peak:4.0f} MB of {RSS_LIMIT_MB}, replay {one.growth:+5.1f} MB"
    return f"{one.name:18} {one.runs:>10,} inputs {speed:>7,.0f}/s  corpus {one.corpus:>5}  {memory}  {result}"


def summarize(outcomes: list[Outcome]) -> None:
    """Print all rows again, and every finding in full."""
    print("\nsummary")
    for one in outcomes:
        print(f"  {line(one)}")
    for one in outcomes:
        if one.problem:
            print(f"\n{one.name}: {one.problem}")
    failed = sum(bool(one.problem) for one in outcomes)
    print(f"\n{len(outcomes) - failed} of {len(outcomes)} targets let out nothing but protocol errors, in bounded memory")


if __name__ == "__main__":
    sys.exit(main())
