"""A configured cluster in the form that Spark sends to its processes: all settings, no open connection."""

import socket
from dataclasses import dataclass

from pydantic import BaseModel

from mqbridge.adapter.cluster import Cluster
from mqbridge.adapter.registry import ClusterModel, load_adapters
from mqbridge.errors import ConfigError


@dataclass(frozen=True, slots=True)
class ClusterRef:
    """Name, system and validated settings of a cluster. Hashable, and picklable because Spark sends it with every task.

    `settings` is an instance of the adapter's `cluster_model`.
    """

    name: str
    system: str
    settings: BaseModel

    @property
    def identity(self) -> str:
        """A text that names the real cluster (`ClusterModel.identity`); the cluster's name if its adapter has none."""
        return (self.settings.identity if isinstance(self.settings, ClusterModel) else None) or self.name

    def make_cluster(self) -> Cluster:
        """Create the cluster, not yet connected. Raises ConfigError if this process does not find the system's adapter."""
        adapters = load_adapters()
        if self.system not in adapters:
            raise ConfigError(
                f"the adapter {self.system!r} of cluster {self.name!r} is not installed on {socket.gethostname()}",
                hint="Install its package on the driver and on every executor",
            )
        return adapters[self.system].make_cluster(self.name, self.settings)
