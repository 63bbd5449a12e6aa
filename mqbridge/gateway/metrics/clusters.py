"""Metrics of clusters and of the process."""

import platform
from collections.abc import Callable, Iterator

from mqbridge import __version__, native
from mqbridge.adapter.cluster import Connectivity, Expiring
from mqbridge.gateway.health import connectivity_of
from mqbridge.gateway.metrics.family import Family, MeteredGateway, Samples

CLUSTER = ("cluster",)


def clusters() -> Iterator[Family]:
    """Yield the metrics of clusters: connection state (not for systems without connections) and expiry times."""
    for name, kind, text, look, read in (
        ("cluster_up", "gauge", "1 while every needed server is reachable", "First: 0 is an outage.", _is_up),
        (
            "cluster_away_seconds",
            "gauge",
            "Seconds since a needed server became unreachable; 0 while all are reachable",
            "Since when?",
            _away,
        ),
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
            "Connections that could not be made, or were closed because the server was silent",
            "It grows while the cluster is up: a server comes and goes.",
            lambda c: c.failures,
        ),
        ("retries", "counter", "Sends that were retried", "The target has transient failures.", lambda c: c.retries),
    ):
        yield Family(f"mqbridge_{name}", kind, CLUSTER, text, look, _of_clusters(read))

    yield Family(
        "mqbridge_expiry_timestamp_seconds",
        "gauge",
        ("cluster", "of"),
        "Expiry time of the certificates (ours and the servers') and tokens of a cluster, s since the epoch",
        "`mqbridge_expiry_timestamp_seconds - time()`: renew it before that is 0.",
        _expiries,
    )


def _expiries(shown: MeteredGateway) -> Samples:
    return [
        ((name, of), at)
        for name, cluster in shown.clusters.items()
        if isinstance(cluster, Expiring)
        for of, at in cluster.expiries.items()
    ]


def _is_up(connectivity: Connectivity) -> float:
    return connectivity.unreachable_s is None


def _away(connectivity: Connectivity) -> float:
    return connectivity.unreachable_s or 0.0


def _of_clusters(read: Callable[[Connectivity], float]) -> Callable[[MeteredGateway], Samples]:
    """Return a function that reads one sample per cluster that has connections."""

    def samples(shown: MeteredGateway) -> Samples:
        known = ((name, connectivity_of(cluster)) for name, cluster in shown.clusters.items())
        return [((name,), read(connectivity)) for name, connectivity in known if connectivity is not None]

    return samples


def process() -> Iterator[Family]:
    """Yield the metrics of the whole process."""
    yield Family(
        "mqbridge_reload_ok",
        "gauge",
        (),
        "1 unless the last reload of the configuration was rejected",
        "0: the gateway runs with the previous configuration; `/health/ready` has the problems.",
        lambda shown: [((), shown.reloader.last is None or not shown.reloader.last.problems)],
    )
    yield Family(
        "mqbridge_build_info",
        "gauge",
        ("version", "python", "compiled"),
        "1; the labels show the version, the Python version, and whether the compiled module is used (`yes`, `no`)",
        "After a rollout: does every instance run it?",
        lambda shown: [((__version__, platform.python_version(), "no" if native.compiled is None else "yes"), 1)],  # noqa: ARG005 - the same for all
    )
