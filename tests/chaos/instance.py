"""One instance of the gateway: it is killed, stopped and restarted during a run; errors of its own are recorded."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import subprocess
import time
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import httpx

from tests.kit.gateway import GatewayProcess
from tests.kit.tcp_proxy import Network

STOP_GRACE_S = 10.0
"""Time for the exit in addition to `shutdown_timeout`, for a busy machine. A process that needs longer counts as hanging."""
WATCH_S = 0.2
RESTART_DELAY_S = 2.0
"""Delay before an instance that exited unexpectedly is started again, as by a supervisor."""
TRACEBACK = "Traceback (most recent call last)"
STALLED = "although the topic has entries up to"
"""Log text of a Pulsar consumer that had to subscribe again because the broker had stopped to deliver."""
LOST_MESSAGES = "or the broker lost acknowledged messages"
"""Log text for a source partition that ends before its delivered messages. Only a killed Broker of TubeMQ loses some."""
STOPPED = re.compile(r"route \S+(?:: partition \S+)? stopped: ")
"""Log text of a route or a partition that is not read any more: only where an operator deleted messages, one may stop."""
GAPS = re.compile(
    r"messages of partition \S+ are lost|lost data: offset|without the lost messages|that members sent back are lost"
)
"""Log texts about gaps. Only operators delete messages that the group has not read."""
DELETED = re.compile(r"created again|deleted|are lost")
"""What such a line says after an operator deleted the topic or its messages."""


class Instance:
    """An instance of the gateway. Hold `lock` to start or stop it. `failures` are unexpected exits, `exits` the exit codes."""

    def __init__(
        self,
        name: str,
        folder: Path,
        network: Network,
        config: Callable[[str, Path], dict[str, Any]],
        shutdown_s: float,
        checkout: Path | None = None,
    ) -> None:
        self.name, self.folder, self.network = name, folder, network
        self.lock = asyncio.Lock()
        self.failures: list[str] = []
        self.exits: list[int] = []
        self.peak_bytes = 0
        self._config, self._stop_s, self._checkout = config, shutdown_s + STOP_GRACE_S, checkout
        self._process: GatewayProcess | None = None
        self._exit_expected = True
        """True if the process does not run, or was told to exit."""

    @property
    def runs(self) -> bool:
        """True if the process runs."""
        return self._process is not None and self._process.process.poll() is None

    @property
    def has_process(self) -> bool:
        """True if the process runs, or ended by itself."""
        return self.runs or not self._exit_expected

    async def start(self) -> None:
        """Start a new process."""
        config = self._config(self.name, self.folder)
        self._process = await asyncio.to_thread(
            GatewayProcess, config, self.folder, network=self.network, checkout=self._checkout
        )
        self._exit_expected = False

    async def kill(self) -> None:
        """Send SIGKILL and reset the connections, as if the machine failed."""
        self._exit_expected = True
        if self._process is not None:
            await asyncio.to_thread(self._process.kill)
        self.network.cut()

    async def terminate(self) -> None:
        """Send SIGTERM, and wait for the exit."""
        self._exit_expected, process = True, self._process
        if process is None or not self.runs:
            return
        began = time.monotonic()
        process.process.send_signal(signal.SIGTERM)
        try:
            self.exits.append(await asyncio.to_thread(process.process.wait, self._stop_s))
        except subprocess.TimeoutExpired:
            self.failures.append(f"{self.name} had not exited {time.monotonic() - began:.0f} s after SIGTERM")
            await asyncio.to_thread(process.kill)
        self.network.cut()

    def freeze(self) -> None:
        """Send SIGSTOP."""
        if self.runs and self._process is not None:
            os.kill(self._process.process.pid, signal.SIGSTOP)

    def thaw(self) -> None:
        """Send SIGCONT."""
        if self.runs and self._process is not None:
            os.kill(self._process.process.pid, signal.SIGCONT)

    def cpu_s(self) -> float:
        """Return the CPU seconds of the current process; 0 without a process."""
        with contextlib.suppress(OSError):
            if self._process is not None:
                fields = Path(f"/proc/{self._process.process.pid}/stat").read_text().rpartition(")")[2].split()
                return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
        return 0.0

    async def watch(self, say: Callable[[str], None]) -> None:
        """Record unexpected exits, and start the instance again."""
        while True:
            await asyncio.sleep(WATCH_S)
            self._measure()
            if self._exit_expected or self.runs or self.lock.locked() or self._process is None:
                continue
            status = self._process.process.returncode
            self.failures.append(f"{self.name} exited unexpectedly with status {status}: {last_line(self._process.log)}")
            say(self.failures[-1])
            self._exit_expected = True
            await asyncio.sleep(RESTART_DELAY_S)
            async with self.lock:
                if not self.runs:
                    await self.start()

    async def ask(self, path: str) -> Any:
        """Request a JSON page of the instance; return None if it does not respond."""
        if self._process is None or not self.runs:
            return None
        with contextlib.suppress(httpx.HTTPError, ValueError):
            async with httpx.AsyncClient(timeout=5, trust_env=False) as client:
                return (await client.get(f"http://127.0.0.1:{self._process.port}{path}")).json()
        return None

    def log_problems(self, *, allows_loss: bool = False, deletions: Collection[str] = ()) -> list[str]:
        """Return the problems in the log: tracebacks, stalled Pulsar subscriptions, stops, gaps, and lost messages of a source.

        `allows_loss`: a source Broker was killed, so the gateway may say that acknowledged messages are lost. `deletions` are the
        names of routes and topics from which an operator deleted messages, so their partitions may stop.
        """
        text = self._log_text()
        texts = (STALLED,) if allows_loss else (STALLED, LOST_MESSAGES)
        return tracebacks(text) + [
            line
            for line in text.splitlines()
            if (any(each in line for each in texts) or STOPPED.search(line) or GAPS.search(line))
            and not (DELETED.search(line) and any(name in line for name in deletions))
        ]

    def stops(self) -> int:
        """Return how often a partition or a route stopped."""
        return len(STOPPED.findall(self._log_text()))

    def _log_text(self) -> str:
        log = self.folder / "gateway.log"
        return log.read_text(errors="replace") if log.exists() else ""

    def _measure(self) -> None:
        with contextlib.suppress(OSError):
            if self._process is not None:
                pages = int(Path(f"/proc/{self._process.process.pid}/statm").read_text().split()[1])
                self.peak_bytes = max(self.peak_bytes, pages * os.sysconf("SC_PAGE_SIZE"))


def last_line(log: str) -> str:
    """Return the last line of a log that is not empty."""
    return next((line for line in reversed(log.splitlines()) if line.strip()), "")


def tracebacks(log: str) -> list[str]:
    """Return the error of each traceback in a log."""
    return [f"a traceback: {_error_of(piece)}" for piece in log.split(TRACEBACK)[1:]]


def _error_of(traceback: str) -> str:
    """Return the line of a traceback with the error: the first line that is not indented."""
    return next((line for line in traceback.splitlines()[1:] if line and not line[0].isspace()), "?")
