"""Metrics of a route's targets (sends in flight) and of its source (lag). The number of time series is bounded."""

import asyncio
from collections.abc import Iterator

from mqbridge.gateway.metrics.family import ROUTE, Family, MeteredGateway, Samples
from mqbridge.gateway.route import Route

PARTITION_SERIES = 100
"""Maximum number of partition series per route: those with the greatest lag. The route's total includes all partitions."""
TARGET_SERIES = 100
"""Maximum number of target series per route: those of the targets that have waited longest for a receipt."""


TARGET = ("route", "target")


def targets() -> Iterator[Family]:
    """Yield the metrics of sends in flight per target."""
    yield Family(
        "mqbridge_target_sends",
        "gauge",
        TARGET,
        "Shares of batches that were sent to the target and have no receipt yet",
        "Which target is behind.",
        lambda shown: [((route, label), sends) for route, label, sends, _ in _waiting(shown)],
    )
    yield Family(
        "mqbridge_target_waiting_seconds",
        "gauge",
        TARGET,
        "Seconds since the target's last receipt while sends are in flight; 0 while receipts come",
        "Which target is stuck.",
        lambda shown: [((route, label), seconds) for route, label, _, seconds in _waiting(shown)],
    )


def _waiting(shown: MeteredGateway) -> Iterator[tuple[str, str, int, float]]:
    now = asyncio.get_running_loop().time()
    for route in shown.routes:
        found = [
            (max(one.waiting_s(now) for one in several), sum(one.sends for one in several), label)
            for label, several in route.progress.items()
        ]
        for seconds, sends, label in sorted(found, reverse=True)[:TARGET_SERIES]:
            yield route.name, label, sends, seconds


def lags() -> Iterator[Family]:
    """Yield the metrics of the lag of routes behind their sources."""
    yield Family(
        "mqbridge_lag",
        "gauge",
        ("route", "unit"),
        "Backlog of the route's group in the source, all partitions together, in the source's own unit; "
        "the same from every instance of the group",
        "The first question at three in the morning: is it growing?",
        lambda shown: [((r.name, lag.unit), lag.total) for r in shown.routes if (lag := shown.lag.of(r)).measured_at is not None],
    )
    yield Family(
        "mqbridge_partition_lag",
        "gauge",
        ("route", "topic", "partition"),
        f"The lag by partition, of the {PARTITION_SERIES} with the greatest lag of each route",
        "One partition is behind: a hot key, or its target partition is stuck.",
        lambda shown: [((route.name, *partition), lag) for route in shown.routes for partition, lag in _greatest(shown, route)],
    )
    yield Family(
        "mqbridge_lag_age_seconds",
        "gauge",
        ROUTE,
        "Seconds since the lag was measured; missing if the source never told it",
        "It grows: the source does not respond, and the lag shown is old.",
        _lag_age,
    )


def _greatest(shown: MeteredGateway, route: Route) -> list[tuple[tuple[str, str], int]]:
    partitions = shown.lag.of(route).partitions
    return sorted(partitions.items(), key=lambda one: (-one[1], one[0]))[:PARTITION_SERIES]


def _lag_age(shown: MeteredGateway) -> Samples:
    now = asyncio.get_running_loop().time()
    measured = ((route.name, shown.lag.of(route).measured_at) for route in shown.routes)
    return [((name,), now - at) for name, at in measured if at is not None]
