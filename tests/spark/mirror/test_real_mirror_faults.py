"""The mirror on a standalone Spark cluster while each process is killed once: driver, worker, target broker, source broker.

`make test-thorough` runs it for a minute. `make test-long` moves 5,000,000 messages of 1 KB, or as many as `MESSAGES=` says.
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
from tests.spark.load import assert_topic_has, fill, uneven_counts
from tests.spark.mirror_runs import PARTITIONS, Mirror, new_target_topic, settle, source_topic

pytestmark = [pytest.mark.cluster, pytest.mark.spark, pytest.mark.thorough]

MESSAGE_BYTES = 1024
SHORT_RUN_MESSAGES, SHORT_RUN_BATCH_BYTES = 60_000, 2 << 20
LONG_RUN_MESSAGES = int(os.environ.get("MQBRIDGE_MESSAGES", "5_000_000"))
LONG_RUN_BATCH_BYTES = min(64 << 20, LONG_RUN_MESSAGES * MESSAGE_BYTES // 12)
"""A run has at least 12 batches, so that each fault hits another batch."""
BATCH_PATIENCE_S = 600.0
"""Timeout for a batch, which may have to wait until servers have restarted."""
LONG_RUN_MARKS = [pytest.mark.long, pytest.mark.timeout(4 * 3600)]


@pytest.mark.parametrize(
    ("system", "total", "batch_bytes"),
    [
        pytest.param("rocketmq", SHORT_RUN_MESSAGES, SHORT_RUN_BATCH_BYTES, marks=pytest.mark.timeout(900)),
        pytest.param("rocketmq", LONG_RUN_MESSAGES, LONG_RUN_BATCH_BYTES, marks=LONG_RUN_MARKS),
        pytest.param("tubemq", LONG_RUN_MESSAGES, LONG_RUN_BATCH_BYTES, marks=LONG_RUN_MARKS),
    ],
)
async def test_each_message_is_stored_once_while_each_process_is_killed(
    system: str, total: int, batch_bytes: int, tmp_path: Path
) -> None:
    with servers(system) as (cluster, pulsar, spark):
        source, target = source_topic(cluster), new_target_topic(pulsar, f"faults-{time.time_ns()}")
        sent = await print_duration(total, "filled the source", fill(source, uneven_counts(total, PARTITIONS), MESSAGE_BYTES))
        settle(cluster)
        if isinstance(cluster, TubeMQ):
            cluster.wait_stored(source.name)  # the Broker is killed below: it would lose what is only in memory
        mirror = Mirror(source, target, tmp_path, batch=str(batch_bytes), master=spark.master_url)
        await print_duration(
            total,
            "mirrored",
            asyncio.to_thread(mirror_through_faults, mirror, total * MESSAGE_BYTES // batch_bytes, cluster, pulsar, spark),
        )
        await print_duration(total, "read back", assert_topic_has(target, sent))


def mirror_through_faults(mirror: Mirror, batches: int, cluster: RocketMQ | TubeMQ, pulsar: Pulsar, spark: SparkCluster) -> None:
    """Run a mirror with about this number of batches to its end. Each fault happens during a batch."""

    def restart_worker() -> None:
        spark.kill_worker(0)
        spark.start_worker(0)

    with mirror.start() as driver:
        mirror.wait_in_batch(batches // 8, driver, BATCH_PATIENCE_S)
        driver.kill()
    with mirror.start() as driver:
        # The number of batches is an estimate, so no fault is planned for the last quarter of them.
        faults: list[Callable[[], None]] = [restart_worker, lambda: restart(pulsar.server), lambda: restart(cluster.broker)]
        for number, fault in enumerate(faults, 2):
            mirror.wait_in_batch(batches * number // 8, driver, BATCH_PATIENCE_S)
            fault()
        finish(driver)


def restart(server: JavaProcess) -> None:
    """Kill the server with kill -9, and start it with the same port and data."""
    server.kill()
    server.start()


def finish(driver: SparkProgram) -> None:
    """Wait until the mirror ends, and print its summary, which is the last line."""
    print(driver.wait(4 * 3600).splitlines()[-1])


async def print_duration(total: int, label: str, work):  # type: ignore[no-untyped-def]
    """Return the result of the work, and print how long it took."""
    began = time.monotonic()
    result = await work
    seconds = time.monotonic() - began
    print(f"{label}: {total:,} messages in {seconds:.1f} s, {total / seconds:,.0f}/s", flush=True)
    return result


@contextmanager
def servers(system: str) -> Iterator[tuple[RocketMQ | TubeMQ, Pulsar, SparkCluster]]:
    """Start separate servers, which the test may kill. TubeMQ's Broker keeps the messages that are in files."""
    cluster = RocketMQ() if system == "rocketmq" else TubeMQ(pool={PARTITIONS: 1})
    pulsar, spark = Pulsar(heap_mb=768), SparkCluster()
    with ExitStack() as stack:
        for ready in stack.enter_context(running([cluster, pulsar, spark])):
            ready.result()
        yield cluster, pulsar, spark
