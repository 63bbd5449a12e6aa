"""The gateway process: clusters, routes and the HTTP page of one configuration, from start to drained end.

Everything is prepared before anything runs: clusters are reached, topics found, targets opened, the port taken. What is wrong by
then is raised and nothing was half-started. A new configuration is applied the same way: what it needs is opened first, and only
what differs is stopped.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from mqbridge.adapter import Adapter, Cluster
from mqbridge.config.options.config import Config
from mqbridge.config.options.route import Route as RouteConfig
from mqbridge.delivery.checkpoint import Checkpoints
from mqbridge.delivery.counters import Counters
from mqbridge.gateway.change import Change, compare
from mqbridge.gateway.closing import GRACE_S, settle_by
from mqbridge.gateway.clusters import close, connect
from mqbridge.gateway.http import StatusServer
from mqbridge.gateway.outcome import Outcome, outcome_of
from mqbridge.gateway.reload import Reloader
from mqbridge.gateway.route import Route
from mqbridge.net.tasks import cancel, spawn

log = logging.getLogger(__name__)

IDLE_CHECK_S = 0.1
REPORT_EVERY_S = 30.0
"""A line per route in the log, so that whoever looks at it sees that it moves."""


class Gateway:
    """One configuration, running. With `path` it can be read again while running (see `mqbridge.gateway.reload`)."""

    def __init__(self, config: Config, adapters: Mapping[str, Adapter] | None = None, path: Path | None = None) -> None:
        self.config = config
        self.started_with = config
        self.adapters = adapters
        self.clusters: dict[str, Cluster] = {}
        self.routes: list[Route] = []
        self.ready = False
        self.reloader = Reloader(self, path)
        self.on_applied: Callable[[Config], None] = lambda _: None
        """Called with each configuration that was applied while running."""
        self._tasks: dict[Route, asyncio.Task[None]] = {}
        self._unused: list[Cluster] = []
        """Replaced by a new configuration, and still to be closed."""
        self._checkpoints: Checkpoints | None = None
        self._applying = False
        self._deadline: float | None = None
        """When everything is to be drained and closed; loop time, set once it is to stop."""
        self._stop = asyncio.Event()

    def stop(self) -> None:
        """Drain and end; `run` returns when that is done."""
        self._stop.set()

    async def run(self, until_idle_s: float | None = None) -> Outcome:
        """Run until `stop`, until every route has stopped, or until nothing came for `until_idle_s`.

        Raises ConfigError or ClusterError when it cannot begin.
        """
        began = time.monotonic()
        async with contextlib.AsyncExitStack() as stack:
            await self._prepare(stack)
            self._start(self.routes)
            self.ready = True
            helpers = [spawn(self._report(), "report"), spawn(self.reloader.run(), "reload")]
            try:
                await self._wait(until_idle_s)
            finally:
                self.ready = False
                self._deadline = asyncio.get_running_loop().time() + self.config.shutdown_timeout
                await cancel(*helpers)
                for route in self.routes:
                    route.stop(self._deadline)
                await settle_by(self._deadline + 2 * GRACE_S, "a route", *self._tasks.values())
        return Outcome([outcome_of(route) for route in self.routes], time.monotonic() - began)

    async def apply(self, config: Config) -> Change:
        """Go over to another configuration. Raises ConfigError or ClusterError, and goes on as before, when it cannot be used."""
        change = compare(self.config, config, self.routes)
        async with contextlib.AsyncExitStack() as undo:
            reached = await connect(change.clusters, self.adapters)
            undo.push_async_callback(lambda: close(reached.values(), self._deadline))
            kept = {name: cluster for name, cluster in self.clusters.items() if name not in change.unused}
            begin = {route.name: self._route(route, kept | reached, config.shutdown_timeout) for route in change.begin}
            for route in begin.values():
                undo.push_async_callback(self._close_route, route)
                await route.prepare()
            self._applying = True
            try:
                await asyncio.gather(*(self._end(route) for route in change.end))
                # From here to the end of the block nothing waits: a stop meets either the old or the new.
                undo.pop_all()
                self._unused += [self.clusters[name] for name in change.unused]
                for route in change.end:
                    self._tasks.pop(route, None)
                running = {route.name: route for route in self.routes} | begin
                self.config, self.clusters = config, kept | reached
                self.routes = [running[route.name] for route in config.routes]
                self._start(begin.values())
            finally:
                self._applying = False
        for route in self.routes:
            route.drain_within(config.shutdown_timeout)
        self.on_applied(config)
        await self._close_unused()
        return change

    # --- parts --------------------------------------------------------------------------------------------------------

    async def _prepare(self, stack: contextlib.AsyncExitStack) -> None:
        config = self.config
        server = StatusServer(self, config.http.host, config.http.port) if config.http.enabled else None
        if server is not None:
            server.bind()
            stack.callback(server.unbind)
        self.clusters = await connect(config.clusters, self.adapters)
        stack.push_async_callback(self._close_all)
        if config.state is not None:
            self._checkpoints = Checkpoints(config.state)
            stack.push_async_callback(self._close_checkpoints, self._checkpoints)
            writer = spawn(self._checkpoints.run(), "checkpoints")
            stack.push_async_callback(cancel, writer)
        self.routes = [self._route(route, self.clusters, config.shutdown_timeout) for route in config.routes]
        stack.push_async_callback(self._close_routes)
        for route in self.routes:
            await route.prepare()
        if server is not None:
            await stack.enter_async_context(server)

    def _route(self, config: RouteConfig, clusters: Mapping[str, Cluster], drain_s: float) -> Route:
        """A route; one that takes the place of another of its name goes on with its totals."""
        counters = next((route.counters for route in self.routes if route.name == config.name), Counters())
        return Route(config, clusters, self._checkpoints, drain_s, counters)

    def _start(self, routes: Iterable[Route]) -> None:
        for route in routes:
            self._tasks[route] = spawn(route.run(), f"route {route.name}")

    async def _end(self, route: Route) -> None:
        """Drain a route and close its outbounds: the one that takes its place may need what they hold."""
        route.stop()
        await asyncio.wait([self._tasks[route]])
        await route.close()

    async def _close_routes(self) -> None:
        await asyncio.gather(*map(self._close_route, self.routes), return_exceptions=True)

    async def _close_route(self, route: Route) -> None:
        await route.close(self._deadline)

    async def _close_checkpoints(self, checkpoints: Checkpoints) -> None:
        await checkpoints.close(self._deadline)

    async def _close_unused(self) -> None:
        while self._unused:
            await close(self._unused[:1])
            del self._unused[:1]

    async def _close_all(self) -> None:
        await close([*self.clusters.values(), *self._unused], self._deadline)

    async def _wait(self, until_idle_s: float | None) -> None:
        stopping = spawn(self._stop.wait(), "stop signal")
        loop = asyncio.get_running_loop()
        try:
            while not self._stop.is_set():
                tasks = list(self._tasks.values())
                if not self._applying and all(task.done() for task in tasks):
                    return
                await asyncio.wait([stopping, *tasks], timeout=IDLE_CHECK_S, return_when=asyncio.FIRST_COMPLETED)
                if self._applying:
                    await asyncio.sleep(IDLE_CHECK_S)
                    continue
                if until_idle_s is not None and all(route.idle_for(loop.time()) >= until_idle_s for route in self.routes):
                    return
                if any(task.done() for task in tasks):
                    await asyncio.sleep(IDLE_CHECK_S)
        finally:
            await cancel(stopping)

    async def _report(self) -> None:
        before: dict[str, int] = {}
        while True:
            await asyncio.sleep(REPORT_EVERY_S)
            for route in self.routes:
                stored = route.counters.stored
                log.info(
                    "route %s: %s messages stored, %.0f per second; %d partitions, %.1f MB in flight, %d dead letters",
                    route.name,
                    f"{stored:,}",
                    (stored - before.get(route.name, 0)) / REPORT_EVERY_S,
                    len(route.deliveries),
                    route.budget.used / 1e6,
                    route.counters.dead,
                )
                before[route.name] = stored
