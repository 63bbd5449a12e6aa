"""Finds the problems of a running gateway and their reasons, for `/health/ready`, `/routes`, the summary line and the metrics.

The gateway is not ready if a route or partition has stopped, a topic that a pattern selects cannot be copied, a route has no
group membership, a source refuses to let a route read, a cluster of a route or listener is unreachable, a target has sends in
flight and no receipt for STUCK_S, a target is unprotected, or a listener does not serve clients.
"""

from collections.abc import Collection, Mapping
from typing import Protocol

from mqbridge.adapter.cluster import Cluster, Connectivity, ReportsConnectivity
from mqbridge.gateway.listeners import ListenerRunner
from mqbridge.routes.route import Route
from mqbridge.routes.unprotected import describe

STUCK_S = 60.0
"""Seconds without a receipt after which a target counts as stuck; a target that is only slow still sends receipts."""


class MonitoredGateway(Protocol):
    """The parts of a gateway whose health is checked."""

    clusters: dict[str, Cluster]


def connectivity_of(cluster: Cluster) -> Connectivity | None:
    """Return the cluster's connectivity; None for a system without connections."""
    return cluster.connectivity if isinstance(cluster, ReportsConnectivity) else None


def outage_of(cluster: Cluster) -> str | None:
    """Return a text about the cluster's outage: how long it has been unreachable, and why; None without an outage."""
    connectivity = connectivity_of(cluster)
    if connectivity is None or (seconds := connectivity.unreachable_s) is None:
        return None
    return f"has been unreachable for {seconds:.0f} s: {connectivity.reason}"


def unreachable_clusters(clusters: Mapping[str, Cluster], user: Route | ListenerRunner) -> dict[str, str]:
    """Return a text about the outage of each unreachable cluster of the user, by name; skips those not in `clusters`."""
    outages = {name: outage_of(clusters[name]) for name in user.config.clusters if name in clusters}
    return {name: reason for name, reason in outages.items() if reason is not None}


def failing_targets(route: Route, now: float) -> dict[str, str]:
    """Return a text about each target, and the dead-letter topic, whose sends fail and are retried, by label: the last failure.

    `now` is a loop time.
    """
    return {
        label: f"sends failed {failure.failures} times in {now - failure.since:.0f} s and are retried: {failure.reason}"
        for label, failure in route.state.send_failures.items()
    }


def stuck_targets(route: Route, now: float) -> dict[str, str]:
    """Return a text about each stuck target, by target label: one with sends in flight and no receipt for STUCK_S.

    `now` is a loop time. Targets of several source topics may share a label; the text is then about one of them.
    """
    failing = failing_targets(route, now)
    return {
        label: f"no receipt for {progress.waiting_s(now):.0f} s, {progress.sends_in_flight} sends are in flight"
        + (f"; {failing[label]}" if label in failing else "")
        for label, progresses in route.state.progress.items()
        for progress in progresses
        if progress.waiting_s(now) >= STUCK_S
    }


def route_failures(route: Route) -> dict[str, str]:
    """Return the reasons why the route, or some of its topics or partitions, are not read.

    The keys are `ROUTE`, if the route has failed or waits to join its group again, `ROUTE CLUSTER/TOPIC` for topics that match a
    pattern and cannot be read or copied, and `ROUTE PARTITION` for stopped partitions.
    """
    state = route.state
    failure = state.error or state.waits_because
    failures = {} if failure is None else {route.name: str(failure)}
    failures |= {f"{route.name} {topic}": why for topic, why in state.failed_topics.items()}
    return failures | {f"{route.name} {partition}": why for partition, why in state.stopped.items()}


def has_trouble(gateway: MonitoredGateway, route: Route, now: float, optional_clusters: Collection[str]) -> bool:
    """Return True if the route makes the gateway not ready.

    Troubles of `optional_clusters` do not count: their outages, targets there that are stuck or unprotected, sources there that
    refuse to be read, and that a route which uses one of them waits. A route, partition or topic that stopped for another reason
    counts.
    """
    state, optional = route.state, set(optional_clusters)
    waits = state.waits_because is not None and not route.config.clusters & optional
    is_paused = bool(state.pauses) and route.config.source.cluster not in optional
    if waits or is_paused or state.error is not None or state.failed_topics:
        return True
    ignored = {label: why for label, why in state.unprotected.items() if _cluster_of(label) in optional}
    if any(why != describe(ignored) for why in state.stopped.values()):
        return True
    troubled = {*stuck_targets(route, now), *state.unprotected}
    if any(_cluster_of(label) not in optional for label in troubled):
        return True
    return bool(unreachable_clusters(gateway.clusters, route).keys() - optional)


def listener_has_trouble(gateway: MonitoredGateway, runner: ListenerRunner, optional_clusters: Collection[str]) -> bool:
    """Return True if the listener makes the gateway not ready; that it waits for one of `optional_clusters` does not count."""
    optional = set(optional_clusters)
    waits = runner.problem is not None and not runner.config.clusters & optional
    return waits or bool(unreachable_clusters(gateway.clusters, runner).keys() - optional)


def _cluster_of(label: str) -> str:
    """Return the cluster of a target's label, `CLUSTER/TOPIC`."""
    return label.partition("/")[0]
