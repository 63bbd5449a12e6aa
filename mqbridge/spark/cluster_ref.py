"""A configured cluster as it travels to Spark's processes: everything that is needed to make it, and nothing that is open."""

from dataclasses import dataclass

from pydantic import BaseModel

from mqbridge.adapter.cluster import Cluster
from mqbridge.adapter.registry import load_adapters


@dataclass(frozen=True, slots=True)
class ClusterRef:
    """Name, system and validated settings of a cluster. Hashable and picklable: tasks are sent with it.

    `settings` is what the adapter's `cluster_model` read.
    """

    name: str
    system: str
    settings: BaseModel

    def make(self) -> Cluster:
        """The cluster, not connected. Raises ConfigError when this process lacks the adapter."""
        return load_adapters()[self.system].make_cluster(self.name, self.settings)
