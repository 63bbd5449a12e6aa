"""Metrics of routes: their totals (`delivery/counters.py`), their state, and how long delivery takes."""

import asyncio
import time
from collections.abc import Callable, Iterator

from mqbridge.delivery.counters import Counters, Total, declared_totals
from mqbridge.gateway.metrics.family import ROUTE, Family, MeteredGateway, Samples, of_routes
from mqbridge.gateway.route import Route

_WHEN_TO_LOOK = {
    "received": "Does anything arrive?",
    "stored": "The throughput; compare with received.",
    "dead": "Every one is a message that nobody sees until somebody reads the dead letters.",
    "filtered": "Messages are missing at the target, and nothing failed.",
    "looped": "Messages are missing at the target, and nothing failed; or two routes feed each other.",
    "returned": "After an outage or a rolling update: the most that may be delivered twice.",
    "gaps": "Data was lost at the source, and `on_gap: continue` went on without it.",
    "acknowledged": "Lags behind stored when acknowledgements do not reach the source.",
    "batches": "Small batches cost; divide messages by it.",
    "bytes": "Bandwidth.",
}


def totals() -> Iterator[Family]:
    """Yield the totals of routes."""
    for total in declared_totals():
        yield Family(total.metric, "counter", ROUTE, total.description, _WHEN_TO_LOOK[total.name], of_routes(_reader(total)))


def _reader(total: Total) -> Callable[[Route], float]:
    return lambda route: float(getattr(route.counters, total.name))


def states() -> Iterator[Family]:
    """Yield the metrics of the current state of routes."""
    for name, text, look, read in (
        ("route_up", "1 while the route runs, 0 when it stopped", "First: 0 needs a person.", lambda r: r.error is None),
        ("route_retrying", "1 while it has no group membership and is going to join again", "Nothing moves.", _is_retrying),
        (
            "route_sessions",
            "Number of times that the route joined its group",
            "It grows: memberships fail.",
            lambda r: r.memberships,
        ),
        ("lanes", "Source partitions that this process reads", "0 on all instances: nobody reads.", lambda r: len(r.deliveries)),
        ("stopped_partitions", "Partitions that stopped by an error", "Above 0 needs a person.", lambda r: len(r.stopped)),
        ("in_flight_bytes", "Bytes received and not yet stored", "Near the limit: the target is slow.", lambda r: r.budget.used),
        ("in_flight_limit_bytes", "Limit of these bytes: half of `in_flight_bytes`", "To divide by.", lambda r: r.budget.limit),
        ("in_flight_messages", "Messages received and not yet stored", "What waits.", lambda r: r.in_flight_messages),
        ("lane_head_age_seconds", "Age of the oldest batch in flight", "It grows: something is stuck.", _oldest_age),
    ):
        yield Family(f"mqbridge_{name}", "gauge", ROUTE, text, look, of_routes(read))


def _is_retrying(route: Route) -> bool:
    return route.retry_reason is not None


def _oldest_age(route: Route) -> float:
    return route.oldest_age(asyncio.get_running_loop().time())


def times() -> Iterator[Family]:
    """Yield the times of the last batches, and the histograms of durations."""
    received, stored = (lambda c: c.last_batch_at), (lambda c: c.last_stored_at)
    text = "Time at which the last batch was {} (Unix time); missing before the first"
    look = "It stands still while the lag grows."
    yield Family("mqbridge_last_received_timestamp_seconds", "gauge", ROUTE, text.format("received"), look, _moment(received))
    yield Family("mqbridge_last_stored_timestamp_seconds", "gauge", ROUTE, text.format("stored"), look, _moment(stored))
    yield Family(
        "mqbridge_delivery_seconds",
        "histogram",
        ROUTE,
        "Time from receiving a batch until it and all batches before it are stored, once per batch",
        "The gateway and its targets are slow.",
        of_routes(lambda route: route.counters.delivery),
    )
    yield Family(
        "mqbridge_end_to_end_seconds",
        "histogram",
        ROUTE,
        "Time from publishing a batch's first message until the batch is stored, once per batch, by the clocks of producer and "
        "gateway; empty if the source tells the publish time only after decoding (TubeMQ, log)",
        "What users of the target notice; exceeds delivery by the time in the source.",
        of_routes(lambda route: route.counters.end_to_end),
    )


def _moment(read: Callable[[Counters], float]) -> Callable[[MeteredGateway], Samples]:
    """Return a function that reads a loop time from each route's counters and converts it to Unix time."""

    def moment(route: Route) -> float | None:
        at = read(route.counters)
        return time.time() - (asyncio.get_running_loop().time() - at) if at else None

    return of_routes(moment)
