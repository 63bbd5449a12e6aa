"""Metrics of clusters and of the process."""

import platform
from collections.abc import Callable, Iterator

from mqbridge import __version__, native
from mqbridge.adapter.cluster import Connectivity, CountsUnreplicated, ReportsExpiries
from mqbridge.gateway.health import connectivity_of
from mqbridge.gateway.metrics.family import Family, MeteredGateway, Samples

CLUSTER = ("cluster",)
"""The labels of a metric with one sample per cluster."""


def clusters() -> Iterator[Family]:
    """Yield the metrics of clusters: connection state (not for systems without connections) and expiry times."""
    for name, kind, description, when_to_look, read in (
        ("cluster_up", "gauge", "1 while every server in use is reachable", "Look here first: 0 is an outage.", _is_up),
        (
            "cluster_away_seconds",
            "gauge",
            "Seconds since a server in use became unreachable; 0 while all are reachable",
            "How long has the outage lasted?",
            _unreachable_s,
        ),
        (
            "reconnects",
            "counter",
            "Connections to servers that had been connected before",
            "It grows: the network, or a server, drops connections.",
            lambda connectivity: connectivity.reconnects,
        ),
        (
            "connection_failures",
            "counter",
            "Connections that could not be made, or were closed because the server was silent",
            "It grows while the cluster is up: a server is unreachable at times.",
            lambda connectivity: connectivity.failures,
        ),
        (
            "retries",
            "counter",
            "Retries of sends; every attempt counts",
            "It grows: the target has transient failures.",
            lambda connectivity: connectivity.retries,
        ),
        (
            "unreplicated_messages",
            "counter",
            "Messages that a RocketMQ Broker stored without the flush or the replica that its settings demand",
            "It grows: a slave is missing or late, or a disk is slow. `require_replica` holds such messages back.",
            _unreplicated,
        ),
    ):
        yield Family(f"mqbridge_{name}", kind, CLUSTER, description, when_to_look, _of_clusters(read))

    yield Family(
        "mqbridge_expiry_timestamp_seconds",
        "gauge",
        ("cluster", "of"),
        "Expiry time of the certificate (ours or a server's) or token that the label `of` names, s since the epoch",
        "`mqbridge_expiry_timestamp_seconds - time()`: renew it before that is 0.",
        _expiries,
    )


def _expiries(gateway: MeteredGateway) -> Samples:
    return [
        ((name, label), expires_at)
        for name, cluster in gateway.clusters.items()
        if isinstance(cluster, ReportsExpiries)
        for label, expires_at in cluster.expiries.items()
    ]


def _unreplicated(connectivity: Connectivity) -> float:
    return connectivity.unreplicated if isinstance(connectivity, CountsUnreplicated) else 0


def _is_up(connectivity: Connectivity) -> float:
    return connectivity.unreachable_s is None


def _unreachable_s(connectivity: Connectivity) -> float:
    return connectivity.unreachable_s or 0.0


def _of_clusters(read: Callable[[Connectivity], float]) -> Callable[[MeteredGateway], Samples]:
    """Return a function that reads one sample per cluster that has connections."""

    def samples(gateway: MeteredGateway) -> Samples:
        by_name = ((name, connectivity_of(cluster)) for name, cluster in gateway.clusters.items())
        return [((name,), read(connectivity)) for name, connectivity in by_name if connectivity is not None]

    return samples


def process() -> Iterator[Family]:
    """Yield the metrics of the whole process."""
    yield Family(
        "mqbridge_reload_ok",
        "gauge",
        (),
        "1 unless the last reload of the configuration was rejected",
        "0: the gateway runs with the previous configuration; `/health/ready` has the problems.",
        lambda gateway: [((), gateway.reloader.last is None or not gateway.reloader.last.problems)],
    )
    yield Family(
        "mqbridge_build_info",
        "gauge",
        ("version", "python", "compiled"),
        "1; the labels show the version, the Python version, and whether the compiled module is used (`yes`, `no`)",
        "After a rollout: does every instance run the new version?",
        lambda gateway: [((__version__, platform.python_version(), "no" if native.compiled is None else "yes"), 1)],  # noqa: ARG005 - the same for every gateway
    )
