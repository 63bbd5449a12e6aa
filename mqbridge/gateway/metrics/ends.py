"""Metrics of a route's two ends: what its targets owe, and how far it is behind its source. Series are bounded, totals not."""

import asyncio
from collections.abc import Iterator

from mqbridge.gateway.metrics.family import ROUTE, Family, Samples, Shown
from mqbridge.gateway.route import Route

PARTITION_SERIES = 100
"""Most partitions of one route with a series of their own, those with the greatest lag; the totals have all of them."""
TARGET_SERIES = 100
"""Most targets of one route with series of their own, those that have waited longest."""


TARGET = ("route", "target")


def targets() -> Iterator[Family]:
    """What each target owes."""
    yield Family(
        "mqbridge_target_sends",
        "gauge",
        TARGET,
        "Shares of batches that were sent to the target and have no receipt",
        "Which target is behind.",
        lambda shown: [((route, label), sends) for route, label, sends, _ in _waiting(shown)],
    )
    yield Family(
        "mqbridge_target_waiting_seconds",
        "gauge",
        TARGET,
        "For how long the target has owed receipts and sent none; 0 while they come",
        "Which target is stuck.",
        lambda shown: [((route, label), seconds) for route, label, _, seconds in _waiting(shown)],
    )


def _waiting(shown: Shown) -> Iterator[tuple[str, str, int, float]]:
    now = asyncio.get_running_loop().time()
    for route in shown.routes:
        found = [
            (max(one.waiting_s(now) for one in several), sum(one.sends for one in several), label)
            for label, several in route.progress.items()
        ]
        for seconds, sends, label in sorted(found, reverse=True)[:TARGET_SERIES]:
            yield route.name, label, sends, seconds


def lags() -> Iterator[Family]:
    """How far a route is behind its source."""
    yield Family(
        "mqbridge_lag",
        "gauge",
        ("route", "unit"),
        "How much of the source the route's group has before it, all partitions together, in the source's own unit; "
        "the same from every instance of the group",
        "The first question at three in the morning: is it growing?",
        lambda shown: [((r.name, lag.unit), lag.total) for r in shown.routes if (lag := shown.lag.of(r)).measured_at is not None],
    )
    yield Family(
        "mqbridge_partition_lag",
        "gauge",
        ("route", "topic", "partition"),
        f"The same by partition, of the {PARTITION_SERIES} with the greatest lag of each route",
        "One partition is behind: a hot key, or its target partition is stuck.",
        lambda shown: [((route.name, *place), lag) for route in shown.routes for place, lag in _greatest(shown, route)],
    )
    yield Family(
        "mqbridge_lag_age_seconds",
        "gauge",
        ROUTE,
        "Seconds since the lag was measured; missing where the source never told it",
        "It grows: the source cannot be asked, and the lag shown is old.",
        _lag_age,
    )


def _greatest(shown: Shown, route: Route) -> list[tuple[tuple[str, str], int]]:
    partitions = shown.lag.of(route).partitions
    return sorted(partitions.items(), key=lambda one: (-one[1], one[0]))[:PARTITION_SERIES]


def _lag_age(shown: Shown) -> Samples:
    now = asyncio.get_running_loop().time()
    measured = ((route.name, shown.lag.of(route).measured_at) for route in shown.routes)
    return [((name,), now - at) for name, at in measured if at is not None]
