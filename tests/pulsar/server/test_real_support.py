"""What the support table says that differs over RocketMQ."""

from pathlib import Path

import pytest

from mqbridge.listener.support import Backing
from mqbridge.rocketmq.adapter.registration import ADAPTER
from tests.kit.rocketmq import RocketMQ
from tests.pulsar.server.differences import differing, show

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(240)]

THOROUGH = ("Subscriptions:", "Acknowledgements behind", "Seek ")
"""Rows whose gateways share groups: they take several seconds, and the log shows them in each run."""
ROWS = [
    pytest.param(feature, backing, id=f"{backing.groups}-{feature}", marks=[pytest.mark.thorough] * feature.startswith(THOROUGH))
    for feature, backing in differing("rocketmq")
]


@pytest.mark.parametrize(("feature", "backing"), ROWS)
async def test_a_difference_over_rocketmq_is_as_the_table_says(
    feature: str, backing: Backing, rocketmq: RocketMQ, tmp_path: Path
) -> None:
    cluster = ADAPTER.make_cluster("store", ADAPTER.cluster_model(name_servers=rocketmq.name_server))
    await cluster.connect()
    try:
        await show(feature, cluster, backing, tmp_path)
    finally:
        await cluster.close()
