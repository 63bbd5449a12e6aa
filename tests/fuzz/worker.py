"""Run one target in a process of its own: under the fuzzer, or with its corpus repeatedly to see if memory grows.

Both leave numbers in a status file as they go, because the fuzzer ends its process without returning.
"""

import gc
import hashlib
import json
import os
import sys
import time
from collections.abc import Callable
from importlib import import_module
from pathlib import Path

from tests.fuzz.target import MAX_INPUT_BYTES, Choice, Target

RSS_LIMIT_MB = 1024
"""The largest of our limits on unpacked bytes is 256 MiB; its message objects, the copy being made and the fuzzer come on top."""
HANG_S = 20
"""Limit of one input. All inputs take milliseconds; the fuzzer's instrumentation multiplies that."""
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
WARM_ROUNDS = 3
"""Repetitions until caches are full and the allocator has its arenas."""


def target_of(name: str) -> Target:
    """Return a target by its name, `system-decoder`."""
    targets: dict[str, Target] = import_module(f"tests.fuzz.{name.partition('-')[0]}").TARGETS
    return targets[name]


def rss_mb() -> float:
    """Return the resident memory of this process."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * PAGE_BYTES / (1 << 20)


class Status:
    """Counters for the parent process, written at most once a second."""

    def __init__(self, folder: Path) -> None:
        self._path, self._due = folder / "status.json", 0.0
        self.numbers: dict[str, float] = {"runs": 0, "rss": 0.0, "peak": 0.0, "growth": 0.0}

    def ran(self) -> None:
        """Count one more input."""
        self.numbers["runs"] += 1
        if time.monotonic() >= self._due:
            self.write()

    def write(self) -> None:
        """Write the numbers to the status file."""
        self._due = time.monotonic() + 1.0
        now = rss_mb()
        self.numbers |= {"rss": now, "peak": max(now, self.numbers["peak"])}
        self._path.with_suffix(".new").write_text(json.dumps(self.numbers))
        self._path.with_suffix(".new").replace(self._path)


def fuzz(name: str, folder: Path, seconds: int) -> None:
    """Fuzz until the time is up or something is found; does not return."""
    import atheris

    with atheris.instrument_imports(include=["mqbridge", "tests.fuzz"]):
        target = target_of(name)
    if isinstance(target.read, Choice):
        target = target._replace(read=target.read.each(atheris.instrument_func))
    corpus, found = folder / "corpus", folder / "found"
    for directory in (corpus, found):
        directory.mkdir(parents=True, exist_ok=True)
    for seed in target.seeds:
        (corpus / hashlib.sha1(seed, usedforsecurity=False).hexdigest()).write_bytes(seed)
    status = Status(folder)

    def test_one_input(data: bytes) -> None:
        try:
            target(data)
        except BaseException:
            status.write()
            raise
        status.ran()

    options = {
        "max_total_time": seconds, "max_len": MAX_INPUT_BYTES, "rss_limit_mb": RSS_LIMIT_MB, "timeout": HANG_S,
        "artifact_prefix": f"{found}/", "verbosity": 0,
    }  # fmt: skip
    atheris.Setup([name, *(f"-{option}={value}" for option, value in options.items()), str(corpus)], test_one_input)
    atheris.Fuzz()


def replay(name: str, folder: Path, seconds: int) -> None:
    """Decode the whole corpus repeatedly; a leak shows as growth of memory."""
    target, status = target_of(name), Status(folder)
    inputs = [path.read_bytes() for path in sorted((folder / "corpus").iterdir())]
    rounds(lambda: [target(data) for data in inputs], WARM_ROUNDS)
    before, end = rss_mb(), time.monotonic() + seconds
    done = 0
    while time.monotonic() < end or done < WARM_ROUNDS:
        rounds(lambda: [target(data) for data in inputs], 1)
        done += 1
    status.numbers |= {"runs": done * len(inputs), "growth": rss_mb() - before}
    status.write()


def rounds(once: Callable[[], object], count: int) -> None:
    """Call `once` `count` times, then collect garbage."""
    for _ in range(count):
        once()
    gc.collect()


if __name__ == "__main__":
    os.nice(10)
    {"fuzz": fuzz, "replay": replay}[sys.argv[1]](sys.argv[2], Path(sys.argv[3]), int(sys.argv[4]))
