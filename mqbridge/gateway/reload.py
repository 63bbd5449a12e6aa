"""Reloads the configuration while running: on request, and when the file changes.

The new file is loaded and checked, and new connections and targets are opened, before any running route is stopped. If there are
problems, they are logged and shown by `/health/ready`, and the old configuration stays in effect. A transient problem, such as a
new cluster that is not reachable yet, is retried with growing pauses. One task does all reloads, so they never overlap.
"""

import asyncio
import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from mqbridge.adapter.registry import Adapter
from mqbridge.config.listened_systems import ListenedSystem
from mqbridge.config.load import load
from mqbridge.config.options.config import Config
from mqbridge.config.problems import ConfigErrors
from mqbridge.errors import MqbridgeError, is_transient
from mqbridge.gateway.change import Change, restart_warnings
from mqbridge.net.backoff import Backoff

log = logging.getLogger(__name__)

MIN_RETRY_PAUSE_S, MAX_RETRY_PAUSE_S = 2.0, 30.0
"""Minimum and maximum pause before a reload with a transient problem is retried."""


class ReloadableGateway(Protocol):
    """A gateway that can apply another configuration."""

    config: Config
    """The configuration in effect."""
    initial_config: Config
    """The configuration at the start of the process."""
    adapters: Mapping[str, Adapter] | None
    """The systems that a configuration may use; None means all that are installed."""

    @property
    def servers(self) -> Mapping[str, ListenedSystem] | None:
        """The systems whose clients a listener may serve; None means all that are installed."""

    async def apply(self, config: Config) -> Change:
        """Switch to this configuration. If it cannot be used, change nothing and raise ConfigError or ClusterError."""


@dataclass(slots=True)
class ReloadResult:
    """The result of a reload."""

    at: float
    """Time of the reload in seconds since the epoch."""
    problems: list[str] = field(default_factory=list)
    """Why the file was rejected; empty if it was applied."""
    retry_in_s: float | None = None
    """Seconds until the reload is retried after a transient problem; None if it is not."""
    warnings: list[str] = field(default_factory=list)
    """Changed options that take effect only when the gateway is restarted, as texts."""
    routes: dict[str, list[str]] = field(default_factory=dict)
    """Names of the routes, under the keys `started` (started or restarted) and `removed`; empty if the file was rejected."""
    listeners: dict[str, list[str]] = field(default_factory=dict)
    """Names of the listeners, in the same form."""

    def as_dict(self) -> dict[str, Any]:
        """Return the result for JSON output."""
        common = {"ok": not self.problems, "at": self.at, "problems": self.problems, "again_in_s": self.retry_in_s}
        return {**common, "warnings": self.warnings, **self.routes, "listeners": self.listeners}


class Reloader:
    """Reloads the configuration file `path`. Without a path, for a gateway that was not started from a file, it does nothing."""

    def __init__(self, gateway: ReloadableGateway, path: Path | None) -> None:
        self.path = path
        self.last: ReloadResult | None = None
        """The result of the last reload; None before the first."""
        self._gateway = gateway
        self._requested = asyncio.Event()
        self._waiters: list[asyncio.Future[ReloadResult]] = []
        """The futures of the `reload` calls that wait for their result, oldest first."""
        self._has_ended = False
        """True once `run` has ended: `reload` then fails at once."""
        self._pauses = Backoff(initial_s=MIN_RETRY_PAUSE_S, max_s=MAX_RETRY_PAUSE_S)
        self._retry_at: float | None = None
        """Loop time of the retry after a transient problem; None if none is scheduled."""
        self._reloaded_content = self._last_content = None if path is None else _read(path)
        """Content of the file at the last reload, and at the last check for changes; None if it could not be read."""

    def request(self) -> None:
        """Request a reload, without waiting for it."""
        self._requested.set()

    async def reload(self) -> ReloadResult:
        """Reload and return the result."""
        if self.path is None or self._has_ended:
            why = "was not started from a file" if self.path is None else "is stopping"
            return ReloadResult(at=time.time(), problems=[f"cannot reload: the gateway {why}"])
        future: asyncio.Future[ReloadResult] = asyncio.get_running_loop().create_future()
        self._waiters.append(future)
        self._requested.set()
        return await future

    async def run(self) -> None:
        """Reload on request, after a change of the file, or to retry; until cancelled."""
        if self.path is None:
            return
        try:
            while True:
                await self._wait_for_trigger(self.path)
                self._requested.clear()
                waiter_count = len(self._waiters)  # calls during the reload may mean a newer file, and get the next result
                self.last = await self._reload(self.path)
                self._resolve_waiters(waiter_count, self.last)
        finally:
            self._has_ended = True
            self._resolve_waiters(
                len(self._waiters), ReloadResult(at=time.time(), problems=["cannot reload: the gateway is stopping"])
            )

    def _resolve_waiters(self, count: int, result: ReloadResult) -> None:
        """Return the result to the `count` oldest `reload` calls."""
        resolved, self._waiters = self._waiters[:count], self._waiters[count:]
        for future in resolved:
            if not future.done():
                future.set_result(result)

    async def _wait_for_trigger(self, path: Path) -> None:
        """Wait for a request, a scheduled retry, or a change of the file that two consecutive checks have seen."""
        loop = asyncio.get_running_loop()
        while True:
            watch_interval_s = self._gateway.config.reload.watch  # None: the file is not checked for changes
            retry_in_s = None if self._retry_at is None else max(0.0, self._retry_at - loop.time())
            timeout_s = min((seconds for seconds in (watch_interval_s, retry_in_s) if seconds is not None), default=None)
            try:
                async with asyncio.timeout(timeout_s):
                    await self._requested.wait()
            except TimeoutError:
                if self._retry_at is not None and self._retry_at <= loop.time():
                    return
                content = await asyncio.to_thread(_read, path)
                is_unchanged = content == self._last_content
                self._last_content = content
                # Unchanged since the last check: nobody is writing the file now.
                if content is not None and is_unchanged and content != self._reloaded_content:
                    return
            else:
                return

    async def _reload(self, path: Path) -> ReloadResult:
        """Load and apply the file. Errors are not raised, but listed in the result; a retry is scheduled if it may help."""
        result = ReloadResult(at=time.time())
        self._reloaded_content = self._last_content = await asyncio.to_thread(_read, path)
        self._retry_at = None
        try:
            config = await asyncio.to_thread(load, path, adapters=self._gateway.adapters, servers=self._gateway.servers)
            result.warnings = restart_warnings(self._gateway.initial_config, config)
            change = await self._gateway.apply(config)
        except ConfigErrors as error:
            result.problems = [str(problem) for problem in error.errors]
        except MqbridgeError as error:
            result.problems = [str(error)]
            if is_transient(error):
                result.retry_in_s = self._pauses.delay()
                self._retry_at = asyncio.get_running_loop().time() + result.retry_in_s
        except Exception as error:  # a bug must not end the reload task; the old configuration stays in effect
            log.exception("reloading the configuration %s failed unexpectedly, the previous one stays in effect", path)
            result.problems = [repr(error)]
        else:
            result.routes, result.listeners = change.summary(), change.summary_of_listeners()
            self._pauses.reset()
        self._log(result)
        return result

    def _log(self, result: ReloadResult) -> None:
        for warning in result.warnings:
            log.warning("warning about the new configuration %s: %s", self.path, warning)
        if result.problems:
            log.error(
                "configuration %s was rejected because of %d problems, logged next; the previous one stays in effect",
                self.path,
                len(result.problems),
            )
            for problem in result.problems:
                log.error("problem in configuration %s: %s", self.path, problem)
            if result.retry_in_s is not None:
                log.warning(
                    "configuration %s was rejected and will be tried again in %.1f s, because its problems may be transient",
                    self.path,
                    result.retry_in_s,
                )
        else:
            started, removed = (", ".join(result.routes[key]) or "none" for key in ("started", "removed"))
            log.info("configuration %s was reloaded: routes started: %s; removed: %s", self.path, started, removed)
            if any(result.listeners.values()):
                started, removed = (", ".join(result.listeners[key]) or "none" for key in ("started", "removed"))
                log.info("configuration %s was reloaded: listeners started: %s; removed: %s", self.path, started, removed)


def _read(path: Path) -> bytes | None:
    """Return the file's bytes; None while it cannot be read, for example in the middle of a replacement."""
    try:
        return path.read_bytes()
    except OSError as error:
        log.debug("configuration %s cannot be read now, the gateway continues with the one it has: %s", path, error)
        return None
