"""A running route: sessions in its group one after the other, each with the topics and targets that there were when it began.

A session that ends by a failure which retrying helps is begun again after a pause, and `trouble` says why. A route that fails
otherwise stops alone, the rest of the gateway goes on. One whose topics changed, or a target of which grew in a way that
open outbounds do not see, drains its session and begins the next; what that needs is opened before anything is stopped.
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
from mqbridge.gateway.cautions import Cautions
from mqbridge.gateway.closing import cancel_by, close_by
from mqbridge.gateway.ends import Ends
from mqbridge.gateway.gaps import GapCheck
from mqbridge.gateway.plan import Plan, helps_to_retry
from mqbridge.gateway.route_state import RouteState
from mqbridge.gateway.session import Session
from mqbridge.message import Batch
from mqbridge.net.backoff import Backoff
from mqbridge.net.connectivity import MOST_PAUSE_S, level_of
from mqbridge.net.tasks import spawn
from mqbridge.routing.filters import make_filter

log = logging.getLogger(__name__)

REJOIN_FIRST_S, REJOIN_MOST_S, REJOINED_S = 0.5, MOST_PAUSE_S, 60.0
"""Pauses between sessions that fail; a session that lasted so long begins with the shortest again."""

LOOP_LOG_EVERY_S = 60.0
"""Messages that go round come in numbers; one line tells of all."""


async def at_once() -> float:
    """Clusters that are reached already, and were so from the start (see `gateway.clusters.Reaching`)."""
    return 0.0


class Route(RouteState):
    """One route of the configuration, from `prepare` over `run` to its end."""

    def __init__(
        self,
        config: RouteConfig,
        clusters: Mapping[str, Cluster],
        checkpoints: Checkpoints | None,
        drain_s: float,
        counters: Counters | None = None,
        reached: Callable[[], Awaitable[float]] = at_once,
        late: Callable[[], Collection[RouteConfig]] = tuple,
    ) -> None:
        super().__init__(config, Counters() if counters is None else counters)
        self._reached, self._late = reached, late
        self._clusters = {name: clusters[name] for name in config.clusters}
        self._source = clusters[config.source.cluster]
        self._checkpoints = checkpoints
        self._drain_s = drain_s
        self._ends = self._make_ends()
        self._known: Mapping[str, frozenset[str]] = {}
        """By topic the partitions that there were at first: what comes later is read from its beginning."""
        self._renewed: Ends | None = None
        """Opened for the next session."""
        self._deadline: float | None = None
        self._rejoin = Backoff(REJOIN_FIRST_S, REJOIN_MOST_S)
        self._loop_logged_at = float("-inf")
        self.cautions = Cautions(self.name, self._warnings)
        """What deletes messages of its topics before they are consumed."""

    async def prepare(self, plan: Plan | None = None) -> None:
        """Find the topics, create missing targets, open every outbound. Raises ConfigError or ClusterError.

        `run` does it where it has not been done, as soon as the clusters are reached and as often as it helps.
        """
        await self._ends.open(plan, self._drained_by)
        self._known = self._ends.source_names

    async def run(self) -> None:
        """Consume and deliver until `stop` or an error, which is kept in `error`; then drain and leave the group."""
        looking: asyncio.Task[None] | None = None
        try:
            while not self._ended.is_set():
                try:
                    if not self._ends.is_open:
                        await self._open()
                    if self._ends.is_open and not self._ended.is_set():
                        looking = looking or spawn(self.cautions.run(), f"cautions of {self.name}")
                        await self._consume()
                except ClusterError as error:
                    if not helps_to_retry(error):
                        raise
                    self.trouble = error
                if self._renewed is not None:
                    old, self._ends, self._renewed = self._ends, self._renewed, None
                    await self._close(old, self._drained_by())
                elif self.trouble is None:
                    return
                else:
                    await self._pause(self.trouble)
        except Exception as error:  # noqa: BLE001 - even a bug stops this route alone
            self._fail(error)
        finally:
            await cancel_by(self._drained_by(), f"looking at the topics of route {self.name}", looking)

    def stop(self, deadline: float | None = None) -> None:
        """Take no more; `run` then drains and returns, by this loop time or within what `drain_within` says."""
        self._deadline = self._drained_by() if deadline is None else deadline
        self._ended.set()
        if self._session is not None:
            self._session.stop(self._deadline)

    def drain_within(self, seconds: float) -> None:
        """Take so long for draining and leaving when a session ends."""
        self._drain_s = seconds

    async def close(self, deadline: float | None = None) -> None:
        """Close what was opened; nothing happens when that was done."""
        await self._close(self._ends, deadline)
        if self._renewed is not None:
            await self._close(self._renewed, deadline)

    async def _close(self, ends: Ends, deadline: float | None) -> None:
        await close_by(deadline, f"closing the targets of route {self.name}", ends.close(deadline))

    def _drained_by(self) -> float:
        return asyncio.get_running_loop().time() + self._drain_s if self._deadline is None else self._deadline

    async def _pause(self, error: Exception) -> None:
        delay = self._rejoin.delay()
        log.log(self._level(error), "route %s begins its session again in %.1f s: %s", self.name, delay, error)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._ended.wait(), delay)

    async def _open(self) -> None:
        """Wait for the clusters, then `prepare`; nothing is open when the route has to end before."""
        opening = spawn(self._prepare_reached(), f"opening of {self.name}", quiet=True)
        ending = spawn(self._ended.wait(), f"end of {self.name}")
        try:
            await asyncio.wait([opening, ending], return_when=asyncio.FIRST_COMPLETED)
        finally:
            await cancel_by(self._drained_by(), f"opening of route {self.name}", opening, ending)
            if not opening.done():
                opening.add_done_callback(self._opened_late)
        if opening.done() and not opening.cancelled():
            opening.result()

    def _opened_late(self, opening: "asyncio.Task[None]") -> None:
        """What was opened when the route had ended without it may be wanted by another."""
        if not opening.cancelled() and opening.exception() is None and self._ended.is_set():
            spawn(self.close(), f"closing the targets of route {self.name}")

    async def _prepare_reached(self) -> None:
        settled_at = await self._reached()
        try:
            await self.prepare()
        except MqbridgeError as error:
            if asyncio.get_running_loop().time() >= settled_at:
                raise
            raise ClusterError(f"{error} (its cluster has just come up)") from error

    async def _consume(self) -> None:
        """One session: until `stop`, an error, or until `_renewed` is there for the next one. Raises when it cannot join."""
        gaps = GapCheck(self.name, self.config.source.group, self._source, self._checkpoints)
        session = self._session = Session(
            self.config, self._source, self._ends, self._lane_settings(), gaps, self._known, self._session_failed
        )
        self.sessions += 1
        self.trouble = None
        began = asyncio.get_running_loop().time()
        running = spawn(session.run(), f"session of {self.name}", quiet=True)
        watching = spawn(self._watch(session), f"watch of {self.name}", quiet=True)
        try:
            await asyncio.wait([running, watching], return_when=asyncio.FIRST_COMPLETED)
        finally:
            deadline = self._drained_by()
            session.stop(deadline)
            await cancel_by(deadline, f"watch of route {self.name}", watching)
            if not watching.done():
                watching.add_done_callback(self._opened_late)
            await asyncio.wait([running])
            if asyncio.get_running_loop().time() - began > REJOINED_S:
                self._rejoin.reset()
        for task in (running, watching):
            if task.done() and not task.cancelled():
                task.result()

    async def _watch(self, session: Session) -> None:
        """Look again and again at what the clusters have; ends when `_renewed` is what a new session is to use.

        Ends with its session, too, where an adapter swallows a cancellation.
        """
        refresh = self.config.source.refresh
        while self._renewed is None and not session.is_ending:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(session.look.wait(), refresh)
            session.look.clear()
            try:
                if await self._ends.look():
                    log.info("route %s begins anew with what its clusters have now", self.name)
                    renewed = self._make_ends()
                    await renewed.open(closed_by=self._drained_by)
                    self._renewed = renewed
            except MqbridgeError as error:
                log.log(self._level(error), "route %s goes on as it is: %s", self.name, error)

    def _level(self, error: Exception) -> int:
        """A cluster that cannot be reached has said so itself, once."""
        away = any(isinstance(one, Connected) and one.connectivity.away_s is not None for one in self._clusters.values())
        return level_of(error, logging.WARNING) if away else logging.WARNING

    def _session_failed(self, error: Exception) -> None:
        if helps_to_retry(error):
            self.trouble = self.trouble or error
        else:
            self._fail(error)

    def _fail(self, error: Exception) -> None:
        if self.error is None:
            self.error = error
            expected = isinstance(error, MqbridgeError)
            log.error("route %s stopped: %s", self.name, error if expected else repr(error), exc_info=None if expected else error)
        self._ended.set()

    async def _warnings(self) -> list[str]:
        return await self._ends.warnings()  # of the topics that there are by now

    def _make_ends(self) -> Ends:
        return Ends(self.config, self._clusters, self._looped, self._late)

    def _lane_settings(self) -> LaneSettings:
        delivery, source = self.config.delivery, self.config.source
        limits = {"count": delivery.rate, "size": delivery.rate_bytes}
        return LaneSettings(
            budget=self.budget,
            counters=self.counters,
            filter=make_filter(source.msg_types, self.config.filter, self._filtered),
            dead_letters=self._ends.dead_letters,
            skip_gaps=delivery.on_gap == "continue",
            rates=[(unit, RateLimit(limit)) for unit, limit in limits.items() if limit],
            on_progress=self._note if self._checkpoints is not None else None,
        )

    def _note(self, batch: Batch, is_ours: bool) -> None:
        assert self._checkpoints is not None  # noqa: S101 - only called with checkpoints
        self._checkpoints.note(self.name, self.config.source.group, batch.partition, batch.next, may_go_back=is_ours)

    def _filtered(self, count: int) -> None:
        self.counters.filtered += count

    def _looped(self, count: int) -> None:
        self.counters.looped += count
        now = asyncio.get_running_loop().time()
        if now - self._loop_logged_at >= LOOP_LOG_EVERY_S:
            self._loop_logged_at = now
            log.warning(
                "route %s does not write messages that came from where they would go, or passed through %d gateways: %d so far",
                self.name,
                self.config.delivery.max_hops,
                self.counters.looped,
            )
