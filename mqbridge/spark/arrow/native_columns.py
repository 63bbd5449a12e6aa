"""Native messages as columns and back: the compiled module writes and reads the buffers that Arrow wraps."""

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from mqbridge.message import Message
from mqbridge.native import compiled
from mqbridge.spark.arrow.arrays import BINARY, INT32, TEXT


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


# --- and back ---------------------------------------------------------------------------------------------------------

_MS = pa.timestamp("ms", "UTC")


def native_messages(arrays: dict[str, pa.Array], count: int, *, text_key: bool) -> Sequence[Message] | None:
    """The messages of `count` rows; None for rows that only the plain code can read, or refuse, and without the module."""
    if compiled is None:
        return None
    columns: dict[str, Any] = {}
    for name, array in arrays.items():
        if name == "properties":
            is_map = pa.types.is_map(array.type)
            columns["maps" if is_map else "blobs"] = _map_buffers(array) if is_map else _buffers(array)
        elif pa.types.is_list(array.type):
            columns[name] = (array.offset, _validity(array), _offset_bytes(array.offsets), _buffers(array.values))
        elif pa.types.is_timestamp(array.type):
            columns[name] = _buffers(array.cast(_MS, safe=False).cast(pa.int64()))
        else:
            columns[name] = _buffers(array)
    messages: Sequence[Message] | None = compiled.messages_of_columns(count, columns, text_key)
    return messages


def _map_buffers(array: pa.Array) -> tuple[Any, ...]:
    pairs = _buffers(array.keys.cast(BINARY)), _buffers(array.items.cast(BINARY))
    return array.offset, _validity(array), _offset_bytes(array.offsets), pairs


def _buffers(array: pa.Array) -> tuple[Any, ...]:
    """Index of the first row in the buffers, validity, and the other buffers."""
    return array.offset, _validity(array), *(b"" if buffer is None else buffer.to_pybytes() for buffer in array.buffers()[1:])


def _validity(array: pa.Array) -> bytes | None:
    bits = array.buffers()[0] if array.null_count else None
    return None if bits is None else bits.to_pybytes()


def _offset_bytes(offsets: pa.Array) -> bytes:
    data: bytes = offsets.buffers()[1].slice(4 * offsets.offset, 4 * len(offsets)).to_pybytes()
    return data
