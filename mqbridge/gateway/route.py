"""A running route: one membership in its group after the other, each with the topics and targets that existed when it began.

A membership that ends by a transient failure is followed by another one after a pause, and `retry_reason` says why. A route that
fails otherwise stops alone; the rest of the gateway continues. If the topics changed, or a target grew in a way that open
outbounds do not see, the route drains its membership and starts the next; the new endpoints are opened before anything is
stopped.
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
from mqbridge.gateway.closing import cancel_by, close_by
from mqbridge.gateway.endpoints import RouteEndpoints
from mqbridge.gateway.gaps import GapCheck
from mqbridge.gateway.membership import GroupMembership
from mqbridge.gateway.plan import Plan, is_transient
from mqbridge.gateway.retention_warnings import RouteWarnings
from mqbridge.gateway.route_state import RouteState
from mqbridge.message import Batch
from mqbridge.net.backoff import Backoff
from mqbridge.net.connectivity import MOST_PAUSE_S, level_of
from mqbridge.net.tasks import spawn
from mqbridge.routing.filters import make_filter

log = logging.getLogger(__name__)

FIRST_REJOIN_S, LONGEST_REJOIN_S, STABLE_S = 0.5, MOST_PAUSE_S, 60.0
"""Shortest and longest pause after a failed membership; one that lasted longer than the third resets the pauses."""

LOOP_LOG_EVERY_S = 60.0
"""Looped messages come in large numbers; one log line covers them all."""


async def already_connected() -> float:
    """Return at once, for clusters connected from the start (see `gateway.clusters.InitialConnections`)."""
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
        """Partitions by topic that existed at first: later ones are read from their beginning."""
        self._renewed: RouteEndpoints | None = None
        """Opened endpoints for the next membership."""
        self._deadline: float | None = None
        self._rejoin = Backoff(FIRST_REJOIN_S, LONGEST_REJOIN_S)
        self._loop_logged_at = float("-inf")
        self.warnings = RouteWarnings(self.name, self._warnings)
        """Warnings about retention that deletes messages of its topics before they are consumed."""

    async def prepare(self, plan: Plan | None = None) -> None:
        """Find the topics, create missing targets, open every outbound. Raises ConfigError or ClusterError.

        If it was not called, `run` does it as soon as the clusters are connected, and retries transient failures.
        """
        await self._endpoints.open(plan, self._drained_by)
        self._initial_partitions = self._endpoints.source_names

    async def run(self) -> None:
        """Consume and deliver until `stop` or an error, which is kept in `error`; then drain and leave the group."""
        checking: asyncio.Task[None] | None = None
        try:
            while not self._ended.is_set():
                try:
                    if not self._endpoints.is_open:
                        await self._open()
                    if self._endpoints.is_open and not self._ended.is_set():
                        checking = checking or spawn(self.warnings.run(), f"retention warnings of {self.name}")
                        await self._consume()
                except ClusterError as error:
                    if not is_transient(error):
                        raise
                    self.retry_reason = error
                if self._renewed is not None:
                    old, self._endpoints, self._renewed = self._endpoints, self._renewed, None
                    await self._close(old, self._drained_by())
                elif self.retry_reason is None:
                    return
                else:
                    await self._pause(self.retry_reason)
        except Exception as error:  # noqa: BLE001 - a bug too stops only this route
            self._fail(error)
        finally:
            await cancel_by(self._drained_by(), f"checking the retention of route {self.name}", checking)

    def stop(self, deadline: float | None = None) -> None:
        """Receive no more; `run` then drains and returns, by this loop time or within the time of `drain_within`."""
        self._deadline = self._drained_by() if deadline is None else deadline
        self._ended.set()
        if self._membership is not None:
            self._membership.stop(self._deadline)

    def drain_within(self, seconds: float) -> None:
        """Set the time for draining and leaving when a membership ends."""
        self._drain_s = seconds

    async def close(self, deadline: float | None = None) -> None:
        """Close everything that was opened; does nothing the second time."""
        await self._close(self._endpoints, deadline)
        if self._renewed is not None:
            await self._close(self._renewed, deadline)

    async def _close(self, endpoints: RouteEndpoints, deadline: float | None) -> None:
        await close_by(deadline, f"closing the targets of route {self.name}", endpoints.close(deadline))

    def _drained_by(self) -> float:
        return asyncio.get_running_loop().time() + self._drain_s if self._deadline is None else self._deadline

    async def _pause(self, error: Exception) -> None:
        delay = self._rejoin.delay()
        log.log(self._level(error), "route %s joins its group again in %.1f s: %s", self.name, delay, error)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._ended.wait(), delay)

    async def _open(self) -> None:
        """Wait for the clusters, then `prepare`; nothing is open if the route ends before."""
        opening = spawn(self._prepare_connected(), f"opening of {self.name}", quiet=True)
        ending = spawn(self._ended.wait(), f"end of {self.name}")
        try:
            await asyncio.wait([opening, ending], return_when=asyncio.FIRST_COMPLETED)
        finally:
            await cancel_by(self._drained_by(), f"opening of route {self.name}", opening, ending)
            if not opening.done():
                opening.add_done_callback(self._close_late_opening)
        if opening.done() and not opening.cancelled():
            opening.result()

    def _close_late_opening(self, opening: "asyncio.Task[None]") -> None:
        """Close endpoints that were opened after the route had ended: another route may want them."""
        if not opening.cancelled() and opening.exception() is None and self._ended.is_set():
            spawn(self.close(), f"closing the targets of route {self.name}")

    async def _prepare_connected(self) -> None:
        settled_at = await self._wait_connected()
        try:
            await self.prepare()
        except MqbridgeError as error:
            if asyncio.get_running_loop().time() >= settled_at:
                raise
            raise ClusterError(f"{error} (its cluster has just come up)") from error

    async def _consume(self) -> None:
        """Run one membership: until `stop`, an error, or until `_renewed` is set for the next one. Raises if it cannot join."""
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
        watching = spawn(self._watch(membership), f"watch of {self.name}", quiet=True)
        try:
            await asyncio.wait([running, watching], return_when=asyncio.FIRST_COMPLETED)
        finally:
            deadline = self._drained_by()
            membership.stop(deadline)
            await cancel_by(deadline, f"watch of route {self.name}", watching)
            if not watching.done():
                watching.add_done_callback(self._close_late_opening)
            await asyncio.wait([running])
            if asyncio.get_running_loop().time() - began > STABLE_S:
                self._rejoin.reset()
        for task in (running, watching):
            if task.done() and not task.cancelled():
                task.result()

    async def _watch(self, membership: GroupMembership) -> None:
        """Poll the clusters for changes; ends when `_renewed` is set for the next membership.

        Ends with its membership, too, where an adapter swallows a cancellation.
        """
        interval = self.config.source.refresh
        while self._renewed is None and not membership.is_ending:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(membership.refresh_requested.wait(), interval)
            membership.refresh_requested.clear()
            try:
                if await self._endpoints.refresh():
                    log.info("route %s reopens with the current topics of its clusters", self.name)
                    renewed = self._make_endpoints()
                    await renewed.open(closed_by=self._drained_by)
                    self._renewed = renewed
            except MqbridgeError as error:
                log.log(self._level(error), "route %s continues unchanged: %s", self.name, error)

    def _level(self, error: Exception) -> int:
        """Return the log level: an unreachable cluster has logged the outage itself, once."""
        away = any(isinstance(one, Connected) and one.connectivity.away_s is not None for one in self._clusters.values())
        return level_of(error, logging.WARNING) if away else logging.WARNING

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
        self._ended.set()

    async def _warnings(self) -> list[str]:
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
            on_progress=self._note if self._checkpoints is not None else None,
        )

    def _note(self, batch: Batch, is_ours: bool) -> None:
        assert self._checkpoints is not None  # noqa: S101 - only called with checkpoints
        self._checkpoints.record(self.name, self.config.source.group, batch.partition, batch.next, may_go_back=is_ours)

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
