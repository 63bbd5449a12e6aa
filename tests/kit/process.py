"""A Java server as a child process: log file, ready wait, SIGTERM, SIGKILL, start again with the same ports and data.

It runs in a session of its own, so that Ctrl-C reaches only its owner, which then ends it; the guard
kills it when the owner ends without having done so.
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
# Pulsar, the slowest, takes 8 s on two idle cores; 20 s were seen while other programs kept both busy.
START_TIMEOUT_S = 180.0
# TubeMQ's Broker, the slowest, sleeps 4 s in its shutdown and 0.1 s more for each topic store.
STOP_TIMEOUT_S = 60.0
POLL_S = 0.1
LOG_TAIL_BYTES = 6000


_chance = random.SystemRandom()
_given: set[int] = set()
_ports_lock = threading.Lock()


class ClusterError(Exception):
    """A server could not be fetched, started or set up; the text names the server, the problem and the log."""


def free_ports(count: int) -> list[int]:
    """Different TCP ports that nobody listens on, none of which was given out before.

    They lie below the range from which the kernel takes the ports of outgoing connections: a server that was
    killed finds its port free when it starts again. A server takes its ports seconds after they were looked for, so
    processes of one test run look in ranges of their own.
    """
    found: list[int] = []
    ports = _own_ports()
    while len(found) < count:
        port = _chance.choice(ports)
        if take_port(port):
            found.append(port)
    return found


def take_port(port: int) -> bool:
    """Take this one, if nobody listens on it and it was not given out before."""
    with _ports_lock:
        if port in _given or not is_free(port):
            return False
        _given.add(port)
        return True


def _own_ports() -> range:
    first_ephemeral = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    every = range(first_ephemeral // 2, first_ephemeral)
    number, of = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0")[2:]), int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    share = len(every) // of
    return every[number * share : (number + 1) * share]


def is_free(port: int) -> bool:
    """Whether nobody listens on this port, on any interface."""
    with socket.socket() as probe:
        try:
            probe.bind(("", port))
        except OSError:
            return False
        return True


def accepts(port: int) -> bool:
    """Whether a TCP connection to this port of the loopback address succeeds."""
    try:
        socket.create_connection((HOST, port), timeout=2).close()
    except OSError:
        return False
    return True


class JavaProcess:
    """One server process that can be started, stopped, killed and started again.

    `ready` is asked (every 0.1 s) after a start until it is true; an OSError of it means not yet.
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
        """Process id of the running, or else of the last, process; ClusterError before the first start."""
        if self._process is None:
            raise ClusterError(f"{self.name} was never started")
        return self._process.pid

    @property
    def running(self) -> bool:
        """Whether the process exists."""
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
        """Wait until a client's request would succeed; ClusterError with the end of the log if it ends or takes too long."""
        self.wait_until(self._ready, "ready")

    def wait_until(self, holds: Callable[[], bool], what: str, timeout_s: float = START_TIMEOUT_S) -> None:
        """Wait for a condition that this process brings about."""
        deadline = time.monotonic() + timeout_s
        while not _holds(holds):
            if not self.running:
                raise ClusterError(f"{self.name} ended before it was {what}; its log ends with\n{self.log_tail()}")
            if time.monotonic() > deadline:
                raise ClusterError(f"{self.name} was not {what} after {timeout_s:.0f} s; its log ends with\n{self.log_tail()}")
            time.sleep(POLL_S)

    def stop(self) -> None:
        """SIGTERM and wait; SIGKILL after STOP_TIMEOUT_S. No effect when it does not run."""
        if self.running:
            self._signal(signal.SIGTERM)

    def kill(self) -> None:
        """Send SIGKILL: data that the process has not written is lost."""
        if self.running:
            self._signal(signal.SIGKILL)

    def restart(self) -> None:
        """Stop in order, then start and wait until ready."""
        self.stop()
        self.start()

    def freeze(self) -> None:
        """SIGSTOP: connections stay open and nothing answers, as in a long collector pause or a cut network."""
        os.kill(self.pid, signal.SIGSTOP)

    def thaw(self) -> None:
        """SIGCONT after freeze."""
        os.kill(self.pid, signal.SIGCONT)

    def rss_bytes(self) -> int:
        """Resident memory."""
        pages = int(Path(f"/proc/{self.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")

    def cpu_s(self) -> float:
        """Processor time used so far, user and system."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def log_tail(self) -> str:
        """The last few thousand bytes of the log."""
        return self.log.read_bytes()[-LOG_TAIL_BYTES:].decode(errors="replace")

    def _signal(self, number: signal.Signals) -> None:
        assert self._process is not None
        self._process.send_signal(number)
        try:
            self._process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def _holds(condition: Callable[[], bool]) -> bool:
    try:
        return condition()
    except OSError:  # nobody listens yet, or the connection was cut by a process that is going down
        return False
