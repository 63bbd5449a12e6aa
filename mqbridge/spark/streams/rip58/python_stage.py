"""Python functions over the elements of a stream: as many as follow each other are one pass of the rows through Python."""

import logging
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import BinaryType, StringType, StructField, StructType, TimestampType

from mqbridge.spark.streams.rip58.rows import Element, Reader, Writer

LOG = logging.getLogger(__name__)

Step = Callable[[Element], Iterable[Element]]


@dataclass(frozen=True)
class Pass:
    """One pass of rows through Python: read, then the steps, then write.

    `skip_errors`: a row whose functions fail yields nothing, and is logged; else the failure ends the query. `only_errors`: the
    other half, for dead letters: payload and reason of each row that fails.
    """

    reader: Reader
    steps: tuple[Step, ...]
    writer: Writer
    skip_errors: bool
    only_errors: bool = False

    def over(self, frame: DataFrame) -> DataFrame:
        """The frame's rows, passed. The watermark of `event_time`, if there is one, stays."""
        columns: list[Column] = [F.col(name) for name in self.reader.columns]
        time = frame.schema["event_time"]
        fields = {"payload": BinaryType(), "error": StringType()} if self.only_errors else self.writer.fields
        schema = StructType(
            [
                *[StructField(name, kind) for name, kind in fields.items()],
                StructField("event_time", TimestampType(), metadata=time.metadata),
            ]
        )
        return frame.select(*columns, F.unix_micros("event_time").alias("event_time")).mapInArrow(Runner(self, schema), schema)

    def rows(self, row: tuple[Any, ...]) -> list[tuple[Any, ...]]:
        """What one row yields. Raises whatever the functions raise."""
        first = self.reader.read(row)
        elements = [] if first is None else [first]
        for step in self.steps:
            elements = [out for element in elements for out in step(element)]
        return list(map(self.writer.write, elements))


@dataclass(frozen=True)
class Runner:
    """The function that Spark's workers call."""

    work: Pass
    schema: StructType

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """One batch of rows after the other."""
        schema = to_arrow_schema(self.schema, timezone="UTC")
        for batch in batches:
            rows: list[tuple[Any, ...]] = []
            failed = 0
            for row in zip(*[column.to_pylist() for column in batch.columns], strict=True):
                try:
                    passed = self.work.rows(row)
                except Exception as error:
                    if not self.work.skip_errors:
                        raise
                    passed, failed = [], failed + 1
                    if self.work.only_errors:
                        rows.append((row[0], f"{type(error).__name__}: {error}", row[-1]))
                    elif failed == 1:
                        LOG.warning("a record is skipped, as all are that fail like it", exc_info=True)
                if not self.work.only_errors:
                    rows.extend(passed)
            if failed and not self.work.only_errors:
                LOG.warning("%d of %d records skipped", failed, batch.num_rows)
            columns = zip(*rows, strict=True) if rows else [()] * len(schema)
            arrays = [pa.array(values, kind) for values, kind in zip(columns, schema.types, strict=True)]
            yield pa.RecordBatch.from_arrays(arrays, schema=schema)
