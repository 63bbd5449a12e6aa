"""A configured cluster in the form that Spark sends to its processes: all settings, no open connection."""

from dataclasses import dataclass

from pydantic import BaseModel

from mqbridge.adapter.cluster import Cluster
from mqbridge.adapter.registry import load_adapters


@dataclass(frozen=True, slots=True)
class ClusterRef:
    """Name, system and validated settings of a cluster. Hashable, and picklable because Spark sends it with every task.

    `settings` is an instance of the adapter's `cluster_model`.
    """

    name: str
    system: str
    settings: BaseModel

    def make_cluster(self) -> Cluster:
        """Create the cluster, not yet connected. Raises ConfigError if the system's adapter cannot be imported here."""
        return load_adapters()[self.system].make_cluster(self.name, self.settings)
