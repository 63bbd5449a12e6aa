"""Every refused feature of the support table is refused with its text and code; one that differs does what the table says."""

from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from mqbridge.listener.support import Backing, Support
from mqbridge.log.adapter.cluster import LogCluster
from mqbridge.rocketmq.server.support import BACKINGS, TABLE
from mqbridge.rocketmq.wire.bodies.pop import POP, MessageRequestMode
from mqbridge.rocketmq.wire.codes import Code, Status
from mqbridge.rocketmq.wire.command import Command
from mqbridge.rocketmq.wire.headers.admin import TopicHeader
from tests.rocketmq.server.differences import SHOWN, differing, show
from tests.rocketmq.server.serving import RocketMQServing, log_cluster, serving

Provoke = Callable[[RocketMQServing], Awaitable[Command]]


async def filter_by_sql(served: RocketMQServing) -> Command:
    client = await served.connect()
    await client.store(b"a")
    return await client.pull(0, subscription="a > 1", expression_type="SQL92")


async def pop(served: RocketMQServing) -> Command:
    client = await served.connect()
    return await client.ask(Code.SET_MESSAGE_REQUEST_MODE, None, MessageRequestMode("t", "g", POP).encode())


async def use_a_missing_topic(served: RocketMQServing) -> Command:
    client = await served.connect()
    return await client.send(b"a")


async def delete(served: RocketMQServing) -> Command:
    client = await served.connect()
    return await client.ask(Code.DELETE_TOPIC_IN_BROKER, TopicHeader("t"))


async def change_a_setting(served: RocketMQServing) -> Command:
    client = await served.connect()
    return await client.ask(Code.UPDATE_BROKER_CONFIG, None, b"a=b")


PROVOKED: dict[str, tuple[Provoke, dict[str, object]]] = {
    "Filters by SQL92": (filter_by_sql, {}),
    "POP consumers": (pop, {}),
    "Missing topics with `create: false`": (use_a_missing_topic, {"create_partitions": None}),
    "Deleting, resetting and changing without `manage: true`": (delete, {"manage": False}),
    "Changing settings of brokers and name servers": (change_a_setting, {}),
}
"""How each refused feature is asked for, and the settings with which it is refused, by its row in the table."""
REFUSED = [row for row in TABLE if any(row.cell(backing).support is Support.REFUSED for backing in BACKINGS)]


def test_every_refused_feature_is_asked_for() -> None:
    assert {row.feature for row in REFUSED} == PROVOKED.keys()


@pytest.mark.parametrize("row", REFUSED, ids=lambda row: row.feature)
@pytest.mark.parametrize("owns_groups", [True, False])
async def test_a_refused_feature_has_its_text_and_its_code(row, owns_groups: bool) -> None:
    provoke, settings = PROVOKED[row.feature]
    cell = row.cell(BACKINGS[0])
    async with serving(owns_groups=owns_groups, **settings) as served:
        answer = await provoke(served)
    assert cell.text in (answer.remark or "")
    assert answer.code == getattr(Status, cell.code)


def test_every_feature_that_differs_is_shown() -> None:
    """Over the log here, and over RocketMQ in `test_real_support`."""
    systems = {backing.system for backing in BACKINGS}
    assert systems == {"log", "rocketmq"}, "each has a test that shows its rows"
    assert {feature for system in systems for feature, _ in differing(system)} == SHOWN.keys()


@pytest.mark.parametrize(("feature", "backing"), differing("log"), ids=str)
async def test_a_difference_over_the_log_is_as_the_table_says(feature: str, backing: Backing, tmp_path: Path) -> None:
    async with log_cluster(tmp_path) as cluster:
        assert isinstance(cluster, LogCluster)
        await show(feature, cluster, backing, tmp_path)
