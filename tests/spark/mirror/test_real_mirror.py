"""The mirror on real clusters: its driver is killed during a batch, and every message arrives once and in order."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest

from tests.kit.pulsar import Pulsar
from tests.kit.rocketmq import RocketMQ
from tests.kit.tubemq import TubeMQ
from tests.spark.load import assert_topic_has, fill, uneven_counts
from tests.spark.mirror_runs import PARTITIONS, Mirror, new_target_topic, settle, source_topic

pytestmark = [pytest.mark.cluster, pytest.mark.spark, pytest.mark.timeout(900), pytest.mark.thorough]

MESSAGES = 10_000


@pytest.mark.parametrize(("system", "through"), [("rocketmq", "rows"), ("tubemq", "pump")])
async def test_a_mirror_stores_each_message_once_after_its_driver_is_killed(
    system: str, through: str, pulsar: Pulsar, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    cluster: RocketMQ | TubeMQ = request.getfixturevalue(system)
    source, target = source_topic(cluster), new_target_topic(pulsar, f"killed-{time.time_ns()}")
    sent = await fill(source, uneven_counts(MESSAGES, PARTITIONS))
    settle(cluster)
    mirror = Mirror(source, target, tmp_path, through)
    with mirror.start() as driver:
        await asyncio.to_thread(mirror.wait_in_batch, 2, driver)
        driver.kill()
    assert mirror.is_in_batch
    with mirror.start() as driver:
        await asyncio.to_thread(driver.wait)
    await assert_topic_has(target, sent)
