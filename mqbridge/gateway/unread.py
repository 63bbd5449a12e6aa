"""Finds out from the source of an idle route whether its partitions are read to their end.

What a source responded before an outage tells nothing about now: it may have stored messages since. So each lane asks its source
again. A partition that no member may be reading, because its server is away, counts too.
"""

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass, field

from mqbridge.adapter.inbound import ConfirmsEnd, InboundLane
from mqbridge.config.patterns import is_pattern
from mqbridge.errors import LaneRevoked, MqbridgeError
from mqbridge.gateway.health import outage_of
from mqbridge.routes.route import Route
from mqbridge.routes.topic_selection import select_source_topics

CONFIRM_TIMEOUT_S = 30.0
"""Timeout of the requests for one partition or topic. A RocketMQ broker may hold a pull for 20 s, which `ConfirmsEnd` awaits."""


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
    state, outage = SourceState(), outage_of(route.source)
    if not route.is_joined:
        state.is_read = False
        if route.retry_reason is not None or outage is not None:
            reason = str(route.retry_reason or f"cluster {route.source.name} {outage}")
            state.add_unknown(route.missing_partitions or [route.name], reason)
        return state
    lanes = [delivery.lane for delivery in route.deliveries.values()]
    missing = route.missing_partitions
    await asyncio.gather(
        *(_check_lane(state, lane, outage) for lane in lanes),
        *(_check_missing(state, route, topic, outage) for topic in sorted({partition.topic for partition in missing})),
        _check_patterns(state, route),
    )
    return state


async def _check_lane(state: SourceState, lane: InboundLane, outage: str | None) -> None:
    """Let the lane ask its source. A lane that cannot do this knows the present from its last response, see `caught_up`."""
    if isinstance(lane, ConfirmsEnd):
        try:
            async with asyncio.timeout(CONFIRM_TIMEOUT_S):
                is_read = await lane.confirm_caught_up()
        except LaneRevoked:
            is_read = False
        except MqbridgeError as error:
            state.add_unknown([lane.partition], str(error))
        except TimeoutError:
            state.add_unknown([lane.partition], f"its source has not responded for {CONFIRM_TIMEOUT_S:g} s")
        else:
            state.is_read &= is_read
    elif not lane.caught_up:
        state.is_read = False
        if outage is not None:
            state.add_unknown([lane.partition], f"cluster {lane.partition.cluster} {outage}")


async def _check_missing(state: SourceState, route: Route, topic: str, outage: str | None) -> None:
    """Check the partitions of a topic that are not assigned: another member has them, unless their server is away."""
    missing = [partition for partition in route.missing_partitions if partition.topic == topic]
    if outage is not None:
        state.add_unknown(missing, f"not assigned; cluster {route.source.name} {outage}")
        return
    try:
        async with asyncio.timeout(CONFIRM_TIMEOUT_S):
            described = await route.source.describe(topic)
    except MqbridgeError as error:
        state.add_unknown(missing, f"not assigned, and the topic cannot be queried: {error}")
    except TimeoutError:
        state.add_unknown(missing, f"not assigned, and the topic could not be queried within {CONFIRM_TIMEOUT_S:g} s")
    else:
        present = frozenset[str]() if described is None else frozenset(described.partitions)
        absent = [partition for partition in missing if partition.name not in present]
        if absent:
            state.add_unknown(absent, "no server of the cluster offers it any more")


async def _check_patterns(state: SourceState, route: Route) -> None:
    """Check whether further topics match the patterns of the route, unless its `refresh` turns such checks off."""
    patterns = list(filter(is_pattern, route.config.source.configured_topics))
    if not patterns or route.config.source.refresh is None:
        return
    try:
        async with asyncio.timeout(CONFIRM_TIMEOUT_S):
            selected = await select_source_topics(route.source, route.config)
    except MqbridgeError as error:
        state.add_unknown(patterns, f"the topics cannot be listed: {error}")
    except TimeoutError:
        state.add_unknown(patterns, f"the topics could not be listed within {CONFIRM_TIMEOUT_S:g} s")
    else:
        if {each.topic for each in selected} - route.target_partitions.keys():
            state.is_read = False
            route.request_refresh()
