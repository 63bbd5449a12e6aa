"""Jobs from topic to topic: `format("mqbridge")` at both ends, over the embedded log."""

from __future__ import annotations

import json
import re
import runpy
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from mqbridge.spark.streams import StreamBuilder, StreamConfig, StreamJob, Time, TimeType, Topology, WindowBuilder
from tests.kit.spark import QUERY_DEADLINE_S
from tests.spark.test_source import Log

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FOLDER = Path(__file__).parents[3] / "examples" / "spark" / "streams"
MINUTE = WindowBuilder.tumblingWindow(Time.minutes(1))
TARGETS = ("counts", "windows", "latest", "joined")


def encode(key: Any, data: Any) -> bytes:
    return json.dumps([key, data]).encode()


def topology() -> Topology:
    builder = StreamBuilder("topics")
    lines = builder.source("lines", lambda payload: payload.decode())
    words = lines.flatMap(lambda line: re.findall(r"\w+", line.lower()))
    words.keyBy(lambda word: word).count().sink("counts", encode)
    words.keyBy(lambda word: word).window(MINUTE).count().sink("windows", encode)
    users, orders = builder.source("users", json.loads), builder.source("orders", json.loads)

    def pair(user: Any, order: Any) -> Any:
        return [user["age"], order and order["price"]]

    users.join(orders).where(lambda user: user["name"]).equalTo(lambda order: order["name"]).apply(pair).sink("latest", encode)
    (
        users.leftJoin(orders).where(lambda user: user["name"]).equalTo(lambda order: order["name"])
        .window(MINUTE).apply(pair).sink("joined", encode)
    )  # fmt: skip
    return builder.build()


def test_jobs_run_from_topic_to_topic(spark: SparkSession, tmp_path: Path) -> None:
    log = Log(tmp_path, spark)
    for topic in ("lines", "users", "orders", *TARGETS):
        log.create(topic, 2)
    properties = {
        "url": f"log://{log.path}",
        StreamConfig.TIME_TYPE: TimeType.EVENT_TIME,
        StreamConfig.CONSUME_FROM_WHERE: "CONSUME_FROM_FIRST_OFFSET",
        StreamConfig.CHECKPOINT_LOCATION: str(tmp_path / "job"),
        StreamConfig.TRIGGER: "availableNow",
    }
    start, minute = 1_704_067_200_000, 60_000

    def run() -> None:
        job = StreamJob(topology(), properties, spark)
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

    found = {topic: [json.loads(text) for text in log.payloads(subscribe=topic)] for topic in TARGETS}
    newest = {key: max(count for word, count in found["counts"] if word == key) for key, _ in found["counts"]}
    assert newest == Counter(["to"] * 3 + ["be"] * 3 + ["or", "not", "end"])
    assert sorted(found["windows"]) == [["be", 3], ["not", 1], ["or", 1], ["to", 2]]
    assert sorted(found["latest"]) == [["ann", [3, 7]], ["ann", [5, 7]], ["bob", [4, 8]]]
    assert sorted(found["joined"], key=str) == [["ann", [3, 7]], ["bob", [4, None]]]


def test_an_example_runs_as_its_page_says(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    log = Log(tmp_path, spark)
    log.create("sourceTopic", 1)
    log.send("sourceTopic", 0, "to be", "be")
    example = FOLDER / "word_count_from_first_offset.py"
    monkeypatch.syspath_prepend(str(FOLDER))
    monkeypatch.setattr("sys.argv", [example.name, f"log://{log.path}", str(tmp_path / "job"), "availableNow"])
    runpy.run_path(str(example), run_name="__main__")
    assert sorted(capsys.readouterr().out.splitlines()) == ["(key: be, data: 2)", "(key: to, data: 1)"]
