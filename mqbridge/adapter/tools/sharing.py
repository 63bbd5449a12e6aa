"""The check of `InboundSpec.sharing`."""

from mqbridge.adapter.cluster import Cluster
from mqbridge.adapter.inbound import InboundSpec
from mqbridge.errors import ConfigError


def check_sharing(cluster: Cluster, spec: InboundSpec) -> None:
    """Raise ConfigError if the cluster's groups cannot share partitions in this way."""
    supported = cluster.capabilities.sharing
    if spec.sharing is not None and spec.sharing not in supported:
        names = ", ".join(sorted(sharing.value for sharing in supported))
        raise ConfigError(
            f"groups of cluster {cluster.name!r} cannot share partitions in the way {spec.sharing.value!r}", hint=f"Use {names}"
        )
