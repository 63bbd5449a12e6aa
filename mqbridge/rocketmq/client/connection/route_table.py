"""Cache of topic routes: queried from the name servers, and refreshed for watchers.

If the name servers no longer know a watched topic, its last route stays in the cache. Otherwise a name server that has lost its
brokers for a moment would take all queues from all consumers. For such a topic `get` queries every time, and returns None.
"""

import asyncio
import logging
from collections.abc import Callable

from mqbridge.errors import ClusterError, Failure
from mqbridge.net.connectivity import retry_log_level
from mqbridge.net.tasks import cancel, is_cancelled, mark_error_retrieved, spawn
from mqbridge.rocketmq.client.connection.nameservers import NameServers
from mqbridge.rocketmq.client.connection.route import TopicRoute, read_route
from mqbridge.rocketmq.wire.bodies.queue import Queue
from mqbridge.rocketmq.wire.codes import Code, Status

__all__ = ["Queue", "RouteTable", "TopicRoute"]

log = logging.getLogger(__name__)

REFRESH_S = 30.0
"""Default interval of refreshes, and maximum age of a cached route; as in the official clients (pollNameServerInterval)."""
MIN_REFRESH_PAUSE_S = 1.0
"""Minimum pause between two refreshes of the watched routes, and between two queries of `get_or_last_known` without a result."""
DROP_UNUSED_S = 120.0
"""An unwatched route is dropped from the cache after this time without use."""


Watcher = Callable[[TopicRoute], None]
"""Gets each changed route of a topic; see `RouteTable.watch`."""


class RouteTable:
    """The routes of one client. `start` begins to refresh the watched routes every `refresh_s` seconds, `close` stops this."""

    def __init__(self, name_servers: NameServers, refresh_s: float = REFRESH_S) -> None:
        self._name_servers, self._refresh_s = name_servers, refresh_s
        self._routes: dict[str, TopicRoute] = {}
        """The last known route of each topic; a missing topic has one only while it is watched."""
        self._known_brokers: dict[str, set[str]] = {}
        """Names of the brokers in the routes received so far, by topic."""
        self._queried_at: dict[str, float] = {}
        """Loop time of the last response to a query, by topic."""
        self._used_at: dict[str, float] = {}
        """Loop time of the last call of `get`, or of `cached` when it needed no query, by topic."""
        self._failed_at: dict[str, float] = {}
        """Loop time of the last query of `get_or_last_known` without a result, by topic with a last known route."""
        self._stale: set[str] = set()
        """Topics whose route is queried before its next use."""
        self._missing: set[str] = set()
        """Watched topics that no name server knows now; their last route is kept."""
        self._watchers: dict[str, list[Watcher]] = {}
        self._queries: dict[str, asyncio.Task[TopicRoute | None]] = {}
        """Queries in flight, by topic; concurrent calls of `get` share one."""
        self._refresh_requested = asyncio.Event()
        self._refresh_task: asyncio.Task[None] | None = None
        self._loop = asyncio.get_running_loop()

    def start(self) -> None:
        """Start refreshing the watched routes."""
        if self._refresh_task is None:
            self._refresh_task = spawn(self._refresh_loop(), "rocketmq routes")

    async def close(self) -> None:
        """Stop refreshing, and cancel queries in flight."""
        await cancel(self._refresh_task)
        await cancel(*self._queries.values())

    # --- queries ----------------------------------------------------------------------------------------------------

    async def get(self, topic: str, *, fresh: bool = False) -> TopicRoute | None:
        """Return the route of a topic; None if no name server knows it.

        Without `fresh`, a cached route is returned if it is younger than `refresh_s` and was not invalidated. With `fresh`, the
        name servers are always queried. Raises ClusterError: Unreachable if no name server gives a valid response, FATAL for a
        static topic, or if `close` cancels the query.
        """
        now = asyncio.get_running_loop().time()
        self._used_at[topic] = now
        if not fresh and not self._needs_query(topic, now):
            return self._routes.get(topic)
        query = self._queries.get(topic)
        if query is None or query.done():  # done: awaiting it would not yield to the loop, which has to call `_on_query_done`
            query = self._queries[topic] = spawn(self._query(topic), f"route of {topic}", log_errors=False)
            query.add_done_callback(lambda task: self._on_query_done(topic, task))
        try:
            return await asyncio.shield(query)
        except asyncio.CancelledError:
            if query.cancelled() and not is_cancelled():  # `close` cancelled the query, nobody cancelled our caller
                problem = f"the client is closed (cluster {self._name_servers.connectivity.name})"
                raise ClusterError(problem, Failure.FATAL) from None
            raise

    async def get_or_last_known(self, topic: str) -> TopicRoute | None:
        """Return the route from `get`, or the last known route while no name server returns one.

        So consumers and producers continue while the name servers are unreachable, or do not know the topic for a moment. After
        a query without a result, the next one is sent MIN_REFRESH_PAUSE_S later at the earliest. Raises the errors of `get` if
        there is no last known route, and FATAL errors always.
        """
        last_known, now = self._routes.get(topic), asyncio.get_running_loop().time()
        if last_known is not None and now - self._failed_at.get(topic, -MIN_REFRESH_PAUSE_S) < MIN_REFRESH_PAUSE_S:
            return last_known
        try:
            route = await self.get(topic)
        except ClusterError as error:
            if last_known is None or error.failure is Failure.FATAL:
                raise
            log.log(
                retry_log_level(error, logging.INFO),
                "cluster %s: using the last known route of topic %s, because querying it failed: %s",
                self._name_servers.connectivity.name,
                topic,
                error,
            )
            route = None
        if route is None and (route := self._routes.get(topic)) is not None:
            self._failed_at[topic] = asyncio.get_running_loop().time()
        return route

    def cached(self, topic: str) -> TopicRoute | None:
        """Return the cached route and record its use; None if `get` would have to query the name servers."""
        now = self._loop.time()
        if self._needs_query(topic, now):
            return None
        self._used_at[topic] = now
        return self._routes.get(topic)

    def last_known(self, topic: str) -> TopicRoute | None:
        """Return the last known route, however old it is; never queries the name servers."""
        return self._routes.get(topic)

    def known_brokers(self, topic: str) -> frozenset[str]:
        """Return the names of all brokers that the routes of the topic have contained; a broker that stops leaves the route."""
        return frozenset(self._known_brokers.get(topic, ()))

    def _needs_query(self, topic: str, now: float) -> bool:
        """Return True if the route was invalidated, never queried, or queried more than `refresh_s` ago."""
        return topic in self._stale or now - self._queried_at.get(topic, -self._refresh_s) >= self._refresh_s

    async def _query(self, topic: str) -> TopicRoute | None:
        route = await self._name_servers.request(
            Code.GET_ROUTEINFO_BY_TOPIC,
            {"topic": topic, "acceptStandardJsonOnly": "true"},
            lambda response: read_route(topic, response.body),
            not_found=frozenset({Status.TOPIC_NOT_EXIST}),
        )
        self._queried_at[topic] = asyncio.get_running_loop().time()
        self._stale.discard(topic)
        self._store(topic, route)
        return route

    def _on_query_done(self, topic: str, task: "asyncio.Task[TopicRoute | None]") -> None:
        if self._queries.get(topic) is task:
            del self._queries[topic]
        mark_error_retrieved(task)

    def _store(self, topic: str, route: TopicRoute | None) -> None:
        """Put the result of a query into the cache, and call the watchers if the route has changed."""
        previous = self._routes.get(topic)
        if route is None:
            if previous is not None and self._watchers.get(topic):
                if topic not in self._missing:
                    # Servers that are missing were logged already, and are the likely cause.
                    level = logging.DEBUG if self._name_servers.connectivity.missing else logging.WARNING
                    log.log(
                        level,
                        "cluster %s: no name server knows topic %s any more, continuing with its last known route",
                        self._name_servers.connectivity.name,
                        topic,
                    )
                    self._missing.add(topic)
                self._queried_at.pop(topic)  # otherwise `get` would return the kept route for `refresh_s` seconds
            else:
                self._routes.pop(topic, None)
            return
        self._routes[topic] = route
        self._known_brokers.setdefault(topic, set()).update(route.brokers)
        self._missing.discard(topic)
        if previous is None or previous != route:
            for watcher in list(self._watchers.get(topic, ())):
                watcher(route)

    # --- watching ---------------------------------------------------------------------------------------------------

    def watch(self, topic: str, watcher: Watcher) -> Callable[[], None]:
        """Call `watcher` with every changed route of this topic, until the returned function is called.

        If no route of the topic is known yet, `watcher` also gets the first one. `watcher` must not raise.
        """
        self._watchers.setdefault(topic, []).append(watcher)
        if topic not in self._routes:
            self.invalidate(topic)

        def unwatch() -> None:
            watchers = self._watchers.get(topic, [])
            if watcher in watchers:
                watchers.remove(watcher)
            if not watchers:
                self._watchers.pop(topic, None)

        return unwatch

    def invalidate(self, topic: str) -> None:
        """Mark the cached route as possibly wrong: it is queried again before its next use, and soon if it is watched."""
        self._stale.add(topic)
        if topic in self._watchers:
            self._refresh_requested.set()

    def invalidate_broker(self, address: str) -> None:
        """Invalidate the routes of all topics that this broker has, because the connection to it was lost."""
        for topic, route in self._routes.items():
            if address in route.addresses():
                self.invalidate(topic)

    def invalidate_and_switch_server(self, topic: str) -> None:
        """Invalidate a route whose broker is unreachable, and send the next query to another name server.

        The current name server may not have noticed yet that the broker moved.
        """
        self._name_servers.switch()
        self.invalidate(topic)

    def addresses(self, *, masters: bool = False) -> list[str]:
        """Return the addresses of all brokers in the last known routes; with `masters`, of the masters only."""
        addresses = [
            address for route in self._routes.values() for address in (route.masters() if masters else route.addresses())
        ]
        return list(dict.fromkeys(addresses))

    async def _refresh_loop(self) -> None:
        """Query stale watched routes when `invalidate` requests it, and all watched routes every `refresh_s` seconds."""
        while True:
            try:
                async with asyncio.timeout(self._refresh_s):
                    await self._refresh_requested.wait()
            except TimeoutError:
                self._drop_unused()
                self._stale.update(self._watchers)
            self._refresh_requested.clear()
            for topic in [topic for topic in self._watchers if topic in self._stale]:
                await self._refresh(topic)
            await asyncio.sleep(min(MIN_REFRESH_PAUSE_S, self._refresh_s))

    async def _refresh(self, topic: str) -> None:
        try:
            await self.get(topic, fresh=True)
        except ClusterError as error:
            log.log(
                retry_log_level(error, logging.WARNING),
                "cluster %s: refresh of the route of topic %s failed, next refresh in about %g s: %s",
                self._name_servers.connectivity.name,
                topic,
                self._refresh_s,
                error,
            )

    def _drop_unused(self) -> None:
        """Drop unwatched routes that were not used for DROP_UNUSED_S."""
        limit = asyncio.get_running_loop().time() - DROP_UNUSED_S
        for topic in [topic for topic, used_at in self._used_at.items() if used_at < limit and topic not in self._watchers]:
            for table in (self._routes, self._known_brokers, self._queried_at, self._used_at, self._failed_at):
                table.pop(topic, None)
            self._stale.discard(topic)
