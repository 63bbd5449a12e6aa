"""One instance of the gateway: it is killed, stopped and restarted during a run; errors of its own are recorded."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx

from tests.kit.gateway import GatewayProcess
from tests.kit.tcp_proxy import Network

STOP_GRACE_S = 10.0
"""Beyond `shutdown_timeout`: for the end of a process on a busy machine. A stop that takes longer hangs."""
WATCH_S = 0.2
AGAIN_S = 2.0
"""An instance that ended by itself is started again, as a supervisor would, and counted."""
TRACEBACK = "Traceback (most recent call last)"
STRANDED = "although the topic has entries up to"
"""What the silence watch of Pulsar's consumers says when nothing came although there was something."""
WENT_BACK = "or its broker lost acknowledged messages"
"""Log text of a gateway for a partition that ends before its delivered messages. No fault here loses messages of a source."""


class Instance:
    """An instance of the gateway. Starting and stopping it requires `lock`; `failures` are its unexpected exits."""

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
        self.most_bytes = 0
        self._config, self._stop_s, self._checkout = config, shutdown_s + STOP_GRACE_S, checkout
        self._process: GatewayProcess | None = None
        self._ends = True
        """Whether its end, if it has ended, was wanted."""

    @property
    def runs(self) -> bool:
        """Whether there is a process."""
        return self._process is not None and self._process.process.poll() is None

    async def start(self) -> None:
        """A new life."""
        config = self._config(self.name, self.folder)
        self._process = await asyncio.to_thread(
            GatewayProcess, config, self.folder, network=self.network, checkout=self._checkout
        )
        self._ends = False

    async def kill(self) -> None:
        """Send SIGKILL and drop its connections, as if its machine failed."""
        self._ends = True
        if self._process is not None:
            await asyncio.to_thread(self._process.kill)
        self.network.cut()

    async def terminate(self) -> None:
        """SIGTERM, and wait for its end."""
        self._ends, process = True, self._process
        if process is None or not self.runs:
            return
        began = time.monotonic()
        process.process.send_signal(signal.SIGTERM)
        try:
            self.exits.append(await asyncio.to_thread(process.process.wait, self._stop_s))
        except subprocess.TimeoutExpired:
            self.failures.append(f"{self.name} had not ended {time.monotonic() - began:.0f} s after SIGTERM")
            await asyncio.to_thread(process.kill)
        self.network.cut()

    def freeze(self) -> None:
        """SIGSTOP."""
        if self.runs and self._process is not None:
            os.kill(self._process.process.pid, signal.SIGSTOP)

    def thaw(self) -> None:
        """SIGCONT."""
        if self.runs and self._process is not None:
            os.kill(self._process.process.pid, signal.SIGCONT)

    def cpu_s(self) -> float:
        """Processor time of this life so far; 0 without a process."""
        with contextlib.suppress(OSError):
            if self._process is not None:
                fields = Path(f"/proc/{self._process.process.pid}/stat").read_text().rpartition(")")[2].split()
                return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
        return 0.0

    async def watch(self, say: Callable[[str], None]) -> None:
        """Notice an end that nobody asked for, and start it again."""
        while True:
            await asyncio.sleep(WATCH_S)
            self._measure()
            if self._ends or self.runs or self.lock.locked() or self._process is None:
                continue
            status = self._process.process.returncode
            self.failures.append(f"{self.name} ended by itself with status {status}: {last_line(self._process.log)}")
            say(self.failures[-1])
            self._ends = True
            await asyncio.sleep(AGAIN_S)
            async with self.lock:
                if not self.runs:
                    await self.start()

    async def ask(self, path: str) -> Any:
        """A page of its HTTP server as JSON, None while there is none."""
        if self._process is None or not self.runs:
            return None
        with contextlib.suppress(httpx.HTTPError, ValueError):
            async with httpx.AsyncClient(timeout=5, trust_env=False) as client:
                return (await client.get(f"http://127.0.0.1:{self._process.port}{path}")).json()
        return None

    def log_problems(self) -> list[str]:
        """What its log says that should not be there.

        Tracebacks, subscriptions that only a watchdog revived, and messages that are reported as lost.
        """
        log = self.folder / "gateway.log"
        text = log.read_text(errors="replace") if log.exists() else ""
        tracebacks = [f"a traceback: {_error_of(piece)}" for piece in text.split(TRACEBACK)[1:]]
        return tracebacks + [line for line in text.splitlines() if STRANDED in line or WENT_BACK in line]

    def _measure(self) -> None:
        with contextlib.suppress(OSError):
            if self._process is not None:
                pages = int(Path(f"/proc/{self._process.process.pid}/statm").read_text().split()[1])
                self.most_bytes = max(self.most_bytes, pages * os.sysconf("SC_PAGE_SIZE"))


def last_line(log: str) -> str:
    """The last line that says something."""
    return next((line for line in reversed(log.splitlines()) if line.strip()), "")


def _error_of(piece: str) -> str:
    """The line of a traceback that names the error: the first that is not indented."""
    return next((line for line in piece.splitlines()[1:] if line and not line[0].isspace()), "?")
