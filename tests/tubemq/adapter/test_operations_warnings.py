"""Warnings about retention by time: from a real Master's settings, and from the Brokers' offsets."""

from collections.abc import AsyncIterator, Collection
from typing import Any

import pytest
import pytest_asyncio

from mqbridge.tubemq.adapter.cluster import TubeMQ
from mqbridge.tubemq.adapter.operations import GroupAdmin, TubeMQOperations
from mqbridge.tubemq.adapter.registration import ADAPTER
from mqbridge.tubemq.client.admin.admin import USER, StoredRange
from tests.kit.tubemq import TubeMQ as Server
from tests.kit.tubemq_settings import TOKEN

OLD_AND_NEW = {"1:0": StoredRange(1000, 3000), "1:1": StoredRange(1000, 3000)}


class FixedGroupAdmin(GroupAdmin):
    """Administration API that returns the policy, stored ranges and committed offsets that a test gives."""

    def __init__(self, policy: str, stored: dict[str, StoredRange], committed: dict[str, int]) -> None:
        self._policy, self._stored, self._committed = policy, stored, committed

    async def _topic_configs(self, topic: str) -> dict[int, dict[str, Any]]:
        return {1: {"deletePolicy": self._policy}}

    async def stored(self, topic: str, brokers: Collection[str] | None = None) -> dict[str, StoredRange]:
        return self._stored

    async def committed(self, topic: str, group: str) -> dict[str, int]:
        return self._committed


async def warnings(policy: str, stored: dict[str, StoredRange], committed: dict[str, int], group: str | None = "g") -> list[str]:
    async def names(topic: str) -> list[str]:
        return sorted(stored)

    return await TubeMQOperations(FixedGroupAdmin(policy, stored, committed), names).warnings("t", group)


async def test_a_group_in_the_older_half_of_the_stored_range_is_late():
    (warning,) = await warnings("delete,168h", OLD_AND_NEW, {"1:0": 1999, "1:1": 2000})
    assert "group 'g' is late in t" in warning
    assert "(deletePolicy=delete,168h; partition 1:0)" in warning
    (warning,) = await warnings("delete,168h", OLD_AND_NEW, {"1:0": 999})
    assert "was deleted, and may have had messages of these partitions" in warning
    assert await warnings("delete,168h", OLD_AND_NEW, {}) == []


async def test_no_group_is_late_before_anything_was_deleted():
    assert await warnings("delete,168h", {"1:0": StoredRange(0, 3000)}, {"1:0": 0}) == []


@pytest.mark.parametrize(
    ("policy", "hours"), [("delete,10h", "10"), ("delete,90m", "1.5"), ("delete,7200s", "2"), ("delete,9", "9")]
)
async def test_a_target_that_keeps_messages_for_a_short_time(policy, hours):
    (warning,) = await warnings(policy, {}, {}, None)
    assert f"t keeps messages for only {hours} hours (deletePolicy={policy})" in warning


@pytest.mark.parametrize("policy", ["delete,24h", "delete,2d", "delete,", "compact,1h", "delete,x", ""])
async def test_a_long_or_unknown_policy_gives_no_warning(policy):
    assert await warnings(policy, {}, {}, None) == []


@pytest_asyncio.fixture
async def cluster(tubemq: Server) -> AsyncIterator[TubeMQ]:
    settings = {"masters": tubemq.masters, "admin_url": tubemq.admin_url, "admin_token": TOKEN}
    made = ADAPTER.make_cluster("t", ADAPTER.cluster_model(**settings))
    assert isinstance(made, TubeMQ)
    await made.connect()
    yield made
    await made.close()


@pytest.mark.cluster
async def test_the_policy_of_a_real_topic(tubemq, cluster):
    topic = tubemq.take_topic(1)
    operations = cluster.operations
    assert await operations.warnings(topic) == await operations.warnings(topic, "nobody") == []
    record = {"topicName": topic, "brokerId": 1, "deletePolicy": "delete,10h", "modifyUser": USER}
    await cluster._admin._change("admin_modify_topic_info", **record)
    (warning,) = await operations.warnings(topic)
    assert f"{topic} keeps messages for only 10 hours (deletePolicy=delete,10h)" in warning
    assert await operations.warnings("no_such_topic") == []
