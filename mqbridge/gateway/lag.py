"""The lag of each route's group behind its source, by partition, polled from the source cluster.

The lag is the group's backlog as the cluster reports it, in the cluster's own unit, so all gateways of one group show the same
lag, also after the route has stopped. A partition without a committed position is counted only by the gateway that reads it. If
the cluster does not report it (TubeMQ and Pulsar without `admin_url`), the lag is unknown, and the reason is shown instead.
"""

import asyncio
import logging
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from mqbridge.adapter.cluster import Cluster
from mqbridge.adapter.inbound import Start
from mqbridge.adapter.operations import Operations, backlog_from_offsets
from mqbridge.errors import ClusterError, Failure, MqbridgeError, RequestTimeout
from mqbridge.message import Position
from mqbridge.routes.route import Route

log = logging.getLogger(__name__)

FIRST_PAUSE_S = 1.0
"""Pause before the first measurement, during which the routes usually open."""
MEASURE_INTERVAL_S = 10.0
"""Pause between two measurements of all routes."""
TOPIC_PAUSE_S = 0.05
"""Pause between two topics, so that at most twenty topics are measured per second."""
TOPIC_TIMEOUT_S = 10.0
"""Timeout for the responses about one topic."""

TopicPartition = tuple[str, str]
"""Topic and partition name."""


@dataclass(slots=True)
class Lag:
    """The last known lag of one route."""

    unit: str = ""
    """The unit that the source counts in, such as `messages` or `entries`; empty before the first measurement."""
    partitions: dict[TopicPartition, int] = field(default_factory=dict)
    measured_at: float | None = None
    """Loop time of the last successful measurement; None before the first."""
    problem: str | None = None
    """Why the last measurement failed; None if it succeeded."""

    @property
    def total(self) -> int:
        """Sum over all partitions."""
        return sum(self.partitions.values())


class WatchedGateway(Protocol):
    """The parts of a gateway that `LagWatch` reads."""

    clusters: dict[str, Cluster]
    routes: list[Route]


class LagWatch:
    """The lag of every route by name, kept current by `run`."""

    def __init__(self, gateway: WatchedGateway) -> None:
        self._gateway = gateway
        self._lags: dict[str, Lag] = {}

    def of(self, route: Route) -> Lag:
        """Return the last known lag of a route."""
        return self._lags.setdefault(route.name, Lag())

    async def run(self) -> None:
        """Poll until cancelled."""
        await asyncio.sleep(FIRST_PAUSE_S)
        while True:
            for route in list(self._gateway.routes):
                await self._measure(route)
            await asyncio.sleep(MEASURE_INTERVAL_S)

    async def _measure(self, route: Route) -> None:
        """Update the lag of a route. Raises nothing: a failure becomes its `problem`."""
        lag = self.of(route)
        try:
            lag.unit, lag.partitions = await self._fetch(route)
            lag.measured_at, lag.problem = asyncio.get_running_loop().time(), None
        except MqbridgeError as error:
            lag.problem = str(error)
        except Exception as error:  # noqa: BLE001 - a bug of an adapter must not stop the measurement of other routes
            lag.problem = repr(error)
        if lag.problem is not None:
            log.debug("the lag of route %s could not be measured: %s", route.name, lag.problem)

    async def _fetch(self, route: Route) -> tuple[str, dict[TopicPartition, int]]:
        """Return the unit and the lag. Raises MqbridgeError."""
        name = route.config.source.cluster
        cluster = self._gateway.clusters.get(name)
        operations = None if cluster is None else cluster.operations
        if cluster is None or operations is None:
            problem = "is not connected" if cluster is None else "cannot report the lag without admin_url"
            raise ClusterError(f"cluster {name!r} {problem}", Failure.FATAL)
        backlogs: dict[TopicPartition, int] = {}
        for topic in list(route.state.target_partitions):  # its keys are the source topics
            try:
                async with asyncio.timeout(TOPIC_TIMEOUT_S):
                    backlog = await _topic_backlog(cluster, operations, topic, route)
            except TimeoutError as error:
                raise RequestTimeout(f"no response about topic {topic!r} within {TOPIC_TIMEOUT_S:g} s") from error
            backlogs |= {(topic, partition): count for partition, count in backlog.items()}
            await asyncio.sleep(TOPIC_PAUSE_S)
        return operations.backlog_unit, backlogs


async def _topic_backlog(cluster: Cluster, operations: Operations, topic: str, route: Route) -> Mapping[str, int]:
    """Return the backlog by partition name.

    An assigned partition without a committed position counts from its first message, if the group starts there and positions are
    single numbers, so that their difference is a count; otherwise it is left out.
    """
    source = route.config.source
    backlog = await operations.backlog(topic, source.group)
    uncommitted = _assigned_partitions(route, topic) - backlog.keys()
    if not uncommitted or source.start is not Start.EARLIEST:
        return backlog
    bounds = {
        name: limits for name, limits in (await cluster.bounds(topic)).items() if name in uncommitted and len(limits.next) == 1
    }
    first_positions: dict[str, Position] = {name: limits.first for name, limits in bounds.items()}
    return {**backlog, **backlog_from_offsets(first_positions, bounds)}


def _assigned_partitions(route: Route, topic: str) -> Collection[str]:
    """Return the names of the topic's partitions that are assigned to this gateway, also of those that it has stopped reading."""
    return {partition.name for partition in (*route.state.deliveries, *route.state.stopped) if partition.topic == topic}
