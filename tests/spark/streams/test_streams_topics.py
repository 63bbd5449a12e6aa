"""Jobs that read topics and write topics: `format("mqbridge")` as source and sink, on the embedded log."""

from __future__ import annotations

import json
import re
import runpy
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import PySparkException

from mqbridge.spark.streams import (
    StreamBuilder,
    StreamConfig,
    StreamJob,
    Time,
    TimeType,
    Topology,
    Window,
    WindowBuilder,
    decode,
    encode,
    split,
    window_aggregate,
)
from tests.kit.spark import QUERY_DEADLINE_S, run_available
from tests.spark.streams.feed import Feed
from tests.spark.streams.topics import Topics

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FOLDER = Path(__file__).parents[3] / "examples" / "spark" / "streams"
MINUTE = WindowBuilder.tumblingWindow(Time.minutes(1))
TARGETS = ("counts", "windows", "latest", "joined")


def as_json(key: Any, data: Any) -> bytes:
    return json.dumps([key, data]).encode()


def build_topology() -> Topology:
    builder = StreamBuilder("topics")
    lines = builder.source("lines", lambda payload: payload.decode())
    words = lines.flatMap(lambda line: re.findall(r"\w+", line.lower()))
    words.keyBy(lambda word: word).count().sink("counts", as_json)
    words.keyBy(lambda word: word).window(MINUTE).count().sink("windows", as_json)
    users, orders = builder.source("users", json.loads), builder.source("orders", json.loads)

    def pair(user: Any, order: Any) -> Any:
        return [user["age"], order and order["price"]]

    users.join(orders).where(lambda user: user["name"]).equalTo(lambda order: order["name"]).apply(pair).sink("latest", as_json)
    (
        users.leftJoin(orders).where(lambda user: user["name"]).equalTo(lambda order: order["name"])
        .window(MINUTE).apply(pair).sink("joined", as_json)
    )  # fmt: skip
    return builder.build()


@pytest.mark.thorough
def test_jobs_run_from_topic_to_topic(spark: SparkSession, tmp_path: Path) -> None:
    log = Topics(tmp_path, spark)
    log.create("lines", "users", "orders", *TARGETS, partitions=2)
    properties = {
        "url": log.url,
        StreamConfig.TIME_TYPE: TimeType.EVENT_TIME,
        StreamConfig.CONSUME_FROM_WHERE: "CONSUME_FROM_FIRST_OFFSET",
        StreamConfig.CHECKPOINT_LOCATION: str(tmp_path / "job"),
        StreamConfig.TRIGGER: "availableNow",
    }
    start, minute = 1_704_067_200_000, 60_000

    def run() -> None:
        job = StreamJob(build_topology(), properties, spark)
        job.start()
        job.awaitTermination(QUERY_DEADLINE_S)

    log.send("lines", 0, "To be or not", "to be", event_time=start)
    log.send("lines", 1, "be", event_time=start + 30_000)
    log.send("users", 0, '{"name":"ann","age":3}', '{"name":"bob","age":4}', event_time=start)
    log.send("orders", 1, '{"name":"ann","price":7}', event_time=start + 1000)
    run()
    log.send("lines", 1, "To end", event_time=start + 3 * minute)
    log.send("users", 0, '{"name":"ann","age":5}', event_time=start + 3 * minute)
    log.send("orders", 0, '{"name":"bob","price":8}', event_time=start + 3 * minute)
    run()

    written = {topic: [json.loads(text) for text in log.payloads(topic)] for topic in TARGETS}
    newest = {key: max(count for word, count in written["counts"] if word == key) for key, _ in written["counts"]}
    assert newest == Counter(["to"] * 3 + ["be"] * 3 + ["or", "not", "end"])
    assert sorted(written["windows"]) == [["be", 3], ["not", 1], ["or", 1], ["to", 2]]
    assert sorted(written["latest"]) == [["ann", [3, 7]], ["ann", [5, 7]], ["bob", [4, 8]]]
    assert sorted(written["joined"], key=str) == [["ann", [3, 7]], ["bob", [4, None]]]


def test_the_dataframe_program_of_the_page_writes_its_sums(spark: SparkSession, tmp_path: Path) -> None:
    from pyspark.sql import functions as F

    log = Topics(tmp_path, spark)
    log.create("orders", "sums")
    start = 1_704_067_200_000
    log.send("orders", 0, '{"customer":"ann","price":1.5}', "{", '{"customer":"ann","price":2}', event_time=start)
    log.send("orders", 0, '{"customer":"bob","price":1}', event_time=start + 600_000)
    source = {"url": log.url, "subscribe": "orders", "startingOffsets": "earliest"}
    orders = spark.readStream.format("mqbridge").options(**source).load()
    good, _bad = split(orders.transform(decode, "json", "customer string, price double"))
    sums = good.select("value.*", "event_time").transform(
        window_aggregate, "customer", Window.tumbling(Time.minutes(1)), F.sum("price").alias("paid"), lateness="10 seconds"
    )
    rows = sums.select("customer", "paid").transform(encode, value=["customer", "paid"], key="customer")
    run_available(rows.writeStream.format("mqbridge").options(url=log.url, topic="sums"), tmp_path / "checkpoint")
    assert log.payloads("sums") == ['{"customer":"ann","paid":3.5}']


def test_spark_refuses_updates_for_sinks_in_python(spark: SparkSession, tmp_path: Path) -> None:
    log, feed = Topics(tmp_path, spark), Feed(tmp_path / "in")
    feed.add(("a", 1, 0.0))
    counts = feed.stream(spark).groupBy("word").count().transform(encode)
    writer = counts.writeStream.format("mqbridge").options(url=log.url, topic="counts").outputMode("update")
    with pytest.raises(PySparkException, match=r"(?i)update"):
        run_available(writer, tmp_path / "checkpoint")


def test_an_example_runs_with_the_command_of_its_page(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    log = Topics(tmp_path, spark)
    log.create("sourceTopic")
    log.send("sourceTopic", 0, "to be", "be")
    example = FOLDER / "word_count_from_first_offset.py"
    monkeypatch.syspath_prepend(str(FOLDER))
    monkeypatch.setattr("sys.argv", [example.name, log.url, str(tmp_path / "job"), "availableNow"])
    runpy.run_path(str(example), run_name="__main__")
    assert sorted(capsys.readouterr().out.splitlines()) == ["(key: be, data: 2)", "(key: to, data: 1)"]
