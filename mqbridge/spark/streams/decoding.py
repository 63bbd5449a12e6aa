"""Convert payloads to values, and values to payloads.

A record that cannot be decoded stays in the frame, with the reason in a column; `split` separates such records from the others.
"json" and "string" run in the JVM. With a custom function, the rows pass through Python once: about 1 to 2 million small records
per second and core, plus the time of the function itself.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import to_arrow_type
from pyspark.sql.types import BinaryType, DataType, StringType, StructField, StructType

from mqbridge.spark.schema import COLUMNS

CORRUPT_COLUMN = "_corrupt"
"""The column in which `from_json` stores the text of a record that it cannot parse."""
Deserializer = Callable[[bytes], Any]
"""Returns the value of a payload."""
Serializer = Callable[..., bytes | None]
"""Returns the payload for the values of the columns, in order; None for a null payload."""


def decode(
    frame: DataFrame,
    how: str | Deserializer,
    schema: DataType | str | None = None,
    *,
    column: str = "payload",
    into: str = "value",
    error: str = "error",
) -> DataFrame:
    """Decode the BINARY `column` into the column `into`, and add the STRING column `error`: the reason of a failure, else null.

    `how` is "json" (with a schema), "string" (UTF-8), or a function from bytes to a value of the type `schema`. If the function
    raises, or returns a value of another type, only that record gets an error. A null payload becomes a null value without an
    error.
    """
    if how == "string":
        text = F.expr(f"try_validate_utf8(CAST(`{column}` AS STRING))")
        failed = F.col(column).isNotNull() & text.isNull()
        return frame.withColumn(into, text).withColumn(error, F.when(failed, F.lit("not UTF-8")))
    if schema is None:
        raise ValueError("decode() needs the schema of the value, as a DataType or as text: schema='name string, age int'")
    kind = parse_type(schema)
    if how == "json":
        return _decode_json(frame, kind, column, into, error)
    if isinstance(how, str):
        raise ValueError(f"cannot decode {how!r}: use 'json', 'string' or a function of the payload")  # noqa: TRY004 - the value is wrong
    return _decode_with_function(frame, how, kind, column, into, error)


def split(frame: DataFrame, error: str = "error") -> tuple[DataFrame, DataFrame]:
    """Return two frames: the decoded rows without the column `error`, and the failed rows with it, for dead letters.

    On a stream, each of the two frames needs its own query, and each query reads the source.
    """
    return frame.where(F.col(error).isNull()).drop(error), frame.where(F.col(error).isNotNull())


def encode(
    frame: DataFrame,
    how: str | Serializer = "json",
    *,
    value: str | Sequence[str] | None = None,
    key: str | None = None,
) -> DataFrame:
    """Replace the columns `value` with a BINARY `payload`, and the column `key` with a BINARY `key`, as the sink expects them.

    By default `value` is every column except `key` and the columns that the sink knows. The result also has the sink's other
    columns, such as `topic`. All other columns are dropped; so is a column "key" if `key` is None. `how` is "json" (one
    object with these columns), "string" (a single column as text), or a function that receives the values of the columns in
    order. An exception in the function fails the query.
    """
    names = _value_columns(frame, value, key)
    sink_columns = [name for name in frame.columns if name in COLUMNS and name not in {*names, "payload", "key"}]
    keys = [] if key is None else [F.col(key).cast("string").cast("binary").alias("key")]
    if isinstance(how, str):
        return frame.select(_payload_column(how, names).alias("payload"), *keys, *sink_columns)
    values_first = frame.select(*[F.col(name).alias(f"value_{index}") for index, name in enumerate(names)], *keys, *sink_columns)
    return _encode_with_function(values_first, how, len(names))


def _decode_json(frame: DataFrame, kind: DataType, column: str, into: str, error: str) -> DataFrame:
    if not isinstance(kind, StructType):
        raise TypeError(f"'json' needs a struct as the schema, such as 'name string, age int', not {kind.simpleString()}")
    fields = StructType([*kind.fields, StructField(CORRUPT_COLUMN, StringType())])
    parsed = F.from_json(F.col(column).cast("string"), fields, {"columnNameOfCorruptRecord": CORRUPT_COLUMN})
    failed = F.col(column).isNotNull() & (F.col("__parsed").isNull() | F.col(f"__parsed.{CORRUPT_COLUMN}").isNotNull())
    value = F.struct(*[F.col(f"__parsed.`{field.name}`").alias(field.name) for field in kind.fields])
    return (
        frame.withColumn("__parsed", parsed)
        .withColumn(error, F.when(failed, F.lit("not JSON that matches the schema")))
        .withColumn(into, F.when(F.col(error).isNull() & F.col(column).isNotNull(), value))
        .select(*frame.columns, into, error)
    )


def _decode_with_function(
    frame: DataFrame, function: Deserializer, kind: DataType, column: str, into: str, error: str
) -> DataFrame:
    def decode_batches(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        arrow_type = to_arrow_type(kind, timezone="UTC")
        for batch in batches:
            values: list[Any] = []
            errors: list[str | None] = []
            for payload in batch.column(column).to_pylist():
                value, reason = (None, None) if payload is None else _call_deserializer(function, payload)
                values.append(value)
                errors.append(reason)
            columns = [*batch.columns, _to_array(values, errors, arrow_type), pa.array(errors, pa.string())]
            yield pa.RecordBatch.from_arrays(columns, names=[*batch.schema.names, into, error])

    schema = StructType([*frame.schema.fields, StructField(into, kind), StructField(error, StringType())])
    return frame.mapInArrow(decode_batches, schema)


def _call_deserializer(function: Deserializer, payload: bytes) -> tuple[Any, str | None]:
    """Return the value of a payload and None, or None and the reason why the function failed."""
    try:
        return function(payload), None
    except Exception as error:  # noqa: BLE001 - a user's function may raise anything
        return None, f"{type(error).__name__}: {error}"


def _to_array(values: list[Any], errors: list[str | None], kind: pa.DataType) -> pa.Array:
    """Return the values as an Arrow array. A value of the wrong type becomes null, and its reason is set in `errors`."""
    try:
        return pa.array(values, kind)
    except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError, TypeError, ValueError):
        for index, value in enumerate(values):
            try:
                pa.array([value], kind)
            except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError, TypeError, ValueError) as error:
                values[index], errors[index] = None, f"not a value of the schema: {error}"
        return pa.array(values, kind)


def _value_columns(frame: DataFrame, value: str | Sequence[str] | None, key: str | None) -> list[str]:
    """Return the names of the columns to encode. Raises ValueError if there are none."""
    if value is None:
        names = [name for name in frame.columns if name not in COLUMNS and name != key]
    else:
        names = [value] if isinstance(value, str) else list(value)
    if not names:
        raise ValueError("nothing to encode: name the columns with value=...; columns of the sink are not encoded by default")
    return names


def _payload_column(how: str, names: list[str]) -> Column:
    if how == "json":
        return F.to_json(F.struct(*names)).cast("binary")
    if how == "string" and len(names) == 1:
        return F.col(names[0]).cast("string").cast("binary")
    raise ValueError(
        f"cannot encode the columns {names} as {how!r}: use 'json', 'string' with one column, or a function of the values"
    )


def _encode_with_function(frame: DataFrame, function: Serializer, count: int) -> DataFrame:
    """Replace the first `count` columns with the payload that the function returns for their values."""

    def encode_batches(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            values = zip(*[column.to_pylist() for column in batch.columns[:count]], strict=True)
            payloads = pa.array([function(*row) for row in values], pa.binary())
            yield pa.RecordBatch.from_arrays([payloads, *batch.columns[count:]], names=["payload", *batch.schema.names[count:]])

    schema = StructType([StructField("payload", BinaryType()), *frame.schema.fields[count:]])
    return frame.mapInArrow(encode_batches, schema)


def parse_type(kind: DataType | str) -> DataType:
    """Return the Spark type. A text such as "double" or "name string, age int" is parsed."""
    return kind if isinstance(kind, DataType) else DataType.fromDDL(kind)
