"""State of queries: where it is stored, that another session continues with it, and that it may be large."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from mqbridge.spark.streams import Fold, accumulate, latest_join, use_rocksdb
from mqbridge.spark.streams.state import ROCKSDB, STATE_STORE
from tests.kit.spark import run_available
from tests.spark.streams.feed import Feed, Results

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

KEYS = 1_000_000


def test_state_is_in_rocksdb_with_changelogs(spark: SparkSession, tmp_path: Path) -> None:
    session = spark.newSession()
    session.conf.set(
        f"{STATE_STORE}.providerClass", "org.apache.spark.sql.execution.streaming.state.HDFSBackedStateStoreProvider"
    )
    feed = Feed(tmp_path / "in")
    with pytest.raises(ValueError, match="use_rocksdb"):
        latest_join(feed.stream(session), feed.stream(session), "word")
    use_rocksdb(session)
    assert session.conf.get(f"{STATE_STORE}.providerClass") == ROCKSDB
    feed.add(("a", 1, 0.0))
    Results(tmp_path).run(feed.stream(session).groupBy("word").count(), "update")
    assert list((tmp_path / "checkpoint" / "state").rglob("*.changelog"))


def test_another_session_continues_from_the_checkpoint(spark: SparkSession, tmp_path: Path) -> None:
    feed, results = Feed(tmp_path / "in"), Results(tmp_path)

    def joined(session: SparkSession) -> DataFrame:
        return latest_join(feed.stream(session), feed.stream(session), "word", order="event_time")

    feed.add(("a", 1, 0.0), ("b", 2, 0.0))
    results.run(joined(spark))
    other = spark.newSession()
    use_rocksdb(other)
    feed.add(("a", 3, 1.0))
    results.run(joined(other))
    joined_rows = [(word, left[0], right[0]) for word, left, right in results.rows("word", "left", "right")]
    assert sorted(joined_rows) == [("a", 1, 1), ("a", 3, 1), ("a", 3, 3), ("b", 2, 2)]


@pytest.mark.long
@pytest.mark.parametrize("kind", ["jvm", "python"])
def test_a_million_keys_survive_a_restart(spark: SparkSession, tmp_path: Path, kind: str) -> None:
    from pyspark.sql import functions as F

    feed = Feed(tmp_path / "in")
    stream = feed.stream(spark)
    if kind == "jvm":
        frame = stream.groupBy("word").agg(F.sum("number").alias("result"))
    else:
        total = Fold(lambda _key, value, so_far: (so_far or 0) + value)
        frame = stream.transform(accumulate, "word", total, value="number", kind="bigint")
    totals_by_batch: dict[int, Any] = {}

    def record_totals(rows: DataFrame, batch: int) -> None:
        """Record the number of rows, the number of keys, and the sum of the results of a batch."""
        totals_by_batch[batch] = rows.agg(F.count("*"), F.countDistinct("word"), F.sum("result")).first()

    def run() -> list[dict[str, Any]]:
        return run_available(frame.writeStream.outputMode("update").foreachBatch(record_totals), tmp_path / "checkpoint")

    feed.add(*[(f"key-{index}", index, 0.0) for index in range(KEYS)])
    run()
    feed.add(*[(f"key-{index}", index, 1.0) for index in range(0, KEYS, 10)])
    report = run()[-1]
    tenth = range(0, KEYS, 10)
    assert totals_by_batch == {0: (KEYS, KEYS, sum(range(KEYS))), 1: (len(tenth), len(tenth), 2 * sum(tenth))}
    assert report["stateOperators"][0]["numRowsTotal"] == KEYS


def test_each_key_is_counted_in_one_state_partition(spark: SparkSession, tmp_path: Path) -> None:
    feed, results = Feed(tmp_path / "in"), Results(tmp_path)
    frame = feed.stream(spark).transform(
        accumulate, "word", Fold(lambda _key, _value, so_far: (so_far or 0) + 1), value="number", kind="int"
    )
    words = [f"key-{index % 700}" for index in range(3000)]
    feed.add(*[(word, 0, 0.0) for word in words])
    results.run(frame, "update")
    assert dict(results.rows("word", "result")) == Counter(words)
