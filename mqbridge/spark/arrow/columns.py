"""The columns of a DataFrame that mqbridge's Spark sink can write, and the types that each column may have."""

from collections.abc import Callable
from dataclasses import dataclass

import pyarrow as pa
from pyarrow import types
from pyspark.sql.pandas.types import from_arrow_type, to_arrow_schema
from pyspark.sql.types import StructType

from mqbridge.errors import ConfigError
from mqbridge.spark.arrow.arrays import BINARY, TEXT, TIME


def _is_text(arrow_type: pa.DataType) -> bool:
    return bool(types.is_string(arrow_type) or types.is_large_string(arrow_type))


def _is_bytes_or_text(arrow_type: pa.DataType) -> bool:
    return types.is_binary(arrow_type) or types.is_large_binary(arrow_type) or _is_text(arrow_type)


def _is_list_of(arrow_type: pa.DataType, is_item: Callable[[pa.DataType], bool]) -> bool:
    return (types.is_list(arrow_type) or types.is_large_list(arrow_type)) and is_item(arrow_type.value_type)


def _is_properties(arrow_type: pa.DataType) -> bool:
    """Return True for a map of texts, and for bytes: properties encoded as one blob (`property_blob.py`)."""
    if types.is_map(arrow_type):
        return _is_text(arrow_type.key_type) and _is_text(arrow_type.item_type)
    return bool(types.is_binary(arrow_type) or types.is_large_binary(arrow_type))


@dataclass(frozen=True, slots=True)
class _ColumnType:
    """The types that a column may have.

    spark_types  the accepted types in Spark's notation, for errors
    accepts      returns True for an Arrow type that the column may have
    canonical    the Arrow type to which the column is cast before it is read, unless it is a map
    """

    spark_types: str
    accepts: Callable[[pa.DataType], bool]
    canonical: pa.DataType


_BYTES = _ColumnType("BINARY or STRING", _is_bytes_or_text, BINARY)
_TEXT = _ColumnType("STRING", _is_text, TEXT)
_TIME = _ColumnType("TIMESTAMP", types.is_timestamp, TIME)
_INT = _ColumnType("INT", types.is_integer, pa.int64())

_COLUMN_TYPES = {
    "payload": _BYTES,
    "key": _BYTES,
    "key_is_text": _ColumnType("BOOLEAN", types.is_boolean, pa.bool_()),
    "ordering_key": _BYTES,
    "keys": _ColumnType("ARRAY<STRING>", lambda arrow_type: _is_list_of(arrow_type, _is_text), pa.list_(TEXT)),
    "msg_type": _TEXT,
    "attributes": _BYTES,
    "properties": _ColumnType("MAP<STRING, STRING> or BINARY", _is_properties, BINARY),
    "event_time": _TIME,
    "publish_time": _TIME,
    "deliver_at": _TIME,
    "delivery_count": _INT,
    "topic": _TEXT,
    "partition": _INT,
    "position": _ColumnType("ARRAY<BIGINT>", lambda arrow_type: _is_list_of(arrow_type, types.is_integer), pa.list_(pa.int64())),
    "source": _TEXT,
    "origin": _TEXT,
    "hops": _INT,
    "defect": _TEXT,
}

PAYLOAD, KAFKA_PAYLOAD = "payload", "value"
"""The one required column, and its name in Spark's Kafka sink, which is accepted too."""


class MessageColumns:
    """Finds the message columns in rows of one schema. Raises ConfigError for a schema without payload or with wrong types.

    Columns with other names are ignored, and columns without a type (`lit(None)`) are treated as missing.
    """

    def __init__(self, schema: pa.Schema) -> None:
        names = schema.names
        if PAYLOAD in names and KAFKA_PAYLOAD in names:
            raise ConfigError(f"both {PAYLOAD!r} and {KAFKA_PAYLOAD!r} are columns", hint=f"Drop {KAFKA_PAYLOAD!r}, or rename it")
        self.is_key_text_by_default = "key" in names and _is_text(schema.field("key").type)
        """True if keys are text, False if they are bytes, in rows without a value in the column `key_is_text`."""
        self._indexes = {}
        """The index of each message column in the rows."""
        for index, field in enumerate(schema):
            name = PAYLOAD if field.name == KAFKA_PAYLOAD else field.name
            if (column_type := _COLUMN_TYPES.get(name)) is None:
                continue
            needed = f"but {column_type.spark_types} is needed"
            if not types.is_null(field.type):
                if not column_type.accepts(field.type):
                    raise ConfigError(f"column {field.name!r} is {_spark_name(field.type)}, {needed}")
                self._indexes[name] = index
            elif name == PAYLOAD:
                raise ConfigError(f"column {field.name!r} has no type, {needed}", hint=f"Cast {field.name!r} to such a type")
        if PAYLOAD not in self._indexes:
            raise ConfigError(
                f"there is no column {PAYLOAD!r} to write; the columns are: {', '.join(names) or '(none)'}",
                hint=f"Name the column with the message's bytes or text {PAYLOAD!r} (or {KAFKA_PAYLOAD!r})",
            )

    def arrays(self, rows: pa.RecordBatch) -> dict[str, pa.Array]:
        """Return the message columns by name, cast to their canonical types. Properties remain maps if they are maps."""
        return {name: _cast_to_canonical(rows.column(index), name) for name, index in self._indexes.items()}


def check_columns(schema: StructType) -> None:
    """Raise ConfigError if rows of this schema cannot be written."""
    MessageColumns(to_arrow_schema(schema, timezone="UTC"))


def _cast_to_canonical(array: pa.Array, name: str) -> pa.Array:
    canonical = _COLUMN_TYPES[name].canonical
    return array if array.type == canonical or types.is_map(array.type) else array.cast(canonical)


def _spark_name(arrow_type: pa.DataType) -> str:
    try:
        return str(from_arrow_type(arrow_type).simpleString()).upper()
    except Exception:  # noqa: BLE001 - Spark has no name for this type
        return str(arrow_type)
