"""Several jobs, queries and clusters write into one topic: each stores all of its rows, a repetition only the missing ones."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from mqbridge.message import Message
from tests.kit.spark import run_available
from tests.spark.sink.logs import Log
from tests.spark.waiting import wait_for

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

FORMAT = "mqbridge"
MESSAGES = 50


@pytest.fixture(scope="module")
def spark_with_mqbridge(spark: SparkSession) -> SparkSession:
    """Return the session with `format("mqbridge")` registered."""
    from mqbridge.spark.data_source import MqbridgeDataSource

    spark.dataSource.register(MqbridgeDataSource)
    return spark


def fill_log(path: Path, name: str, partitions: int = 1) -> Log:
    """Return a new log with the topic `orders`, whose messages contain the name and a number."""
    log, size = Log(path / f"{name}.db"), MESSAGES // partitions
    messages = [Message(f"{name} {number}".encode()) for number in range(MESSAGES)]
    log.fill("orders", [messages[begin : begin + size] for begin in range(0, MESSAGES, size)])
    return log


@pytest.fixture
def sources(tmp_path: Path) -> list[Log]:
    """Two logs that both have a topic `orders`."""
    return [fill_log(tmp_path, name) for name in ("berlin", "tokyo")]


@pytest.fixture
def target(tmp_path: Path) -> Log:
    """A log with the topic `all`, which has one partition."""
    log = Log(tmp_path / "target.db")
    log.create("all", 1)
    return log


def read(spark: SparkSession, **options: str) -> DataFrame:
    return spark.read.format(FORMAT).options(subscribe="orders", **options).load()


def write(rows: DataFrame, target: Log, **options: str) -> None:
    rows.write.format(FORMAT).options(url=target.url, topic="all", **options).mode("append").save()


def names_and_numbers(log: Log, topic: str = "all") -> list[tuple[str, int]]:
    """Return the names and numbers of all messages of a topic, sorted."""
    words = [(payload or b"").decode().split() for partition in log.payloads(topic) for payload in partition]
    return sorted((name, int(number)) for name, number in words)


def each_once(*names: str) -> list[tuple[str, int]]:
    return sorted((name, number) for name in names for number in range(MESSAGES))


@pytest.mark.parametrize("jobs", [("one", "two"), ("one", "one")], ids=["two jobs", "one job id"])
def test_topics_of_one_name_in_two_clusters_given_by_url_are_both_stored(
    spark_with_mqbridge: SparkSession, sources: list[Log], target: Log, jobs: Sequence[str]
) -> None:
    for _ in range(2):
        for source, job in zip(sources, jobs, strict=True):
            write(read(spark_with_mqbridge, url=source.url), target, jobId=job)
    assert names_and_numbers(target) == each_once("berlin", "tokyo")


def test_rows_of_two_clusters_given_by_url_are_stored_by_one_write(
    spark_with_mqbridge: SparkSession, sources: list[Log], target: Log
) -> None:
    first, second = (read(spark_with_mqbridge, url=source.url) for source in sources)
    write(first.union(second), target)
    assert names_and_numbers(target) == each_once("berlin", "tokyo")
    assert {row.source for row in first.union(second).collect()} == {f"{source.url}|orders|0|0" for source in sources}


def test_clusters_to_which_two_configurations_give_one_name_are_both_stored(
    spark_with_mqbridge: SparkSession, sources: list[Log], target: Log, tmp_path: Path
) -> None:
    for _ in range(2):
        for number, source in enumerate(sources):
            config = tmp_path / f"{number}.yaml"
            config.write_text(f"clusters: {{source: {{system: log, path: {source.url.removeprefix('log://')}}}}}")
            write(read(spark_with_mqbridge, config=str(config), cluster="source"), target, jobId="copy")
    assert names_and_numbers(target) == each_once("berlin", "tokyo")


def test_two_jobs_over_one_source_store_a_copy_each(spark_with_mqbridge: SparkSession, sources: list[Log], target: Log) -> None:
    for job in ("one", "two", "one", "two"):
        write(read(spark_with_mqbridge, url=sources[0].url), target, jobId=job)
    assert names_and_numbers(target) == sorted(each_once("berlin") * 2)


def test_a_loop_through_a_cluster_given_by_url_ends_and_another_cluster_of_its_system_is_no_loop(
    spark_with_mqbridge: SparkSession, sources: list[Log], target: Log, tmp_path: Path
) -> None:
    """A job copies `orders` of Berlin by URL. A route writes the copy into `orders` of both clusters; `log` is also a system."""
    target.create("orders", 1)
    rows = read(spark_with_mqbridge, url=sources[0].url)
    rows.write.format(FORMAT).options(url=target.url, topic="orders").mode("append").save()
    for number, source in enumerate(sources):
        config = tmp_path / f"{number}.yaml"
        config.write_text(f"""
clusters:
  copies: {{system: log, path: {target.url.removeprefix("log://")}}}
  log: {{system: log, path: {source.url.removeprefix("log://")}}}
routes: [{{name: back, from: {{cluster: copies, topic: orders, group: g}}, to: {{cluster: log, topic: orders}}}}]
""")
        options = {"config": str(config), "route": "back"}
        copies = spark_with_mqbridge.read.format(FORMAT).options(**options).load()
        copies.write.format(FORMAT).options(**options).mode("append").save()
    assert names_and_numbers(sources[0], "orders") == each_once("berlin")
    assert names_and_numbers(sources[1], "orders") == each_once("berlin", "tokyo")


@pytest.mark.parametrize(
    "dead_letters", [pytest.param(False, marks=pytest.mark.thorough), True], ids=["without dead letters", "with dead letters"]
)
def test_two_queries_that_divide_a_topic_store_all_of_it_although_one_fails(
    spark_with_mqbridge: SparkSession, target: Log, tmp_path: Path, dead_letters: bool
) -> None:
    """The task of one partition fails when that of the other has stored its rows. Then the other query stores its half."""
    source = fill_log(tmp_path, "paris", partitions=2)
    options = {"url": target.url, "topic": "all"} | ({"deadLetterTopic": "dead"} if dead_letters else {})
    target.create("dead", 1)

    def run(rest: int) -> None:
        rows = spark_with_mqbridge.readStream.format(FORMAT).options(
            url=source.url, subscribe="orders", startingOffsets="earliest"
        )
        half = rows.load().where(f"position[0] % 2 = {rest}")
        half = fail_once_at(half, tmp_path / "failed", f"paris {MESSAGES // 2 + 4}", target)
        run_available(half.writeStream.format(FORMAT).options(**options), tmp_path / f"checkpoint {rest}")

    with pytest.raises(Exception, match="a task fails"):
        run(0)
    assert 0 < len(names_and_numbers(target)) < MESSAGES // 2, "the rows of one partition are stored"
    run(1)
    run(0)
    assert names_and_numbers(target) == each_once("paris")
    assert target.payloads("dead") == [[]]


def fail_once_at(frame: DataFrame, marker: Path, at: str, target: Log) -> DataFrame:
    """Return the rows of the frame. The task with the payload `at` fails once, when another task has stored rows."""
    from pyspark.sql.functions import col, udf

    @udf("boolean")
    def fail_once(payload):  # type: ignore[no-untyped-def]  # with type hints, Spark takes it for a function of columns
        if payload != at.encode() or marker.exists():
            return True
        marker.write_text("failed")
        wait_for(lambda: target.payloads("all") != [[]])
        raise RuntimeError("a task fails")

    return frame.where(fail_once(col("payload")))
