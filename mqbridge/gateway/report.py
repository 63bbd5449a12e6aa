"""Logs a status line per route at intervals: its progress, or what blocks it."""

import asyncio
import logging
from typing import Protocol

from mqbridge.adapter.cluster import Cluster
from mqbridge.gateway.health import stuck_targets, unreachable_clusters
from mqbridge.gateway.lag import LagWatch
from mqbridge.routes.route import Route

log = logging.getLogger(__name__)

REPORT_INTERVAL_S = 30.0
"""Pause between two status lines of a route."""


class ReportedGateway(Protocol):
    """A gateway whose routes are reported."""

    clusters: dict[str, Cluster]
    routes: list[Route]
    lag: LagWatch


async def report(gateway: ReportedGateway) -> None:
    """Log a status line per route every REPORT_INTERVAL_S, until cancelled."""
    stored_before: dict[str, int] = {}
    while True:
        await asyncio.sleep(REPORT_INTERVAL_S)
        for route in gateway.routes:
            stored = route.counters.stored
            rate = (stored - stored_before.get(route.name, 0)) / REPORT_INTERVAL_S
            stored_before[route.name] = stored
            log.info("status: %s", status_line(gateway, route, rate))


def status_line(gateway: ReportedGateway, route: Route, rate: float) -> str:
    """Return the status line of a route; `rate` is in messages per second."""
    counters, lag = route.counters, gateway.lag.of(route)
    parts = [
        f"route {route.name}: {counters.stored:,} messages stored, {rate:,.0f} per second",
        f"{len(route.deliveries)} partitions",
        f"{route.in_flight_messages:,} messages ({size_text(route.budget.used)}) in flight",
        f"{counters.dead:,} dead letters",
    ]
    now = asyncio.get_running_loop().time()
    if lag.measured_at is not None:
        parts.append(f"lag {lag.total:,} {lag.unit} {now - lag.measured_at:.0f} s ago")
    parts += [f"target {label}: {why}" for label, why in stuck_targets(route, now).items()]
    parts += [f"target {label} is unprotected: {why}" for label, why in route.unprotected.items()]
    parts += [f"cluster {name} {why}" for name, why in unreachable_clusters(gateway.clusters, route).items()]
    return "; ".join(parts)


def size_text(size: int) -> str:
    """Format a number of bytes in the largest unit in which it is at least 1."""
    for unit, bytes_ in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if size >= bytes_:
            return f"{size / bytes_:.1f} {unit}"
    return f"{size} B"
