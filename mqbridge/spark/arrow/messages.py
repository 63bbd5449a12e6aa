"""From record batches back to messages."""

from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql.types import StructType

from mqbridge.message import Batch


@dataclass(frozen=True, slots=True)
class SourceRun:
    """Consecutive rows of one source partition.

    batch      their messages; of NOWHERE when the rows have no source or no position
    first_row  the row of the record batch that they begin at
    is_part    whether their task read only a part of the partition's range
    """

    batch: Batch
    first_row: int
    is_part: bool


class MessageReader:
    """Reads messages from record batches of one schema. Raises ConfigError for columns that cannot be read."""

    def __init__(self, schema: pa.Schema) -> None:
        raise NotImplementedError

    def runs(self, rows: pa.RecordBatch) -> list[SourceRun]:
        """The rows as batches, one per run of rows with the same `source`."""
        raise NotImplementedError


def check_columns(schema: StructType) -> None:
    """Raise ConfigError when rows of this schema cannot be written."""
    raise NotImplementedError


def batches_of(rows: pa.RecordBatch) -> list[Batch]:
    """The rows as batches, one per run of rows with the same `source`. Raises ConfigError for columns that cannot be read."""
    return [run.batch for run in MessageReader(rows.schema).runs(rows)]
