"""The sink in Spark, with the embedded log: batch and streaming writes, failed tasks, restarts from the checkpoint."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from mqbridge.message import Message, split_origin
from tests.kit.spark import run_available
from tests.spark.sink.logs import Log

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

FORMAT = "mqbridge"
PARTITIONS, MESSAGES_EACH = 3, 200


@pytest.fixture(scope="module")
def spark_with_mqbridge(spark: SparkSession) -> SparkSession:
    """Return the session with `format("mqbridge")` registered."""
    from mqbridge.spark.data_source import MqbridgeDataSource

    spark.dataSource.register(MqbridgeDataSource)
    return spark


@pytest.fixture
def log(tmp_path: Path) -> Log:
    """A log with the topic `orders`, to read from."""
    log = Log(tmp_path / "log")
    log.fill("orders", [[_order(partition, n) for n in range(MESSAGES_EACH)] for partition in range(PARTITIONS)])
    return log


def _order(partition: int, number: int) -> Message:
    return Message(
        f"{partition}/{number}".encode(), (("n", str(number)),), key=f"key {number % 7}", msg_type="a" if number % 2 else "b"
    )


def read(spark: SparkSession, log: Log, **options: str) -> DataFrame:
    return spark.read.format(FORMAT).options(url=log.url, subscribe="orders", startingOffsets="earliest", **options).load()


def stream(spark: SparkSession, log: Log, **options: str) -> DataFrame:
    options = {"url": log.url, "subscribe": "orders", "startingOffsets": "earliest", **options}
    return spark.readStream.format(FORMAT).options(**options).load()


def expected_payloads(each: int = MESSAGES_EACH) -> list[list[bytes]]:
    return [[f"{partition}/{n}".encode() for n in range(each)] for partition in range(PARTITIONS)]


def test_a_repeated_batch_write_stores_each_row_once_in_order(spark_with_mqbridge: SparkSession, log: Log) -> None:
    log.create("copy", PARTITIONS)
    for _ in range(2):
        read(spark_with_mqbridge, log).write.format(FORMAT).options(url=log.url, topic="copy", jobId="copying").mode(
            "append"
        ).save()
        assert log.payloads("copy") == expected_payloads()
    message = log.read("copy")[1][5]
    assert (message.key, message.msg_type, message.properties) == ("key 5", "a", (("n", "5"),))
    assert split_origin(message.origin or "") == (log.url, "orders", "1", (5,))


def test_rows_without_a_source_go_to_the_topic_of_their_column_by_key(spark_with_mqbridge: SparkSession, log: Log) -> None:
    rows = [(f"{n}".encode(), f"key {n}", f"topic {n % 2}") for n in range(50)]
    frame = spark_with_mqbridge.createDataFrame(rows, "payload BINARY, key STRING, topic STRING")
    frame.write.format(FORMAT).options(url=log.url, createTopics="2").mode("append").save()
    for number in range(2):
        partitions = log.payloads(f"topic {number}")
        assert len(partitions) == 2
        assert all(partitions)
        assert sorted(int(payload or b"") for partition in partitions for payload in partition) == list(range(number, 50, 2))


def test_refused_rows_and_rows_without_a_topic_become_dead_letters(spark_with_mqbridge: SparkSession, log: Log) -> None:
    log.create("copy", 2)
    rows = [(b"a", "copy", 1), (b"b", None, 0), (b"c", "copy", 9)]
    frame = spark_with_mqbridge.createDataFrame(rows, "payload BINARY, topic STRING, partition INT")
    frame.coalesce(1).write.format(FORMAT).options(url=log.url, createTopics="2", deadLetterTopic="dead").mode("append").save()
    assert log.payloads("copy") == [[], [b"a"]]
    reasons = {message.payload: message.property("mqbridge.dead.reason") for message in log.read("dead")[0]}
    assert reasons == {
        b"b": "it names no target topic: its column `topic` is NULL, and there is no option `topic`",
        b"c": "it is for partition 9, and there are 2 (0 to 1)",
    }


def test_overwriting_and_rows_out_of_order_are_errors(spark_with_mqbridge: SparkSession, log: Log) -> None:
    log.create("copy", PARTITIONS)
    writer = read(spark_with_mqbridge, log).write.format(FORMAT).options(url=log.url, topic="copy")
    with pytest.raises(Exception, match="messages of a topic are never replaced"):
        writer.mode("overwrite").save()
    descending = read(spark_with_mqbridge, log).coalesce(1).sortWithinPartitions("position", ascending=False)
    with pytest.raises(Exception, match=r"do not ascend.*sortWithinPartitions"):
        descending.write.format(FORMAT).options(url=log.url, topic="copy").mode("append").save()
    assert log.payloads("copy") == [[]] * PARTITIONS
    with pytest.raises(Exception, match="Read without minPartitions"):
        read(spark_with_mqbridge, log, minPartitions="9").write.format(FORMAT).options(url=log.url, topic="copy").mode(
            "append"
        ).save()


def test_rows_of_a_source_in_several_tasks_fail_the_write(spark_with_mqbridge: SparkSession, log: Log) -> None:
    log.create("copy", PARTITIONS)
    repartitioned = read(spark_with_mqbridge, log).repartition(2, "key").sortWithinPartitions("source", "position")
    with pytest.raises(Exception, match=r"were written by several tasks|another task has rows of its source"):
        repartitioned.write.format(FORMAT).options(url=log.url, topic="copy").mode("append").save()


def with_row_that_fails_once(frame: DataFrame, marker: Path, at: str) -> DataFrame:
    """Return the rows of the frame. The task with the payload `at` fails when it processes that row for the first time."""
    from pyspark.sql.functions import col, udf

    @udf("boolean")
    def fail_once(payload):  # type: ignore[no-untyped-def]  # with type hints, Spark takes it for a function of columns
        if payload == at.encode() and not marker.exists():
            marker.write_text("failed")
            time.sleep(3)  # until earlier rows are stored
            raise RuntimeError("a task fails")
        return True

    return frame.where(fail_once(col("payload")))


def test_a_stream_that_fails_and_is_restarted_stores_each_row_once(
    spark_with_mqbridge: SparkSession, log: Log, tmp_path: Path
) -> None:
    log.create("copy", PARTITIONS)
    checkpoint = tmp_path / "checkpoint"
    spark_with_mqbridge.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "20")

    def run() -> None:
        frame = with_row_that_fails_once(
            stream(spark_with_mqbridge, log, maxOffsetsPerTrigger="240"), tmp_path / "marker", "1/150"
        )
        run_available(frame.writeStream.format(FORMAT).options(url=log.url, topic="copy"), checkpoint)

    with pytest.raises(Exception, match="a task fails"):
        run()
    assert sum(map(len, log.payloads("copy"))) > 240, "a part of the failed batch is stored"
    run()
    assert log.payloads("copy") == expected_payloads()
    (file,) = (checkpoint / "mqbridge").glob("progress.*")
    progress = json.loads(file.read_text())
    assert progress["committed"] == progress["begun"] == 2
    assert progress["ends"][0]["partitions"] == {"0": "200", "1": "200", "2": "200"}
    assert progress["totals"]["received"] == PARTITIONS * MESSAGES_EACH
    assert progress["totals"]["skipped"] > 0
    assert progress["query"] == json.loads((checkpoint / "metadata").read_text())["id"]
    new = range(MESSAGES_EACH, MESSAGES_EACH + 10)
    log.fill("orders", [[_order(partition, n) for n in new] for partition in range(PARTITIONS)])
    run()
    assert log.payloads("copy") == expected_payloads(each=MESSAGES_EACH + 10)
    assert not list((checkpoint / "mqbridge").glob("claim-[012]-*"))


def test_a_stream_of_a_route_writes_two_targets_with_edits_and_filter(
    spark_with_mqbridge: SparkSession, log: Log, tmp_path: Path
) -> None:
    config = tmp_path / "config.yaml"
    config.write_text(f"""
clusters:
  disk: {{system: log, path: {log.url.removeprefix("log://")}}}
routes:
  - name: copying
    from: {{cluster: disk, topic: "~(?P<what>ord).*", group: spark, msg_types: [a]}}
    to:
      - {{cluster: disk, topic: "{{what}}-one"}}
      - {{cluster: disk, topic: two, partitions: {{by: key}}, edit: {{set: {{from: "{{topic}}"}}}}}}
""")
    log.create("ord-one", PARTITIONS)
    log.create("two", 2)
    options = {"config": str(config), "route": "copying"}
    rows = spark_with_mqbridge.readStream.format(FORMAT).options(**options, startingOffsets="earliest").load()
    run_available(rows.writeStream.format(FORMAT).options(**options), tmp_path / "checkpoint")
    odd = [[payload for payload in partition if int(payload.split(b"/")[1]) % 2] for partition in expected_payloads()]
    assert log.payloads("ord-one") == odd
    in_two = [message for partition in log.read("two") for message in partition]
    assert sorted(message.payload or b"" for message in in_two) == sorted(payload for partition in odd for payload in partition)
    assert {message.property("from") for message in in_two} == {"orders"}
