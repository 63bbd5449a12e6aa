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

SYSTEMS = ("tubemq", "pulsar", "rocketmq", "servers", "rocketmq_server", "tubemq_server")
ROOT = Path(__file__).resolve().parents[2]
GRACE_S = 90
"""A worker that ends this much later than requested counts as hanging."""
PROGRESS_S = 10
REPLAY_S = 3
MAX_GROWTH_MB = 24
"""Allowed growth while the same inputs are decoded repeatedly. A leak of 100 bytes per input grows by hundreds of MiB."""
NOT_INSTALLED = """\
Nothing was fuzzed: atheris is not installed in this environment ({python}).
It has wheels for CPython 3.11 to 3.14 on x86-64 Linux; `pip install 'mqbridge[fuzz]'` gets it there. Elsewhere
`pytest tests/fuzz` replays the seeds and what was found before, and the hypothesis tests damage bytes at random."""


class Outcome(NamedTuple):
    """The result of fuzzing a target; `problem` is empty if nothing was found."""

    name: str
    seconds: float
    runs: int
    corpus: int
    peak: float
    growth: float
    problem: str


def names() -> Iterator[str]:
    """Yield the names of all targets."""
    for system in SYSTEMS:
        yield from importlib.import_module(f"tests.fuzz.{system}").TARGETS


def main() -> int:
    """Fuzz the chosen targets; return 1 if something was found, 2 if atheris is not installed."""
    arguments = parse()
    if not installed():
        print(NOT_INSTALLED.format(python=f"Python {sys.version.split()[0]}, {sys.platform}"))
        return 2
    chosen = [name for name in names() if any(part in name for part in arguments.only or [""])]
    folder = arguments.folder or Path(tempfile.mkdtemp(prefix="mqbridge-fuzz-"))
    print(f"{len(chosen)} targets, {arguments.seconds} s each; corpus and finds are in {folder}", flush=True)
    outcomes = [run(name, folder / name, arguments.seconds) for name in chosen]
    summarize(outcomes)
    return int(any(outcome.problem for outcome in outcomes))


def installed() -> bool:
    """Return whether atheris is installed."""
    try:
        import atheris  # noqa: F401
    except ImportError:
        return False
    return True


def parse() -> argparse.Namespace:
    """Parse the command line."""
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
        if growth > MAX_GROWTH_MB:
            problem = f"memory grew by {growth:.0f} MB while the same inputs were read again"
    outcome = Outcome(name, took, int(fuzzed["runs"]), len(list((folder / "corpus").iterdir())), fuzzed["peak"], growth, problem)
    print(line(outcome), flush=True)
    return outcome


def work(mode: str, name: str, folder: Path, seconds: int) -> str:
    """Run a worker; return why it failed, or an empty text."""
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
    """Wait until the worker ends or hangs for too long; print its progress every PROGRESS_S."""
    end = time.monotonic() + seconds + GRACE_S
    while time.monotonic() < end:
        try:
            process.wait(PROGRESS_S)
        except subprocess.TimeoutExpired:
            now = numbers(folder)
            print(f"  {name}: {now['runs']:,.0f} inputs, {now['rss']:.0f} MB", flush=True)
        else:
            return


def numbers(folder: Path) -> dict[str, float]:
    """Return the numbers that the worker last wrote to its status file."""
    path = folder / "status.json"
    status: dict[str, float] = json.loads(path.read_text()) if path.exists() else {"runs": 0, "rss": 0, "peak": 0, "growth": 0}
    return status


def failure_text(status: int, output: str, folder: Path) -> str:
    """Return the end of a failed worker's output, and the bytes that made it fail."""
    found = sorted((folder / "found").glob("*"), key=lambda path: path.stat().st_mtime)
    inputs = f"\n  input {found[-1]}: {found[-1].read_bytes()[:300].hex()}" if found else ""
    start = max(output.rfind("Uncaught Python exception"), output.rfind("Traceback"), 0)
    return f"exit status {status}{inputs}\n  " + "\n  ".join(output[start:].strip().splitlines()[-25:])


def line(outcome: Outcome) -> str:
    """Return a row of the summary."""
    result = "FAILED" if outcome.problem else "ok"
    speed = outcome.runs / max(outcome.seconds, 1e-9)
    memory = f"peak {outcome.peak:4.0f} MB of {RSS_LIMIT_MB}, replay {outcome.growth:+5.1f} MB"
    return f"{outcome.name:18} {outcome.runs:>10,} inputs {speed:>7,.0f}/s  corpus {outcome.corpus:>5}  {memory}  {result}"


def summarize(outcomes: list[Outcome]) -> None:
    """Print all rows again, and every finding in full."""
    print("\nsummary")
    for outcome in outcomes:
        print(f"  {line(outcome)}")
    for outcome in outcomes:
        if outcome.problem:
            print(f"\n{outcome.name}: {outcome.problem}")
    failed = sum(bool(outcome.problem) for outcome in outcomes)
    print(f"\n{len(outcomes) - failed} of {len(outcomes)} targets let out nothing but protocol errors, in bounded memory")


if __name__ == "__main__":
    sys.exit(main())
