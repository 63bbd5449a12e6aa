"""The gateway process: clusters, routes and the HTTP server of one configuration, from the start to the drained end.

Everything is prepared before anything runs: the port is bound, clusters are connected, the plans of all routes validated, then
topics created and targets opened. A problem found by then is raised, with nothing created or half started. A cluster that is not
up yet is waited for: its routes start when it is, the others run (unless `fail_fast`). A new configuration is applied in the same
way: its resources are opened first, and only what differs is stopped.
"""

import asyncio
import contextlib
import itertools
import logging
import time
from collections.abc import Callable, Collection, Coroutine, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from mqbridge import __version__, native
from mqbridge.adapter.cluster import Cluster
from mqbridge.adapter.registry import Adapter
from mqbridge.config.options.config import Config
from mqbridge.config.options.route import Route as RouteConfig
from mqbridge.delivery.checkpoint import Checkpoints
from mqbridge.delivery.counters import Counters
from mqbridge.errors import ClusterError, MqbridgeError
from mqbridge.gateway.assignment import log_unassigned_routes
from mqbridge.gateway.change import Change, compare
from mqbridge.gateway.closing import GRACE_S, settle_by
from mqbridge.gateway.clusters import InitialConnections, close, connect, make
from mqbridge.gateway.health import away
from mqbridge.gateway.http import StatusServer
from mqbridge.gateway.lag import LagWatch
from mqbridge.gateway.plan import Plan, Planner, is_transient, refuse
from mqbridge.gateway.reload import Reloader
from mqbridge.gateway.report import report
from mqbridge.gateway.route import Route
from mqbridge.gateway.run_result import RunResult, route_result
from mqbridge.net.tasks import cancel, spawn

log = logging.getLogger(__name__)

IDLE_CHECK_S = 0.1


class Gateway:
    """One running configuration. With `path` it can be reloaded (see `mqbridge.gateway.reload`)."""

    def __init__(
        self,
        config: Config,
        adapters: Mapping[str, Adapter] | None = None,
        path: Path | None = None,
        *,
        fail_fast: bool | None = None,
    ) -> None:
        self.config = config
        self.started_with = config
        self.adapters = adapters
        self.clusters: dict[str, Cluster] = {}
        self.routes: list[Route] = []
        self.ready = False
        self.initial_connections = InitialConnections(self._not_connected)
        """Retries clusters that are not up yet."""
        self.reloader = Reloader(self, path)
        self.lag = LagWatch(self)
        self.on_applied: Callable[[Config], None] = lambda _: None
        """Called with each configuration that is applied while running."""
        self._tasks: dict[Route, asyncio.Task[None]] = {}
        self._unused: list[Cluster] = []
        """Clusters replaced by a new configuration, still to be closed."""
        self._checkpoints: Checkpoints | None = None
        self._applying = False
        self._fail_fast = fail_fast
        self._deadline: float | None = None
        """Loop time by which everything must be drained and closed; set when the gateway stops."""
        self._stop = asyncio.Event()

    def stop(self) -> None:
        """Request the end; `run` drains and returns."""
        self._stop.set()

    async def run(self, until_idle_s: float | None = None) -> RunResult:
        """Run until `stop`, until every route has stopped, or until nothing was received for `until_idle_s`.

        Raises ConfigError or ClusterError if it cannot start. With `fail_fast`, the default with `until_idle_s`, an unreachable
        cluster is such an error; otherwise the gateway waits for it.
        """
        began = time.monotonic()
        fail_fast = self._fail_fast if self._fail_fast is not None else until_idle_s is not None
        async with contextlib.AsyncExitStack() as stack:
            if not await self._unless_stopped(self._prepare(stack, fail_fast=fail_fast)):
                return RunResult([], time.monotonic() - began)
            self._start(self.routes)
            self.ready = True
            helpers = [spawn(report(self), "report"), spawn(self.lag.run(), "lag"), spawn(self.reloader.run(), "reload")]
            helpers.append(spawn(log_unassigned_routes(lambda: self.routes), "assignments"))
            try:
                await self._wait(until_idle_s)
            finally:
                self.ready = False
                last = self._end_all() + 2 * GRACE_S
                for helper in helpers:  # a reload may have to close clusters that it connected: the routes drain meanwhile
                    helper.cancel()
                for route in self.routes:
                    route.stop(self._deadline)
                await settle_by(last, "a route", *self._tasks.values())
                await settle_by(last, "a reload", *helpers)
        missing = {name: why for name, cluster in self.clusters.items() if (why := away(cluster)) is not None}
        return RunResult([route_result(route) for route in self.routes], time.monotonic() - began, missing)

    async def apply(self, config: Config) -> Change:
        """Switch to another configuration. Raises ConfigError or ClusterError, and changes nothing, if it cannot be used."""
        change = compare(self.config, config, self.routes)
        async with contextlib.AsyncExitStack() as undo:
            connected = await connect(change.clusters, self.adapters, lambda: self._deadline)
            undo.push_async_callback(lambda: close(connected.values(), self._deadline))
            kept = {name: cluster for name, cluster in self.clusters.items() if name not in change.unused}
            begin = {route.name: self._route(route, kept | connected, config.shutdown_timeout) for route in change.begin}
            missing = {name for name in kept if name in self.initial_connections.waiting}
            plans = await self._plan(
                begin.values(), kept | connected, missing, [route for route in self.routes if route not in change.end]
            )
            refuse(list(plans.values()))
            for route, plan in plans.items():
                undo.push_async_callback(self._close_route, route)
                await route.prepare(plan)
            self._applying = True
            try:
                await asyncio.gather(*(self._end(route) for route in change.end))
                # No await from here to the end of the block: a stop sees either the old or the new state.
                undo.pop_all()
                self.initial_connections.forget(change.unused)
                self._unused += [self.clusters[name] for name in change.unused]
                for route in change.end:
                    self._tasks.pop(route, None)
                running = {route.name: route for route in self.routes} | begin
                self.config, self.clusters = config, kept | connected
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

    def _end_all(self) -> float:
        """Set the one deadline for everything that ends."""
        self._deadline = asyncio.get_running_loop().time() + self.config.shutdown_timeout
        return self._deadline

    async def _unless_stopped(self, preparing: Coroutine[Any, Any, None]) -> bool:
        """Run the preparation; return False if `stop` came first, which cancels it."""
        task, stopping = spawn(preparing, "preparing", quiet=True), spawn(self._stop.wait(), "stop signal")
        try:
            await asyncio.wait([task, stopping], return_when=asyncio.FIRST_COMPLETED)
        finally:
            if not task.done() or task.cancelled() or task.exception() is not None:
                self._end_all()
            await cancel(task, stopping)
        if task.cancelled():
            return False
        task.result()
        return True

    async def _prepare(self, stack: contextlib.AsyncExitStack, *, fail_fast: bool = True) -> None:
        config = self.config
        server = StatusServer(self, config.http.host, config.http.port) if config.http.enabled else None
        if server is not None:
            server.bind()
            stack.callback(server.unbind)
        page = f"http://{config.http.host}:{server.port}" if server is not None else "off"
        log.info("mqbridge %s starts: configuration %s, metrics and health: %s", __version__, self.reloader.path or "-", page)
        if native.compiled is None:
            log.log(logging.WARNING if native.is_broken else logging.INFO, "%s", native.notice)
        if config.state is not None:
            self._checkpoints = Checkpoints(config.state)
            stack.push_async_callback(self._close_checkpoints, self._checkpoints)
            writer = spawn(self._checkpoints.run(), "checkpoints")
            stack.push_async_callback(cancel, writer)
        if server is not None:
            await stack.enter_async_context(server)
        self.clusters = make(config.clusters, self.adapters)
        stack.push_async_callback(self._close_all)
        stack.push_async_callback(self.initial_connections.close)
        await self.initial_connections.begin(self.clusters, fail_fast=fail_fast)
        self.routes = [self._route(route, self.clusters, config.shutdown_timeout) for route in config.routes]
        stack.push_async_callback(self._close_routes)
        await self._open(fail_fast=fail_fast)

    async def _open(self, *, fail_fast: bool) -> None:
        """Open every route that can be opened; the others open themselves when they run."""
        plans = await self._plan(self.routes, self.clusters, self.initial_connections.waiting)
        if not fail_fast:
            for route in [route for route, plan in plans.items() if plan.problems and all(map(is_transient, plan.problems))]:
                problem = plans.pop(route).problems[0]
                route.retry_reason = self.initial_connections.failure(route.config.clusters) or problem
        refuse(list(plans.values()))
        for route, plan in plans.items():
            try:
                await route.prepare(plan)
            except ClusterError as error:
                if fail_fast or not is_transient(error):
                    raise
                route.retry_reason = error
                for other in plans.values():  # routes still to be opened counted on the topics of this one
                    other.provisional = True

    async def _plan(
        self,
        routes: Iterable[Route],
        clusters: Mapping[str, Cluster],
        missing: Collection[str],
        kept: Iterable[Route] = (),
    ) -> dict[Route, Plan]:
        """Make the plans of routes, before any of them is opened; `missing` are clusters that are not connected yet."""
        connected = {name: cluster for name, cluster in clusters.items() if name not in missing}
        planner = Planner(connected, [route.config for route in kept if route.is_pending])
        return {route: await planner.plan(route.config) for route in routes}

    def _not_connected(self, name: str, error: MqbridgeError) -> None:
        for route in self.routes:
            if name in route.config.clusters:
                route.retry_reason = error

    def _route(self, config: RouteConfig, clusters: Mapping[str, Cluster], drain_s: float) -> Route:
        """Make a route; one that replaces a route of the same name continues with its totals."""
        counters = next((route.counters for route in self.routes if route.name == config.name), Counters())
        wait_connected = partial(self.initial_connections.wait_connected, config.clusters)
        pending = partial(self._pending_before, config.name)
        return Route(config, clusters, self._checkpoints, drain_s, counters, wait_connected, pending)

    def _pending_before(self, name: str) -> list[RouteConfig]:
        """Return the earlier routes that are not open yet. Only earlier ones: else two could wait for each other forever."""
        before = itertools.takewhile(lambda route: route.name != name, self.routes)
        return [route.config for route in before if route.is_pending]

    def _start(self, routes: Iterable[Route]) -> None:
        for route in routes:
            self._tasks[route] = spawn(route.run(), f"route {route.name}")

    async def _end(self, route: Route) -> None:
        """Drain a route and close its outbounds: its replacement may need the resources that they hold."""
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
