"""Aggregates of numbers leave out the values for which `select` returns None."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

from mqbridge.spark.streams.rip58.aggregates import max_of, min_of
from mqbridge.spark.streams.rip58.codecs import JSON

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_min_and_max_leave_out_values_without_a_number(one_partition_spark: SparkSession) -> None:
    rows = [("k", b"left out", None), ("k", b"five", 5), ("k", b"seven", 7), ("empty", b"left out", None)]
    frame = one_partition_spark.createDataFrame(
        [(key, value, whole, None, datetime(2026, 1, 1, tzinfo=UTC)) for key, value, whole in rows],
        "key string, value binary, whole long, real double, event_time timestamp",
    )
    columns = [aggregate.column().alias(aggregate.name) for aggregate in (min_of(None, JSON), max_of(None, JSON))]
    results = {row.key: (row.min, row.max) for row in frame.groupBy("key").agg(*columns).collect()}
    assert results == {"k": (b"five", b"seven"), "empty": (None, None)}
