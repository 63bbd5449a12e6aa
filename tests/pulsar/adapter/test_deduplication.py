"""There is one warning about a topic without deduplication, however many producers open at the same time."""

import asyncio
from typing import cast

import pytest

from mqbridge.pulsar.adapter.deduplication import DeduplicationWarnings
from mqbridge.pulsar.client.admin.admin import Admin
from mqbridge.pulsar.wire.names import TopicName


class AdminOfOnePolicy:
    """A REST client whose response arrives one loop iteration later, as that of a server would."""

    def __init__(self, enabled: bool) -> None:
        self.enabled = enabled

    async def applied_policy(self, *_: object) -> bool:
        await asyncio.sleep(0)
        return self.enabled


@pytest.mark.parametrize(("enabled", "count"), [(False, 1), (True, 0)])
async def test_one_warning_for_each_topic(caplog: pytest.LogCaptureFixture, enabled: bool, count: int) -> None:
    warnings = DeduplicationWarnings(cast(Admin, AdminOfOnePolicy(enabled)))
    topic = TopicName("persistent", "public", "default", "orders")
    await asyncio.gather(*(warnings.check(topic) for _ in range(4)))
    await warnings.check(topic)
    assert sum("does not deduplicate" in record.message for record in caplog.records) == count
