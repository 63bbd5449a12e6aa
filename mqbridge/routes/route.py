"""A running route: a sequence of memberships in its group, each with the topics and targets that existed when it began.

After a transient failure the route pauses and starts the next membership. Once the route has run, any other failure of a cluster
was caused by somebody: a permission was taken away, a topic was closed or deleted. Somebody can undo that, so the route opens its
targets again, and waits while that fails. It waits at its start, too, for what is not permitted. Any other failure stops only
this route, not the gateway. If source topics appear or disappear, or if a target gets partitions that its open
outbound cannot use, the route opens new endpoints, drains its membership, and starts the next one with them.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from functools import partial

from mqbridge.adapter.cluster import Cluster, ReportsConnectivity
from mqbridge.config.options.route import Route as RouteConfig
from mqbridge.config.topic_graph import TopicGraph
from mqbridge.delivery.checkpoint import Checkpoints
from mqbridge.delivery.counters import Counters
from mqbridge.delivery.held_positions import RoutePositions
from mqbridge.delivery.rate import RateLimit
from mqbridge.delivery.settings import LaneSettings
from mqbridge.errors import (
    ClusterError,
    DeliveryError,
    Failure,
    MqbridgeError,
    NotPermitted,
    RequestTimeout,
    TopicChanged,
    can_be_permitted,
    can_be_undone,
    is_transient,
)
from mqbridge.message import Batch
from mqbridge.net.backoff import Backoff
from mqbridge.net.connectivity import MAX_PAUSE_S, retry_log_level
from mqbridge.net.tasks import spawn
from mqbridge.routes.closing import cancel_by_deadline, close_by_deadline
from mqbridge.routes.endpoints import RouteEndpoints
from mqbridge.routes.gap_check import GapCheck
from mqbridge.routes.membership import GroupMembership
from mqbridge.routes.plan import Plan
from mqbridge.routes.retention_warnings import RouteWarnings
from mqbridge.routes.route_state import RouteState
from mqbridge.routes.unprotected import unprotected_error
from mqbridge.routing.filters import make_filter

log = logging.getLogger(__name__)

MIN_REJOIN_PAUSE_S, MAX_REJOIN_PAUSE_S = 0.5, MAX_PAUSE_S
"""Minimum and maximum pause after a failed membership."""
STABLE_S = 60.0
"""A membership that lasted longer than this resets the pause to the minimum."""

PROTECTION_CHECK_S, UNPROTECTED_CHECK_S = 30.0, 3.0
"""Pause between two checks for unprotected targets while there is none, and while there is one. A check costs two requests per
topic."""

LOOPED_LOG_INTERVAL_S = 60.0
"""Minimum time between two log lines about looped messages, which are often many."""


async def already_connected() -> float:
    """Return at once: the default of `wait_connected`, for clusters that are connected already.

    The result is a loop time in the past, because no failure can be due to servers that still start.
    """
    return 0.0


class Route:
    """One route of the configuration, from `prepare` and `run` to its end; `state` says what it is doing.

    Without `checkpoints`, positions are not recorded, and gaps are not found. `drain_s`: see `drain_within`. `counters` continue
    the totals of a route that this one replaces. `wait_connected` waits for the clusters of the route, and returns the loop time
    until which a failure may be due to servers that still start (0.0 if no cluster was connected late). `pending_routes` returns
    the routes that may still create a missing source topic. `graph` returns the graph of the topics that the routes of the
    running configuration read and write; None: this route is the only one. `needs_permission`: a failure that is not transient
    always stops the route, because nobody watches the process (a job).
    """

    def __init__(
        self,
        config: RouteConfig,
        clusters: Mapping[str, Cluster],
        checkpoints: Checkpoints | None,
        drain_s: float,
        counters: Counters | None = None,
        wait_connected: Callable[[], Awaitable[float]] = already_connected,
        pending_routes: Callable[[], Collection[RouteConfig]] = tuple,
        graph: Callable[[], TopicGraph] | None = None,
        *,
        needs_permission: bool = False,
    ) -> None:
        self.name, self.config = config.name, config
        self.source = clusters[config.source.cluster]
        """The cluster of the source topics."""
        self._clusters = {name: clusters[name] for name in config.clusters}
        self._wait_connected, self._pending_routes = wait_connected, pending_routes
        self.graph = graph if graph is not None else partial(TopicGraph, (config,), {})
        """Returns the graph of the running configuration's topics."""
        self._checkpoints, self._drain_s = checkpoints, drain_s
        self.state = RouteState(config, Counters() if counters is None else counters, self._make_endpoints())
        self.warnings = RouteWarnings(self.name, self._fetch_warnings)
        """Warnings about retention that deletes messages of its topics before they are consumed."""
        self._gap_check = GapCheck(self.name, config.source.group, self.source, checkpoints)
        self._positions = RoutePositions(config.name, config.source.group, config.source.cluster, checkpoints)
        self._initial_partitions: Mapping[str, frozenset[str]] | None = None
        """Names of the partitions, by topic, that existed at the start; later ones are read from their beginning. None before."""
        self._began_ms: int | None = None
        """Time before the partitions were listed at the start, ms since the epoch."""
        self._needs_permission = needs_permission
        self._must_reopen: str | None = None
        """Why the targets have to be opened again, from a failure that is not transient until they are open; else None."""
        self._next_endpoints: RouteEndpoints | None = None
        """Endpoints that are open already for the next membership; None if the current ones stay in use."""
        self._stop_requested = asyncio.Event()
        self._deadline: float | None = None
        """The deadline given to `stop`, or its default; None until then."""
        self._rejoin_backoff = Backoff(initial_s=MIN_REJOIN_PAUSE_S, max_s=MAX_REJOIN_PAUSE_S)
        self._logged_pause: tuple[str, int] | None = None
        """The reason for the pause that was logged last, and the number of messages that were stored by then."""
        self._looped_logged_at = float("-inf")
        self._logged_failed_topics: Mapping[str, str] = {}
        """The failed topics, with the reasons, that were logged last."""

    @property
    def is_pending(self) -> bool:
        """True if the route has not opened its targets yet and is not being stopped.

        Other routes are then planned as if the topics that it will create existed.
        """
        return not (self.state.endpoints.is_open or self._stop_requested.is_set())

    async def prepare(self, plan: Plan | None = None) -> None:
        """Carry out the plan, or a new one if it is None: create missing targets, and open every outbound.

        Raises ConfigError or ClusterError. If this was not called before `run`, `run` calls it when the clusters are connected,
        and retries transient failures.
        """
        began_ms = time.time_ns() // 1_000_000
        await self._open(self.state.endpoints, plan)
        if self._initial_partitions is None:  # not if the targets are opened again
            self._initial_partitions, self._began_ms = self.state.endpoints.source_partition_names, began_ms
        self._must_reopen = None

    async def _open(self, endpoints: RouteEndpoints, plan: Plan | None = None) -> None:
        """Open endpoints by the plan, or a new one if it is None. Raises ConfigError or ClusterError."""
        await endpoints.open(plan, self._drain_deadline)
        self._log_failed_topics(endpoints)
        if self._checkpoints is not None:
            await self._checkpoints.flush()  # which brokers the indexes are counted over, before the first message is read

    async def run(self) -> None:
        """Consume and deliver until `stop` or a failure that nobody can undo; that failure is in `state.error`, not raised."""
        state = self.state
        retention_check: asyncio.Task[None] | None = None
        try:
            while not self._stop_requested.is_set():
                try:
                    if not state.endpoints.is_open:
                        await self._open_endpoints()
                    if state.endpoints.is_open and not self._stop_requested.is_set():
                        retention_check = retention_check or spawn(self.warnings.run(), f"retention warnings of {self.name}")
                        await self._consume()
                except ClusterError as error:
                    if not self._can_wait(error):
                        raise
                    state.wait_after(error)
                if (new_endpoints := self._next_endpoints) is not None:
                    self._next_endpoints = None
                    await self._close_endpoints(state.replace_endpoints(new_endpoints), self._drain_deadline())
                elif state.retry_reason is None:  # the membership was stopped
                    return
                else:
                    if self._must_reopen is not None and state.endpoints.is_open:
                        await self._close_endpoints(state.replace_endpoints(self._make_endpoints()), self._drain_deadline())
                    await self._pause_before_rejoin(state.retry_reason)
        except Exception as error:  # noqa: BLE001 - a bug, too, stops only this route
            self._fail(error)
        finally:
            await cancel_by_deadline(self._drain_deadline(), f"checking the retention of route {self.name}", retention_check)

    def stop(self, deadline: float | None = None) -> None:
        """Stop receiving; `run` then drains until the deadline and returns. The default is the time set by `drain_within`."""
        self._deadline = self._drain_deadline() if deadline is None else deadline
        self._stop_requested.set()
        if (membership := self.state.membership) is not None:
            membership.stop(self._deadline)

    def request_refresh(self) -> None:
        """Request a check of the source topics without waiting for the next interval."""
        if (membership := self.state.membership) is not None:
            membership.refresh_requested.set()

    def drain_within(self, seconds: float) -> None:
        """Set the time in seconds for draining and leaving the group when a membership ends."""
        self._drain_s = seconds

    async def close(self, deadline: float | None = None) -> None:
        """Close all endpoints; a second call does nothing."""
        await self._close_endpoints(self.state.endpoints, deadline)
        if self._next_endpoints is not None:
            await self._close_endpoints(self._next_endpoints, deadline)

    async def _close_endpoints(self, endpoints: RouteEndpoints, deadline: float | None) -> None:
        await close_by_deadline(deadline, f"closing the targets of route {self.name}", endpoints.close(deadline))

    def _drain_deadline(self) -> float:
        """Return the deadline (loop time) for draining and closing: that of `stop`, or `drain_within` seconds from now."""
        return asyncio.get_running_loop().time() + self._drain_s if self._deadline is None else self._deadline

    def _can_wait(self, error: Exception) -> bool:
        """Return True if the route goes on after this failure; if it is not transient, the targets have to be opened again."""
        if isinstance(error, TopicChanged):
            self._must_reopen = "the topic of a target was deleted or changed"
            return True
        if is_transient(error):
            return True
        final = {Failure.REFUSED, Failure.FATAL} if self._needs_permission else {Failure.REFUSED}
        if isinstance(error, DeliveryError) and error.failure not in final and self.config.delivery.retry.max_elapsed is None:
            self._must_reopen = "a target has changed"  # without a time limit, a send fails only if its partition is gone
            return True
        was_open = self._initial_partitions is not None
        if self._needs_permission or not (can_be_permitted(error) or (was_open and can_be_undone(error))):
            return False
        if was_open and self._must_reopen is None:
            self._must_reopen = "a cluster refuses what it accepted before"
        return True

    async def _pause_before_rejoin(self, error: Exception) -> None:
        """Pause. The reason is logged once, until messages are stored again or another reason comes."""
        delay = self._rejoin_backoff.delay()
        level, pause = self._log_level(error), (str(error), self.state.counters.stored)
        if self._logged_pause == pause:
            level = min(level, logging.DEBUG)
        elif level > logging.DEBUG:
            self._logged_pause = pause
        log.log(level, "route %s cannot consume, retrying in %.1f s: %s", self.name, delay, error)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(delay):
                await self._stop_requested.wait()

    async def _open_endpoints(self) -> None:
        """Wait for the clusters, then call `prepare`; return early if the route is stopped.

        Endpoints that were opened before that stay open until `close`. Those that are opened after the deadline of the stop are
        closed at once.
        """
        opening_task = spawn(self._prepare_connected(), f"opening of {self.name}", log_errors=False)
        stop_waiter = spawn(self._stop_requested.wait(), f"end of {self.name}")
        try:
            await asyncio.wait([opening_task, stop_waiter], return_when=asyncio.FIRST_COMPLETED)
        finally:
            await cancel_by_deadline(self._drain_deadline(), f"opening of route {self.name}", opening_task, stop_waiter)
            if not opening_task.done():
                opening_task.add_done_callback(self._close_late_opening)
        if opening_task.done() and not opening_task.cancelled():
            opening_task.result()

    def _close_late_opening(self, task: "asyncio.Task[None]") -> None:
        """Close endpoints that the task opened after the route was stopped: another route may need the same producer names."""
        if not task.cancelled() and task.exception() is None and self._stop_requested.is_set():
            spawn(self.close(), f"closing the targets of route {self.name}")

    async def _prepare_connected(self) -> None:
        """Wait for the clusters and call `prepare`.

        Until `settled_at`, and while the targets have to be opened again, every failure counts as transient; but in a job
        (`needs_permission`), nobody would undo what keeps them from being opened again.
        """
        settled_at = await self._wait_connected()  # before this time, a failure may be due to servers that still start
        try:
            await self.prepare()
        except MqbridgeError as error:
            if self._must_reopen is not None and not self._needs_permission and not is_transient(error):
                raise ClusterError(f"{error} (retrying, because {self._must_reopen})") from error
            if isinstance(error, NotPermitted) or asyncio.get_running_loop().time() >= settled_at:
                raise
            raise ClusterError(f"{error} (retrying, because a cluster of the route was connected only recently)") from error

    async def _consume(self) -> None:
        """Run one membership until `stop`, an error, or a change of the endpoints. Raises if it cannot join."""
        membership = GroupMembership(
            self.config,
            self.source,
            self.state.endpoints,
            self._lane_settings(),
            self._gap_check,
            self._initial_partitions or {},
            self._began_ms,
            self._positions,
            self._on_membership_failure,
        )
        self.state.begin_membership(membership)
        began_at = asyncio.get_running_loop().time()
        membership_task = spawn(membership.run(), f"membership of {self.name}", log_errors=False)
        watcher = spawn(self._watch_clusters(membership), f"watch of {self.name}", log_errors=False)
        protection_watch = spawn(self._watch_protection(), f"protection of the targets of {self.name}", log_errors=False)
        tasks = (membership_task, watcher, protection_watch)
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            deadline = self._drain_deadline()
            membership.stop(deadline)
            await cancel_by_deadline(deadline, f"watch of route {self.name}", watcher, protection_watch)
            if not watcher.done():
                watcher.add_done_callback(self._close_late_opening)
            await asyncio.wait([membership_task])
            if asyncio.get_running_loop().time() - began_at > STABLE_S:
                self._rejoin_backoff.reset()
        for task in tasks:
            if task.done() and not task.cancelled():
                task.result()

    async def _watch_clusters(self, membership: GroupMembership) -> None:
        """Poll the clusters for changes; return after opening `_next_endpoints`, which the next membership uses.

        Also returns when the membership ends: `_consume` then cancels this task, but an adapter may swallow the cancellation.
        """
        interval = self.config.source.refresh
        while self._next_endpoints is None and not membership.is_ending:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(interval):
                    await membership.refresh_requested.wait()
            membership.refresh_requested.clear()
            try:
                must_reopen, failures = await self.state.endpoints.refresh()
                self._log_failed_topics(self.state.endpoints)
                self._log_failed_refresh(failures)
                if must_reopen:
                    log.info("route %s: its topics or their partitions changed, so the route is opened again", self.name)
                    self._next_endpoints = await self._open_next()
            except MqbridgeError as error:
                self._log_failed_refresh([error])

    async def _open_next(self) -> RouteEndpoints:
        """Open and return the endpoints that the next membership uses; they are closed if this fails or is cancelled."""
        endpoints = self._make_endpoints()
        try:
            await self._open(endpoints)
        except BaseException:
            await self._close_endpoints(endpoints, self._drain_deadline())
            raise
        return endpoints

    def _log_failed_refresh(self, failures: Sequence[MqbridgeError]) -> None:
        """Log the first of these failures, and the number of the others: with a pattern they may be thousands."""
        if failures:
            more = f" (and {len(failures) - 1} more)" if failures[1:] else ""
            text = "route %s: checking its topics failed, so the route continues with the known topics: %s%s"
            log.log(max(map(self._log_level, failures)), text, self.name, failures[0], more)

    async def _watch_protection(self) -> None:
        """Check the targets until one becomes unprotected, and raise ClusterError (RETRY) then.

        The next membership does not read the partitions that are written there.
        """
        has_failed = False
        while True:
            known = self.state.endpoints.unprotected
            await asyncio.sleep(UNPROTECTED_CHECK_S if known else PROTECTION_CHECK_S)
            try:
                await self.state.endpoints.check_unprotected()
                has_failed = False
            except MqbridgeError as error:
                # A single failure is harmless, since the next check follows soon. Servers often fail one after an outage.
                level = self._log_level(error) if has_failed else logging.INFO
                text = "route %s: checking whether its targets keep messages failed, so the last result counts: %s"
                log.log(level, text, self.name, error)
                has_failed = True
            if new := {label: reason for label, reason in self.state.endpoints.unprotected.items() if label not in known}:
                raise unprotected_error(self.name, new)

    def _log_failed_topics(self, endpoints: RouteEndpoints) -> None:
        """Log each topic that cannot be read or copied once, and that it can be again."""
        failed = {topic: str(error) for topic, error in endpoints.failed_topics.items()}
        before, self._logged_failed_topics = self._logged_failed_topics, failed
        for topic, reason in failed.items():
            if before.get(topic) != reason:
                text = "route %s: topic %s/%s is not read, the route continues with the other known topics: %s"
                log.warning(text, self.name, self.source.name, topic, reason)
        for topic in before.keys() - failed.keys():
            log.info("route %s: topic %s/%s does not fail any more", self.name, self.source.name, topic)

    def _log_level(self, error: Exception) -> int:
        """Return DEBUG for a connection error or timeout during an outage, which the cluster has logged; otherwise WARNING."""
        has_outage = any(
            isinstance(cluster, ReportsConnectivity) and cluster.connectivity.unreachable_s is not None
            for cluster in self._clusters.values()
        )
        if not has_outage:
            return logging.WARNING
        # A server that is starting accepts connections, and does not respond yet.
        return logging.DEBUG if isinstance(error, RequestTimeout) else retry_log_level(error, logging.WARNING)

    def _on_membership_failure(self, error: Exception) -> None:
        """Stop the route, unless it can wait after the failure: the first such failure becomes `retry_reason`."""
        if not self._can_wait(error):
            self._fail(error)
            return
        if self.state.retry_reason is None:
            self.state.wait_after(error)

    def _fail(self, error: Exception) -> None:
        """Stop the route with this error; only the first error is kept and logged."""
        if self.state.stop_with(error):
            expected = isinstance(error, MqbridgeError)
            log.error("route %s stopped: %s", self.name, error if expected else repr(error), exc_info=None if expected else error)
        self._stop_requested.set()

    async def _fetch_warnings(self) -> list[str]:
        return await self.state.endpoints.warnings()  # of the endpoints in use now: the route may have been reopened

    def _make_endpoints(self) -> RouteEndpoints:
        return RouteEndpoints(self.config, self._clusters, self._count_looped, self.graph, self._pending_routes)

    def _lane_settings(self) -> LaneSettings:
        delivery, source = self.config.delivery, self.config.source
        limits = {"count": delivery.rate, "size": delivery.rate_bytes}  # per second; the keys are attributes of `Batch`
        return LaneSettings(
            budget=self.state.budget,
            counters=self.state.counters,
            filter=make_filter(source.msg_types, self.config.filter, self._count_filtered),
            dead_letters=self.state.endpoints.dead_letters,
            skip_gaps=delivery.on_gap == "continue",
            rates=[(attribute, RateLimit(limit)) for attribute, limit in limits.items() if limit],
            on_progress=self._record_position if self._checkpoints is not None else None,
        )

    def _record_position(self, batch: Batch, is_assigned: bool) -> None:
        """Record the position after a stored batch. It may be lower than before (a seek) only if the lane `is_assigned` still."""
        assert self._checkpoints is not None  # noqa: S101 - only called with checkpoints
        self._checkpoints.record(self.name, self.config.source.group, batch.partition, batch.next, may_go_back=is_assigned)

    def _count_filtered(self, count: int) -> None:
        self.state.counters.filtered += count

    def _count_looped(self, count: int) -> None:
        self.state.counters.looped += count
        now = asyncio.get_running_loop().time()
        if now - self._looped_logged_at >= LOOPED_LOG_INTERVAL_S:
            self._looped_logged_at = now
            log.warning(
                "route %s: dropping looped messages (their origin is the target, or they passed %d gateways): %d so far",
                self.name,
                self.config.delivery.max_hops,
                self.state.counters.looped,
            )
