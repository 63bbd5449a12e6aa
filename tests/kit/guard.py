"""Kills Java processes and removes folders when their owner, the Python process that created them, ends.

Each owner has one guard process, in a session of its own so that Ctrl-C does not reach it. The guard waits for the end of the
owner, including kill -9. PR_SET_PDEATHSIG would need no guard, but it fires when the starting *thread* ends, and clusters are
started concurrently in threads. A process is killed only if its start time is the registered one, because the kernel reuses pids.
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

# The owner exits after this time even if the disk blocks; the guard then continues alone.
CLEAN_UP_TIMEOUT_S = 20.0
POLL_S = 0.02


def start_ticks(pid: int) -> str | None:
    """Return the start time of a process in clock ticks since boot (field 22 of /proc/PID/stat), or None if it has ended."""
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
        """Kill all processes of the session of this leader when the owner ends, even if the leader has ended before."""
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
    """Return the guard of this process. A forked child gets a guard of its own."""
    return _guard_of(os.getpid())


@functools.cache
def _guard_of(_owner: int) -> Guard:
    return Guard()


def watch(owner: int) -> None:
    """Read registrations from standard input until it is closed or the owner ends; then clean up.

    The pidfd detects the end of an owner that has forked, whose children keep the pipe open.
    """
    lines = b""
    poll = select.poll()
    poll.register(0, select.POLLIN)
    with contextlib.suppress(ProcessLookupError):  # the owner has ended already; the pipe still contains its registrations
        poll.register(os.pidfd_open(owner), select.POLLIN)
    while True:
        ready = [fd for fd, _ in poll.poll()]
        chunk = os.read(0, 65536) if 0 in ready else b""
        lines += chunk
        if not chunk:
            break
    clean_up(lines.decode().splitlines())


def clean_up(lines: list[str]) -> None:
    """Kill the registered processes, then remove the folders, in this order because processes may still write to folders."""
    for line in lines:
        word, _, rest = line.partition(" ")
        if word == "pid":
            _kill(*rest.split())
        elif word == "sid":
            leader, ticks = rest.split()
            # A session id is not reused while the session has members. So if the leader has ended, the members are still ours.
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
    """Return the processes of a kernel session, without zombies (fields 3 and 6 of /proc/PID/stat)."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            with contextlib.suppress(OSError):
                state, _, _, its_session = (entry / "stat").read_text().rpartition(")")[2].split()[:4]
                if int(its_session) == session and state != "Z":
                    found.append(int(entry.name))
    return found


def kill_session(leader: int) -> None:
    """Send SIGKILL to every process of a session until no process is left."""
    while pids := members(leader):
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(POLL_S)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # a logout may send it to every process; the guard must clean up first
    watch(int(sys.argv[1]))
