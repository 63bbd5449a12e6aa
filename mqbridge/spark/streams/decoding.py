"""Payloads to values and back. A record that cannot be read is kept, with the reason in a column; `split` parts it from others.

`json` and `string` stay in the JVM. A function of one's own is one pass of the rows through Python (about 1 to 2 million small
records per second and core, and what the function itself costs).
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import to_arrow_type
from pyspark.sql.types import BinaryType, DataType, StringType, StructField, StructType

from mqbridge.spark.schema import COLUMNS

CORRUPT = "_corrupt"
Deserializer = Callable[[bytes], Any]
Serializer = Callable[..., bytes | None]


def decode(
    frame: DataFrame,
    how: str | Deserializer,
    schema: DataType | str | None = None,
    *,
    column: str = "payload",
    into: str = "value",
    error: str = "error",
) -> DataFrame:
    """Add the column `into`, read from the BINARY `column`, and the STRING `error`: null, or why it could not be read.

    `how` is "json" (with a schema), "string" (UTF-8), or a function from bytes to a value of `schema`; a function that raises, or
    whose value is not of that type, spoils its own record only. A null payload becomes a null value, without error.
    """
    if how == "string":
        text = F.expr(f"try_validate_utf8(CAST(`{column}` AS STRING))")
        failed = F.col(column).isNotNull() & text.isNull()
        return frame.withColumn(into, text).withColumn(error, F.when(failed, F.lit("not UTF-8")))
    if schema is None:
        raise ValueError("decoding needs the schema of the value, as a type or as text: schema='name string, age int'")
    kind = parse_type(schema)
    if how == "json":
        return _decode_json(frame, kind, column, into, error)
    if isinstance(how, str):
        raise ValueError(f"cannot decode {how!r}: use 'json', 'string' or a function of the payload")  # noqa: TRY004 - the value is wrong
    return _decode_with(frame, how, kind, column, into, error)


def split(frame: DataFrame, error: str = "error") -> tuple[DataFrame, DataFrame]:
    """The readable rows, without the column `error`, and the others with it: for dead letters.

    On a stream each of the two is a query of its own, and reads the source for itself.
    """
    return frame.where(F.col(error).isNull()).drop(error), frame.where(F.col(error).isNotNull())


def encode(
    frame: DataFrame,
    how: str | Serializer = "json",
    *,
    value: str | Sequence[str] | None = None,
    key: str | None = None,
) -> DataFrame:
    """Replace the columns `value` by a BINARY `payload`, and the column `key` by a BINARY `key`, as the sink takes them.

    `value` without a name is every column that is not one of the sink's own. "json": an object of these columns; "string": the
    one column as text; a function gets the values of the columns, in order. What it raises fails the query: the data is our own.
    """
    names = _value_columns(frame, value, key)
    kept = [name for name in frame.columns if name in COLUMNS and name not in {*names, "payload", "key"}]
    keys = [] if key is None else [F.col(key).cast("string").cast("binary").alias("key")]
    if isinstance(how, str):
        return frame.select(_payload(how, names).alias("payload"), *keys, *kept)
    prepared = frame.select(*[F.col(name).alias(f"value_{index}") for index, name in enumerate(names)], *keys, *kept)
    return _encode_with(prepared, how, len(names))


def _decode_json(frame: DataFrame, kind: DataType, column: str, into: str, error: str) -> DataFrame:
    if not isinstance(kind, StructType):
        raise TypeError("JSON payloads are objects: the schema is a struct, such as 'name string, age int'")
    fields = StructType([*kind.fields, StructField(CORRUPT, StringType())])
    parsed = F.from_json(F.col(column).cast("string"), fields, {"columnNameOfCorruptRecord": CORRUPT})
    failed = F.col(column).isNotNull() & (F.col("__parsed").isNull() | F.col(f"__parsed.{CORRUPT}").isNotNull())
    whole = F.struct(*[F.col(f"__parsed.`{field.name}`").alias(field.name) for field in kind.fields])
    return (
        frame.withColumn("__parsed", parsed)
        .withColumn(error, F.when(failed, F.lit("not JSON of the schema")))
        .withColumn(into, F.when(F.col(error).isNull() & F.col(column).isNotNull(), whole))
        .select(*frame.columns, into, error)
    )


def _decode_with(frame: DataFrame, function: Deserializer, kind: DataType, column: str, into: str, error: str) -> DataFrame:
    def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        arrow_type = to_arrow_type(kind, timezone="UTC")
        for batch in batches:
            values: list[Any] = []
            errors: list[str | None] = []
            for payload in batch.column(column).to_pylist():
                value, reason = (None, None) if payload is None else _attempt(function, payload)
                values.append(value)
                errors.append(reason)
            columns = [*batch.columns, _to_array(values, errors, arrow_type), pa.array(errors, pa.string())]
            yield pa.RecordBatch.from_arrays(columns, names=[*batch.schema.names, into, error])

    schema = StructType([*frame.schema.fields, StructField(into, kind), StructField(error, StringType())])
    return frame.mapInArrow(run, schema)


def _attempt(function: Deserializer, payload: bytes) -> tuple[Any, str | None]:
    try:
        return function(payload), None
    except Exception as error:  # noqa: BLE001 - of a function that is not ours
        return None, f"{type(error).__name__}: {error}"


def _to_array(values: list[Any], errors: list[str | None], kind: pa.DataType) -> pa.Array:
    """The values as a column; those of a wrong type become null, with their reason in `errors`."""
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
    if value is None:
        names = [name for name in frame.columns if name not in COLUMNS and name != key]
    else:
        names = [value] if isinstance(value, str) else list(value)
    if not names:
        raise ValueError("nothing to encode: name the columns of the value")
    return names


def _payload(how: str, names: list[str]) -> Column:
    if how == "json":
        return F.to_json(F.struct(*names)).cast("binary")
    if how == "string" and len(names) == 1:
        return F.col(names[0]).cast("string").cast("binary")
    raise ValueError(f"cannot encode {how!r} from {names}: use 'json', 'string' with one column, or a function of their values")


def _encode_with(frame: DataFrame, function: Serializer, count: int) -> DataFrame:
    def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            values = zip(*[column.to_pylist() for column in batch.columns[:count]], strict=True)
            payloads = pa.array([function(*row) for row in values], pa.binary())
            yield pa.RecordBatch.from_arrays([payloads, *batch.columns[count:]], names=["payload", *batch.schema.names[count:]])

    schema = StructType([StructField("payload", BinaryType()), *frame.schema.fields[count:]])
    return frame.mapInArrow(run, schema)


def parse_type(kind: DataType | str) -> DataType:
    """A type as it is, or of its text: "double", "name string, age int"."""
    return kind if isinstance(kind, DataType) else DataType.fromDDL(kind)
