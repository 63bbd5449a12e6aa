"""Unexpected ways in which Spark uses Python sources and sinks, and the result that must be correct all the same."""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path

import pytest
import yaml
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQuery, StreamingQueryListener

from mqbridge.spark.data_source import MqbridgeDataSource
from tests.e2e.support import opened
from tests.kit.spark import run_available
from tests.spark.load import SentMessages, TopicRef, assert_topic_has, fill, read_topic
from tests.spark.waiting import PATIENCE_S, wait_for

pytestmark = pytest.mark.thorough

PARTITIONS = 12
"""More than ten, because in the order of texts "10" is before "2"."""
MESSAGES_PER_PARTITION = 200
IDLE_INTERVAL = "spark.sql.streaming.noDataProgressEventInterval"


class IdleCounter(StreamingQueryListener):
    """Counts how often a query found no new messages."""

    count = 0

    def onQueryStarted(self, event) -> None:  # type: ignore[no-untyped-def]  # noqa: N802
        pass

    def onQueryProgress(self, event) -> None:  # type: ignore[no-untyped-def]  # noqa: N802
        pass

    def onQueryIdle(self, event) -> None:  # type: ignore[no-untyped-def]  # noqa: N802
        self.count += 1

    def onQueryTerminated(self, event) -> None:  # type: ignore[no-untyped-def]  # noqa: N802
        pass


class World:
    """A log with a source and a target topic, which Spark reaches through the adapter `outside/moody_log`."""

    def __init__(self, folder: Path, spark: SparkSession) -> None:
        self.settings = {"path": str(folder / "log.db")}
        self.source, self.target = (TopicRef("log", self.settings, topic) for topic in ("source", "target"))
        self.checkpoint = folder / "checkpoint"
        self.request_file = folder / "requests"
        self.request_file.touch()
        self.config = folder / "mqbridge.yaml"
        moody = {"system": "moody", **self.settings, "request_file": str(self.request_file)}
        self.config.write_text(yaml.safe_dump({"clusters": {"moody": moody}}))
        self._spark = spark
        spark.dataSource.register(MqbridgeDataSource)

    async def fill(self, begin: list[SentMessages] | None = None) -> list[SentMessages]:
        async with opened("log", self.settings) as cluster:
            for topic in (self.source, self.target):
                await cluster.create(topic.name, PARTITIONS)
        return await fill(self.source, [MESSAGES_PER_PARTITION] * PARTITIONS, 64, begin)

    def rows(self, **options: str) -> DataFrame:
        """Return the stream of the source topic."""
        all_options = {"config": str(self.config), "subscribe": "source", "startingOffsets": "earliest"} | options
        return self._spark.readStream.format("mqbridge").options(**all_options).load()

    def write_query(self, **options: str):  # type: ignore[no-untyped-def]
        """Return a query from the source topic to the target topic that is not started yet."""
        sink = {"config": str(self.config), "topic": "target", "checkpointLocation": str(self.checkpoint)}
        return self.rows(**options).drop("topic").writeStream.format("mqbridge").options(**sink)

    def start_idle_query(self, **options: str) -> StreamingQuery:
        """Start a query that reads ranges and writes nothing."""
        checkpoint = {"checkpointLocation": str(self.checkpoint)}
        return self.rows(mode="ranges", **options).writeStream.format("noop").options(**checkpoint).start()

    def run(self, **options: str) -> list[dict[str, object]]:
        """Copy all messages that are stored now. Return Spark's progress report of each batch."""
        return run_available(self.write_query(**options), self.checkpoint)

    def batches(self, kind: str) -> list[int]:
        """Return the numbers of the batches in a folder of the checkpoint: `offsets` (begun) or `commits` (finished)."""
        folder = self.checkpoint / kind
        return sorted(int(path.name) for path in folder.iterdir() if path.name.isdecimal()) if folder.exists() else []

    def count_requests(self) -> int:
        """Return how many requests for bounds the cluster has received."""
        return len(self.request_file.read_text().splitlines())


@pytest.fixture
def world(tmp_path: Path, spark: SparkSession) -> World:
    return World(tmp_path, spark)


async def test_a_batch_that_spark_never_commits_to_the_source_is_not_repeated(world: World) -> None:
    """Spark commits a batch to the source only after it planned the next batch, and never the last batch of a run."""
    sent = await world.fill()
    batches = await asyncio.to_thread(world.run, maxOffsetsPerTrigger=str(MESSAGES_PER_PARTITION * PARTITIONS // 3))
    assert len(batches) >= 3
    assert not [report for report in await asyncio.to_thread(world.run) if report["numInputRows"]]
    sent = await world.fill(sent)
    await asyncio.to_thread(world.run)
    await assert_topic_has(world.target, sent)


async def test_bounds_in_another_order_begin_no_batch(world: World) -> None:
    """Spark compares offsets as text, and this cluster reports its partitions in another order in each response."""
    await world.fill()
    query = world.start_idle_query(metadataInterval="20ms")
    try:
        await asyncio.to_thread(wait_for, lambda: world.batches("commits") == [0], "the first batch")
        requests = world.count_requests()
        await asyncio.to_thread(wait_for, lambda: world.count_requests() > requests + 20, "20 more requests")
        assert world.batches("offsets") == [0]
    finally:
        query.stop()
    assert list(json.loads((world.checkpoint / "offsets" / "0").read_text().splitlines()[-1])["topics"]["source"]) == sorted(
        map(str, range(PARTITIONS))
    )


async def test_an_idle_query_sends_no_requests_within_the_metadata_interval(world: World, spark: SparkSession) -> None:
    """Spark calls an idle source about 80 times per second."""
    await world.fill()
    idle_counter = IdleCounter()
    spark.conf.set(IDLE_INTERVAL, "10ms")
    spark.streams.addListener(idle_counter)
    query = world.start_idle_query(metadataInterval="1h")
    try:
        await asyncio.to_thread(wait_for, lambda: world.batches("commits") == [0], "the first batch")
        before, idle_counter.count = world.count_requests(), 0
        await asyncio.to_thread(wait_for, lambda: idle_counter.count > 20, "20 calls of the idle source")
        assert world.count_requests() <= before + 1
    finally:
        query.stop()
        spark.streams.removeListener(idle_counter)
        spark.conf.unset(IDLE_INTERVAL)


async def test_a_batch_that_was_stored_but_not_committed_in_the_checkpoint_is_not_stored_again(world: World) -> None:
    """If the driver ends between the sink's commit and Spark's entry in the checkpoint, the batch is repeated with its number."""
    sent = await world.fill()
    await asyncio.to_thread(world.run, maxOffsetsPerTrigger=str(MESSAGES_PER_PARTITION * PARTITIONS // 3))
    last = world.batches("commits")[-1]
    for name in (str(last), f".{last}.crc"):
        (world.checkpoint / "commits" / name).unlink(missing_ok=True)
    await asyncio.to_thread(world.run)
    assert last in world.batches("commits")
    await assert_topic_has(world.target, sent)


async def test_a_query_that_is_stopped_during_a_batch_continues_without_repeated_messages(world: World) -> None:
    """A stop kills the writing Python processes without an exception or `finally`. The next run repeats the batch."""
    sent = await world.fill()
    query = world.write_query().start()
    deadline = time.monotonic() + PATIENCE_S
    while not sum(messages.count for messages in await read_topic(world.target)):
        assert time.monotonic() < deadline
        await asyncio.sleep(0.01)
    await asyncio.to_thread(query.stop)
    await asyncio.to_thread(world.run)
    await assert_topic_has(world.target, sent)


@pytest.mark.parametrize("column", ["position", "source"])
async def test_a_batch_without_position_or_source_can_be_committed(world: World, column: str) -> None:
    """Spark creates one writer for each batch and another one for its commit, so the commit cannot use state of the first."""
    sent = await world.fill()
    sink = {"config": str(world.config), "topic": "target"}
    rows = world.rows().drop("topic", column)
    await asyncio.to_thread(run_available, rows.writeStream.format("mqbridge").options(**sink), world.checkpoint)
    assert sum(messages.count for messages in await read_topic(world.target)) == sum(messages.count for messages in sent)
