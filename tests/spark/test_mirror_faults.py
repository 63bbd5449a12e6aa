"""The mirror on a standalone Spark cluster while everything is killed once: driver, worker, the target's and the source's broker.

`make test-thorough` moves messages for a minute, `make test-long` 5,000,000 of 1 KB, or as many as `MESSAGES=` says.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from tests.kit.clusters import running
from tests.kit.process import JavaProcess
from tests.kit.pulsar import Pulsar
from tests.kit.rocketmq import RocketMQ
from tests.kit.spark import SparkProgram
from tests.kit.spark_cluster import SparkCluster
from tests.kit.tubemq import TubeMQ
from tests.spark.load import fill, judge, shares
from tests.spark.mirror_runs import PARTITIONS, Mirror, settle, source_place, target_place

pytestmark = [pytest.mark.cluster, pytest.mark.spark, pytest.mark.thorough]

SIZE = 1024
SOME, SOME_BATCH = 60_000, 2 << 20
ALL, ALL_BATCH = int(os.environ.get("MQBRIDGE_MESSAGES", "5_000_000")), 64 << 20
BATCH_PATIENCE_S = 300.0
"""A batch waits for servers that are starting again, beside everything else."""
LONG = [pytest.mark.long, pytest.mark.timeout(4 * 3600)]


@pytest.mark.parametrize(
    ("system", "total", "batch"),
    [
        pytest.param("rocketmq", SOME, SOME_BATCH, marks=pytest.mark.timeout(900)),
        pytest.param("rocketmq", ALL, min(ALL_BATCH, ALL * SIZE // 12), marks=LONG),
        pytest.param("tubemq", ALL, min(ALL_BATCH, ALL * SIZE // 12), marks=LONG),
    ],
)
async def test_everything_is_killed_once(system: str, total: int, batch: int, tmp_path: Path) -> None:
    with servers(system) as (cluster, pulsar, spark):
        source, target = source_place(cluster), target_place(pulsar, f"faults-{time.time_ns()}")
        sent = await told(total, "filled the source", fill(source, shares(total, PARTITIONS), SIZE))
        settle(cluster)
        mirror = Mirror(source, target, tmp_path, batch=str(batch), master=spark.master_url)
        await told(
            total, "mirrored", asyncio.to_thread(mirror_through_faults, mirror, total * SIZE // batch, cluster, pulsar, spark)
        )
        await told(total, "read back", judge(target, sent))


def mirror_through_faults(mirror: Mirror, batches: int, cluster: RocketMQ | TubeMQ, pulsar: Pulsar, spark: SparkCluster) -> None:
    """Run a mirror of about so many batches to its end. Each fault meets a batch that is being moved."""

    def restart_worker() -> None:
        spark.kill_worker(0)
        spark.start_worker(0)

    with mirror.start() as driver:
        mirror.wait_in_batch(batches // 8, driver, BATCH_PATIENCE_S)
        driver.kill()
    with mirror.start() as driver:
        # By estimated sizes: the later quarter of the batches is left as reserve.
        faults: list[Callable[[], None]] = [restart_worker, lambda: again(pulsar.server), lambda: again(cluster.broker)]
        for number, fault in enumerate(faults, 2):
            mirror.wait_in_batch(batches * number // 8, driver, BATCH_PATIENCE_S)
            fault()
        finish(driver)


def again(server: JavaProcess) -> None:
    """kill -9, and start it on its old port and data."""
    server.kill()
    server.start()


def finish(driver: SparkProgram) -> None:
    """The end of a run of any length, and what it said of itself."""
    print(driver.wait(4 * 3600).splitlines()[-1])


async def told(total: int, what: str, doing):  # type: ignore[no-untyped-def]
    """What it gives, and how fast it went."""
    began = time.monotonic()
    result = await doing
    seconds = time.monotonic() - began
    print(f"{what}: {total:,} messages in {seconds:.1f} s, {total / seconds:,.0f}/s", flush=True)
    return result


@contextmanager
def servers(system: str) -> Iterator[tuple[RocketMQ | TubeMQ, Pulsar, SparkCluster]]:
    """Servers of our own to kill, which keep what they acknowledged."""
    cluster = RocketMQ() if system == "rocketmq" else TubeMQ(pool={PARTITIONS: 1}, memory_store=False)
    pulsar, spark = Pulsar(heap_mb=768), SparkCluster()
    with ExitStack() as stack:
        for ready in stack.enter_context(running([cluster, pulsar, spark])):
            ready.result()
        yield cluster, pulsar, spark
