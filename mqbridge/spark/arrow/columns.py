"""The columns that can be written, and the types that each may have."""

from collections.abc import Callable
from dataclasses import dataclass

import pyarrow as pa
from pyarrow import types
from pyspark.sql.pandas.types import from_arrow_type, to_arrow_schema
from pyspark.sql.types import StructType

from mqbridge.errors import ConfigError
from mqbridge.spark.arrow.arrays import BINARY, TEXT, TIME


def _is_text(kind: pa.DataType) -> bool:
    return bool(types.is_string(kind) or types.is_large_string(kind))


def _is_bytes(kind: pa.DataType) -> bool:
    return types.is_binary(kind) or types.is_large_binary(kind) or _is_text(kind)


def _is_list_of(kind: pa.DataType, is_item: Callable[[pa.DataType], bool]) -> bool:
    return (types.is_list(kind) or types.is_large_list(kind)) and is_item(kind.value_type)


def _is_properties(kind: pa.DataType) -> bool:
    if types.is_map(kind):
        return _is_text(kind.key_type) and _is_text(kind.item_type)
    return bool(types.is_binary(kind) or types.is_large_binary(kind))


@dataclass(frozen=True, slots=True)
class _Kind:
    """What a column may be: `needs` says it in Spark's words; it is read as the type `canonical`."""

    needs: str
    accepts: Callable[[pa.DataType], bool]
    canonical: pa.DataType


_BYTES = _Kind("BINARY or STRING", _is_bytes, BINARY)
_TEXT = _Kind("STRING", _is_text, TEXT)
_TIME = _Kind("TIMESTAMP", types.is_timestamp, TIME)
_INT = _Kind("INT", types.is_integer, pa.int64())

_KINDS = {
    "payload": _BYTES,
    "key": _BYTES,
    "key_is_text": _Kind("BOOLEAN", types.is_boolean, pa.bool_()),
    "ordering_key": _BYTES,
    "keys": _Kind("ARRAY<STRING>", lambda kind: _is_list_of(kind, _is_text), pa.list_(TEXT)),
    "msg_type": _TEXT,
    "attributes": _BYTES,
    "properties": _Kind("MAP<STRING, STRING> or BINARY", _is_properties, BINARY),
    "event_time": _TIME,
    "publish_time": _TIME,
    "deliver_at": _TIME,
    "delivery_count": _INT,
    "topic": _TEXT,
    "partition": _INT,
    "position": _Kind("ARRAY<BIGINT>", lambda kind: _is_list_of(kind, types.is_integer), pa.list_(pa.int64())),
    "source": _TEXT,
    "origin": _TEXT,
    "hops": _INT,
    "defect": _TEXT,
}

PAYLOAD, KAFKA_PAYLOAD = "payload", "value"
"""The one column that must be there; Kafka's name for it is understood too."""


class Columns:
    """Where the columns of messages are in rows of a schema. Raises ConfigError for a schema without payload or with wrong types.

    Columns that no message has are left alone, and so are those without a type (`lit(None)`).
    """

    def __init__(self, schema: pa.Schema) -> None:
        names = schema.names
        if PAYLOAD in names and KAFKA_PAYLOAD in names:
            raise ConfigError(f"both {PAYLOAD!r} and {KAFKA_PAYLOAD!r} are columns", hint=f"Drop {KAFKA_PAYLOAD!r}, or rename it")
        self.text_key = "key" in names and _is_text(schema.field("key").type)
        """Whether a key is text where `key_is_text` does not say it."""
        self._indexes = {}
        for index, field in enumerate(schema):
            name = PAYLOAD if field.name == KAFKA_PAYLOAD else field.name
            if (kind := _KINDS.get(name)) is None:
                continue
            if not types.is_null(field.type):
                if not kind.accepts(field.type):
                    raise ConfigError(f"column {field.name!r} is {_spark_name(field.type)}, but {kind.needs} is needed")
                self._indexes[name] = index
            elif name == PAYLOAD:
                raise ConfigError(f"column {field.name!r} has no type, but {kind.needs} is needed", hint="Cast it")
        if PAYLOAD not in self._indexes:
            raise ConfigError(
                f"there is no column {PAYLOAD!r} to write, only {', '.join(names) or 'none at all'}",
                hint=f"Name the column with the message's bytes or text {PAYLOAD!r} (or {KAFKA_PAYLOAD!r})",
            )

    def arrays(self, rows: pa.RecordBatch) -> dict[str, pa.Array]:
        """The columns that are there by name, each of one type: maps or binary for the properties."""
        return {name: _canonical(rows.column(index), name) for name, index in self._indexes.items()}


def check_columns(schema: StructType) -> None:
    """Raise ConfigError when rows of this schema cannot be written."""
    Columns(to_arrow_schema(schema, timezone="UTC"))


def _canonical(array: pa.Array, name: str) -> pa.Array:
    kind = _KINDS[name].canonical
    return array if array.type == kind or types.is_map(array.type) else array.cast(kind)


def _spark_name(kind: pa.DataType) -> str:
    try:
        return str(from_arrow_type(kind).simpleString()).upper()
    except Exception:  # noqa: BLE001 - a type that Spark has no name for
        return str(kind)
