"""Spark functions for the columns of messages."""

from collections.abc import Iterable

import pyarrow as pa
from pyspark.sql import Column
from pyspark.sql.functions import col
from pyspark.sql.pandas.functions import arrow_udf
from pyspark.sql.types import MapType, StringType

from mqbridge.message import Pair
from mqbridge.spark.property_blob import decode_pairs

_MAP = pa.map_(pa.string(), pa.string())


def properties_of(column: Column | str) -> Column:
    """Convert a column of binary properties to `MAP<STRING, STRING>`. A repeated name keeps its first value.

    Reads with `propertiesFormat=binary` yield such a column. To call the function in SQL, first call
    `spark.udf.register("properties_of", mqbridge.spark.functions.properties_udf)`.
    """
    decoded: Column = properties_udf(col(column) if isinstance(column, str) else column)
    return decoded.alias("properties")


def _decode(blobs: pa.Array) -> pa.Array:
    return pa.array([None if blob is None else _drop_repeated_names(decode_pairs(blob)) for blob in blobs.to_pylist()], _MAP)


def _drop_repeated_names(pairs: Iterable[Pair]) -> list[Pair]:
    """Keep the first value of each name, because a Spark map has each key once."""
    unique: dict[str, str] = {}
    for name, value in pairs:
        unique.setdefault(name, value)
    return list(unique.items())


properties_udf = arrow_udf(_decode, MapType(StringType(), StringType()))  # type: ignore[call-overload]  # the stubs lack this overload
"""Converts binary properties to a map: NULL stays NULL, and a repeated name keeps its first value."""
