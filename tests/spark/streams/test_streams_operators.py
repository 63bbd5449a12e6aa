"""Each operator on streams of files, compared with a simple model: late rows, unordered rows, restarts."""

from __future__ import annotations

import random
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from mqbridge.spark.streams import (
    Fold,
    Heartbeats,
    Time,
    Window,
    accumulate,
    accumulate_window,
    latest_join,
    window_aggregate,
    window_join,
)
from tests.spark.streams.feed import Feed, Results, at
from tests.spark.streams.model import Row, rows_of_closed_sessions, rows_of_closed_windows

if TYPE_CHECKING:
    from pyspark.sql import Column, SparkSession

FIVE_SECONDS = Time.seconds(5)


def batches_of_rows() -> list[list[Row]]:
    """Return four batches that are not ordered by time. Some late rows of the last batch are so late that they are dropped."""
    random.seed(12)
    batches = [
        [(random.choice("abc"), random.randrange(100), base + random.random() * 8) for _ in range(40)] for base in (0, 6, 12)
    ]
    batches.append([("a", 1000, 1.0), ("b", 2000, 3.0), ("a", 5, 19.5), ("c", 7, 30.25)])
    return batches


def aggregates() -> list[Column]:
    from pyspark.sql import functions as F

    return [
        F.count("*").alias("count"),
        F.sum("number").alias("sum"),
        F.min("number").alias("min"),
        F.max("number").alias("max"),
        F.avg("number").alias("avg"),
    ]


def expected_aggregates(rows: list[Row]) -> tuple[Any, ...]:
    """Return count, sum, min, max and avg of the rows' values, in the order of `aggregates`."""
    numbers = [row[1] for row in rows]
    return (len(numbers), sum(numbers), min(numbers), max(numbers), pytest.approx(sum(numbers) / len(numbers)))


WINDOWS = {
    "tumbling": (Window.tumbling(FIVE_SECONDS), 5.0, 5.0),
    "sliding": (Window.sliding(FIVE_SECONDS, Time.seconds(2)), 5.0, 2.0),
}


@pytest.mark.parametrize("kind", WINDOWS)
def test_window_aggregates_equal_those_of_the_model(one_partition_spark: SparkSession, tmp_path: Path, kind: str) -> None:
    window, size, slide = WINDOWS[kind]
    batches = batches_of_rows()
    feed, results = Feed(tmp_path / "in"), Results(tmp_path)
    frame = feed.stream(one_partition_spark).transform(window_aggregate, "word", window, *aggregates())
    for part in (batches[:2], batches[2:]):
        for batch in part:
            feed.add(*batch)
        results.run(frame)
    names = ("word", "window_start", "window_end", "count", "sum", "min", "max", "avg")
    actual = {row[:3]: row[3:] for row in results.rows(*names)}
    expected = {key: expected_aggregates(rows) for key, rows in rows_of_closed_windows(batches, size, slide).items()}
    assert actual == expected
    assert len(results.rows(*names)) == len(expected), "each window once"
    assert not any(1000 in [row[1] for row in rows] for rows in rows_of_closed_windows(batches, size, slide).values()), (
        "late rows are dropped"
    )


def test_a_late_row_between_two_sessions_merges_them(one_partition_spark: SparkSession, tmp_path: Path) -> None:
    batches: list[list[Row]] = [
        [("a", 1, 0.0), ("b", 2, 1.0), ("a", 3, 6.5)],
        [("a", 4, 4.0), ("b", 5, 9.0), ("b", 6, 5.5)],
        [("c", 7, 60.0)],
    ]
    feed, results = Feed(tmp_path / "in"), Results(tmp_path)
    frame = feed.stream(one_partition_spark).transform(
        window_aggregate, "word", Window.session(FIVE_SECONDS), *aggregates(), lateness="2 seconds"
    )
    for batch in batches:
        feed.add(*batch)
        if batch is batches[0]:
            results.run(frame)
    results.run(frame)
    actual = {row[:3]: row[3:] for row in results.rows("word", "window_start", "window_end", "count", "sum", "min", "max", "avg")}
    assert actual == {key: expected_aggregates(rows) for key, rows in rows_of_closed_sessions(batches, 5.0).items()}
    assert ("a", 0.0, 11.5) in actual


class Median:
    """An accumulator for the exact median, which Spark's windows do not have."""

    def __init__(self) -> None:
        self.values: list[int] = []

    def addValue(self, value: int) -> None:
        self.values.append(value)

    def result(self, properties: Any) -> str:
        middle = sorted(self.values)[len(self.values) // 2]
        return f"{middle} from {properties['window_start_time']}" if properties else str(middle)

    def clone(self) -> Median:
        return Median()


def test_the_accumulator_of_a_window_gets_all_values_and_the_window_start(
    one_partition_spark: SparkSession, tmp_path: Path
) -> None:
    batches = batches_of_rows()
    feed, results = Feed(tmp_path / "in"), Results(tmp_path)
    stream = feed.stream(one_partition_spark)
    frame = stream.transform(accumulate_window, "word", Window.tumbling(FIVE_SECONDS), Median(), value="number", kind="string")
    for batch in batches:
        feed.add(*batch)
    results.run(frame)
    actual = {row[:3]: row[3] for row in results.rows("word", "window_start", "window_end", "result")}
    expected = {}
    for key, rows in rows_of_closed_windows(batches, 5.0).items():
        start = int(at(key[1]).timestamp() * 1000)
        expected[key] = f"{sorted(row[1] for row in rows)[len(rows) // 2]} from {start}"
    assert actual == expected


def test_an_accumulator_without_window_continues_after_a_restart(one_partition_spark: SparkSession, tmp_path: Path) -> None:
    batches = batches_of_rows()
    feed, results = Feed(tmp_path / "in"), Results(tmp_path)
    fold = Fold(lambda key, value, so_far: f"{(so_far or key)[:40]},{value}")
    frame = feed.stream(one_partition_spark).transform(
        accumulate, "word", fold, value="number", kind="string", order="event_time"
    )
    state: dict[str, str] = {}
    expected = []
    for index, batch in enumerate(batches):
        feed.add(*batch)
        if index % 2:
            results.run(frame, "update")
        for word, number, _ in sorted(batch, key=lambda row: row[2]):
            state[word] = f"{state.get(word, word)[:40]},{number}"
        expected += [(index, word, state[word]) for word in sorted({row[0] for row in batch})]
    actual = sorted((batch, row["word"], row["result"]) for batch, rows in results._batches.items() for row in rows)
    assert actual == expected


def model_of_latest_join(batches: list[tuple[list[Row], list[Row]]], how: str) -> list[tuple[str, Any, Any]]:
    """Return the expected rows of `latest_join`, which processes the rows of a batch by time."""
    latest: dict[str, dict[str, Any]] = {"left": {}, "right": {}}
    joined = []
    for lefts, rights in batches:
        rows = [("left", row) for row in lefts] + [("right", row) for row in rights]
        for side, (key, value, _) in sorted(rows, key=lambda item: (item[1][2], item[0])):
            latest[side][key] = value
            left, right = latest["left"].get(key), latest["right"].get(key)
            has_result = side == "left" if how == "left" else left is not None and right is not None
            if has_result:
                joined.append((key, left, right))
    return joined


@pytest.mark.parametrize("how", ["inner", "left"])
def test_latest_join_joins_by_key_and_continues_after_a_restart(
    one_partition_spark: SparkSession, tmp_path: Path, how: str
) -> None:
    random.seed(3)
    batches = [
        tuple([[(random.choice("abcd"), random.randrange(1000), base + random.random()) for _ in range(12)] for _ in range(2)])
        for base in (0, 1)
    ]
    left, right, results = Feed(tmp_path / "left"), Feed(tmp_path / "right"), Results(tmp_path)
    frame = latest_join(left.stream(one_partition_spark), right.stream(one_partition_spark), "word", how, order="event_time")
    for lefts, rights in batches:
        left.add(*lefts)
        right.add(*rights)
        results.run(frame)
    actual = [
        (word, left_row[0], right_row and right_row[0]) for word, left_row, right_row in results.rows("word", "left", "right")
    ]
    assert sorted(actual, key=str) == sorted(model_of_latest_join(batches, how), key=str)


def keep_last_row(rows: list[Row]) -> list[Row]:
    """Return the last row by time, as a list; an empty list if there are no rows."""
    return sorted(rows, key=lambda row: row[2])[-1:]


@pytest.mark.parametrize(
    ("how", "keep"),
    [
        ("left", "last"),
        pytest.param("inner", "last", marks=pytest.mark.thorough),
        pytest.param("left", "all", marks=pytest.mark.thorough),
    ],
)
def test_window_join_joins_rows_of_the_same_window(
    one_partition_spark: SparkSession, tmp_path: Path, how: str, keep: str
) -> None:
    lefts, rights = (
        batches_of_rows(),
        [[(key, value + 1, time + 0.5) for key, value, time in batch] for batch in batches_of_rows()],
    )
    rights[0] = [row for row in rights[0] if row[0] != "b"]
    left, right, results = Feed(tmp_path / "left"), Feed(tmp_path / "right"), Results(tmp_path)
    frame = window_join(
        left.stream(one_partition_spark), right.stream(one_partition_spark), "word", Window.tumbling(FIVE_SECONDS), how, keep=keep
    )
    for index, (left_batch, right_batch) in enumerate(zip(lefts, rights, strict=True)):
        left.add(*left_batch)
        right.add(*right_batch)
        if index == 1 and keep == "last":
            results.run(frame)
    closing_rows = [("z", 0, 60.0)]  # closes all earlier windows
    for feed in (left, right):
        feed.add(*closing_rows)
    results.run(frame)
    left_windows, right_windows = (
        rows_of_closed_windows([*lefts, closing_rows], 5.0),
        rows_of_closed_windows([*rights, closing_rows], 5.0),
    )
    expected = []
    for key in left_windows:
        left_rows, right_rows = left_windows[key], right_windows.get(key, [])
        if keep == "last":
            left_rows, right_rows = keep_last_row(left_rows), keep_last_row(right_rows)
        right_values = [row[1] for row in right_rows] or ([None] if how == "left" else [])
        expected += [(*key, row[1], value) for row in left_rows for value in right_values]
    actual = [
        (word, start, end, left_row[0], right_row and right_row[0])
        for word, start, end, left_row, right_row in results.rows("word", "window_start", "window_end", "left", "right")
        if word != "z"
    ]
    assert sorted(actual, key=str) == sorted(expected, key=str)
    if how == "left":
        assert any(row[4] is None for row in actual)


def test_heartbeats_close_windows_and_are_in_no_result(one_partition_spark: SparkSession, tmp_path: Path) -> None:
    feed, results = Feed(tmp_path / "in"), Results(tmp_path)
    heartbeats = Heartbeats(str(tmp_path / "heartbeats"))
    watermarked = heartbeats.with_watermark(feed.stream(one_partition_spark), Time.seconds(2), key="word")
    frame = watermarked.transform(window_aggregate, "word", Window.tumbling(FIVE_SECONDS), *aggregates(), lateness=None)
    feed.add(("a", 1, 1.0), ("a", 2, 6.0))
    results.run(frame)
    assert results.rows("word", "window_start", "count") == []
    heartbeats.add(at(12.5))
    results.run(frame)
    assert sorted(results.rows("word", "window_start", "count")) == [("a", 0.0, 1), ("a", 5.0, 1)]
