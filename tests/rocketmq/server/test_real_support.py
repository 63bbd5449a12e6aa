"""What the support table says that differs over RocketMQ."""

from pathlib import Path

import pytest

from mqbridge.listener.support import Backing
from mqbridge.rocketmq.adapter.registration import ADAPTER
from tests.kit.rocketmq import RocketMQ
from tests.rocketmq.server.differences import differing, show

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(240)]


@pytest.mark.parametrize(("feature", "backing"), differing("rocketmq"), ids=str)
async def test_a_difference_over_rocketmq_is_as_the_table_says(
    feature: str, backing: Backing, rocketmq: RocketMQ, tmp_path: Path
) -> None:
    cluster = ADAPTER.make_cluster("store", ADAPTER.cluster_model(name_servers=rocketmq.name_server))
    await cluster.connect()
    try:
        await show(feature, cluster, backing, tmp_path)
    finally:
        await cluster.close()
