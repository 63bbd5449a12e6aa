"""Metrics of a route's targets (sends in flight) and of its source (lag). The number of time series is bounded."""

import asyncio
from collections.abc import Iterator

from mqbridge.gateway.metrics.family import ROUTE, Family, MeteredGateway, Samples
from mqbridge.routes.route import Route

MAX_PARTITION_SERIES = 100
"""Maximum number of partition series per route: those with the greatest lag. The route's total includes all partitions."""
MAX_TARGET_SERIES = 100
"""Maximum number of target series per route: those of the targets with the longest wait for a result."""


TARGET = ("route", "target")
"""The labels of a metric with one sample per target of a route."""


def targets() -> Iterator[Family]:
    """Yield the metrics of sends in flight per target."""
    yield Family(
        "mqbridge_target_sends",
        "gauge",
        TARGET,
        "Sends to the target that are neither confirmed nor failed yet; a send is the part of a batch for one target partition",
        "Which target is behind?",
        lambda gateway: [((route, label), sends) for route, label, sends, _ in _target_states(gateway)],
    )
    yield Family(
        "mqbridge_target_waiting_seconds",
        "gauge",
        TARGET,
        "Seconds since the target's last result of a send while sends are in flight; 0 if none is in flight",
        "Which target is stuck?",
        lambda gateway: [((route, label), seconds) for route, label, _, seconds in _target_states(gateway)],
    )
    yield Family(
        "mqbridge_target_failing_seconds",
        "gauge",
        TARGET,
        "Seconds since sends to the target, or to the dead-letter topic, began to fail and be retried; missing while they do not",
        "Is a target full, or does it refuse everything? `/routes` has the reason under `failing`.",
        _failing_targets,
    )


def _failing_targets(gateway: MeteredGateway) -> Samples:
    """Return the seconds since the first of the failures, by route and target, for at most MAX_TARGET_SERIES of each route."""
    now = asyncio.get_running_loop().time()
    samples: list[tuple[tuple[str, ...], float]] = []
    for route in gateway.routes:
        failing = sorted((failure.since, label) for label, failure in route.state.send_failures.items())
        samples += [((route.name, label), now - since) for since, label in failing[:MAX_TARGET_SERIES]]
    return samples


def _target_states(gateway: MeteredGateway) -> Iterator[tuple[str, str, int, float]]:
    """Yield route name, target label, number of sends in flight, and the longest wait for a result in seconds; 0 without sends.

    Several source topics may share a target label: the target of each has its own progress.
    """
    now = asyncio.get_running_loop().time()
    for route in gateway.routes:
        states = [
            (
                max(progress.waiting_s(now) for progress in progresses),
                sum(progress.sends_in_flight for progress in progresses),
                label,
            )
            for label, progresses in route.state.progress.items()
        ]
        for seconds, sends, label in sorted(states, reverse=True)[:MAX_TARGET_SERIES]:
            yield route.name, label, sends, seconds


def lags() -> Iterator[Family]:
    """Yield the metrics of the lag of routes behind their sources."""
    yield Family(
        "mqbridge_lag",
        "gauge",
        ("route", "unit"),
        "Backlog of the route's group in the source, all partitions together, in the source's own unit; "
        "every instance of the group reports the same value, except for partitions without a committed position",
        "Is it growing? The first question in any incident.",
        lambda gateway: [
            ((route.name, lag.unit), lag.total)
            for route in gateway.routes
            if (lag := gateway.lag.of(route)).measured_at is not None
        ],
    )
    yield Family(
        "mqbridge_partition_lag",
        "gauge",
        ("route", "topic", "partition"),
        f"The lag by partition, for the {MAX_PARTITION_SERIES} partitions of each route with the greatest lag",
        "One partition is behind: a hot key, or its target partition is stuck.",
        lambda gateway: [
            ((route.name, *partition), lag) for route in gateway.routes for partition, lag in _greatest_lags(gateway, route)
        ],
    )
    yield Family(
        "mqbridge_lag_age_seconds",
        "gauge",
        ROUTE,
        "Seconds since the lag was measured; missing if the source has never reported it",
        "It grows: the source does not respond, and the displayed lag is old.",
        _lag_ages,
    )


def _greatest_lags(gateway: MeteredGateway, route: Route) -> list[tuple[tuple[str, str], int]]:
    """Return pairs ((topic, partition), lag), the greatest lag first."""
    partitions = gateway.lag.of(route).partitions
    return sorted(partitions.items(), key=lambda item: (-item[1], item[0]))[:MAX_PARTITION_SERIES]


def _lag_ages(gateway: MeteredGateway) -> Samples:
    now = asyncio.get_running_loop().time()
    times = ((route.name, gateway.lag.of(route).measured_at) for route in gateway.routes)
    return [((name,), now - measured_at) for name, measured_at in times if measured_at is not None]
