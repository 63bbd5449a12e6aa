"""Streams of known rows for tests.

Each call of `Feed.add` writes one file, which is one micro-batch. Results are stored per batch, so a repeated batch counts once.
"""

from __future__ import annotations

import os
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

from tests.kit.spark import run_available

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

EPOCH = datetime(2024, 1, 1, tzinfo=UTC)
MESSAGE_SCHEMA = pa.schema([("payload", pa.binary()), ("event_time", pa.timestamp("us", "UTC"))])
ROW_SCHEMA = pa.schema([("word", pa.string()), ("number", pa.int64()), ("event_time", pa.timestamp("us", "UTC"))])


def at(seconds: float) -> datetime:
    """Return the time that is this many seconds after EPOCH. All tumbling and sliding windows are aligned with EPOCH."""
    return EPOCH + timedelta(seconds=seconds)


def seconds(moment: datetime) -> float:
    """Return the seconds from EPOCH to a time. The inverse of `at`."""
    return (moment.replace(tzinfo=moment.tzinfo or UTC) - EPOCH).total_seconds()


class Feed:
    """A folder of files, which a stream reads one by one in the order of their creation."""

    def __init__(self, folder: Path, schema: pa.Schema = ROW_SCHEMA) -> None:
        self.folder = folder
        folder.mkdir(parents=True)
        self._schema = schema
        self._count = 0
        self._first_modified_at = time.time() - 3600

    def add(self, *rows: tuple[Any, ...]) -> None:
        """Write one batch of rows. Columns are in the order of the schema; times are in seconds after EPOCH."""
        columns = [list(values) for values in zip(*rows, strict=True)] if rows else [[] for _ in self._schema]
        columns[-1] = [at(value) for value in columns[-1]]
        table = pa.table(
            [pa.array(values, kind) for values, kind in zip(columns, self._schema.types, strict=True)], schema=self._schema
        )
        draft = self.folder / f"_{self._count:03}"
        pq.write_table(table, draft)
        os.utime(draft, (self._first_modified_at + self._count,) * 2)  # Spark reads the oldest file first: make them 1 s apart
        draft.rename(self.folder / f"{self._count:03}.parquet")
        self._count += 1

    def stream(self, spark: SparkSession) -> DataFrame:
        """Return a stream that reads the files."""
        kinds = {"string": "STRING", "int64": "BIGINT", "binary": "BINARY", "timestamp[us, tz=UTC]": "TIMESTAMP"}
        ddl = ", ".join(f"{field.name} {kinds[str(field.type)]}" for field in self._schema)
        return spark.readStream.schema(ddl).option("maxFilesPerTrigger", 1).parquet(str(self.folder))


class Results:
    """Runs a query, and records its result rows per batch. Use the same object after a restart of the query."""

    def __init__(self, folder: Path) -> None:
        self._checkpoint = folder / "checkpoint"
        self._batches: dict[int, list[Any]] = {}

    def run(self, frame: DataFrame, mode: str = "append") -> list[dict[str, Any]]:
        """Run the query over the available input, and return its progress reports. A later call resumes from the checkpoint."""

        def record_batch(rows: DataFrame, batch: int) -> None:
            self._batches[batch] = rows.collect()

        return run_available(frame.writeStream.outputMode(mode).foreachBatch(record_batch), self._checkpoint)

    def rows(self, *names: str) -> list[tuple[Any, ...]]:
        """Return these columns of all rows, in the order of the batches. Times are in seconds after EPOCH."""
        return [tuple(to_plain(row[name]) for name in names) for batch in sorted(self._batches) for row in self._batches[batch]]


def to_plain(value: Any) -> Any:
    """Convert times to seconds after EPOCH, and rows to tuples."""
    if isinstance(value, datetime):
        return seconds(value)
    return tuple(to_plain(item) for item in value) if isinstance(value, tuple) else value
