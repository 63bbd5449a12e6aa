"""Registers the adapter with the gateway: `ADAPTER` is its entry point in `pyproject.toml`."""

from mqbridge.adapter.cluster import Cluster
from mqbridge.adapter.registry import Adapter
from mqbridge.tubemq.adapter.config import TubeMQCluster, TubeMQInboundOptions, TubeMQOutboundOptions
from mqbridge.tubemq.mapping.preview import preview
from mqbridge.tubemq.mapping.table import TABLE
from mqbridge.tubemq.mapping.unit_format import FORMATS


def _make_cluster(name: str, config: TubeMQCluster) -> Cluster:
    from mqbridge.tubemq.adapter.cluster import TubeMQ  # noqa: PLC0415 - loads the client, which `explain`, `schema` and `check` do not use

    return TubeMQ(name, config)


ADAPTER = Adapter(
    system="tubemq",
    cluster_model=TubeMQCluster,
    inbound_options=TubeMQInboundOptions,
    outbound_options=TubeMQOutboundOptions,
    make_cluster=_make_cluster,
    table=TABLE,
    preview=preview,
    formats=FORMATS,
    uniform_groups=True,  # the Master refuses a member whose topics or filters differ from its group's
)
