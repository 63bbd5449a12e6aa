"""Ranges as rows: what the source yields with `mode=ranges`, and what the pump reads.

A row says which part of which partition a task has to move. It has estimates of what is in there, so that tasks can be given
equal shares; nothing depends on them being right.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import ArrayType, DataType, IntegerType, LongType, StringType, StructField, StructType

from mqbridge.message import Partition, Position
from mqbridge.spark.schema import format_source, parse_source

RANGES = "ranges"
"""The value of the source's option `mode` with which it yields ranges; `rows` is the other."""

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
    """A part of a partition, from `begin` up to, not including, `end`. `is_part`: others of the same batch are beside it."""

    partition: Partition
    begin: Position
    end: Position
    is_part: bool = False
    estimated_messages: int = 0
    """0 where nobody knows."""
    estimated_bytes: int = 0
    """Likewise."""


def range_schema() -> StructType:
    """The source's schema with `mode=ranges`."""
    return StructType([StructField(name, kind, nullable=True) for name, kind in _TYPES.items()])


def is_range_schema(schema: StructType) -> bool:
    """Whether rows of this schema are ranges, for a writer that is given either."""
    return {"source", "begin", "end"} <= set(schema.fieldNames()) and "payload" not in schema.fieldNames()


def build_ranges(rows: Iterable[RangeRow]) -> pa.RecordBatch:
    """The ranges of one task as Spark takes them."""
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
    """The ranges of a record batch, whatever order its columns have. Raises ValueError for what is no range."""
    found: list[RangeRow] = []
    for row in batch.to_pylist():
        partition, is_part = parse_source(row["source"])
        begin, end = tuple(row["begin"]), tuple(row["end"])
        found.append(
            RangeRow(partition, begin, end, is_part, row.get("estimated_messages") or 0, row.get("estimated_bytes") or 0)
        )
    return found


def divide(rows: Sequence[RangeRow], tasks: int) -> list[list[RangeRow]]:
    """The ranges as at most so many tasks of about the same work: the largest first, each to the task that has least.

    The same ranges are divided in the same way every time. Where nobody estimated anything, each counts alike.
    """
    shares: list[list[RangeRow]] = [[] for _ in range(max(1, min(tasks, len(rows))))]
    weights = [0] * len(shares)
    for row in sorted(rows, key=lambda one: (-_weight(one), format_source(one.partition), one[1:])):
        least = weights.index(min(weights))
        shares[least].append(row)
        weights[least] += _weight(row)
    return [share for share in shares if share]


def _weight(row: RangeRow) -> int:
    return max(1, row.estimated_bytes or row.estimated_messages)
