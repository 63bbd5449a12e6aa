"""Functions for columns of messages."""

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
    """A column of binary properties as `MAP<STRING, STRING>`; of a repeated name the first value.

    For reads with `propertiesFormat=binary`. In SQL after
    `spark.udf.register("properties_of", mqbridge.spark.functions.properties_udf)`.
    """
    found: Column = properties_udf(col(column) if isinstance(column, str) else column)
    return found.alias("properties")


def _decode(blobs: pa.Array) -> pa.Array:
    return pa.array([None if blob is None else _first(decode_pairs(blob)) for blob in blobs.to_pylist()], _MAP)


def _first(pairs: Iterable[Pair]) -> list[Pair]:
    """Maps of Spark have each name once."""
    found: dict[str, str] = {}
    for name, value in pairs:
        found.setdefault(name, value)
    return list(found.items())


properties_udf = arrow_udf(_decode, MapType(StringType(), StringType()))  # type: ignore[call-overload]  # the hints say what it is
