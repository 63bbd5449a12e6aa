"""Cache of topic routes: queried from the name servers, and refreshed for watchers.

A watched topic that disappears keeps its last route: a name server that lost its brokers for a moment must not revoke every queue
of every consumer. `get(fresh=True)` returns the current truth.
"""

import asyncio
import logging
from collections.abc import Callable

from mqbridge.errors import ClusterError, Failure
from mqbridge.net.connectivity import level_of
from mqbridge.net.tasks import cancel, collect_error, is_cancelled, spawn
from mqbridge.rocketmq.client.nameservers import NameServers
from mqbridge.rocketmq.client.route import TopicRoute, read_route
from mqbridge.rocketmq.wire.bodies.queue import Queue
from mqbridge.rocketmq.wire.codes import Code, Status

__all__ = ["Queue", "RouteTable", "TopicRoute"]

log = logging.getLogger(__name__)

REFRESH_S = 30.0
"""Default interval, as in the official clients (pollNameServerInterval)."""
LEAST_REFRESH_S = 1.0
"""Minimum pause between rounds of refreshes, and between queries for a topic whose route was not found."""
FORGET_S = 120.0
"""An unwatched route is dropped after this time without use."""


Watcher = Callable[[TopicRoute], None]


class RouteTable:
    """The routes of one client. `start` begins to refresh watched routes, `close` stops it."""

    def __init__(self, name_servers: NameServers, refresh_s: float = REFRESH_S) -> None:
        self._name_servers, self._refresh_s = name_servers, refresh_s
        self._known: dict[str, TopicRoute] = {}
        self._asked_at: dict[str, float] = {}
        self._used_at: dict[str, float] = {}
        self._failed_at: dict[str, float] = {}
        """Time of the last query that found no route, by topic with an earlier route."""
        self._stale: set[str] = set()
        """Topics whose route is queried before its next use."""
        self._orphans: set[str] = set()
        """Watched topics that no name server knows now; their last route is kept."""
        self._watchers: dict[str, list[Watcher]] = {}
        self._asking: dict[str, asyncio.Task[TopicRoute | None]] = {}
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._loop = asyncio.get_running_loop()

    def start(self) -> None:
        """Start refreshing the watched routes."""
        if self._task is None:
            self._task = spawn(self._refreshing(), "rocketmq routes")

    async def close(self) -> None:
        """Stop refreshing, and cancel queries in flight."""
        await cancel(self._task)
        await cancel(*self._asking.values())

    # --- queries ----------------------------------------------------------------------------------------------------

    async def get(self, topic: str, *, fresh: bool = False) -> TopicRoute | None:
        """Return the route of a topic; None if no name server knows it.

        A cached route is used for REFRESH_S, unless it was invalidated or `fresh` is set. Raises ClusterError:
        Unreachable if no name server gives a valid response, FATAL for a static topic.
        """
        now = asyncio.get_running_loop().time()
        self._used_at[topic] = now
        if not fresh and topic not in self._stale and now - self._asked_at.get(topic, -self._refresh_s) < self._refresh_s:
            return self._known.get(topic)
        asking = self._asking.get(topic)
        if asking is None:
            asking = self._asking[topic] = spawn(self._ask(topic), f"route of {topic}", quiet=True)
            asking.add_done_callback(lambda task: self._asked(topic, task))
        try:
            return await asyncio.shield(asking)
        except asyncio.CancelledError:
            if asking.cancelled() and not is_cancelled():
                raise ClusterError("the client is closed", Failure.FATAL) from None
            raise

    async def usable(self, topic: str) -> TopicRoute | None:
        """Return the route from `get`, or the last known route while no name server has one.

        So work with known routes continues while the name servers are unreachable. Then a query is sent at most every
        LEAST_REFRESH_S.
        """
        known, now = self._known.get(topic), asyncio.get_running_loop().time()
        if known is not None and now - self._failed_at.get(topic, -LEAST_REFRESH_S) < LEAST_REFRESH_S:
            return known
        try:
            route = await self.get(topic)
        except ClusterError as error:
            if known is None or error.failure is Failure.FATAL:
                raise
            log.log(level_of(error, logging.INFO), "using the last known route of %s: %s", topic, error)
            route = None
        if route is None and (route := self._known.get(topic)) is not None:
            self._failed_at[topic] = asyncio.get_running_loop().time()
        return route

    def fresh(self, topic: str) -> TopicRoute | None:
        """Return the cached route if `get` would need no query, else None; marks it as used."""
        now = self._loop.time()
        if topic in self._stale or now - self._asked_at.get(topic, -self._refresh_s) >= self._refresh_s:
            return None
        self._used_at[topic] = now
        return self._known.get(topic)

    def known(self, topic: str) -> TopicRoute | None:
        """Return the last known route, without a query."""
        return self._known.get(topic)

    async def _ask(self, topic: str) -> TopicRoute | None:
        route = await self._name_servers.ask(
            Code.GET_ROUTEINFO_BY_TOPIC,
            {"topic": topic, "acceptStandardJsonOnly": "true"},
            lambda answer: read_route(topic, answer.body),
            absent=frozenset({Status.TOPIC_NOT_EXIST}),
        )
        self._asked_at[topic] = asyncio.get_running_loop().time()
        self._stale.discard(topic)
        self._learn(topic, route)
        return route

    def _asked(self, topic: str, task: "asyncio.Task[TopicRoute | None]") -> None:
        del self._asking[topic]
        collect_error(task)

    def _learn(self, topic: str, route: TopicRoute | None) -> None:
        before = self._known.get(topic)
        if route is None:
            if before is not None and self._watchers.get(topic):
                if topic not in self._orphans:
                    level = logging.DEBUG if self._name_servers.connectivity.missing else logging.WARNING
                    log.log(level, "no name server knows topic %s any more; keeping its last route", topic)
                    self._orphans.add(topic)
                self._asked_at.pop(topic)  # so that `get` queries again, and returns None
            else:
                self._known.pop(topic, None)
            return
        self._known[topic] = route
        self._orphans.discard(topic)
        if before is None or before != route:
            for watcher in list(self._watchers.get(topic, ())):
                watcher(route)

    # --- watching ---------------------------------------------------------------------------------------------------

    def watch(self, topic: str, watcher: Watcher) -> Callable[[], None]:
        """Call `watcher` with every changed route of this topic, until the returned function is called.

        If no route of the topic is known yet, `watcher` also gets the first one. It must not raise.
        """
        self._watchers.setdefault(topic, []).append(watcher)
        if topic not in self._known:
            self.invalidate(topic)

        def unwatch() -> None:
            watchers = self._watchers.get(topic, [])
            if watcher in watchers:
                watchers.remove(watcher)
            if not watchers:
                self._watchers.pop(topic, None)

        return unwatch

    def invalidate(self, topic: str) -> None:
        """Query the route before its next use, because it was wrong; if it is watched, query it soon."""
        self._stale.add(topic)
        if topic in self._watchers:
            self._wake.set()

    def lost(self, address: str) -> None:
        """Invalidate the routes of all topics of this broker, because the connection to it was lost."""
        for topic, route in self._known.items():
            if address in route.addresses():
                self.invalidate(topic)

    def distrust(self, topic: str) -> None:
        """Invalidate the route because its broker is unreachable, and query another name server next."""
        self._name_servers.skip()
        self.invalidate(topic)

    def addresses(self, *, masters: bool = False) -> list[str]:
        """Return the addresses of all brokers in known routes; with `masters`, of the masters only."""
        found = [address for route in self._known.values() for address in (route.masters() if masters else route.addresses())]
        return list(dict.fromkeys(found))

    async def _refreshing(self) -> None:
        while True:
            try:
                async with asyncio.timeout(self._refresh_s):
                    await self._wake.wait()
            except TimeoutError:
                self._forget()
                self._stale.update(self._watchers)
            self._wake.clear()
            for topic in [topic for topic in self._watchers if topic in self._stale]:
                await self._refresh(topic)
            await asyncio.sleep(min(LEAST_REFRESH_S, self._refresh_s))

    async def _refresh(self, topic: str) -> None:
        try:
            await self.get(topic, fresh=True)
        except ClusterError as error:
            log.log(
                level_of(error, logging.WARNING),
                "the route of %s could not be refreshed, trying again in %g s: %s",
                topic,
                self._refresh_s,
                error,
            )

    def _forget(self) -> None:
        limit = asyncio.get_running_loop().time() - FORGET_S
        for topic in [topic for topic, used in self._used_at.items() if used < limit and topic not in self._watchers]:
            for table in (self._known, self._asked_at, self._used_at, self._failed_at):
                table.pop(topic, None)
            self._stale.discard(topic)
