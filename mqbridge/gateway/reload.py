"""Reading the configuration again while running: when asked to, and when the file was seen to change.

The new text is loaded and checked, and what it needs is opened, before anything that runs is touched. Whatever is wrong is
logged line by line and shown, and the old configuration goes on. One task does all of it, so that no two reloads meet.
"""

import asyncio
import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from mqbridge.adapter import Adapter
from mqbridge.config.load import load
from mqbridge.config.options.config import Config
from mqbridge.config.problems import ConfigErrors
from mqbridge.errors import MqbridgeError
from mqbridge.gateway.change import Change, not_applied

log = logging.getLogger(__name__)


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
    warnings: list[str] = field(default_factory=list)
    routes: dict[str, list[str]] = field(default_factory=dict)
    """The names of those that were started (again) and removed."""

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {"ok": not self.problems, "at": self.at, "problems": self.problems, "warnings": self.warnings, **self.routes}


class Reloader:
    """Reads `path` again; None where there is no file to read."""

    def __init__(self, gateway: Reloadable, path: Path | None) -> None:
        self.path = path
        self.last: Reloaded | None = None
        self._gateway = gateway
        self._asked = asyncio.Event()
        self._waiting: list[asyncio.Future[Reloaded]] = []
        self._ended = False
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
        """Wait until somebody asks, or until the file is another one and did not change between two looks."""
        while True:
            watch = self._gateway.config.reload.watch
            try:
                await asyncio.wait_for(self._asked.wait(), watch)
            except TimeoutError:
                now = await asyncio.to_thread(_read, path)
                settled, self._seen = now == self._seen, now
                if now is not None and settled and now != self._taken:
                    return
            else:
                return

    async def _reload(self, path: Path) -> Reloaded:
        result = Reloaded(at=time.time())
        self._taken = self._seen = await asyncio.to_thread(_read, path)
        try:
            config = await asyncio.to_thread(load, path, adapters=self._gateway.adapters)
            result.warnings = not_applied(self._gateway.started_with, config)
            change = await self._gateway.apply(config)
        except ConfigErrors as error:
            result.problems = [str(one) for one in error.errors]
        except MqbridgeError as error:
            result.problems = [str(error)]
        except Exception as error:  # a bug: the old configuration goes on all the same
            log.exception("reloading %s failed", path)
            result.problems = [repr(error)]
        else:
            result.routes = change.summary()
        self._tell(result)
        return result

    def _tell(self, result: Reloaded) -> None:
        for warning in result.warnings:
            log.warning("%s: %s", self.path, warning)
        if result.problems:
            log.error("%s was not taken, the gateway goes on as before:", self.path)
            for problem in result.problems:
                log.error("  %s", problem)
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
