"""Reading the configuration again while running: when asked to, and when the file was seen to change.

The new text is loaded and checked, and what it needs is opened, before anything that runs is touched. Whatever is wrong is
logged line by line and shown, and the old configuration goes on. What may pass, such as a new cluster that cannot be reached yet,
is tried again with growing pauses. One task does all of it, so that no two reloads meet.
"""

import asyncio
import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from mqbridge.adapter.registry import Adapter
from mqbridge.config.load import load
from mqbridge.config.options.config import Config
from mqbridge.config.problems import ConfigErrors
from mqbridge.errors import MqbridgeError
from mqbridge.gateway.change import Change, not_applied
from mqbridge.gateway.plan import helps_to_retry
from mqbridge.net.backoff import Backoff

log = logging.getLogger(__name__)

AGAIN_FIRST_S, AGAIN_MOST_S = 2.0, 30.0
"""Pauses before a configuration is read again that could not be taken for now."""


class Reloadable(Protocol):
    """What can take another configuration: a gateway."""

    config: Config
    started_with: Config
    adapters: Mapping[str, Adapter] | None

    async def apply(self, config: Config) -> Change:
        """Go over to it. Raises ConfigError or ClusterError, and goes on as before, when it cannot be used."""


@dataclass(slots=True)
class Reloaded:
    """What came of reading the configuration again."""

    at: float
    """Seconds since the epoch."""
    problems: list[str] = field(default_factory=list)
    """Why it was not taken; empty when it was."""
    again_in_s: float | None = None
    """When it is tried again, since what was wrong may pass."""
    warnings: list[str] = field(default_factory=list)
    routes: dict[str, list[str]] = field(default_factory=dict)
    """The names of those that were started (again) and removed."""

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        said = {"ok": not self.problems, "at": self.at, "problems": self.problems, "again_in_s": self.again_in_s}
        return {**said, "warnings": self.warnings, **self.routes}


class Reloader:
    """Reads `path` again; None where there is no file to read."""

    def __init__(self, gateway: Reloadable, path: Path | None) -> None:
        self.path = path
        self.last: Reloaded | None = None
        self._gateway = gateway
        self._asked = asyncio.Event()
        self._waiting: list[asyncio.Future[Reloaded]] = []
        self._ended = False
        self._pauses = Backoff(AGAIN_FIRST_S, AGAIN_MOST_S)
        self._again_at: float | None = None
        """When what failed for now is tried again; loop time."""
        self._taken = self._seen = None if path is None else _read(path)

    def request(self) -> None:
        """Reload soon."""
        self._asked.set()

    async def reload(self) -> Reloaded:
        """Reload and say what came of it."""
        if self.path is None or self._ended:
            return Reloaded(time.time(), ["there is no running gateway that was started from a file"])
        future: asyncio.Future[Reloaded] = asyncio.get_running_loop().create_future()
        self._waiting.append(future)
        self._asked.set()
        return await future

    async def run(self) -> None:
        """Reload whenever there is reason to, until cancelled."""
        if self.path is None:
            return
        try:
            while True:
                await self._reason(self.path)
                self._asked.clear()
                asked = len(self._waiting)  # who asks from now on may mean a newer file
                self.last = await self._reload(self.path)
                self._answer(asked, self.last)
        finally:
            self._ended = True
            self._answer(len(self._waiting), Reloaded(time.time(), ["the gateway is ending"]))

    def _answer(self, count: int, result: Reloaded) -> None:
        answered, self._waiting = self._waiting[:count], self._waiting[count:]
        for future in answered:
            if not future.done():
                future.set_result(result)

    async def _reason(self, path: Path) -> None:
        """Wait until somebody asks, it is time to try again, or the file is another one and did not change between two looks."""
        loop = asyncio.get_running_loop()
        while True:
            watch = self._gateway.config.reload.watch
            again = None if self._again_at is None else max(0.0, self._again_at - loop.time())
            try:
                await asyncio.wait_for(self._asked.wait(), min((one for one in (watch, again) if one is not None), default=None))
            except TimeoutError:
                if self._again_at is not None and self._again_at <= loop.time():
                    return
                now = await asyncio.to_thread(_read, path)
                settled, self._seen = now == self._seen, now
                if now is not None and settled and now != self._taken:
                    return
            else:
                return

    async def _reload(self, path: Path) -> Reloaded:
        result = Reloaded(at=time.time())
        self._taken = self._seen = await asyncio.to_thread(_read, path)
        self._again_at = None
        try:
            config = await asyncio.to_thread(load, path, adapters=self._gateway.adapters)
            result.warnings = not_applied(self._gateway.started_with, config)
            change = await self._gateway.apply(config)
        except ConfigErrors as error:
            result.problems = [str(one) for one in error.errors]
        except MqbridgeError as error:
            result.problems = [str(error)]
            if helps_to_retry(error):
                result.again_in_s = self._pauses.delay()
                self._again_at = asyncio.get_running_loop().time() + result.again_in_s
        except Exception as error:  # a bug: the old configuration goes on all the same
            log.exception("reloading %s failed", path)
            result.problems = [repr(error)]
        else:
            result.routes = change.summary()
            self._pauses.reset()
        self._tell(result)
        return result

    def _tell(self, result: Reloaded) -> None:
        for warning in result.warnings:
            log.warning("%s: %s", self.path, warning)
        if result.problems:
            log.error("%s was not taken, the gateway goes on as before:", self.path)
            for problem in result.problems:
                log.error("  %s", problem)
            if result.again_in_s is not None:
                log.warning("%s is read again in %.1f s: what was wrong may pass", self.path, result.again_in_s)
        else:
            started, removed = (", ".join(result.routes[what]) or "none" for what in ("started", "removed"))
            log.info("%s was read again: routes started: %s; removed: %s", self.path, started, removed)


def _read(path: Path) -> bytes | None:
    """The file's bytes; None while there is none, as in the middle of being replaced."""
    try:
        return path.read_bytes()
    except OSError as error:
        log.debug("%s cannot be read just now: %s", path, error)
        return None
