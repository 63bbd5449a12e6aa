"""Registers the adapter with the gateway: `ADAPTER` is its entry point in `pyproject.toml`."""

from mqbridge.adapter.cluster import Cluster
from mqbridge.adapter.registry import Adapter
from mqbridge.log.adapter.config import LogInboundOptions, LogOutboundOptions
from mqbridge.log.mapping.preview import preview
from mqbridge.log.mapping.table import TABLE
from mqbridge.log.store.settings import LogSettings


def _make_cluster(name: str, config: LogSettings) -> Cluster:
    from mqbridge.log.adapter.cluster import LogCluster  # noqa: PLC0415 - not used by `explain`, `schema` and `check`

    return LogCluster(name, config)


ADAPTER = Adapter(
    system="log",
    cluster_model=LogSettings,
    inbound_options=LogInboundOptions,
    outbound_options=LogOutboundOptions,
    make_cluster=_make_cluster,
    table=TABLE,
    preview=preview,
)
