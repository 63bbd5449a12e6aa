"""Java servers as child processes, which can be stopped, killed and started again with the same ports and data.

A server runs in a session of its own, so Ctrl-C reaches only the owner (the Python process), which then ends the server. If the
owner dies first, the guard kills the server.
"""

from __future__ import annotations

import os
import random
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from tests.kit.guard import guard

HOST = "127.0.0.1"
# Pulsar, the slowest server, starts in 8 s on two idle cores, and needed 20 s on busy ones.
START_TIMEOUT_S = 180.0
# TubeMQ's Broker, the slowest server, sleeps during its shutdown: 4 s, and 0.1 s for each topic store.
STOP_TIMEOUT_S = 60.0
POLL_S = 0.1
# Options of a JVM that runs for minutes: only the first compiler, which makes slower code for less CPU time. Pulsar's start takes
# 16 s instead of 27 s. A RocketMQ broker gets none: it compares large tables byte by byte, and takes twice the CPU time with it.
LESS_COMPILING = ("-XX:TieredStopAtLevel=1",)
LOG_TAIL_BYTES = 6000


_chance = random.SystemRandom()
_reserved: set[int] = set()
_ports_lock = threading.Lock()


class ClusterError(Exception):
    """A server could not be fetched, started or set up; the text names the server, the problem and the log."""


def free_ports(count: int) -> list[int]:
    """Return different free TCP ports that were not returned before.

    They are below the range from which the kernel chooses the ports of outgoing connections, so the port of a killed server is
    still free when it starts again. A server opens its ports seconds after this call, so each process of a test run chooses from
    a range of its own.
    """
    chosen: list[int] = []
    ports = _own_ports()
    while len(chosen) < count:
        port = _chance.choice(ports)
        if take_port(port):
            chosen.append(port)
    return chosen


def take_port(port: int) -> bool:
    """Reserve this port for the caller; return False if it is in use or already reserved."""
    with _ports_lock:
        if port in _reserved or not is_free(port):
            return False
        _reserved.add(port)
        return True


def _own_ports() -> range:
    first_ephemeral = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    every = range(first_ephemeral // 2, first_ephemeral)
    number, of = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0")[2:]), int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    share = len(every) // of
    return every[number * share : (number + 1) * share]


def is_free(port: int) -> bool:
    """Return True if no program listens on this port, on any interface."""
    with socket.socket() as probe:
        try:
            probe.bind(("", port))
        except OSError:
            return False
        return True


def accepts(port: int) -> bool:
    """Return True if a TCP connection to this port of the loopback address succeeds."""
    try:
        socket.create_connection((HOST, port), timeout=2).close()
    except OSError:
        return False
    return True


class JavaProcess:
    """One server process that can be started, stopped, killed and started again.

    After a start, `ready` is called every 0.1 s until it returns True. An OSError counts as False.
    """

    def __init__(self, name: str, argv: Sequence[str], folder: Path, ready: Callable[[], bool]) -> None:
        self.name = name
        self.argv = list(argv)
        self.folder = folder
        self.log = folder / f"{name}.log"
        self._ready = ready
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        """Process id of the running process, or of the last one. Raises ClusterError before the first start."""
        if self._process is None:
            raise ClusterError(f"{self.name} was never started")
        return self._process.pid

    @property
    def running(self) -> bool:
        """True if the process runs."""
        return self._process is not None and self._process.poll() is None

    def start(self, *, wait: bool = True) -> None:
        """Start the process, and by default wait until it is ready."""
        if self.running:
            raise ClusterError(f"{self.name} runs already (pid {self.pid})")
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                self.argv, cwd=self.folder, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )
        guard().process(self._process.pid)
        if wait:
            self.wait_ready()

    def wait_ready(self) -> None:
        """Wait until the server is ready. Raises ClusterError, with the end of the log, if it exits or needs too long."""
        self.wait_until(self._ready, "ready")

    def wait_until(self, holds: Callable[[], bool], what: str, timeout_s: float = START_TIMEOUT_S) -> None:
        """Wait until a condition of this server is true; `what` describes the condition in errors."""
        deadline = time.monotonic() + timeout_s
        while not _holds(holds):
            if not self.running:
                raise ClusterError(f"{self.name} ended before it was {what}; its log ends with\n{self.log_tail()}")
            if time.monotonic() > deadline:
                raise ClusterError(f"{self.name} was not {what} after {timeout_s:.0f} s; its log ends with\n{self.log_tail()}")
            time.sleep(POLL_S)

    def stop(self) -> None:
        """Send SIGTERM and wait; send SIGKILL after STOP_TIMEOUT_S. Do nothing if the process does not run."""
        if self.running:
            self._signal(signal.SIGTERM)

    def kill(self) -> None:
        """Send SIGKILL: data that the process has not written is lost."""
        if self.running:
            self._signal(signal.SIGKILL)

    def restart(self) -> None:
        """Stop the process with SIGTERM, start it, and wait until it is ready."""
        self.stop()
        self.start()

    def stop_in_order(self) -> None:
        """Send SIGTERM and wait for the exit. Raises ClusterError if the process needs longer than STOP_TIMEOUT_S."""
        if self.running and not self._signal(signal.SIGTERM):
            raise ClusterError(
                f"{self.name} did not stop in order in {STOP_TIMEOUT_S:.0f} s; its log ends with\n{self.log_tail()}"
            )

    def restart_in_order(self, away_s: float = 0.0) -> None:
        """Stop the process in order, start it again after `away_s` seconds, and wait until it is ready. Raises ClusterError."""
        self.stop_in_order()
        time.sleep(away_s)
        self.start()

    def freeze(self) -> None:
        """Send SIGSTOP: connections stay open, but the server does not respond, as in a long garbage collection."""
        os.kill(self.pid, signal.SIGSTOP)

    def thaw(self) -> None:
        """Send SIGCONT after `freeze`."""
        os.kill(self.pid, signal.SIGCONT)

    def rss_bytes(self) -> int:
        """Return the resident memory."""
        pages = int(Path(f"/proc/{self.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")

    def cpu_s(self) -> float:
        """Return the CPU seconds used so far, user and system."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def log_tail(self) -> str:
        """Return the last LOG_TAIL_BYTES bytes of the log."""
        return self.log.read_bytes()[-LOG_TAIL_BYTES:].decode(errors="replace")

    def _signal(self, number: signal.Signals) -> bool:
        """Send a signal and wait for the exit; return False if the process had to be killed after STOP_TIMEOUT_S."""
        assert self._process is not None
        self._process.send_signal(number)
        try:
            self._process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
            return False
        return True


def _holds(condition: Callable[[], bool]) -> bool:
    try:
        return condition()
    except OSError:  # the server does not listen yet, or closed the connection during its exit
        return False
