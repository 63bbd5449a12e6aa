"""The source in Spark, over the embedded log."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from mqbridge.adapter.cluster import Cluster
from mqbridge.adapter.outbound import OutboundSpec
from mqbridge.message import Batch, Message, Share
from mqbridge.spark.data_source import MqbridgeDataSource
from tests.e2e.support import opened
from tests.kit.spark import run_available


class Log:
    """A log, and reading it with Spark."""

    def __init__(self, folder: Path, spark: SparkSession) -> None:
        self.path = folder / "log.db"
        self.checkpoint = folder / "checkpoint"
        self.spark = spark
        self.rows: list[tuple[str, int, int, str]] = []
        """What streams have yielded: topic, partition, offset, payload."""
        self.batches: list[int] = []
        spark.dataSource.register(MqbridgeDataSource)

    def reached(self, use: Callable[[Cluster], Awaitable[Any]]) -> Any:
        async def run() -> Any:
            async with opened("log", {"path": str(self.path), "retention": None}) as cluster:
                return await use(cluster)

        return asyncio.run(run())

    def create(self, topic: str, partitions: int) -> None:
        self.reached(lambda cluster: cluster.create(topic, partitions))

    def send(self, topic: str, partition: int, *payloads: str) -> None:
        async def use(cluster: Cluster) -> None:
            outbound = await cluster.outbound(OutboundSpec(topic, stamp_origin=False))
            messages = [Message(text.encode(), (("name", text),), key=text) for text in payloads]
            receipt = await outbound.send(partition, Share(Batch.of(messages)))
            assert not receipt.failures
            await outbound.close()

        self.reached(use)

    def make_anew(self) -> None:
        """All topics are as if they had just been created."""
        with sqlite3.connect(self.path) as connection:
            connection.execute("DELETE FROM batch")
            connection.execute("UPDATE partition SET first = 0, next = 0, bytes = 0")
        connection.close()

    def options(self, **options: str) -> dict[str, str]:
        return {"url": f"log://{self.path}"} | options

    def read(self, **options: str) -> DataFrame:
        return self.spark.read.format("mqbridge").options(**self.options(**options)).load()

    def payloads(self, **options: str) -> list[str]:
        rows = self.read(**options).select("payload", "partition", "position").collect()
        return [bytes(row.payload).decode() for row in sorted(rows, key=lambda row: (row.partition, row.position))]

    def stream(self, **options: str) -> list[str]:
        """Run a stream to the end of what there is, go on where the last one stopped; the payloads, by partition."""
        frame = self.spark.readStream.format("mqbridge").options(**self.options(**options)).load()
        before = len(self.rows)
        run_available(frame.writeStream.foreachBatch(self._see), self.checkpoint)
        return [text for *_, text in self.rows[before:]]

    def _see(self, frame: DataFrame, number: int) -> None:
        found = sorted((row.topic, row.partition, row.position[0], bytes(row.payload).decode()) for row in frame.collect())
        self.rows += found
        self.batches.append(len(found))

    def offsets(self, batch: int) -> str:
        """Where a batch ends, as the checkpoint says it."""
        return (self.checkpoint / "offsets" / str(batch)).read_text().splitlines()[-1]


@pytest.fixture
def log(tmp_path: Path, spark: SparkSession) -> Log:
    return Log(tmp_path, spark)


def test_a_batch_read_has_every_message_once_in_order(log: Log) -> None:
    log.create("orders", 3)
    for partition in range(3):
        log.send("orders", partition, *(f"{partition}-{number}" for number in range(40)))
    frame = log.read(subscribe="orders")
    rows = frame.collect()
    assert frame.rdd.getNumPartitions() == 3
    assert sorted((row.partition, row.position[0]) for row in rows) == [(p, n) for p in range(3) for n in range(40)]
    assert {bytes(row.payload).decode() for row in rows} == {row.properties["name"] for row in rows}
    assert {row.source for row in rows} == {f"log|orders|{p}|{p}" for p in range(3)}


def test_a_stream_goes_on_from_its_checkpoint_with_new_partitions_and_topics(log: Log) -> None:
    log.create("orders_a", 1)
    log.send("orders_a", 0, "a", "b")
    options = {"subscribePattern": "orders_.*", "startingOffsets": "earliest"}
    assert log.stream(**options) == ["a", "b"]
    log.create("orders_a", 2)
    log.create("orders_b", 1)
    log.create("others", 1)
    for topic, partition, text in (("orders_a", 0, "c"), ("orders_a", 1, "d"), ("orders_b", 0, "e"), ("others", 0, "x")):
        log.send(topic, partition, text)
    assert log.stream(**options) == ["c", "d", "e"]
    assert log.stream(**options) == []


def test_limits_make_several_batches(log: Log) -> None:
    log.create("orders", 2)
    log.send("orders", 0, *(f"a{number}" for number in range(40)))
    log.send("orders", 1, *(f"b{number}" for number in range(10)))
    found = log.stream(subscribe="orders", startingOffsets="earliest", maxOffsetsPerTrigger="10")
    assert sorted(found) == sorted([f"a{number}" for number in range(40)] + [f"b{number}" for number in range(10)])
    assert len(log.batches) >= 5
    assert max(log.batches) <= 10
    assert [row[2] for row in log.rows if row[1] == 0] == list(range(40))


def test_latest_begins_behind_what_is_there(log: Log) -> None:
    log.create("orders", 1)
    log.send("orders", 0, "before")
    assert log.stream(subscribe="orders") == []
    log.send("orders", 0, "behind")
    assert log.stream(subscribe="orders") == ["behind"]


def test_another_query_goes_on_without_the_checkpoint(log: Log) -> None:
    log.create("orders", 2)
    log.send("orders", 0, "a", "b")
    log.stream(subscribe="orders", startingOffsets="earliest")
    log.send("orders", 1, "c")
    end = log.offsets(0)
    assert end == json.dumps({"topics": {"orders": {"0": "2", "1": "0"}}, "version": 1})
    log.checkpoint = log.checkpoint.with_name("another")
    assert log.stream(subscribe="orders", startingOffsets=end) == ["c"]


def test_a_first_batch_that_was_not_finished_is_repeated(log: Log) -> None:
    """The beginning is asked for anew, and "latest" is behind the end of that batch by then."""
    log.create("orders", 1)
    log.send("orders", 0, "before")
    log.stream(subscribe="orders")
    log.send("orders", 0, "behind")
    for name in ("0", ".0.crc"):
        (log.checkpoint / "commits" / name).unlink()
    assert log.stream(subscribe="orders") == ["behind"]


def test_starting_and_ending_offsets_and_times(log: Log) -> None:
    log.create("orders", 2)
    log.send("orders", 0, *"abcdef")
    log.send("orders", 1, *"uvw")
    assert log.payloads(subscribe="orders", startingOffsets='{"orders": {"0": 4, "1": -2}}') == list("efuvw")
    exact = {"startingOffsets": '{"orders": {"0": "1"}}', "endingOffsets": '{"orders": {"0": 3, "1": 1}}'}
    assert log.payloads(subscribe="orders", **exact) == list("bcu")
    assert log.payloads(assign='{"orders": [1]}') == list("uvw")
    assert log.payloads(subscribe="orders", startingTimestamp="2100-01-01T00:00:00Z") == []
    assert log.payloads(subscribe="orders", endingTimestamp="1000") == []
    assert log.payloads(subscribe="orders", startingTimestamp="1000", endingTimestamp="2100-01-01") == list("abcdefuvw")


def test_sub_ranges_are_marked_and_hold_everything_once(log: Log) -> None:
    log.create("orders", 2)
    log.send("orders", 0, *(f"a{number:02}" for number in range(30)))
    log.send("orders", 1, "b")
    frame = log.read(subscribe="orders", maxRecordsPerPartition="10")
    assert frame.rdd.getNumPartitions() == 4
    assert {row.source.endswith("|part") for row in frame.where("partition = 0").collect()} == {True}
    assert {row.source.endswith("|part") for row in frame.where("partition = 1").collect()} == {False}
    assert log.payloads(subscribe="orders", minPartitions="5") == [*(f"a{number:02}" for number in range(30)), "b"]


def test_data_loss_fails_the_query_and_names_the_partition(log: Log) -> None:
    log.create("orders", 1)
    log.send("orders", 0, "a", "b", "c")
    assert log.stream(subscribe="orders", startingOffsets="earliest") == list("abc")
    log.make_anew()
    log.send("orders", 0, "d")
    with pytest.raises(PySparkException, match=r"partition '0' of topic 'orders' .*created again.*failOnDataLoss"):
        log.stream(subscribe="orders", startingOffsets="earliest")
    assert log.stream(subscribe="orders", startingOffsets="earliest", failOnDataLoss="false") == ["d"]


def test_wrong_options_are_named(log: Log) -> None:
    log.create("orders", 1)
    for options, problem in (
        ({"subscribe": "orders", "startingOfsets": "earliest"}, "Did you mean 'startingOffsets'"),
        ({"subscribe": "orders", "maxOffsetsPerTrigger": "5"}, "maxOffsetsPerTrigger is for streaming reads"),
        ({"subscribe": "missing"}, "no topic 'missing'"),
        ({}, "no option selects topics"),
    ):
        with pytest.raises(PySparkException, match=problem):
            log.read(**options).collect()


def test_sql_reads_it(log: Log) -> None:
    log.create("orders", 1)
    log.send("orders", 0, "a", "b")
    log.spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW orders USING mqbridge OPTIONS (url 'log://{log.path}', subscribe 'orders')")
    assert log.spark.sql("SELECT count(*) AS n FROM orders").first().n == 2  # type: ignore[union-attr]


def test_a_configuration_names_the_cluster(log: Log, tmp_path: Path) -> None:
    log.create("orders", 1)
    log.send("orders", 0, "a")
    config = tmp_path / "mqbridge.yaml"
    config.write_text(
        f"clusters:\n  here: {{system: log, path: {log.path}}}\n  there: {{system: log, path: {tmp_path}/other.db}}\n"
    )
    frame = log.spark.read.format("mqbridge").options(config=str(config), cluster="here", subscribe="orders").load()
    assert [row.source for row in frame.collect()] == ["here|orders|0|0"]


def test_ranges_are_rows_of_their_own(log: Log) -> None:
    log.create("orders", 2)
    log.send("orders", 1, "a", "b")
    (row,) = log.read(subscribe="orders", mode="ranges").collect()
    assert (row.source, row.begin, row.end, row.estimated_messages) == ("log|orders|1|1", [0], [2], 2)


def test_a_running_query_finds_new_messages(log: Log) -> None:
    log.create("orders", 1)
    options = log.options(subscribe="orders", startingOffsets="earliest", metadataInterval="0ms", maxBytesPerTrigger="1KiB")
    frame = log.spark.readStream.format("mqbridge").options(**options).load()
    query = frame.writeStream.foreachBatch(log._see).option("checkpointLocation", str(log.checkpoint)).start()
    try:
        for number in range(3):
            log.send("orders", 0, f"{number}")
            query.processAllAvailable()
            query.processAllAvailable()  # the first may be answered by a look at the source that was before the message
    finally:
        query.stop()
    assert log.stream(subscribe="orders") + [text for *_, text in log.rows] == ["0", "1", "2"]
