"""Converts native messages (those that the compiled module holds) to Arrow columns and back.

The compiled module writes and reads the buffers that Arrow wraps.
"""

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from mqbridge.message import Message
from mqbridge.native import compiled
from mqbridge.spark.arrow.arrays import BINARY, INT32, TEXT


def native_columns(messages: Sequence[Message], schema: pa.Schema, *, binary_properties: bool) -> dict[str, pa.Array]:
    """Return the columns of native messages by name, with the types that the schema declares.

    `binary_properties`: all properties of a message are one byte string, otherwise a map. The schema must agree.
    """
    assert compiled is not None  # noqa: S101 - native messages exist only with the compiled module
    columns: dict[str, Any] = compiled.message_columns(messages, binary_properties)
    return {name: _wrap_column(schema.field(name).type, len(messages), column) for name, column in columns.items()}


def _wrap_column(arrow_type: pa.DataType, count: int, column: tuple[Any, ...]) -> pa.Array:
    """Return an array of `count` values over the buffers that the compiled module wrote for a column.

    `column` is (offsets, names, values) for a map, (offsets, items) for a list, else (null count, validity bitmap, other
    buffers...). Names, values and items are columns in turn. Offsets are 32-bit integers, one more than there are values.
    """
    if pa.types.is_map(arrow_type):
        offsets, names, values = column
        return pa.MapArray.from_arrays(_offsets_array(offsets), _text_array(names), _text_array(values), type=arrow_type)
    if pa.types.is_list(arrow_type):
        offsets, items = column
        item_array = _wrap_column(arrow_type.value_type, _last_offset(offsets), items)
        return pa.ListArray.from_arrays(_offsets_array(offsets), item_array, type=arrow_type)
    null_count, *memory = column
    buffers = [pa.py_buffer(part) for part in memory]
    return pa.Array.from_buffers(arrow_type, count, buffers if null_count else [None, *buffers[1:]], null_count)


def _text_array(column: tuple[Any, ...]) -> pa.Array:
    _, _, offsets, _ = column  # null count, validity bitmap, offsets, bytes of the texts
    return _wrap_column(TEXT, len(offsets) // 4 - 1, column)  # an offset has 4 bytes, and there is one more than texts


def _offsets_array(offsets: bytes) -> pa.Array:
    return pa.Array.from_buffers(INT32, len(offsets) // 4, [None, pa.py_buffer(offsets)])


def _last_offset(offsets: bytes) -> int:
    return int.from_bytes(offsets[-4:], "little")


# --- from columns to native messages ----------------------------------------------------------------------------------

_MS = pa.timestamp("ms", "UTC")


def native_messages(arrays: dict[str, pa.Array], count: int, *, keys_are_text: bool) -> Sequence[Message] | None:
    """Return the messages of `count` rows; None if the caller must read them with Python code.

    That is so without the compiled module, and if it cannot read a row, for example a text that is not UTF-8.

    `arrays` are the message columns by name. `keys_are_text`: whether a key is text, otherwise bytes, if its row has no value in
    the column `key_is_text`.
    """
    if compiled is None:
        return None
    columns: dict[str, Any] = {}
    for name, array in arrays.items():
        if name == "properties":
            is_map = pa.types.is_map(array.type)  # otherwise all properties of a row are one byte string
            columns["maps" if is_map else "blobs"] = _map_buffers(array) if is_map else _buffers(array)
        elif pa.types.is_list(array.type):
            columns[name] = (array.offset, _validity(array), _offset_bytes(array.offsets), _buffers(array.values))
        elif pa.types.is_timestamp(array.type):
            columns[name] = _buffers(array.cast(_MS, safe=False).cast(pa.int64()))
        else:
            columns[name] = _buffers(array)
    messages: Sequence[Message] | None = compiled.messages_of_columns(count, columns, keys_are_text)
    return messages


def _map_buffers(array: pa.Array) -> tuple[Any, ...]:
    """Return the index of the first row, the validity bitmap, the offsets, and the buffers of all names and of all values."""
    pairs = _buffers(array.keys.cast(BINARY)), _buffers(array.items.cast(BINARY))
    return array.offset, _validity(array), _offset_bytes(array.offsets), pairs


def _buffers(array: pa.Array) -> tuple[Any, ...]:
    """Return the index of the first row in the buffers, the validity bitmap (None without NULLs), and the other buffers."""
    return array.offset, _validity(array), *(b"" if buffer is None else buffer.to_pybytes() for buffer in array.buffers()[1:])


def _validity(array: pa.Array) -> bytes | None:
    """Return the validity bitmap of an array; None if the array has no NULL."""
    bitmap = array.buffers()[0] if array.null_count else None
    return None if bitmap is None else bitmap.to_pybytes()


def _offset_bytes(offsets: pa.Array) -> bytes:
    """Return the buffer of an array of 32-bit offsets; of a slice, only the bytes of the slice."""
    data: bytes = offsets.buffers()[1].slice(4 * offsets.offset, 4 * len(offsets)).to_pybytes()
    return data
