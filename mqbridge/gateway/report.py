"""Logs what routes and listeners do: a status line of each at intervals, and each route that waits for its first partition."""

import asyncio
import logging
from typing import Protocol

from mqbridge.adapter.cluster import Cluster
from mqbridge.gateway.health import outage_of, stuck_targets, unreachable_clusters
from mqbridge.gateway.lag import LagWatch
from mqbridge.gateway.listeners import ListenerRunner
from mqbridge.routes.route import Route

log = logging.getLogger(__name__)

REPORT_INTERVAL_S = 30.0
"""Pause between two status lines of a route or listener."""
ASSIGNMENT_CHECK_S = 1.0
"""Pause between two checks whether routes have a partition."""
FAILING_CHECK_S = 1.0
"""Pause between two checks whether sends to targets fail."""
FAILING_LOG_S = 10.0
"""Seconds of failed sends after which they are logged; a broker that restarts or is overloaded needs less."""
UNASSIGNED_LOG_S = 5.0
"""Seconds without a partition after which the wait is logged; most assignments take less."""


TargetKey = tuple[str, str]
"""The name of a route, and the label (`CLUSTER/TOPIC`) of a target."""


class ReportedGateway(Protocol):
    """A gateway whose routes and listeners are reported."""

    clusters: dict[str, Cluster]
    routes: list[Route]
    listeners: list[ListenerRunner]
    lag: LagWatch


async def report(gateway: ReportedGateway) -> None:
    """Log a status line per route and listener every REPORT_INTERVAL_S, until cancelled."""
    stored_before: dict[str, int] = {}
    while True:
        await asyncio.sleep(REPORT_INTERVAL_S)
        for route in gateway.routes:
            stored = route.state.counters.stored
            rate = (stored - stored_before.get(route.name, 0)) / REPORT_INTERVAL_S
            stored_before[route.name] = stored
            log.info("status: %s", status_line(gateway, route, rate))
        for runner in gateway.listeners:
            log.info("status: %s", listener_status_line(gateway, runner))


def status_line(gateway: ReportedGateway, route: Route, rate: float) -> str:
    """Return the status line of a route; `rate` is in messages per second."""
    state = route.state
    counters = state.counters
    lag = gateway.lag.of(route)
    parts = [
        f"route {route.name}: {counters.stored:,} messages stored, {rate:,.0f} per second",
        f"{len(state.deliveries)} partitions",
        f"{state.in_flight_messages:,} messages ({size_text(state.budget.used)}) in flight",
        f"{counters.dead:,} dead letters",
    ]
    now = asyncio.get_running_loop().time()
    if lag.measured_at is not None:
        parts.append(f"lag {lag.total:,} {lag.unit} {now - lag.measured_at:.0f} s ago")
    parts += [f"target {label}: {why}" for label, why in stuck_targets(route, now).items()]
    parts += [f"target {label} is unprotected: {why}" for label, why in state.unprotected.items()]
    parts += [f"cluster {name} {why}" for name, why in unreachable_clusters(gateway.clusters, route).items()]
    return "; ".join(parts)


def listener_status_line(gateway: ReportedGateway, runner: ListenerRunner) -> str:
    """Return the status line of a listener."""
    listener = runner.listener
    counts = listener.server.counts
    parts = [
        f"listener {runner.name}: {len(listener.port.connections):,} connections",
        f"{counts.producers:,} producers",
        f"{counts.consumers:,} consumers",
        f"{counts.received_messages:,} messages received ({size_text(listener.in_flight.used)} in flight)",
        f"{counts.delivered_messages:,} delivered ({size_text(listener.unacknowledged.used)} not acknowledged)",
        f"{listener.publishers.dead_letters:,} dead letters",
    ]
    if (problem := runner.problem) is not None:
        parts.append(f"it does not serve clients: {problem}")
    parts += [f"cluster {name} {why}" for name, why in unreachable_clusters(gateway.clusters, runner).items()]
    return "; ".join(parts)


async def log_unassigned_routes(gateway: ReportedGateway) -> None:
    """Log each membership without a partition once, until cancelled.

    A user could take the wait for a fault: on TubeMQ the first assignment may take half a minute.
    """
    logged: dict[str, int] = {}  # by route: which of its memberships was logged last, counted from 1
    while True:
        await asyncio.sleep(ASSIGNMENT_CHECK_S)
        now = asyncio.get_running_loop().time()
        for route in gateway.routes:
            waited, memberships = route.state.unassigned_for(now), route.state.memberships
            if waited >= UNASSIGNED_LOG_S and logged.get(route.name) != memberships:
                logged[route.name] = memberships
                log.info(
                    "route %s is a member of group %s and has waited %.0f s for its first partition: some systems take half "
                    "a minute; after that, check whether other members of the group hold all partitions",
                    route.name,
                    route.config.source.group,
                    waited,
                )


async def log_failing_targets(gateway: ReportedGateway) -> None:
    """Log each target whose sends have failed for FAILING_LOG_S once, with the reason, and the end of it, until cancelled.

    The clients log their own retries, too, but some failures are normal for a while there, such as a full memory of a Broker.
    """
    targets = FailingTargets()
    while True:
        await asyncio.sleep(FAILING_CHECK_S)
        targets.check(gateway, asyncio.get_running_loop().time())


class FailingTargets:
    """What was seen and logged about targets whose sends fail.

    The time of an outage of the target's cluster does not count: the cluster logs the outage. It can be reached again a moment
    before it stores messages.
    """

    def __init__(self) -> None:
        self._away_at: dict[TargetKey, float] = {}
        """Loop time of the last check at which the cluster of a failing target was away."""
        self._logged: dict[TargetKey, float] = {}
        """Loop time of the first failure of each target whose failure was logged."""

    def check(self, gateway: ReportedGateway, now: float) -> None:
        """Log the targets that have failed for long, and those that do not fail any more; `now` is a loop time."""
        failures = {(route.name, label): each for route in gateway.routes for label, each in route.state.send_failures.items()}
        self._away_at = {key: at for key, at in self._away_at.items() if key in failures}
        for key, failure in failures.items():
            route, label = key
            if _is_away(gateway, label):
                self._away_at[key] = now
            reachable_since = max(failure.since, self._away_at.get(key, failure.since))
            if now - reachable_since >= FAILING_LOG_S and key not in self._logged:
                self._logged[key] = failure.since
                text = "route %s: sends to target %s have failed for %.0f s and are retried; nothing is lost: %s"
                log.warning(text, route, label, now - failure.since, failure.reason)
        for key in self._logged.keys() - failures.keys():
            log.info("route %s: target %s stores messages again after %.0f s", *key, now - self._logged.pop(key))


def _is_away(gateway: ReportedGateway, label: str) -> bool:
    """Return True during an outage of the target's cluster; `label` is `CLUSTER/TOPIC`."""
    return any(label.startswith(f"{name}/") and outage_of(cluster) is not None for name, cluster in gateway.clusters.items())


def size_text(size: int) -> str:
    """Format a number of bytes in the largest unit in which it is at least 1."""
    for unit, bytes_ in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if size >= bytes_:
            return f"{size / bytes_:.1f} {unit}"
    return f"{size} B"
