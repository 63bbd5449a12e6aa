"""Metrics of clusters and of the process."""

import platform
from collections.abc import Callable, Iterator

from mqbridge import __version__, native
from mqbridge.adapter.cluster import Connectivity, Expiring
from mqbridge.gateway.health import connectivity_of
from mqbridge.gateway.metrics.family import Family, Samples, Shown

CLUSTER = ("cluster",)


def clusters() -> Iterator[Family]:
    """How the connections of each cluster fare; systems without connections are left out."""
    for name, kind, text, look, read in (
        ("cluster_up", "gauge", "1 while every server that is needed can be reached", "First: 0 is an outage.", _is_up),
        ("cluster_away_seconds", "gauge", "For how long one could not be reached; 0 while all can", "Since when?", _away),
        (
            "reconnects",
            "counter",
            "Connections to servers that had been connected before",
            "The network.",
            lambda c: c.reconnects,
        ),
        (
            "connection_failures",
            "counter",
            "Connections that could not be made, or were ended because the server was silent",
            "It grows while the cluster is up: a server comes and goes.",
            lambda c: c.failures,
        ),
        ("retries", "counter", "Sends that were repeated", "The target refuses for a while.", lambda c: c.retries),
    ):
        yield Family(f"mqbridge_{name}", kind, CLUSTER, text, look, _of_clusters(read))

    yield Family(
        "mqbridge_expiry_timestamp_seconds",
        "gauge",
        ("cluster", "of"),
        "When what opens a cluster ends, s since the epoch: certificates of ours and of its servers, tokens",
        "`mqbridge_expiry_timestamp_seconds - time()`: renew it before that is 0.",
        _expiries,
    )


def _expiries(shown: Shown) -> Samples:
    return [
        ((name, of), at)
        for name, cluster in shown.clusters.items()
        if isinstance(cluster, Expiring)
        for of, at in cluster.expiries.items()
    ]


def _is_up(connectivity: Connectivity) -> float:
    return connectivity.away_s is None


def _away(connectivity: Connectivity) -> float:
    return connectivity.away_s or 0.0


def _of_clusters(read: Callable[[Connectivity], float]) -> Callable[[Shown], Samples]:
    """One sample per cluster that has connections."""

    def samples(shown: Shown) -> Samples:
        known = ((name, connectivity_of(cluster)) for name, cluster in shown.clusters.items())
        return [((name,), read(connectivity)) for name, connectivity in known if connectivity is not None]

    return samples


def process() -> Iterator[Family]:
    """What is true of all of it."""
    yield Family(
        "mqbridge_reload_ok",
        "gauge",
        (),
        "1 unless the configuration was read again and could not be taken",
        "0: the gateway runs with the configuration before; `/health/ready` has the problems.",
        lambda shown: [((), shown.reloader.last is None or not shown.reloader.last.problems)],
    )
    yield Family(
        "mqbridge_build_info",
        "gauge",
        ("version", "python", "compiled"),
        "1; the labels say which version runs on which Python, and whether with the compiled module (`yes`, `no`)",
        "After a rollout: does every instance run it?",
        lambda shown: [((__version__, platform.python_version(), "no" if native.compiled is None else "yes"), 1)],  # noqa: ARG005 - the same for all
    )
