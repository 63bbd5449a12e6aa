"""What is wrong with a running gateway, with reasons: readiness, `/routes`, the closing line and the metrics all say the same.

Not ready: a route or partition that stopped, a route without a session, a cluster that a route needs and that cannot be reached,
a target that owes receipts and has sent none for STUCK_S.
"""

from collections.abc import Mapping

from mqbridge.adapter.cluster import Cluster, Connected, Connectivity
from mqbridge.gateway.route import Route

STUCK_S = 60.0
"""A target that is merely slow sends receipts all the time."""


def connectivity_of(cluster: Cluster) -> Connectivity | None:
    """None for a system without connections."""
    return cluster.connectivity if isinstance(cluster, Connected) else None


def away(cluster: Cluster) -> str | None:
    """Why the cluster cannot be reached, and since when; None when nothing is known to be missing."""
    connectivity = connectivity_of(cluster)
    if connectivity is None or (seconds := connectivity.away_s) is None:
        return None
    return f"cannot be reached for {seconds:.0f} s: {connectivity.reason}"


def clusters_away(clusters: Mapping[str, Cluster], route: Route) -> dict[str, str]:
    """Of those that a route needs, by name."""
    found = {name: away(clusters[name]) for name in route.config.clusters if name in clusters}
    return {name: reason for name, reason in found.items() if reason is not None}


def stuck_targets(route: Route, now: float) -> dict[str, str]:
    """Targets that owe receipts and have sent none for long, by label."""
    return {
        label: f"no receipt for {one.waiting_s(now):.0f} s, {one.sends} sends are waiting"
        for label, several in route.progress.items()
        for one in several
        if one.waiting_s(now) >= STUCK_S
    }


def route_failures(route: Route) -> dict[str, str]:
    """Why a route, or a partition of it, is not read."""
    failure = route.error or route.trouble
    failures = {} if failure is None else {route.name: str(failure)}
    return failures | {f"{route.name} {partition}": why for partition, why in route.stopped.items()}
