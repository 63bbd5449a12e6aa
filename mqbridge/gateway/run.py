"""The gateway: starts, reloads and stops the clusters, routes, listeners and HTTP server of a configuration.

The start prepares everything before any route runs: it binds the ports, connects the clusters, checks the plans of all routes
(the topics and groups to create), and only then creates topics and opens targets. A problem in a plan is raised before anything
is created. If a cluster is unreachable, its routes and listeners start when it is reached, and the others run meanwhile (with
`fail_fast`, it is an error). A new configuration is applied in the same order: new connections, targets and addresses are opened
first, then the changed routes and listeners are stopped and replaced.

A gateway with a listener runs until it is stopped, also if it has no route, or if all its routes have ended.
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
from mqbridge.adapter.known_brokers import HasBrokers
from mqbridge.adapter.registry import Adapter, load_adapters
from mqbridge.config.options.config import Config
from mqbridge.config.options.listener import ListenerConfig
from mqbridge.config.options.route import Route as RouteConfig
from mqbridge.config.topic_graph import TopicGraph
from mqbridge.delivery.checkpoint import Checkpoints
from mqbridge.delivery.counters import Counters
from mqbridge.errors import ClusterError, ConfigError, MqbridgeError, can_be_permitted
from mqbridge.gateway.change import Change, compare
from mqbridge.gateway.clusters import InitialConnections, close_clusters, connect_clusters, make_clusters
from mqbridge.gateway.health import outage_of
from mqbridge.gateway.idle_watch import IdleWatch
from mqbridge.gateway.lag import LagWatch
from mqbridge.gateway.listeners import ListenerRunner, group_store_path, make_runner
from mqbridge.gateway.reload import Reloader
from mqbridge.gateway.report import log_failing_targets, log_unassigned_routes, report
from mqbridge.gateway.run_result import RunResult, listener_result, route_result
from mqbridge.gateway.status_server import StatusServer
from mqbridge.groups.store import GroupStore
from mqbridge.listener.listener import ListenerState
from mqbridge.listener.server import ServedSystem, load_servers
from mqbridge.net.tasks import cancel, spawn
from mqbridge.routes.closing import GRACE_S, wait_by_deadline
from mqbridge.routes.plan import Plan, Planner, raise_problems
from mqbridge.routes.route import Route
from mqbridge.routes.unprotected import add_unprotected_problems

log = logging.getLogger(__name__)

END_CHECK_S = 0.1
"""Pause between two checks whether all routes have ended."""


class Gateway:
    """A gateway with its configuration, which can be reloaded if `path` is given (see `mqbridge.gateway.reload`).

    `adapters` None means all installed adapters, `servers` None all installed servers of listeners. `run` explains `fail_fast`.
    """

    def __init__(
        self,
        config: Config,
        adapters: Mapping[str, Adapter] | None = None,
        path: Path | None = None,
        *,
        fail_fast: bool | None = None,
        servers: Mapping[str, ServedSystem] | None = None,
    ) -> None:
        self.config = config
        self.initial_config = config
        """The configuration at the start; reloads do not change it."""
        self._graph = TopicGraph.of(config)
        """The topics of the running configuration, or of the one that is being applied."""
        self.adapters, self.servers = adapters, servers
        self.clusters: dict[str, Cluster] = {}
        self.routes: list[Route] = []
        self.listeners: list[ListenerRunner] = []
        self.ready = False
        """True from the end of the start to the beginning of the stop."""
        self.initial_connections = InitialConnections(self._on_connect_failure)
        """Retries clusters that are unreachable at the start."""
        self.reloader = Reloader(self, path)
        self.lag = LagWatch(self)
        self.on_applied: Callable[[Config], None] = lambda _: None
        """Called with each configuration that a reload has applied."""
        self.on_serving: Callable[[ListenerRunner], None] = lambda _: None
        """Called with each listener that begins to serve clients."""
        self._tasks: dict[Route, asyncio.Task[None]] = {}
        """The task of each started route."""
        self._clusters_to_close: list[Cluster] = []
        """Clusters that a reload has replaced or removed, and that are not closed yet."""
        self._checkpoints: Checkpoints | None = None
        self._group_store: GroupStore | None = None
        """The state of the listeners' groups; opened with the first listener, if there is a state file."""
        self._is_applying = False
        """True while a reload replaces routes: the gateway then keeps running even if all routes have ended."""
        self._fail_fast = fail_fast
        self._is_job = bool(fail_fast)
        """True if a route stops when something is not permitted; set when `run` begins."""
        self._deadline: float | None = None
        """Loop time by which everything must be drained and closed; None until the gateway stops."""
        self._stop_requested = asyncio.Event()

    def stop(self) -> None:
        """Request the stop: `run` then drains and returns."""
        self._stop_requested.set()

    async def run(self, until_idle_s: float | None = None) -> RunResult:
        """Run until `stop`, until every route has stopped, or until all routes have been idle for `until_idle_s` seconds.

        With listeners it runs until `stop`, unless `until_idle_s` is given.

        A route is idle while no message arrives and all messages are delivered; before the end, its source must confirm that it
        has no more. If a source cannot be asked, the run ends too, and the result names the partitions that may have unread
        messages (see `IdleWatch`).

        With None, idle routes keep running. Raises ConfigError or ClusterError if the gateway cannot start. An unreachable
        cluster, and what is not permitted, are such errors with `fail_fast`, which is the default with `until_idle_s`; otherwise
        the gateway keeps trying.
        """
        began_at = time.monotonic()
        self._is_job = fail_fast = self._fail_fast if self._fail_fast is not None else until_idle_s is not None
        async with contextlib.AsyncExitStack() as stack:
            if not await self._run_unless_stopped(self._prepare(stack, fail_fast=fail_fast)):
                return RunResult([], time.monotonic() - began_at)
            self._start_routes(self.routes)
            for runner in self.listeners:
                runner.run_in_task()
            self.ready = True
            helpers = [spawn(report(self), "report"), spawn(self.lag.run(), "lag"), spawn(self.reloader.run(), "reload")]
            helpers.append(spawn(log_unassigned_routes(self), "assignments"))
            helpers.append(spawn(log_failing_targets(self), "failing targets"))
            try:
                unread = await self._wait_for_end(until_idle_s)
            finally:
                self.ready = False
                latest = self._set_deadline() + 2 * GRACE_S  # a route abandons its own tasks GRACE_S after the deadline
                # Cancelled first: while the routes drain, a running reload closes the clusters that it has connected.
                for helper in helpers:
                    helper.cancel()
                for route in self.routes:
                    route.stop(self._deadline)
                closing = [spawn(runner.close(self._deadline), f"close {runner.name}") for runner in self.listeners]
                await wait_by_deadline(latest, "a route", *self._tasks.values())
                await wait_by_deadline(latest, "a listener", *closing)
                await wait_by_deadline(latest, "a background task of the gateway (report, lag, reload or assignments)", *helpers)
        unreachable = {name: why for name, cluster in self.clusters.items() if (why := outage_of(cluster)) is not None}
        results = [route_result(route, unread.get(route, {})) for route in self.routes]
        return RunResult(results, time.monotonic() - began_at, unreachable, [listener_result(each) for each in self.listeners])

    async def apply(self, config: Config) -> Change:
        """Switch to another configuration. If it cannot be used, change nothing and raise ConfigError or ClusterError."""
        change = compare(self.config, config, self.routes, self.listeners)
        async with contextlib.AsyncExitStack() as rollback:
            rollback.callback(setattr, self, "_graph", self._graph)
            self._graph = TopicGraph.of(config)
            new_clusters = await connect_clusters(change.clusters_to_connect, self.adapters, lambda: self._deadline)
            self._keep_brokers(new_clusters)
            rollback.callback(self._restore_layouts, new_clusters)
            rollback.push_async_callback(lambda: close_clusters(new_clusters.values(), self._deadline))
            retained = {name: cluster for name, cluster in self.clusters.items() if name not in change.clusters_to_close}
            new_routes = {
                route.name: self._make_route(route, retained | new_clusters, config.shutdown_timeout)
                for route in change.routes_to_start
            }
            new_listeners = {
                listener.name: self._make_listener(listener, config, retained | new_clusters)
                for listener in change.listeners_to_start
            }
            for runner in new_listeners.values():
                rollback.push_async_callback(self._close_listener, runner)
                if not runner.shares_address(change.listeners_to_stop):
                    runner.bind()
            unconnected = {name for name in retained if name in self.initial_connections.connect_errors}
            plans = await self._make_plans(
                new_routes.values(),
                retained | new_clusters,
                unconnected,
                [route for route in self.routes if route not in change.routes_to_stop],
            )
            await add_unprotected_problems(list(plans.values()), retained | new_clusters)
            raise_problems(list(plans.values()))
            for route, plan in plans.items():
                rollback.push_async_callback(self._close_route, route)
                await route.prepare(plan)
            self._is_applying = True
            try:
                await self._replace_listeners(change.listeners_to_stop, list(new_listeners.values()))
                await asyncio.gather(*(self._stop_route(route) for route in change.routes_to_stop))
                # No await from here to the end of the block: a stop must find either the old or the new state.
                rollback.pop_all()
                self.initial_connections.forget(change.clusters_to_close)
                self._clusters_to_close += [self.clusters[name] for name in change.clusters_to_close]
                for route in change.routes_to_stop:
                    self._tasks.pop(route, None)
                routes_by_name = {route.name: route for route in self.routes} | new_routes
                self.config, self.clusters = config, retained | new_clusters
                self.routes = [routes_by_name[route.name] for route in config.routes]
                listeners_by_name = {runner.name: runner for runner in self.listeners} | new_listeners
                self.listeners = [listeners_by_name[listener.name] for listener in config.listeners]
                self._start_routes(new_routes.values())
                for runner in new_listeners.values():
                    runner.run_in_task()
            finally:
                self._is_applying = False
        for route in self.routes:
            route.drain_within(config.shutdown_timeout)
        self.on_applied(config)
        await self._close_replaced_clusters()
        return change

    # --- parts --------------------------------------------------------------------------------------------------------

    def _set_deadline(self) -> float:
        """Set and return the deadline for draining and closing everything."""
        self._deadline = asyncio.get_running_loop().time() + self.config.shutdown_timeout
        return self._deadline

    async def _run_unless_stopped(self, preparation: Coroutine[Any, Any, None]) -> bool:
        """Run the preparation. If `stop` is called before it ends, cancel it and return False."""
        task = spawn(preparation, "preparation", log_errors=False)
        stop_waiter = spawn(self._stop_requested.wait(), "stop signal")
        try:
            await asyncio.wait([task, stop_waiter], return_when=asyncio.FIRST_COMPLETED)
        finally:
            has_succeeded = task.done() and not task.cancelled() and task.exception() is None
            if not has_succeeded:  # `run` ends now, and closes everything
                self._set_deadline()
            await cancel(task, stop_waiter)
        if task.cancelled():
            return False
        task.result()
        return True

    async def _prepare(self, stack: contextlib.AsyncExitStack, *, fail_fast: bool = True) -> None:
        """Do everything that precedes the start of the routes; the cleanup goes onto the stack."""
        config = self.config
        server = StatusServer(self, config.http) if config.http.enabled else None
        if server is not None:
            server.bind()
            stack.callback(server.unbind)
        address = f"http://{config.http.host}:{server.port}" if server is not None else "off"
        log.info("mqbridge %s starts: configuration %s, metrics and health: %s", __version__, self.reloader.path or "-", address)
        if native.compiled is None:
            log.log(logging.WARNING if native.is_broken else logging.INFO, "compiled module: %s", native.notice)
        if config.state is not None:
            self._checkpoints = Checkpoints(config.state)
            stack.push_async_callback(self._close_checkpoints, self._checkpoints)
            writer = spawn(self._checkpoints.run(), "checkpoints")
            stack.push_async_callback(cancel, writer)
            stack.push_async_callback(self._close_group_store)  # before the checkpoints, which hold the lock of both files
        if server is not None:
            await stack.enter_async_context(server)
        self.clusters = make_clusters(config.clusters, self.adapters)
        self._keep_brokers(self.clusters)
        stack.push_async_callback(self._close_all_clusters)
        stack.push_async_callback(self._close_listeners)
        for listener in config.listeners:
            self.listeners.append(self._make_listener(listener, config, self.clusters))
            self.listeners[-1].bind()
        stack.push_async_callback(self.initial_connections.close)
        await self.initial_connections.start(self.clusters, fail_fast=fail_fast)
        self.routes = [self._make_route(route, self.clusters, config.shutdown_timeout) for route in config.routes]
        stack.push_async_callback(self._close_routes)
        await self._open_routes(fail_fast=fail_fast)
        if fail_fast:
            await asyncio.gather(*(runner.start() for runner in self.listeners))

    async def _open_routes(self, *, fail_fast: bool) -> None:
        """Open every route that can be opened now; the others open when they run."""
        plans = await self._make_plans(self.routes, self.clusters, self.initial_connections.connect_errors)
        if fail_fast:
            await add_unprotected_problems(list(plans.values()), self.clusters)
        else:
            for route in [route for route, plan in plans.items() if plan.problems and all(map(can_be_permitted, plan.problems))]:
                problem = plans.pop(route).problems[0]
                route.state.wait_after(self.initial_connections.error_of(route.config.clusters) or problem)
        raise_problems(list(plans.values()))
        for route, plan in plans.items():
            try:
                await route.prepare(plan)
            except ClusterError as error:
                if fail_fast or not can_be_permitted(error):
                    raise
                route.state.wait_after(error)
                for other_plan in plans.values():  # other plans may rely on topics that this route did not create
                    other_plan.is_provisional = True

    async def _make_plans(
        self,
        routes: Iterable[Route],
        clusters: Mapping[str, Cluster],
        unconnected: Collection[str],
        retained: Iterable[Route] = (),
    ) -> dict[Route, Plan]:
        """Make the plans of routes before any of them is opened; `unconnected` names the clusters to leave out.

        `retained` routes keep running; those that are pending (not open yet) may still create topics.
        """
        connected = {name: cluster for name, cluster in clusters.items() if name not in unconnected}
        planner = Planner(connected, [route.config for route in retained if route.is_pending], self._graph)
        return {route: await planner.plan(route.config) for route in routes}

    def _keep_brokers(self, clusters: Mapping[str, Cluster]) -> None:
        """Keep in the state file which brokers the clusters have."""
        for name, cluster in clusters.items():
            if self._checkpoints is not None and isinstance(cluster, HasBrokers):
                self._checkpoints.keep_brokers(name, cluster.known_brokers)

    def _restore_layouts(self, names: Iterable[str]) -> None:
        """Keep in the state file by which indexes the running clusters of these names count, after a reload that failed."""
        for name in names:
            cluster = self.clusters.get(name)
            if self._checkpoints is not None and isinstance(cluster, HasBrokers):
                self._checkpoints.restore_layouts(name, cluster.known_brokers)

    def _on_connect_failure(self, name: str, error: MqbridgeError) -> None:
        """Show the error of a cluster that is not connected yet as the reason why its routes wait."""
        for route in self.routes:
            if name in route.config.clusters:
                route.state.wait_after(error)

    def _make_route(self, config: RouteConfig, clusters: Mapping[str, Cluster], drain_s: float) -> Route:
        """Make a route; if it replaces a running route of the same name, it takes over the totals of that route."""
        counters = next((route.state.counters for route in self.routes if route.name == config.name), Counters())
        wait_connected = partial(self.initial_connections.wait_connected, config.clusters)
        pending = partial(self._earlier_pending_routes, config.name)
        return Route(
            config,
            clusters,
            self._checkpoints,
            drain_s,
            counters,
            wait_connected,
            pending,
            lambda: self._graph,
            needs_permission=self._is_job,
        )

    def _earlier_pending_routes(self, name: str) -> list[RouteConfig]:
        """Return the pending routes before the named one, which may still create topics that it needs.

        Later routes are left out: otherwise two routes could wait for each other's topics forever.
        """
        earlier = itertools.takewhile(lambda route: route.name != name, self.routes)
        return [route.config for route in earlier if route.is_pending]

    def _start_routes(self, routes: Iterable[Route]) -> None:
        for route in routes:
            for note in self._graph.notes(route.config):
                log.info("route %s: %s", route.name, note)
            self._tasks[route] = spawn(route.run(), f"route {route.name}")

    async def _stop_route(self, route: Route) -> None:
        """Drain a route and close its outbounds: the route that replaces it may need the same producer names."""
        route.stop()
        await asyncio.wait([self._tasks[route]])
        await route.close()

    async def _close_routes(self) -> None:
        await asyncio.gather(*map(self._close_route, self.routes), return_exceptions=True)

    async def _close_route(self, route: Route) -> None:
        await route.close(self._deadline)

    def _make_listener(self, listener: ListenerConfig, config: Config, clusters: Mapping[str, Cluster]) -> ListenerRunner:
        """Make the runner of a listener of `config`. Raises ConfigError."""
        if self._group_store is None and self._checkpoints is not None and self.initial_config.state is not None:
            self._group_store = GroupStore(group_store_path(self.initial_config.state))
        return make_runner(
            listener,
            config,
            clusters,
            load_adapters() if self.adapters is None else self.adapters,
            load_servers() if self.servers is None else self.servers,
            self._group_store,
            self.initial_connections.wait_connected,
            self.initial_connections.error_of,
            lambda runner: self.on_serving(runner),  # noqa: PLW0108 - it may be set later
        )

    async def _replace_listeners(self, stopping: Collection[ListenerRunner], starting: Collection[ListenerRunner]) -> None:
        """Close listeners, and bind those that replace them at the same addresses.

        If one cannot be bound, the closed ones are made again with the running configuration, and ConfigError is raised.
        """
        drain_deadline = asyncio.get_running_loop().time() + self.config.shutdown_timeout
        await asyncio.gather(*(runner.close(drain_deadline) for runner in stopping))
        try:
            for runner in starting:
                if runner.state is ListenerState.STOPPED:
                    runner.bind()
        except ConfigError:
            await asyncio.gather(*map(self._close_listener, starting))
            self.listeners = [self._revived(runner) if runner in stopping else runner for runner in self.listeners]
            raise

    def _revived(self, closed: ListenerRunner) -> ListenerRunner:
        """Return a new runner for a closed listener of the running configuration."""
        runner = self._make_listener(closed.config, self.config, self.clusters)
        try:
            runner.bind()
        except ConfigError as error:
            log.error("listener %s was closed for a reload that failed, and cannot run again: %s", runner.name, error)  # noqa: TRY400 - expected
            runner.keep_problem(error)
        runner.run_in_task()
        return runner

    async def _close_listeners(self) -> None:
        await asyncio.gather(*map(self._close_listener, self.listeners))

    async def _close_listener(self, runner: ListenerRunner) -> None:
        await runner.close(self._deadline)

    async def _close_group_store(self) -> None:
        if self._group_store is not None:
            await self._group_store.close(self._deadline)

    async def _close_checkpoints(self, checkpoints: Checkpoints) -> None:
        await checkpoints.close(self._deadline)

    async def _close_replaced_clusters(self) -> None:
        while self._clusters_to_close:  # removed only when it is closed: after a cancellation, `_close_all_clusters` closes it
            await close_clusters(self._clusters_to_close[:1])
            del self._clusters_to_close[:1]

    async def _close_all_clusters(self) -> None:
        await close_clusters([*self.clusters.values(), *self._clusters_to_close], self._deadline)

    async def _wait_for_end(self, until_idle_s: float | None) -> Mapping[Route, Mapping[str, str]]:
        """Wait until a stop is requested, all routes have ended (if nothing else keeps the gateway), or the run is idle.

        Returns the partitions that may have unread messages, with the reason, by route; only for an idle run.
        """
        waiters = [spawn(self._stop_requested.wait(), "stop signal")]
        idle_watch = None if until_idle_s is None else IdleWatch(lambda: None if self._is_applying else self.routes, until_idle_s)
        if idle_watch is not None:
            waiters.append(spawn(idle_watch.run(), "idle watch", log_errors=False))
        try:
            while not any(waiter.done() for waiter in waiters):
                tasks = list(self._tasks.values())
                is_kept = self._is_applying or (bool(self.listeners) and until_idle_s is None)
                if not is_kept and all(task.done() for task in tasks):
                    return {}
                await asyncio.wait([*waiters, *tasks], timeout=END_CHECK_S, return_when=asyncio.FIRST_COMPLETED)
                if self._is_applying or any(task.done() for task in tasks):  # then `asyncio.wait` above returns at once
                    await asyncio.sleep(END_CHECK_S)
        finally:
            await cancel(*waiters)
        for waiter in waiters:
            if not waiter.cancelled():
                waiter.result()
        return {} if idle_watch is None else idle_watch.unread
