"""Ranges as rows: the source yields them with `mode=ranges`, and the tasks of `mqbridge spark mirror --through pump` read them.

A row describes a range of one partition whose messages a task must move. It also contains estimates of the messages and bytes of
the range, by which `divide_ranges` gives tasks equal work. Wrong estimates only make the work unequal.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import ArrayType, DataType, IntegerType, LongType, StringType, StructField, StructType

from mqbridge.message import Partition, Position
from mqbridge.spark.schema import format_source, parse_source

RANGES_MODE = "ranges"
"""The value of the option `mode` for which the source yields ranges. The other value is `rows`."""

_TYPES: dict[str, DataType] = {
    "source": StringType(),
    "topic": StringType(),
    "partition": IntegerType(),
    "begin": ArrayType(LongType(), containsNull=False),
    "end": ArrayType(LongType(), containsNull=False),
    "estimated_messages": LongType(),
    "estimated_bytes": LongType(),
}


class RangeRow(NamedTuple):
    """The range of a partition from `begin` up to, not including, `end`.

    `is_part`: Spark's batch contains further ranges of this partition, which other tasks may move. False: it is the only one.
    """

    partition: Partition
    begin: Position
    end: Position
    is_part: bool = False
    estimated_messages: int = 0
    """0 if unknown."""
    estimated_bytes: int = 0
    """0 if unknown."""


def range_schema() -> StructType:
    """Return the source's schema with `mode=ranges`."""
    return StructType([StructField(name, spark_type, nullable=True) for name, spark_type in _TYPES.items()])


def is_range_schema(schema: StructType) -> bool:
    """Return whether rows of this schema are ranges rather than messages."""
    return {"source", "begin", "end"} <= set(schema.fieldNames()) and "payload" not in schema.fieldNames()


def build_ranges(rows: Iterable[RangeRow]) -> pa.RecordBatch:
    """Return the ranges of one task as a record batch for Spark."""
    return pa.RecordBatch.from_pylist(
        [
            {
                "source": format_source(row.partition, is_part=row.is_part),
                "topic": row.partition.topic,
                "partition": row.partition.index,
                "begin": row.begin,
                "end": row.end,
                "estimated_messages": row.estimated_messages,
                "estimated_bytes": row.estimated_bytes,
            }
            for row in rows
        ],
        schema=to_arrow_schema(range_schema(), timezone="UTC"),
    )


def parse_ranges(batch: pa.RecordBatch) -> list[RangeRow]:
    """Return the ranges of a record batch; its columns may have any order. Raises ValueError for an invalid `source`."""
    ranges: list[RangeRow] = []
    for row in batch.to_pylist():
        source = parse_source(row["source"])
        begin, end = tuple(row["begin"]), tuple(row["end"])
        ranges.append(
            RangeRow(
                source.partition,
                begin,
                end,
                is_part=source.is_part,
                estimated_messages=row.get("estimated_messages") or 0,
                estimated_bytes=row.get("estimated_bytes") or 0,
            )
        )
    return ranges


def divide_ranges(rows: Sequence[RangeRow], max_tasks: int) -> list[list[RangeRow]]:
    """Divide the ranges among at most `max_tasks` tasks with about equal work, and return the ranges of each task.

    Assigns the largest range first, always to the task with the least work so far. The result does not depend on the order of
    `rows`. Ranges without an estimate have equal weight. Either all ranges of a call should have estimated bytes or none, because
    the bytes of one range are compared with the messages of another as if they were the same unit.
    """
    tasks: list[list[RangeRow]] = [[] for _ in range(max(1, min(max_tasks, len(rows))))]
    weights = [0] * len(tasks)
    for row in sorted(rows, key=lambda row: (-_weight(row), format_source(row.partition), row[1:])):
        lightest = weights.index(min(weights))
        tasks[lightest].append(row)
        weights[lightest] += _weight(row)
    return [task for task in tasks if task]


def _weight(row: RangeRow) -> int:
    """Return the estimated work: the bytes of the range if they are known, else its messages, at least 1."""
    return max(1, row.estimated_bytes or row.estimated_messages)
