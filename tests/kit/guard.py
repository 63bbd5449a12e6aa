"""Nothing outlives its owner: kills Java processes and removes folders when the owning process ends.

A Python process that starts servers keeps one guard: a small process in a session of its own (Ctrl-C does not
reach it) that waits for the owner's end, however it comes, kill -9 included. PR_SET_PDEATHSIG would do it
without a helper, but it fires when the starting *thread* ends, and clusters are started side by side in threads.
A pid is killed only while its start time is the one that was registered, so a number used again is left alone.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import os
import select
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

# A blocked disk must not hang the owner's exit; the guard continues by itself.
CLEAN_UP_TIMEOUT_S = 20.0
POLL_S = 0.02


def start_ticks(pid: int) -> str | None:
    """Start time of a process in clock ticks since boot, None when it is gone (field 22 of /proc/PID/stat)."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    return stat.rpartition(")")[2].split()[19]


class Guard:
    """The owner's end of the pipe to its guard process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process = subprocess.Popen(
            [sys.executable, "-I", __file__, str(os.getpid())], stdin=subprocess.PIPE, start_new_session=True, cwd="/"
        )
        atexit.register(self.close)

    def process(self, pid: int) -> None:
        """Kill this process (SIGKILL) when the owner ends."""
        self._write(f"pid {pid} {start_ticks(pid)}\n")

    def session(self, pid: int) -> None:
        """Kill every process of the session that this process leads when the owner ends, also when it ended before."""
        self._write(f"sid {pid} {start_ticks(pid)}\n")

    def folder(self, path: Path) -> None:
        """Remove this folder when the owner ends."""
        self._write(f"dir {path.resolve()}\n")

    def close(self) -> None:
        """Clean up now and wait for it."""
        with self._lock:
            if self._process.stdin is not None and not self._process.stdin.closed:
                self._process.stdin.close()
        self._process.wait(CLEAN_UP_TIMEOUT_S)

    def _write(self, line: str) -> None:
        with self._lock:
            assert self._process.stdin is not None
            self._process.stdin.write(line.encode())
            self._process.stdin.flush()


def guard() -> Guard:
    """The guard of this process (a forked child gets its own)."""
    return _guard_of(os.getpid())


@functools.cache
def _guard_of(_owner: int) -> Guard:
    return Guard()


def watch(owner: int) -> None:
    """Read from standard input what to clean up, until it closes or the owner ends; then clean up.

    The pidfd is there for an owner that forked: its children hold the pipe open after its end.
    """
    lines = b""
    poll = select.poll()
    poll.register(0, select.POLLIN)
    with contextlib.suppress(ProcessLookupError):  # ended already: the pipe holds what it registered, then its end
        poll.register(os.pidfd_open(owner), select.POLLIN)
    while True:
        ready = [fd for fd, _ in poll.poll()]
        chunk = os.read(0, 65536) if 0 in ready else b""
        lines += chunk
        if not chunk:
            break
    clean_up(lines.decode().splitlines())


def clean_up(lines: list[str]) -> None:
    """Processes first, so that none writes into a folder that is being removed."""
    for line in lines:
        word, _, rest = line.partition(" ")
        if word == "pid":
            _kill(*rest.split())
        elif word == "sid":
            leader, ticks = rest.split()
            # The number of a session is not used again while a member lives, so those whose leader has ended are ours too.
            if start_ticks(int(leader)) in {None, ticks}:
                kill_session(int(leader))
    for line in lines:
        word, _, rest = line.partition(" ")
        if word == "dir":
            shutil.rmtree(rest, ignore_errors=True)


def _kill(pid: str, ticks: str) -> None:
    if start_ticks(int(pid)) == ticks:
        os.kill(int(pid), signal.SIGKILL)


def members(session: int) -> list[int]:
    """Processes of a session of the kernel, zombies left out (fields 3 and 6 of /proc/PID/stat)."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            with contextlib.suppress(OSError):
                state, _, _, its_session = (entry / "stat").read_text().rpartition(")")[2].split()[:4]
                if int(its_session) == session and state != "Z":
                    found.append(int(entry.name))
    return found


def kill_session(leader: int) -> None:
    """SIGKILL to every process of a session, until none is left."""
    while left := members(leader):
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(POLL_S)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # a logout signals whole sessions; the guard goes last
    watch(int(sys.argv[1]))
