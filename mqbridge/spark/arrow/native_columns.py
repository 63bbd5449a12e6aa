"""Columns of native messages: the compiled module writes the buffers, Arrow wraps them."""

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from mqbridge.message import Message
from mqbridge.native import compiled
from mqbridge.spark.arrow.arrays import INT32, TEXT


def native_columns(messages: Sequence[Message], schema: pa.Schema, *, binary_properties: bool) -> dict[str, pa.Array]:
    """The columns of native messages, of the types that the schema has."""
    assert compiled is not None  # noqa: S101 - there are no native messages without it
    columns: dict[str, Any] = compiled.message_columns(messages, binary_properties)
    return {name: _array(schema.field(name).type, len(messages), column) for name, column in columns.items()}


def _array(kind: pa.DataType, count: int, column: tuple[Any, ...]) -> pa.Array:
    """An array from buffers: (nulls, validity, ...), (offsets, items) of a list or (offsets, names, values) of a map."""
    if pa.types.is_map(kind):
        offsets, names, values = column
        return pa.MapArray.from_arrays(_offsets(offsets), _texts(names), _texts(values), type=kind)
    if pa.types.is_list(kind):
        offsets, items = column
        return pa.ListArray.from_arrays(_offsets(offsets), _array(kind.value_type, _last(offsets), items), type=kind)
    nulls, *buffers = column
    found = [pa.py_buffer(buffer) for buffer in buffers]
    return pa.Array.from_buffers(kind, count, found if nulls else [None, *found[1:]], nulls)


def _texts(column: tuple[Any, ...]) -> pa.Array:
    return _array(TEXT, len(column[2]) // 4 - 1, column)


def _offsets(data: bytes) -> pa.Array:
    return pa.Array.from_buffers(INT32, len(data) // 4, [None, pa.py_buffer(data)])


def _last(offsets: bytes) -> int:
    return int.from_bytes(offsets[-4:], "little")
