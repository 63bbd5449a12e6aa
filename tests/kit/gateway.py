"""Runs the gateway as users do: a child process with a configuration file, signals and exit codes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import httpx
import yaml

from tests.kit import redirected
from tests.kit.guard import guard
from tests.kit.process import free_ports
from tests.kit.tcp_proxy import Network

REPOSITORY = Path(__file__).resolve().parents[2]
CONFIG = REPOSITORY / "mqbridge" / "shipped"
POLL_S = 0.05


class GatewayProcess:
    """A process of `mqbridge run`, of this checkout or another one, that logs to a file.

    With `network` its connections go through the proxy of `tests/kit/tcp_proxy.py`. A context manager kills it at the end.
    """

    def __init__(
        self,
        config: Path | Mapping[str, Any],
        folder: Path,
        *options: str,
        env: Mapping[str, str] | None = None,
        checkout: Path | None = None,
        network: Network | None = None,
    ) -> None:
        (self.port,) = free_ports(1)
        folder.mkdir(parents=True, exist_ok=True)
        if isinstance(config, Mapping):
            path = folder / "gateway.yaml"
            path.write_text(yaml.safe_dump({"http": {"listen": f"127.0.0.1:{self.port}"}} | dict(config)))
        else:
            path = config
        self._log = folder / "gateway.log"
        environment = {**os.environ, "LISTEN": f"127.0.0.1:{self.port}", "STATE": str(folder / "state.db"), **(env or {})}
        self._log_start = self._log.stat().st_size if self._log.exists() else 0
        with self._log.open("ab") as log:
            python = sys.executable if checkout is None else str(checkout / ".venv" / "bin" / "python")
            program = ["-m", "mqbridge"]
            if network is not None:
                python = sys.executable
                program = ["-P", redirected.__file__]
                environment |= {redirected.VARIABLE: network.redirections, "PYTHONPATH": str(checkout or REPOSITORY)}
            self.process = subprocess.Popen(
                [python, *program, "run", str(path), *options],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=environment,
                cwd=checkout,
                start_new_session=True,
            )
        guard().process(self.process.pid)

    @property
    def log(self) -> str:
        """The log since the start of the process."""
        return self._log.read_bytes()[self._log_start :].decode(errors="replace")

    def route(self) -> dict[str, Any]:
        """Return the first route of `/routes`; an empty dict if the gateway does not respond yet."""
        try:
            rows = httpx.get(f"http://127.0.0.1:{self.port}/routes", timeout=5).json()
        except httpx.HTTPError:
            return {}
        return rows[0] if rows else {}

    def wait_stored(self, count: int, timeout_s: float = 120) -> dict[str, Any]:
        """Wait until the first route has stored `count` messages, and return the route."""
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            route = self.route()
            if route.get("stored", 0) >= count:
                return route
            if self.process.poll() is not None:
                raise AssertionError(f"the gateway ended with {self.process.returncode} before it stored {count}:\n{self.log}")
            time.sleep(POLL_S)
        raise AssertionError(f"the gateway stored {self.route().get('stored')} of {count} in {timeout_s:g} s:\n{self.log}")

    def terminate(self) -> int:
        """Send SIGTERM, wait for the end, and return the exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.wait()

    def kill(self) -> None:
        """Send SIGKILL, as the kernel does if the memory is exhausted."""
        self.process.kill()
        self.process.wait()

    def wait(self, timeout_s: float = 240) -> int:
        """Wait for the end and return the exit code."""
        try:
            return self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self.kill()
            raise AssertionError(f"the gateway did not end within {timeout_s:g} s:\n{self.log}") from None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self.process.poll() is None:
            self.kill()
