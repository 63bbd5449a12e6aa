"""The routes of topics: asked of the name servers, kept, and kept current for those who watch.

A topic that was there and is not any more keeps its last route for the watchers: a name server that lost its brokers for a moment
must not take every queue from every consumer. `get(fresh=True)` tells the truth of the moment.
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

__all__ = ["Queue", "Routes", "TopicRoute"]

log = logging.getLogger(__name__)

REFRESH_S = 30.0
"""The clients' common rhythm."""
LEAST_REFRESH_S = 1.0
"""Between two rounds that losses of connections ask for."""
FORGET_S = 120.0
"""A route that nobody watches is dropped when nobody has asked for so long."""


Watcher = Callable[[TopicRoute], None]


class Routes:
    """The routes of one client. `start` to keep the watched ones current, `close` at the end."""

    def __init__(self, name_servers: NameServers, refresh_s: float = REFRESH_S) -> None:
        self._name_servers, self._refresh_s = name_servers, refresh_s
        self._known: dict[str, TopicRoute] = {}
        self._asked_at: dict[str, float] = {}
        self._used_at: dict[str, float] = {}
        self._in_vain_at: dict[str, float] = {}
        """When no name server told the route of a topic that has one."""
        self._stale: set[str] = set()
        self._orphans: set[str] = set()
        self._watchers: dict[str, list[Watcher]] = {}
        self._asking: dict[str, asyncio.Task[TopicRoute | None]] = {}
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._loop = asyncio.get_running_loop()

    def start(self) -> None:
        """Begin to keep the watched routes current."""
        if self._task is None:
            self._task = spawn(self._refreshing(), "rocketmq routes")

    async def close(self) -> None:
        """Stop."""
        await cancel(self._task)
        await cancel(*self._asking.values())

    # --- asking -----------------------------------------------------------------------------------------------------

    async def get(self, topic: str, *, fresh: bool = False) -> TopicRoute | None:
        """The route of a topic; None when no name server knows it.

        Kept ones are used for REFRESH_S, unless something went wrong with them or `fresh` asks anew. Raises ClusterError:
        Unreachable when no name server gives an answer that makes sense, FATAL for a static topic.
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
        """The route to work by: as `get` has it, or the last that there was while no name server tells one.

        What needs no new route goes on without name servers; while they are away one is asked every LEAST_REFRESH_S only.
        """
        known, now = self._known.get(topic), asyncio.get_running_loop().time()
        if known is not None and now - self._in_vain_at.get(topic, -LEAST_REFRESH_S) < LEAST_REFRESH_S:
            return known
        try:
            route = await self.get(topic)
        except ClusterError as error:
            if known is None or error.failure is Failure.FATAL:
                raise
            log.log(level_of(error, logging.INFO), "%s is used by the last route that was known: %s", topic, error)
            route = None
        if route is None and (route := self._known.get(topic)) is not None:
            self._in_vain_at[topic] = asyncio.get_running_loop().time()
        return route

    def fresh(self, topic: str) -> TopicRoute | None:
        """The route that `get` would have without asking, if there is one; noted as used."""
        now = self._loop.time()
        if topic in self._stale or now - self._asked_at.get(topic, -self._refresh_s) >= self._refresh_s:
            return None
        self._used_at[topic] = now
        return self._known.get(topic)

    def known(self, topic: str) -> TopicRoute | None:
        """The last route that there was, without asking."""
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
                    log.log(level, "no name server knows topic %s any more; its last route is kept", topic)
                    self._orphans.add(topic)
                self._asked_at.pop(topic)  # so that `get` asks again, and says so
            else:
                self._known.pop(topic, None)
            return
        self._known[topic] = route
        self._orphans.discard(topic)
        if before is None or before != route:
            for watcher in list(self._watchers.get(topic, ())):
                watcher(route)

    # --- keeping current --------------------------------------------------------------------------------------------

    def watch(self, topic: str, watcher: Watcher) -> Callable[[], None]:
        """Call `watcher` with every route of this topic that differs from the last; the function that is returned ends it.

        Called from the event loop, soon with the first one; it must not raise.
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
        """Something was not where this route says: ask again before it is used, and soon if it is watched."""
        self._stale.add(topic)
        if topic in self._watchers:
            self._wake.set()

    def lost(self, address: str) -> None:
        """The connection to this broker is gone: its topics may move."""
        for topic, route in self._known.items():
            if address in route.addresses():
                self.invalidate(topic)

    def distrust(self, topic: str) -> None:
        """The broker that the route names cannot be reached: the next name server may know better."""
        self._name_servers.skip()
        self.invalidate(topic)

    def addresses(self, *, masters: bool = False) -> list[str]:
        """The brokers of every topic that is in use."""
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
                await self._refreshed(topic)
            await asyncio.sleep(min(LEAST_REFRESH_S, self._refresh_s))

    async def _refreshed(self, topic: str) -> None:
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
            for table in (self._known, self._asked_at, self._used_at, self._in_vain_at):
                table.pop(topic, None)
            self._stale.discard(topic)
