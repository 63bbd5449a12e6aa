"""Metrics of routes: their totals (`delivery/counters.py`), their state, and how long delivery takes."""

import asyncio
import time
from collections.abc import Callable, Iterator

from mqbridge.delivery.counters import Counters, Total, declared_totals
from mqbridge.gateway.metrics.family import ROUTE, Family, MeteredGateway, Samples, of_routes
from mqbridge.routes.route_state import RouteState


def totals() -> Iterator[Family]:
    """Yield the totals of routes."""
    for total in declared_totals():
        yield Family(total.metric, "counter", ROUTE, total.description, total.when_to_look, of_routes(_reader(total)))


def _reader(total: Total) -> Callable[[RouteState], float]:
    return lambda state: float(getattr(state.counters, total.name))


def states() -> Iterator[Family]:
    """Yield the gauges: the current state of routes, and how often they began a group membership."""
    for name, description, when_to_look, read in (
        (
            "route_up",
            "1 while the route runs, 0 when it stopped",
            "Look here first: 0 needs a person.",
            lambda state: state.error is None,
        ),
        (
            "route_retrying",
            "1 while the route has no group membership and waits to retry after a transient failure",
            "The route reads nothing.",
            _is_retrying,
        ),
        (
            "route_sessions",
            "Number of group memberships that the route has begun, including those whose join failed",
            "It grows: joins or memberships fail.",
            lambda state: state.memberships,
        ),
        (
            "lanes",
            "Source partitions that this process reads",
            "0 on all instances: nobody reads the source.",
            lambda state: len(state.deliveries),
        ),
        (
            "stopped_partitions",
            "Assigned partitions that are not read, because of an error",
            "Above 0 needs a person.",
            lambda state: len(state.stopped),
        ),
        (
            "failed_topics",
            "Topics that match a pattern of the route and that cannot be read or copied, for example because of their name",
            "Above 0 needs a person: the log and `/routes` have the reasons.",
            lambda state: len(state.failed_topics),
        ),
        (
            "paused_sources",
            "Source partitions, or topics, that the source does not let this process read now, for example of a paused group",
            "Above 0: `/routes` has the reasons under `paused`. The route continues when it is permitted.",
            lambda state: len(state.pauses),
        ),
        (
            "unprotected_targets",
            "Targets, without those with `unread: may_be_deleted`, whose cluster deletes messages that nobody has read",
            "Above 0: nothing is written there until the topic has a subscription or retention.",
            lambda state: len(state.unprotected),
        ),
        (
            "in_flight_bytes",
            "Bytes received and not yet stored",
            "Near the limit: the target is slow.",
            lambda state: state.budget.used,
        ),
        (
            "in_flight_limit_bytes",
            "Limit of `mqbridge_in_flight_bytes`: half of the option `in_flight_bytes`; the other half is for reading ahead",
            "Divide `mqbridge_in_flight_bytes` by it.",
            lambda state: state.budget.limit,
        ),
        (
            "in_flight_messages",
            "Messages received and not yet stored",
            "How much waits for the targets?",
            lambda state: state.in_flight_messages,
        ),
        (
            "lane_head_age_seconds",
            "Time since the delivery of the oldest batch in flight began; 0 without one",
            "It grows: a target is slow or stuck.",
            _oldest_batch_age_s,
        ),
    ):
        yield Family(f"mqbridge_{name}", "gauge", ROUTE, description, when_to_look, of_routes(read))


def _is_retrying(state: RouteState) -> bool:
    return state.waits_because is not None


def _oldest_batch_age_s(state: RouteState) -> float:
    return state.oldest_age(asyncio.get_running_loop().time())


def times() -> Iterator[Family]:
    """Yield the times of the last batches, and the histograms of durations."""
    description = "Time at which the last batch was {} (Unix time); missing before the first"
    when_to_look = "It stands still while the lag grows."
    yield Family(
        "mqbridge_last_received_timestamp_seconds",
        "gauge",
        ROUTE,
        description.format("received"),
        when_to_look,
        _unix_time_of(lambda counters: counters.last_batch_at),
    )
    yield Family(
        "mqbridge_last_stored_timestamp_seconds",
        "gauge",
        ROUTE,
        description.format("stored"),
        when_to_look,
        _unix_time_of(lambda counters: counters.last_stored_at),
    )
    yield Family(
        "mqbridge_delivery_seconds",
        "histogram",
        ROUTE,
        "Time from sending a batch until it and all batches before it are stored, once per batch; waits for rate limits and "
        "budget come before the sending and do not count",
        "It grows: the gateway or a target is slow.",
        of_routes(lambda state: state.counters.delivery),
    )
    yield Family(
        "mqbridge_end_to_end_seconds",
        "histogram",
        ROUTE,
        "Time from publishing a batch's first message until the batch is stored, once per batch, by the clocks of producer and "
        "gateway; empty if the publish time is known only after decoding (systems tubemq and log)",
        "The delay that readers of the target see: the time in the source plus the time of delivery.",
        of_routes(lambda state: state.counters.end_to_end),
    )


def _unix_time_of(read: Callable[[Counters], float]) -> Callable[[MeteredGateway], Samples]:
    """Return a function that reads a loop time from each route's counters and converts it to Unix time; 0 gives no sample."""

    def unix_time(state: RouteState) -> float | None:
        loop_time = read(state.counters)
        if not loop_time:
            return None
        return time.time() - (asyncio.get_running_loop().time() - loop_time)

    return of_routes(unix_time)
