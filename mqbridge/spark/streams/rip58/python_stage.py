"""Apply Python functions to the elements of a stream. Consecutive functions share one pass of the rows through Python."""

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
    """One pass of rows through Python: the reader, the steps, the writer.

    With `skip_errors` a row whose functions fail yields nothing, and the failure is logged. Without it, the failure ends the
    query. With `only_errors` the pass yields the payload and the reason of each row that fails, for dead letters, and no other
    rows.
    """

    reader: Reader
    steps: tuple[Step, ...]
    writer: Writer
    skip_errors: bool
    only_errors: bool = False

    def over(self, frame: DataFrame) -> DataFrame:
        """Return the rows of the frame after this pass. The metadata of `event_time`, with its watermark if any, is kept."""
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
        """Return the rows that one row yields. Exceptions of the functions are not caught."""
        element = self.reader.read(row)
        elements = [] if element is None else [element]
        for step in self.steps:
            elements = [result for element in elements for result in step(element)]
        return list(map(self.writer.write, elements))


@dataclass(frozen=True)
class Runner:
    """The function that `mapInArrow` calls in Spark's Python workers."""

    work: Pass
    schema: StructType

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Run the pass over batches of rows."""
        schema = to_arrow_schema(self.schema, timezone="UTC")
        for batch in batches:
            rows: list[tuple[Any, ...]] = []
            failed = 0
            for row in zip(*[column.to_pylist() for column in batch.columns], strict=True):
                try:
                    results = self.work.rows(row)
                except Exception as error:
                    if not self.work.skip_errors:
                        raise
                    results, failed = [], failed + 1
                    if self.work.only_errors:
                        rows.append((row[0], f"{type(error).__name__}: {error}", row[-1]))
                    elif failed == 1:
                        LOG.warning("a function failed: skipping this and other failing records of the batch", exc_info=True)
                if not self.work.only_errors:
                    rows.extend(results)
            if failed and not self.work.only_errors:
                LOG.warning("skipped %d of %d records of a batch", failed, batch.num_rows)
            columns = zip(*rows, strict=True) if rows else [()] * len(schema)
            arrays = [pa.array(values, kind) for values, kind in zip(columns, schema.types, strict=True)]
            yield pa.RecordBatch.from_arrays(arrays, schema=schema)
