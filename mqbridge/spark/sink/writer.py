"""Makes the writers of the data source."""

from collections.abc import Mapping

from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter
from pyspark.sql.types import StructType


def make_writer(options: Mapping[str, str], schema: StructType, overwrite: bool) -> DataSourceArrowWriter:  # noqa: FBT001
    """The writer of a batch write. `options` as Spark hands them over. Raises ConfigError."""
    raise NotImplementedError


def make_stream_writer(options: Mapping[str, str], schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:  # noqa: FBT001
    """The writer of a streaming query: made anew for each batch, and again for its commit. Raises ConfigError."""
    raise NotImplementedError
