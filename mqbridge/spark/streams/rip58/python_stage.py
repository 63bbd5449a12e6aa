"""Passes, which apply Python functions to the rows of a stream. Consecutive functions share one pass."""

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
"""Applies one operator to an element, and returns the elements that replace it."""


@dataclass(frozen=True)
class Pass:
    """One pass of rows through Python: the reader, the steps, the writer.

    With `skip_errors` a row whose functions fail yields nothing, and the failure is logged. Without it, the failure ends the
    query. With `only_errors`, which needs `skip_errors`, the pass yields only the payload, the reason and the event time of each
    row that fails, for dead letters.
    """

    reader: Reader
    steps: tuple[Step, ...]
    writer: Writer
    skip_errors: bool
    only_errors: bool = False

    def apply_to(self, frame: DataFrame) -> DataFrame:
        """Return the rows of the frame after this pass. The metadata of `event_time` is kept, and with it the watermark."""
        columns: list[Column] = [F.col(name) for name in self.reader.columns]
        time = frame.schema["event_time"]
        fields = {"payload": BinaryType(), "error": StringType()} if self.only_errors else self.writer.fields
        schema = StructType(
            [
                *[StructField(name, kind) for name, kind in fields.items()],
                StructField("event_time", TimestampType(), metadata=time.metadata),
            ]
        )
        return frame.select(*columns, F.unix_micros("event_time").alias("event_time")).mapInArrow(
            PassRunner(self, schema), schema
        )

    def process_row(self, row: tuple[Any, ...]) -> list[tuple[Any, ...]]:
        """Return the rows that the pass yields for one row. Raises the exceptions of the functions."""
        element = self.reader.read(row)
        elements = [] if element is None else [element]  # None: the reader leaves the row out
        for step in self.steps:
            elements = [result for element in elements for result in step(element)]
        return list(map(self.writer.write, elements))


@dataclass(frozen=True)
class PassRunner:
    """The function that `mapInArrow` calls in Spark's Python workers to run a pass."""

    python_pass: Pass
    schema: StructType

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the rows of the pass for each batch of rows."""
        schema = to_arrow_schema(self.schema, timezone="UTC")
        for batch in batches:
            rows: list[tuple[Any, ...]] = []
            failed_count = 0
            for row in zip(*[column.to_pylist() for column in batch.columns], strict=True):
                try:
                    results = self.python_pass.process_row(row)
                except Exception as error:
                    if not self.python_pass.skip_errors:
                        raise
                    results, failed_count = [], failed_count + 1
                    if self.python_pass.only_errors:
                        payload, event_time = (
                            row[0],
                            row[-1],
                        )  # only sources have dead letters, and `payload` is their first column
                        rows.append((payload, f"{type(error).__name__}: {error}", event_time))
                    elif failed_count == 1:
                        LOG.warning(
                            "a function failed, its record is skipped; more failures in this batch are only counted",
                            exc_info=True,
                        )
                if not self.python_pass.only_errors:
                    rows.extend(results)
            if failed_count and not self.python_pass.only_errors:
                LOG.warning("skipped %d of %d records of a batch", failed_count, batch.num_rows)
            columns = zip(*rows, strict=True) if rows else [()] * len(schema)  # an empty batch has empty columns
            arrays = [pa.array(values, kind) for values, kind in zip(columns, schema.types, strict=True)]
            yield pa.RecordBatch.from_arrays(arrays, schema=schema)
