"""Registers the adapter with the gateway: `ADAPTER` is its entry point in `pyproject.toml`."""

from mqbridge.adapter.cluster import Cluster
from mqbridge.adapter.registry import Adapter
from mqbridge.pulsar.adapter.config import PulsarCluster, PulsarInboundOptions, PulsarOutboundOptions
from mqbridge.pulsar.mapping.preview import preview
from mqbridge.pulsar.mapping.table import TABLE
from mqbridge.pulsar.mapping.unit_format import EntryFormat


def _make_cluster(name: str, config: PulsarCluster) -> Cluster:
    from mqbridge.pulsar.adapter.cluster import Pulsar  # noqa: PLC0415 - loads the client, which `explain`, `schema` and `check` do not use

    return Pulsar(name, config)


ADAPTER = Adapter(
    system="pulsar",
    cluster_model=PulsarCluster,
    inbound_options=PulsarInboundOptions,
    outbound_options=PulsarOutboundOptions,
    make_cluster=_make_cluster,
    table=TABLE,
    preview=preview,
    formats=(EntryFormat(),),
)
