"""A running route: a sequence of memberships in its group, each with the topics and targets that existed when it began.

After a transient failure the route pauses and starts the next membership; `retry_reason` is the failure. Any other failure stops
only this route, not the gateway. If the source topics change, or a target grows and open outbounds cannot see it, the route
opens new endpoints, drains its membership, and starts the next one with them.
"""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Collection, Mapping

from mqbridge.adapter.cluster import Cluster, Connected
from mqbridge.config.options.route import Route as RouteConfig
from mqbridge.delivery.checkpoint import Checkpoints
from mqbridge.delivery.counters import Counters
from mqbridge.delivery.rate import RateLimit
from mqbridge.delivery.settings import LaneSettings
from mqbridge.errors import ClusterError, MqbridgeError
from mqbridge.gateway.closing import cancel_by_deadline, close_by_deadline
from mqbridge.gateway.endpoints import RouteEndpoints
from mqbridge.gateway.gaps import GapCheck
from mqbridge.gateway.membership import GroupMembership
from mqbridge.gateway.plan import Plan, is_transient
from mqbridge.gateway.retention_warnings import RouteWarnings
from mqbridge.gateway.route_state import RouteState
from mqbridge.message import Batch
from mqbridge.net.backoff import Backoff
from mqbridge.net.connectivity import MAX_PAUSE_S, level_of
from mqbridge.net.tasks import spawn
from mqbridge.routing.filters import make_filter

log = logging.getLogger(__name__)

MIN_REJOIN_PAUSE_S, MAX_REJOIN_PAUSE_S, STABLE_S = 0.5, MAX_PAUSE_S, 60.0
"""Minimum and maximum pause after a failed membership; a membership of more than STABLE_S resets the pause to the minimum."""

LOOP_LOG_EVERY_S = 60.0
"""Minimum time between two log lines about looped messages, which are often many."""


async def already_connected() -> float:
    """Return at once, for clusters that are connected already (see `gateway.clusters.InitialConnections.wait_connected`)."""
    return 0.0


class Route(RouteState):
    """One route of the configuration, from `prepare` and `run` to its end."""

    def __init__(
        self,
        config: RouteConfig,
        clusters: Mapping[str, Cluster],
        checkpoints: Checkpoints | None,
        drain_s: float,
        counters: Counters | None = None,
        wait_connected: Callable[[], Awaitable[float]] = already_connected,
        pending: Callable[[], Collection[RouteConfig]] = tuple,
    ) -> None:
        super().__init__(config, Counters() if counters is None else counters)
        self._wait_connected, self._pending = wait_connected, pending
        self._clusters = {name: clusters[name] for name in config.clusters}
        self._source = clusters[config.source.cluster]
        self._checkpoints = checkpoints
        self._drain_s = drain_s
        self._endpoints = self._make_endpoints()
        self._initial_partitions: Mapping[str, frozenset[str]] = {}
        """Names of the partitions, by topic, that existed at the start; later ones are read from their beginning."""
        self._next_endpoints: RouteEndpoints | None = None
        """Open endpoints for the next membership; None if the current ones stay in use."""
        self._deadline: float | None = None
        self._rejoin = Backoff(MIN_REJOIN_PAUSE_S, MAX_REJOIN_PAUSE_S)
        self._loop_logged_at = float("-inf")
        self.warnings = RouteWarnings(self.name, self._fetch_warnings)
        """Warnings about retention that deletes messages of its topics before they are consumed."""

    async def prepare(self, plan: Plan | None = None) -> None:
        """Find the topics, create missing targets, open every outbound. Raises ConfigError or ClusterError.

        If this was not called before `run`, `run` calls it when the clusters are connected, and retries transient failures.
        """
        await self._endpoints.open(plan, self._drained_by)
        self._initial_partitions = self._endpoints.source_names

    async def run(self) -> None:
        """Consume and deliver until `stop` or an error, then drain and leave the group. The error is in `error`, not raised."""
        checking: asyncio.Task[None] | None = None
        try:
            while not self._stop_requested.is_set():
                try:
                    if not self._endpoints.is_open:
                        await self._open_endpoints()
                    if self._endpoints.is_open and not self._stop_requested.is_set():
                        checking = checking or spawn(self.warnings.run(), f"retention warnings of {self.name}")
                        await self._consume()
                except ClusterError as error:
                    if not is_transient(error):
                        raise
                    self.retry_reason = error
                if self._next_endpoints is not None:
                    old, self._endpoints, self._next_endpoints = self._endpoints, self._next_endpoints, None
                    await self._close(old, self._drained_by())
                elif self.retry_reason is None:
                    return
                else:
                    await self._pause_before_rejoin(self.retry_reason)
        except Exception as error:  # noqa: BLE001 - a bug too stops only this route
            self._fail(error)
        finally:
            await cancel_by_deadline(self._drained_by(), f"checking the retention of route {self.name}", checking)

    def stop(self, deadline: float | None = None) -> None:
        """Stop receiving; `run` then drains until the deadline and returns. The default is the time set by `drain_within`."""
        self._deadline = self._drained_by() if deadline is None else deadline
        self._stop_requested.set()
        if self._membership is not None:
            self._membership.stop(self._deadline)

    def drain_within(self, seconds: float) -> None:
        """Set the time in seconds for draining and leaving the group when a membership ends."""
        self._drain_s = seconds

    async def close(self, deadline: float | None = None) -> None:
        """Close all endpoints; a second call does nothing."""
        await self._close(self._endpoints, deadline)
        if self._next_endpoints is not None:
            await self._close(self._next_endpoints, deadline)

    async def _close(self, endpoints: RouteEndpoints, deadline: float | None) -> None:
        await close_by_deadline(deadline, f"closing the targets of route {self.name}", endpoints.close(deadline))

    def _drained_by(self) -> float:
        return asyncio.get_running_loop().time() + self._drain_s if self._deadline is None else self._deadline

    async def _pause_before_rejoin(self, error: Exception) -> None:
        delay = self._rejoin.delay()
        log.log(self._log_level(error), "route %s joins its group again in %.1f s: %s", self.name, delay, error)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._stop_requested.wait(), delay)

    async def _open_endpoints(self) -> None:
        """Wait for the clusters, then call `prepare`; nothing is open if the route is stopped before."""
        opening = spawn(self._prepare_connected(), f"opening of {self.name}", quiet=True)
        ending = spawn(self._stop_requested.wait(), f"end of {self.name}")
        try:
            await asyncio.wait([opening, ending], return_when=asyncio.FIRST_COMPLETED)
        finally:
            await cancel_by_deadline(self._drained_by(), f"opening of route {self.name}", opening, ending)
            if not opening.done():
                opening.add_done_callback(self._close_late_opening)
        if opening.done() and not opening.cancelled():
            opening.result()

    def _close_late_opening(self, opening: "asyncio.Task[None]") -> None:
        """Close endpoints that were opened after the route was stopped: another route may need them."""
        if not opening.cancelled() and opening.exception() is None and self._stop_requested.is_set():
            spawn(self.close(), f"closing the targets of route {self.name}")

    async def _prepare_connected(self) -> None:
        settled_at = await self._wait_connected()
        try:
            await self.prepare()
        except MqbridgeError as error:
            if asyncio.get_running_loop().time() >= settled_at:
                raise
            raise ClusterError(f"{error} (its cluster was reached only recently)") from error

    async def _consume(self) -> None:
        """Run one membership until `stop`, an error, or a change of the endpoints. Raises if it cannot join."""
        gaps = GapCheck(self.name, self.config.source.group, self._source, self._checkpoints)
        membership = self._membership = GroupMembership(
            self.config,
            self._source,
            self._endpoints,
            self._lane_settings(),
            gaps,
            self._initial_partitions,
            self._membership_failed,
        )
        self.memberships += 1
        self.retry_reason = None
        began = asyncio.get_running_loop().time()
        running = spawn(membership.run(), f"membership of {self.name}", quiet=True)
        watching = spawn(self._watch_clusters(membership), f"watch of {self.name}", quiet=True)
        try:
            await asyncio.wait([running, watching], return_when=asyncio.FIRST_COMPLETED)
        finally:
            deadline = self._drained_by()
            membership.stop(deadline)
            await cancel_by_deadline(deadline, f"watch of route {self.name}", watching)
            if not watching.done():
                watching.add_done_callback(self._close_late_opening)
            await asyncio.wait([running])
            if asyncio.get_running_loop().time() - began > STABLE_S:
                self._rejoin.reset()
        for task in (running, watching):
            if task.done() and not task.cancelled():
                task.result()

    async def _watch_clusters(self, membership: GroupMembership) -> None:
        """Poll the clusters for changes; return after opening `_next_endpoints` for the next membership.

        Also returns when the membership ends: an adapter may swallow the cancellation.
        """
        interval = self.config.source.refresh
        while self._next_endpoints is None and not membership.is_ending:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(membership.refresh_requested.wait(), interval)
            membership.refresh_requested.clear()
            try:
                if await self._endpoints.refresh():
                    log.info("route %s reopens with the current topics of its clusters", self.name)
                    renewed = self._make_endpoints()
                    await renewed.open(close_deadline=self._drained_by)
                    self._next_endpoints = renewed
            except MqbridgeError as error:
                log.log(self._log_level(error), "route %s continues unchanged: %s", self.name, error)

    def _log_level(self, error: Exception) -> int:
        """Return the log level: DEBUG for errors of an outage, which the cluster itself has logged once."""
        has_outage = any(
            isinstance(cluster, Connected) and cluster.connectivity.unreachable_s is not None
            for cluster in self._clusters.values()
        )
        return level_of(error, logging.WARNING) if has_outage else logging.WARNING

    def _membership_failed(self, error: Exception) -> None:
        if is_transient(error):
            self.retry_reason = self.retry_reason or error
        else:
            self._fail(error)

    def _fail(self, error: Exception) -> None:
        if self.error is None:
            self.error = error
            expected = isinstance(error, MqbridgeError)
            log.error("route %s stopped: %s", self.name, error if expected else repr(error), exc_info=None if expected else error)
        self._stop_requested.set()

    async def _fetch_warnings(self) -> list[str]:
        return await self._endpoints.warnings()  # of the current endpoints

    def _make_endpoints(self) -> RouteEndpoints:
        return RouteEndpoints(self.config, self._clusters, self._looped, self._pending)

    def _lane_settings(self) -> LaneSettings:
        delivery, source = self.config.delivery, self.config.source
        limits = {"count": delivery.rate, "size": delivery.rate_bytes}
        return LaneSettings(
            budget=self.budget,
            counters=self.counters,
            filter=make_filter(source.msg_types, self.config.filter, self._filtered),
            dead_letters=self._endpoints.dead_letters,
            skip_gaps=delivery.on_gap == "continue",
            rates=[(unit, RateLimit(limit)) for unit, limit in limits.items() if limit],
            on_progress=self._record_position if self._checkpoints is not None else None,
        )

    def _record_position(self, batch: Batch, is_assigned: bool) -> None:
        assert self._checkpoints is not None  # noqa: S101 - only called with checkpoints
        self._checkpoints.record(self.name, self.config.source.group, batch.partition, batch.next, may_go_back=is_assigned)

    def _filtered(self, count: int) -> None:
        self.counters.filtered += count

    def _looped(self, count: int) -> None:
        self.counters.looped += count
        now = asyncio.get_running_loop().time()
        if now - self._loop_logged_at >= LOOP_LOG_EVERY_S:
            self._loop_logged_at = now
            log.warning(
                "route %s: dropping looped messages (their origin is the target, or they passed %d gateways): %d so far",
                self.name,
                self.config.delivery.max_hops,
                self.counters.looped,
            )
