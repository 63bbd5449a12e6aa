"""System calls of a running process by name: counted by perf, or where that cannot by strace, which slows the process down."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
from pathlib import Path

NAMES = (
    "read", "readv", "recvfrom", "recvmsg", "write", "writev", "sendto", "sendmsg", "epoll_wait", "epoll_pwait", "epoll_ctl",
    "io_uring_enter", "futex", "mmap", "munmap", "mremap", "madvise", "brk", "clock_nanosleep", "getpid",
)  # fmt: skip
"""System calls with their own counter; the others share one, because perf needs 30 ms to remove a counter."""
ALL = "raw_syscalls:sys_enter"
_EACH = "syscalls:sys_enter_"
_TRACED = re.compile(r"^\s*[\d.]+\s+[\d.]+\s+\d+\s+(?P<calls>\d+)\s+(?:\d+\s+)?(?P<name>\w+)$", re.MULTILINE)
_STOP_S = 60


class Perf:
    """Counts system calls by perf from `start` to `stop`; created earlier, because perf needs time to start."""

    name = "perf"

    def __init__(self, pid: int, folder: Path) -> None:
        self._file, self._orders, self._answers = folder / "calls", folder / "orders", folder / "answers"
        for pipe in (self._orders, self._answers):
            os.mkfifo(pipe)
        argv = ["perf", "stat", "-x,", "-e", _events(), "-o", str(self._file), "-p", str(pid), "--delay=-1"]
        argv.append(f"--control=fifo:{self._orders},{self._answers}")
        self._process = subprocess.Popen(argv, stderr=subprocess.DEVNULL)

    def _order(self, word: str) -> None:
        with self._orders.open("wb", buffering=0) as orders, self._answers.open("rb", buffering=0) as answers:
            orders.write(f"{word}\n".encode())
            answers.read(len("ack\n"))

    def start(self) -> None:
        """Start counting."""
        self._order("enable")

    def stop(self) -> None:
        """Stop counting."""
        self._order("disable")

    def calls(self) -> dict[str, int]:
        """Return the counts by name, the most frequent first."""
        self._process.send_signal(signal.SIGINT)
        self._process.wait(_STOP_S)
        return read_perf(self._file.read_text())


class Strace:
    """Counts system calls by strace, with the interface of Perf."""

    name = "strace"

    def __init__(self, pid: int, folder: Path) -> None:
        self._pid, self._file = pid, folder / "calls"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start counting."""
        argv = ["strace", "-c", "-f", "-o", str(self._file), "-p", str(self._pid)]
        self._process = subprocess.Popen(argv, stderr=subprocess.DEVNULL)

    def stop(self) -> None:
        """Stop counting."""
        assert self._process is not None
        self._process.send_signal(signal.SIGINT)
        self._process.wait(_STOP_S)

    def calls(self) -> dict[str, int]:
        """Return the counts by name, the most frequent first."""
        return read_strace(self._file.read_text())


def counter(pid: int, folder: Path) -> Perf | Strace:
    """Return Perf if it is installed and may count system calls, otherwise Strace."""
    argv = ["perf", "stat", "-e", ALL, "true"]
    able = shutil.which("perf") is not None and subprocess.run(argv, capture_output=True, check=False).returncode == 0
    return Perf(pid, folder) if able else Strace(pid, folder)


def _events() -> str:
    return ",".join([ALL, *(_EACH + name for name in NAMES)])


def read_perf(text: str) -> dict[str, int]:
    """Parse the output of `perf stat -x,`: a line `COUNT,,EVENT,...` per event; events without a name count as `others`."""
    rows = [line.split(",") for line in text.splitlines() if "sys_enter" in line]
    counts = {row[2]: int(row[0]) for row in rows if row[0].isdigit()}
    every = counts.pop(ALL)
    named = {event.removeprefix(_EACH): count for event, count in counts.items()}
    return _sorted(named | {"others": every - sum(named.values())})


def read_strace(text: str) -> dict[str, int]:
    """Parse the output of `strace -c`: a table with a line per system call."""
    return _sorted({found["name"]: int(found["calls"]) for found in _TRACED.finditer(text) if found["name"] != "total"})


def _sorted(counts: dict[str, int]) -> dict[str, int]:
    return {name: count for name, count in sorted(counts.items(), key=lambda item: -item[1]) if count}
