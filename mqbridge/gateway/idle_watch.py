"""Ends a run with `--until-idle`: when the sources confirm that everything is read, or when they cannot be asked any more.

What a source responded before an outage tells nothing about now: it may have stored messages since. So each lane asks its source
again. A partition that no member may be reading, because its server is away, counts too.
"""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from mqbridge.adapter.inbound import ConfirmsEnd, InboundLane
from mqbridge.config.patterns import is_pattern
from mqbridge.errors import LaneRevoked, MqbridgeError
from mqbridge.gateway.health import outage_of
from mqbridge.routes.route import Route
from mqbridge.routes.topic_selection import select_source_topics

IDLE_CHECK_S = 0.1
"""Pause between two checks whether all routes are idle; these checks send no requests."""
SOURCE_CHECK_S = 1.0
"""Minimum pause between two checks of the sources, while nothing arrives."""
UNKNOWN_PATIENCE_S = 20.0
"""How long the state of a source may be unknown before the run ends: longer than MAX_PAUSE_S, the pause between two attempts to
reach it, so a source that is back is noticed before."""
CONFIRM_TIMEOUT_S = 30.0
"""Timeout of the requests for one partition or topic. A RocketMQ broker may hold a pull for 20 s, which `ConfirmsEnd` awaits."""


class IdleWatch:
    """Watches the routes that `routes` returns; None while they are being replaced."""

    def __init__(self, routes: Callable[[], Sequence[Route] | None], until_idle_s: float) -> None:
        self.unread: dict[Route, dict[str, str]] = {}
        """Why it is unknown whether partitions have unread messages, by route and partition; empty unless `run` ended so."""
        self._routes, self._until_idle_s = routes, until_idle_s
        self._loop = asyncio.get_running_loop()
        self._unknown_since: float | None = None
        """Loop time since which the state of a source has been unknown; None while all are known."""

    async def run(self) -> None:
        """Return when no message has arrived for `until_idle_s`, and the sources have confirmed that all messages are read.

        Also returns, with reasons in `unread`, if no message has arrived for this long, and the state of a source has been
        unknown for UNKNOWN_PATIENCE_S.
        """
        while True:
            await asyncio.sleep(IDLE_CHECK_S)
            routes = self._routes()
            if routes is None or not self._are_quiet(routes):
                self._unknown_since = None
            elif await self._is_over(routes):
                return
            else:
                await asyncio.sleep(SOURCE_CHECK_S)

    def _are_quiet(self, routes: Sequence[Route]) -> bool:
        now = self._loop.time()
        return all(route.state.quiet_for(now) >= self._until_idle_s for route in routes)

    async def _is_over(self, routes: Sequence[Route]) -> bool:
        """Check the sources of all routes that have not stopped."""
        began_at = self._loop.time()
        running = [route for route in routes if route.state.error is None]
        sources: Sequence[SourceState] = await asyncio.gather(*map(find_source_state, running))
        unknown = {route: source.unknown for route, source in zip(running, sources, strict=True) if source.unknown}
        now = self._loop.time()
        if not self._are_quiet(routes):
            return False
        if not unknown:
            self._unknown_since = None
            are_idle = all(route.state.idle_for(now) >= self._until_idle_s for route in routes)
            return are_idle and all(source.is_read for source in sources)
        self._unknown_since = began_at if self._unknown_since is None else self._unknown_since
        if now - self._unknown_since < UNKNOWN_PATIENCE_S:
            return False
        self.unread = unknown
        return True


@dataclass(slots=True)
class SourceState:
    """The state of a route's source, as far as it is known.

    is_read   True if the source has just confirmed that all partitions are read to their end
    unknown   why this is unknown, by partition as text, by topic, or by the route's name; empty if the source has responded
    """

    is_read: bool = True
    unknown: dict[str, str] = field(default_factory=dict)

    def add_unknown(self, names: Iterable[object], reason: str) -> None:
        """Record that the state of these partitions or topics is unknown."""
        self.unknown |= dict.fromkeys(map(str, names), reason)
        self.is_read = False


async def find_source_state(route: Route) -> SourceState:
    """Ask the source of a route for every partition. Expected failures are not raised, but listed as unknown."""
    source = SourceState()
    state = route.state
    outage = outage_of(route.source)
    missing = state.missing_partitions
    if not state.is_joined:
        source.is_read = False
        if state.retry_reason is not None or outage is not None:
            source.add_unknown(missing or [route.name], str(state.retry_reason or f"cluster {route.source.name} {outage}"))
        return source
    await asyncio.gather(
        *(_check_lane(source, delivery.lane, outage) for delivery in state.deliveries.values()),
        *(_check_missing(source, route, topic, outage) for topic in sorted({partition.topic for partition in missing})),
        _check_patterns(source, route),
    )
    return source


async def _check_lane(source: SourceState, lane: InboundLane, outage: str | None) -> None:
    """Let the lane ask its source. A lane that cannot do this knows the present from its last response, see `caught_up`."""
    if isinstance(lane, ConfirmsEnd):
        try:
            async with asyncio.timeout(CONFIRM_TIMEOUT_S):
                is_read = await lane.confirm_caught_up()
        except LaneRevoked:
            is_read = False
        except MqbridgeError as error:
            source.add_unknown([lane.partition], str(error))
        except TimeoutError:
            source.add_unknown([lane.partition], f"its source has not responded for {CONFIRM_TIMEOUT_S:g} s")
        else:
            source.is_read &= is_read
    elif not lane.caught_up:
        source.is_read = False
        if outage is not None:
            source.add_unknown([lane.partition], f"cluster {lane.partition.cluster} {outage}")


async def _check_missing(source: SourceState, route: Route, topic: str, outage: str | None) -> None:
    """Check the partitions of a topic that are not assigned: another member has them, unless their server is away."""
    missing = [partition for partition in route.state.missing_partitions if partition.topic == topic]
    if outage is not None:
        source.add_unknown(missing, f"not assigned; cluster {route.source.name} {outage}")
        return
    try:
        async with asyncio.timeout(CONFIRM_TIMEOUT_S):
            described = await route.source.describe(topic)
    except MqbridgeError as error:
        source.add_unknown(missing, f"not assigned, and the topic cannot be queried: {error}")
    except TimeoutError:
        source.add_unknown(missing, f"not assigned, and the topic could not be queried within {CONFIRM_TIMEOUT_S:g} s")
    else:
        present = frozenset[str]() if described is None else frozenset(described.partitions)
        absent = [partition for partition in missing if partition.name not in present]
        if absent:
            source.add_unknown(absent, "no server of the cluster offers it any more")


async def _check_patterns(source: SourceState, route: Route) -> None:
    """Check whether further topics match the patterns of the route, unless its `refresh` turns such checks off."""
    patterns = list(filter(is_pattern, route.config.source.configured_topics))
    if not patterns or route.config.source.refresh is None:
        return
    try:
        async with asyncio.timeout(CONFIRM_TIMEOUT_S):
            selection = await select_source_topics(route.source, route.config, route.graph())
    except MqbridgeError as error:
        source.add_unknown(patterns, f"the topics cannot be listed: {error}")
    except TimeoutError:
        source.add_unknown(patterns, f"the topics could not be listed within {CONFIRM_TIMEOUT_S:g} s")
    else:
        if selection.names - route.state.target_partitions.keys() - route.state.endpoints.failed_topics.keys():
            source.is_read = False
            route.request_refresh()
