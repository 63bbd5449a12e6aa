"""Registers the adapter with the gateway: `ADAPTER` is its entry point in `pyproject.toml`."""

from mqbridge.adapter.cluster import Cluster
from mqbridge.adapter.registry import Adapter
from mqbridge.rocketmq.adapter.config import RocketMQCluster, RocketMQInboundOptions, RocketMQOutboundOptions
from mqbridge.rocketmq.mapping.preview import preview
from mqbridge.rocketmq.mapping.table import TABLE
from mqbridge.rocketmq.mapping.unit_format import FORMATS


def _make_cluster(name: str, config: RocketMQCluster) -> Cluster:
    from mqbridge.rocketmq.adapter.cluster import RocketMQ  # noqa: PLC0415 - loads the client, which `explain`, `schema` and `check` do not use

    return RocketMQ(name, config)


ADAPTER = Adapter(
    system="rocketmq",
    cluster_model=RocketMQCluster,
    inbound_options=RocketMQInboundOptions,
    outbound_options=RocketMQOutboundOptions,
    make_cluster=_make_cluster,
    table=TABLE,
    preview=preview,
    formats=FORMATS,
    uniform_groups=True,  # all members must subscribe alike: each heartbeat replaces the subscriptions of the whole group
)
