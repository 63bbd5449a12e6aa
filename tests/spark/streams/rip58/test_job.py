"""Running jobs of StreamBuilder: restarts, windows of idle streams, dead letters, consecutive windows."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mqbridge.spark.streams import StreamBuilder, StreamConfig, Time, TimeType, WindowBuilder
from tests.spark.streams.jobs import FileJob
from tests.spark.waiting import wait_for

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

USE_EVENT_TIME = {StreamConfig.TIME_TYPE: TimeType.EVENT_TIME}
FIVE_SECONDS = WindowBuilder.tumblingWindow(Time.seconds(5))


class Longest:
    """Finds the longest text, and counts the texts."""

    def __init__(self) -> None:
        self.text = ""
        self.count = 0

    def addValue(self, value: str) -> None:
        self.count += 1
        self.text = max(self.text, value, key=len)

    def result(self, properties: Any) -> list[Any]:
        return [self.text, self.count]

    def clone(self) -> Longest:
        return Longest()


def test_aggregates_without_window_continue_after_a_restart(one_partition_spark: SparkSession, tmp_path: Path) -> None:
    builder = StreamBuilder("unwindowed")
    words = builder.source("words", lambda source: source.decode())
    by_initial = words.keyBy(lambda word: word[0])
    by_initial.aggregate(Longest()).sink("longest", lambda key, data: json.dumps([key, data]).encode())
    by_initial.max(len).sink("max", lambda _, data: data.encode())
    job = FileJob(one_partition_spark, tmp_path, builder.build(), USE_EVENT_TIME)
    job.send("words", (b"ab", 0.0), (b"b", 1.0), (b"ac", 2.0))
    job.run()
    job.send("words", (b"abc", 3.0), (b"d", 4.0))
    job.run()
    assert sorted(job.written["longest"]) == [
        (b"a", b'["a", ["ab", 2]]'),
        (b"a", b'["a", ["abc", 3]]'),
        (b"b", b'["b", ["b", 1]]'),
        (b"d", b'["d", ["d", 1]]'),
    ]
    assert sorted(job.written["max"]) == [(b"a", b"ab"), (b"a", b"abc"), (b"b", b"b"), (b"d", b"d")], (
        "of equally long words, the earliest"
    )


def test_bad_records_become_dead_letters_and_a_window_follows_a_window(one_partition_spark: SparkSession, tmp_path: Path) -> None:
    builder = StreamBuilder("chained")
    (
        builder.source("numbers", int, deadLetters="dead")
        .keyBy(lambda value: value % 2)
        .window(FIVE_SECONDS)
        .sum()
        .toRStream()
        .filter(lambda value: value > 1)
        .keyBy(lambda _: "all")
        .window(WindowBuilder.tumblingWindow(Time.seconds(10)))
        .aggregate(lambda _key, value, so_far: [*(so_far or []), value])
        .toRStream()
        .print()
    )
    job = FileJob(one_partition_spark, tmp_path, builder.build(), USE_EVENT_TIME)
    job.send("numbers", (b"1", 0.0), (b"no number", 1.0), (b"4", 2.0), (b"3", 3.0), (b"1", 6.0), (b"6", 7.0))
    job.send("numbers", (b"0", 60.0))
    job.run()
    job.send("numbers", (b"0", 160.0))
    job.run()
    assert job.written["dead"] == [(None, b"no number")]
    assert job.printed == ["(key: all, data: [4, 4, 6])"]


def test_an_idle_stream_closes_its_windows(one_partition_spark: SparkSession, tmp_path: Path) -> None:
    builder = StreamBuilder("idle")
    builder.source("numbers", int).keyBy(lambda _: "all").window(
        WindowBuilder.tumblingWindow(Time.seconds(1))
    ).count().toRStream().print()
    properties = {
        **USE_EVENT_TIME,
        StreamConfig.ALLOW_LATENESS_MILLISECOND: 0,
        StreamConfig.IDLE_TIME_TO_FIRE_WINDOW: 400,
        StreamConfig.TRIGGER: "0 seconds",
    }
    job = FileJob(one_partition_spark, tmp_path, builder.build(), properties)
    job.send("numbers", (b"1", 0.0), (b"2", 0.5))
    running = job.start()
    try:
        wait_for(lambda: job.printed == ["(key: all, data: 2)"])
    finally:
        running.stop()
    assert not running.isRunning()
