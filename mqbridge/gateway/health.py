"""Problems of a running gateway, with reasons: readiness, `/routes`, the closing line and the metrics all use them.

Not ready: a stopped route or partition, a route without a group membership, an unreachable cluster that a route needs, a target
with sends in flight and no receipt for STUCK_S.
"""

from collections.abc import Mapping

from mqbridge.adapter.cluster import Cluster, Connected, Connectivity
from mqbridge.gateway.route import Route

STUCK_S = 60.0
"""A target that is merely slow still sends receipts."""


def connectivity_of(cluster: Cluster) -> Connectivity | None:
    """Return the cluster's connectivity; None for a system without connections."""
    return cluster.connectivity if isinstance(cluster, Connected) else None


def away(cluster: Cluster) -> str | None:
    """Return why the cluster cannot be reached, and since when; None if no outage is known."""
    connectivity = connectivity_of(cluster)
    if connectivity is None or (seconds := connectivity.away_s) is None:
        return None
    return f"cannot be reached for {seconds:.0f} s: {connectivity.reason}"


def clusters_away(clusters: Mapping[str, Cluster], route: Route) -> dict[str, str]:
    """Return the unreachable clusters that a route needs, by name."""
    found = {name: away(clusters[name]) for name in route.config.clusters if name in clusters}
    return {name: reason for name, reason in found.items() if reason is not None}


def stuck_targets(route: Route, now: float) -> dict[str, str]:
    """Return the targets with sends in flight and no receipt for long, by label."""
    return {
        label: f"no receipt for {one.waiting_s(now):.0f} s, {one.sends} sends are waiting"
        for label, several in route.progress.items()
        for one in several
        if one.waiting_s(now) >= STUCK_S
    }


def route_failures(route: Route) -> dict[str, str]:
    """Return why a route, or a partition of it, is not read."""
    failure = route.error or route.retry_reason
    failures = {} if failure is None else {route.name: str(failure)}
    return failures | {f"{route.name} {partition}": why for partition, why in route.stopped.items()}
