"""Registers the adapter with the gateway: `ADAPTER` is its entry point in `pyproject.toml`."""

from mqbridge.adapter.cluster import Cluster
from mqbridge.adapter.registry import Adapter
from mqbridge.testing.memory.adapter.config import MemoryConfig, MemoryOptions
from mqbridge.testing.memory.mapping.preview import preview
from mqbridge.testing.memory.mapping.table import TABLE


def _make_cluster(name: str, config: MemoryConfig) -> Cluster:
    from mqbridge.testing.memory.adapter.cluster import MemoryCluster  # noqa: PLC0415 - not used by `explain`, `schema` and `check`

    return MemoryCluster(name, config)


ADAPTER = Adapter(
    system="memory",
    cluster_model=MemoryConfig,
    inbound_options=MemoryOptions,
    outbound_options=MemoryOptions,
    make_cluster=_make_cluster,
    table=TABLE,
    preview=preview,
)
