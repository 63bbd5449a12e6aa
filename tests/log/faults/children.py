"""Child processes: forked from a process without threads that has imported everything, so that each starts in milliseconds."""

from __future__ import annotations

import logging
import os
import pickle
import select
import signal
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn, TypeVar

T = TypeVar("T")
POLL_S = 0.003


class Hang(Exception):
    """A child process did not end before its deadline."""


class Died(Exception):
    """A child process ended without a result."""


class Child:
    """A forked process."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.status: int | None = None
        """Exit code, negative for a signal; None while the process lives."""

    def is_stopped(self) -> bool:
        """Return True if a signal has stopped the process since the last call."""
        if self.status is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG | os.WUNTRACED)
            if pid and os.WIFSTOPPED(status):
                return True
            if pid:
                self.status = os.waitstatus_to_exitcode(status)
        return False

    def is_alive(self) -> bool:
        """Return True while the process has not ended."""
        if self.status is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.status = os.waitstatus_to_exitcode(status)
        return self.status is None

    def wait(self, seconds: float) -> int:
        """Return the exit code. Raises Hang after `seconds`, and kills the process."""
        deadline = time.monotonic() + seconds
        while self.is_alive():
            if time.monotonic() > deadline:
                self.kill()
                raise Hang(f"a process did not end within {seconds:g} s")
            time.sleep(POLL_S)
        assert self.status is not None
        return self.status

    def signal(self, number: int) -> None:
        """Send a signal if the process lives."""
        if self.is_alive():
            os.kill(self.pid, number)

    def kill(self) -> None:
        """End the process at once."""
        if self.is_alive():
            os.kill(self.pid, signal.SIGKILL)
            self.status = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])


def start(function: Callable[[], object], errors: Path) -> Child:
    """Run a function in a forked process; its standard error goes to a file."""
    sys.stdout.flush()
    pid = os.fork()
    if pid == 0:
        _run(function, errors)
    return Child(pid)


def _run(function: Callable[[], object], errors: Path) -> NoReturn:
    """Run a function as the whole of a forked process."""
    code = 1
    try:
        descriptor = os.open(errors, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.dup2(descriptor, 1)
        os.dup2(descriptor, 2)
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        logging.getLogger().handlers.clear()
        function()
        code = 0
    except BaseException:  # noqa: BLE001 - the process ends here
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


def call(function: Callable[[], T], errors: Path, seconds: float) -> T:
    """Return the result of a function that runs in a forked process. Raises Hang and Died."""
    read_end, write_end = os.pipe()

    def run() -> None:
        os.close(read_end)
        with os.fdopen(write_end, "wb") as pipe:
            pickle.dump(function(), pipe)

    child = start(run, errors)
    os.close(write_end)
    data, deadline = bytearray(), time.monotonic() + seconds
    with os.fdopen(read_end, "rb", buffering=0) as pipe:
        while True:
            if not select.select([pipe], [], [], max(0.0, deadline - time.monotonic()))[0]:
                child.kill()
                raise Hang(f"reading the log did not end within {seconds:g} s")
            if not (chunk := pipe.read(1 << 20)):
                break
            data += chunk
    if (status := child.wait(5)) != 0 or not data:
        raise Died(f"a process ended with status {status}: {_last_line(errors)}")
    result: Any = pickle.loads(data)
    return result  # type: ignore[no-any-return]


def _last_line(errors: Path) -> str:
    lines = errors.read_text(errors="replace").strip().splitlines()
    return lines[-1] if lines else "no output"
