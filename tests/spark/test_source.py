"""The source in Spark, with the embedded log."""

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
    """An embedded log that Spark reads."""

    def __init__(self, folder: Path, spark: SparkSession) -> None:
        self.path = folder / "log.db"
        self.checkpoint = folder / "checkpoint"
        self.spark = spark
        self.rows: list[tuple[str, int, int, str]] = []
        """Topic, partition, offset and payload of all messages that streams have read."""
        self.batch_sizes: list[int] = []
        """Number of messages of each batch of the streams."""
        spark.dataSource.register(MqbridgeDataSource)

    def run(self, use: Callable[[Cluster], Awaitable[Any]]) -> Any:
        """Run a coroutine with the connected log."""

        async def connect_and_use() -> Any:
            async with opened("log", {"path": str(self.path), "retention": None}) as cluster:
                return await use(cluster)

        return asyncio.run(connect_and_use())

    def create(self, topic: str, partitions: int) -> None:
        self.run(lambda cluster: cluster.create(topic, partitions))

    def send(self, topic: str, partition: int, *payloads: str) -> None:
        async def use(cluster: Cluster) -> None:
            outbound = await cluster.outbound(OutboundSpec(topic, stamp_origin=False))
            messages = [Message(text.encode(), (("name", text),), key=text) for text in payloads]
            receipt = await outbound.send(partition, Share(Batch.of(messages)))
            assert not receipt.failures
            await outbound.close()

        self.run(use)

    def recreate_topics(self) -> None:
        """Make all topics empty, as if they had just been created."""
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
        """Continue the stream from its checkpoint to the current end. Return the new payloads, sorted in each batch."""
        frame = self.spark.readStream.format("mqbridge").options(**self.options(**options)).load()
        earlier_rows = len(self.rows)
        run_available(frame.writeStream.foreachBatch(self.record_batch), self.checkpoint)
        return [text for *_, text in self.rows[earlier_rows:]]

    def record_batch(self, frame: DataFrame, number: int) -> None:
        rows = sorted((row.topic, row.partition, row.position[0], bytes(row.payload).decode()) for row in frame.collect())
        self.rows += rows
        self.batch_sizes.append(len(rows))

    def offsets(self, batch: int) -> str:
        """Return the end offsets of a batch, as they are in the checkpoint."""
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
    assert {row.source for row in rows} == {f"log://{log.path}|orders|{p}|{p}" for p in range(3)}


def test_a_stream_continues_from_its_checkpoint_and_reads_new_partitions_and_topics(log: Log) -> None:
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


def test_a_limit_divides_a_backlog_into_several_batches(log: Log) -> None:
    log.create("orders", 2)
    log.send("orders", 0, *(f"a{number}" for number in range(40)))
    log.send("orders", 1, *(f"b{number}" for number in range(10)))
    payloads = log.stream(subscribe="orders", startingOffsets="earliest", maxOffsetsPerTrigger="10")
    assert sorted(payloads) == sorted([f"a{number}" for number in range(40)] + [f"b{number}" for number in range(10)])
    assert len(log.batch_sizes) >= 5
    assert max(log.batch_sizes) <= 10
    assert [row[2] for row in log.rows if row[1] == 0] == list(range(40))


def test_a_stream_from_latest_reads_only_later_messages(log: Log) -> None:
    log.create("orders", 1)
    log.send("orders", 0, "before")
    assert log.stream(subscribe="orders") == []
    log.send("orders", 0, "after")
    assert log.stream(subscribe="orders") == ["after"]


def test_another_query_can_start_at_the_offsets_of_a_checkpoint(log: Log) -> None:
    log.create("orders", 2)
    log.send("orders", 0, "a", "b")
    log.stream(subscribe="orders", startingOffsets="earliest")
    log.send("orders", 1, "c")
    end = log.offsets(0)
    assert end == json.dumps({"topics": {"orders": {"0": "2", "1": "0"}}, "version": 1})
    log.checkpoint = log.checkpoint.with_name("another")
    assert log.stream(subscribe="orders", startingOffsets=end) == ["c"]


def test_an_unfinished_first_batch_is_repeated(log: Log) -> None:
    """The source resolves "latest" again, which is after the end of that batch then."""
    log.create("orders", 1)
    log.send("orders", 0, "before")
    log.stream(subscribe="orders")
    log.send("orders", 0, "after")
    for name in ("0", ".0.crc"):
        (log.checkpoint / "commits" / name).unlink()
    assert log.stream(subscribe="orders") == ["after"]


def test_batch_reads_obey_starting_and_ending_offsets_and_times(log: Log) -> None:
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


def test_rows_of_split_ranges_are_marked_and_complete(log: Log) -> None:
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
    log.recreate_topics()
    log.send("orders", 0, "d")
    with pytest.raises(PySparkException, match=r"partition '0' of topic 'orders' .*created again.*failOnDataLoss"):
        log.stream(subscribe="orders", startingOffsets="earliest")
    assert log.stream(subscribe="orders", startingOffsets="earliest", failOnDataLoss="false") == ["d"]


def test_errors_name_wrong_options_and_topics(log: Log) -> None:
    log.create("orders", 1)
    for options, problem in (
        ({"subscribe": "orders", "startingOfsets": "earliest"}, "Did you mean 'startingOffsets'"),
        ({"subscribe": "orders", "maxOffsetsPerTrigger": "5"}, "maxOffsetsPerTrigger is for streaming reads"),
        ({"subscribe": "missing"}, "no topic 'missing'"),
        ({}, "no option selects topics"),
    ):
        with pytest.raises(PySparkException, match=problem):
            log.read(**options).collect()


def test_sql_can_read_a_topic(log: Log) -> None:
    log.create("orders", 1)
    log.send("orders", 0, "a", "b")
    log.spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW orders USING mqbridge OPTIONS (url 'log://{log.path}', subscribe 'orders')")
    assert log.spark.sql("SELECT count(*) AS n FROM orders").first().n == 2  # type: ignore[union-attr]


def test_a_cluster_of_a_configuration_file_is_read(log: Log, tmp_path: Path) -> None:
    log.create("orders", 1)
    log.send("orders", 0, "a")
    config = tmp_path / "mqbridge.yaml"
    config.write_text(
        f"clusters:\n  here: {{system: log, path: {log.path}}}\n  there: {{system: log, path: {tmp_path}/other.db}}\n"
    )
    frame = log.spark.read.format("mqbridge").options(config=str(config), cluster="here", subscribe="orders").load()
    assert [row.source for row in frame.collect()] == [f"here|orders|0|0|at=log://{log.path}"]


def test_with_mode_ranges_each_row_is_a_range(log: Log) -> None:
    log.create("orders", 2)
    log.send("orders", 1, "a", "b")
    (row,) = log.read(subscribe="orders", mode="ranges").collect()
    assert (row.source, row.begin, row.end, row.estimated_messages) == (f"log://{log.path}|orders|1|1", [0], [2], 2)


def test_a_running_query_reads_new_messages(log: Log) -> None:
    log.create("orders", 1)
    options = log.options(subscribe="orders", startingOffsets="earliest", metadataInterval="0ms", maxBytesPerTrigger="1KiB")
    frame = log.spark.readStream.format("mqbridge").options(**options).load()
    query = frame.writeStream.foreachBatch(log.record_batch).option("checkpointLocation", str(log.checkpoint)).start()
    try:
        for number in range(3):
            log.send("orders", 0, f"{number}")
            query.processAllAvailable()
            query.processAllAvailable()  # the first call may refer to a request from before the message was stored
    finally:
        query.stop()
    assert log.stream(subscribe="orders") + [text for *_, text in log.rows] == ["0", "1", "2"]
