"""A line per route in the log now and then, so that whoever looks at it sees that it moves, or why it does not."""

import asyncio
import logging
from typing import Protocol

from mqbridge.adapter.cluster import Cluster
from mqbridge.gateway.health import clusters_away, stuck_targets
from mqbridge.gateway.lag import LagWatch
from mqbridge.gateway.route import Route

log = logging.getLogger(__name__)

REPORT_EVERY_S = 30.0


class Reported(Protocol):
    """What is told of: a gateway."""

    clusters: dict[str, Cluster]
    routes: list[Route]
    lag: LagWatch


async def report(gateway: Reported) -> None:
    """Tell, until cancelled."""
    before: dict[str, int] = {}
    while True:
        await asyncio.sleep(REPORT_EVERY_S)
        for route in gateway.routes:
            stored = route.counters.stored
            rate = (stored - before.get(route.name, 0)) / REPORT_EVERY_S
            before[route.name] = stored
            log.info("%s", line(gateway, route, rate))


def line(gateway: Reported, route: Route, rate: float) -> str:
    """What a route did and what holds it up."""
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
    parts += [f"cluster {name} {why}" for name, why in clusters_away(gateway.clusters, route).items()]
    return "; ".join(parts)


def size_text(size: int) -> str:
    """Bytes for people; never 0 of a larger unit for what is not 0."""
    for unit, bytes_ in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if size >= bytes_:
            return f"{size / bytes_:.1f} {unit}"
    return f"{size} B"
