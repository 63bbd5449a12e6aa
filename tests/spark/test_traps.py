"""What Spark does with Python sources and sinks that their authors do not expect, and what has to come out all the same."""

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
from tests.spark.load import Place, Tally, arrived, fill, judge
from tests.spark.waiting import PATIENCE_S, wait_for

PARTITIONS = 12
"""More than ten: in text the eleventh comes before the third."""
EACH = 200
IDLE_INTERVAL = "spark.sql.streaming.noDataProgressEventInterval"


class Looks(StreamingQueryListener):
    """Counts how often a query found nothing to do."""

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
    """A log with a topic to read and one to write, behind an adapter from outside."""

    def __init__(self, folder: Path, spark: SparkSession) -> None:
        self.settings = {"path": str(folder / "log.db")}
        self.source, self.target = (Place("log", self.settings, topic) for topic in ("source", "target"))
        self.checkpoint = folder / "checkpoint"
        self.asked = folder / "asked"
        self.asked.touch()
        self.config = folder / "mqbridge.yaml"
        moody = {"system": "moody", **self.settings, "asked": str(self.asked)}
        self.config.write_text(yaml.safe_dump({"clusters": {"moody": moody}}))
        self._spark = spark
        spark.dataSource.register(MqbridgeDataSource)

    async def fill(self, begin: list[Tally] | None = None) -> list[Tally]:
        async with opened("log", self.settings) as cluster:
            for place in (self.source, self.target):
                await cluster.create(place.topic, PARTITIONS)
        return await fill(self.source, [EACH] * PARTITIONS, 64, begin)

    def rows(self, **options: str) -> DataFrame:
        """The stream of the source topic."""
        said = {"config": str(self.config), "subscribe": "source", "startingOffsets": "earliest"} | options
        return self._spark.readStream.format("mqbridge").options(**said).load()

    def writing(self, **options: str):  # type: ignore[no-untyped-def]
        """A query from the source topic into the target topic, not started."""
        sink = {"config": str(self.config), "topic": "target", "checkpointLocation": str(self.checkpoint)}
        return self.rows(**options).drop("topic").writeStream.format("mqbridge").options(**sink)

    def watching(self, **options: str) -> StreamingQuery:
        """A running query that reads ranges and writes nothing."""
        checkpoint = {"checkpointLocation": str(self.checkpoint)}
        return self.rows(mode="ranges", **options).writeStream.format("noop").options(**checkpoint).start()

    def run(self, **options: str) -> list[dict[str, object]]:
        """To the end of what there is, and what Spark says of each batch."""
        return run_available(self.writing(**options), self.checkpoint)

    def batches(self, what: str) -> list[int]:
        """Numbers of the batches in a folder of the checkpoint, `offsets` (begun) or `commits` (finished)."""
        folder = self.checkpoint / what
        return sorted(int(path.name) for path in folder.iterdir() if path.name.isdecimal()) if folder.exists() else []

    def questions(self) -> int:
        """How often the cluster was asked for bounds."""
        return len(self.asked.read_text().splitlines())


@pytest.fixture
def world(tmp_path: Path, spark: SparkSession) -> World:
    return World(tmp_path, spark)


async def test_the_source_hears_of_the_last_batch_only_in_the_next_run(world: World) -> None:
    """Spark commits a batch to the source after it planned the next one, and the last of a run never."""
    sent = await world.fill()
    batches = await asyncio.to_thread(world.run, maxOffsetsPerTrigger=str(EACH * PARTITIONS // 3))
    assert len(batches) >= 3
    assert not [one for one in await asyncio.to_thread(world.run) if one["numInputRows"]]
    sent = await world.fill(sent)
    await asyncio.to_thread(world.run)
    await judge(world.target, sent)


async def test_the_same_offsets_in_another_order_are_nothing_new(world: World) -> None:
    """Spark compares offsets as text. The cluster names its partitions in another order at every question."""
    await world.fill()
    query = world.watching(metadataInterval="20ms")
    try:
        await asyncio.to_thread(wait_for, lambda: world.batches("commits") == [0], "the first batch")
        asked = world.questions()
        await asyncio.to_thread(wait_for, lambda: world.questions() > asked + 20, "asking again and again")
        assert world.batches("offsets") == [0]
    finally:
        query.stop()
    assert list(json.loads((world.checkpoint / "offsets" / "0").read_text().splitlines()[-1])["topics"]["source"]) == sorted(
        map(str, range(PARTITIONS))
    )


async def test_an_idle_query_does_not_ask_the_cluster_all_the_time(world: World, spark: SparkSession) -> None:
    """Spark asks an idle source some 80 times a second."""
    await world.fill()
    looks = Looks()
    spark.conf.set(IDLE_INTERVAL, "10ms")
    spark.streams.addListener(looks)
    query = world.watching(metadataInterval="1h")
    try:
        await asyncio.to_thread(wait_for, lambda: world.batches("commits") == [0], "the first batch")
        before, looks.count = world.questions(), 0
        await asyncio.to_thread(wait_for, lambda: looks.count > 20, "idling")
        assert world.questions() <= before + 1
    finally:
        query.stop()
        spark.streams.removeListener(looks)
        spark.conf.unset(IDLE_INTERVAL)


async def test_a_batch_that_was_written_and_not_noted_is_not_written_again(world: World) -> None:
    """The driver may end between the sink's commit and Spark's note of it: the same batch comes again, under the same number."""
    sent = await world.fill()
    await asyncio.to_thread(world.run, maxOffsetsPerTrigger=str(EACH * PARTITIONS // 3))
    last = world.batches("commits")[-1]
    for name in (str(last), f".{last}.crc"):
        (world.checkpoint / "commits" / name).unlink(missing_ok=True)
    await asyncio.to_thread(world.run)
    assert last in world.batches("commits")
    await judge(world.target, sent)


async def test_a_query_that_is_stopped_in_the_middle_goes_on_there(world: World) -> None:
    """Stopping kills the Python processes that write: no exception, no `finally`; the batch comes again in the next run."""
    sent = await world.fill()
    query = world.writing().start()
    deadline = time.monotonic() + PATIENCE_S
    while not sum(one.count for one in await arrived(world.target)):
        assert time.monotonic() < deadline
        await asyncio.sleep(0.01)
    await asyncio.to_thread(query.stop)
    await asyncio.to_thread(world.run)
    await judge(world.target, sent)


@pytest.mark.parametrize("column", ["position", "source"])
async def test_a_commit_needs_nothing_of_the_writer_that_wrote(world: World, column: str) -> None:
    """Spark makes a writer anew for each batch and again for its commit; without a source rows are written all the same."""
    sent = await world.fill()
    sink = {"config": str(world.config), "topic": "target"}
    rows = world.rows().drop("topic", column)
    await asyncio.to_thread(run_available, rows.writeStream.format("mqbridge").options(**sink), world.checkpoint)
    assert sum(one.count for one in await arrived(world.target)) == sum(one.count for one in sent)
