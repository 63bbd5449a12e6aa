"""A driver and executors in separate processes, as on several machines: worker failures do not lose messages."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.support import opened
from tests.kit.spark import SparkProgram
from tests.kit.spark_cluster import SparkCluster
from tests.spark.load import TopicRef, assert_topic_has, fill, uneven_counts
from tests.spark.mirror_runs import PARTITIONS, Mirror
from tests.spark.waiting import wait_for

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900), pytest.mark.thorough]

MESSAGES = 8_000
PROGRAM = """
import sys, time
from pathlib import Path
from tests.kit.spark import session_from_environment

spark = session_from_environment(sys.argv[1])
release_file = sys.argv[2]
def work(number):
    while number == 1 and not Path(release_file).exists():
        time.sleep(0.05)
    return number
context = spark.sparkContext
context.parallelize(range(2), 2).count()
print("begun", flush=True)
print("sum", context.parallelize(range(4), 4).map(work).sum(), flush=True)
"""


@pytest.fixture(scope="module")
def cluster() -> Iterator[SparkCluster]:
    with SparkCluster() as cluster:
        yield cluster


def test_a_job_completes_after_a_worker_is_killed(cluster: SparkCluster, tmp_path: Path) -> None:
    with SparkProgram(tmp_path, "-c", PROGRAM, cluster.master_url, str(tmp_path / "release")) as program:
        wait_for(lambda: "begun" in program.log and all(cluster.executors(number) for number in range(2)))
        cluster.kill_worker(0)
        assert not cluster.executors(0)
        (tmp_path / "release").touch()
        assert "sum 6" in program.wait()
    cluster.start_worker(0)


async def test_a_mirror_stores_each_message_once_after_a_worker_is_killed(cluster: SparkCluster, tmp_path: Path) -> None:
    settings = {"path": str(tmp_path / "log.db")}
    source, target = (TopicRef("log", settings, topic) for topic in ("source", "target"))
    async with opened("log", settings) as log:
        for topic in (source, target):
            await log.create(topic.name, PARTITIONS)
    sent = await fill(source, uneven_counts(MESSAGES, PARTITIONS))
    mirror = Mirror(source, target, tmp_path, batch="512KB", master=cluster.master_url)
    with mirror.start() as driver:
        await asyncio.to_thread(mirror.wait_in_batch, 3, driver)
        cluster.kill_worker(1)
        cluster.start_worker(1)
        await asyncio.to_thread(driver.wait)
    await assert_topic_has(target, sent)
