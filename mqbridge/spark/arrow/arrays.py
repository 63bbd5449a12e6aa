"""Arrow arrays built from lists of Python values, one function per column type.

Each function makes one Arrow call. If Arrow raises, the function converts the values that Arrow rejects, which is slower:

- lone surrogates are encoded as if they were characters
- times out of range become NULL, as Spark's own functions do without ANSI mode; any other time would be a wrong one
- counters out of range become the largest that fits
"""

from collections.abc import Iterable, Sequence
from itertools import accumulate, chain

import pyarrow as pa

from mqbridge.message import Message

TEXT, BINARY, INT32 = pa.string(), pa.binary(), pa.int32()
MAP = pa.map_(TEXT, TEXT)
TIME = pa.timestamp("us", "UTC")
_MS = pa.timestamp("ms", "UTC")
_MIN_MS, _MAX_MS = -((1 << 63) // 1000), ((1 << 63) - 1) // 1000
"""The first and the last time (ms since the epoch) that fit into TIME, which counts microseconds in 64 bits."""
_MAX_INT32 = (1 << 31) - 1


def text_array(texts: Sequence[str | bytes | None]) -> pa.Array:
    """Return texts, or bytes in UTF-8, as an array of strings."""
    try:
        return pa.array(texts, TEXT)
    except UnicodeEncodeError:
        return _as_strings(pa.array(list(map(_to_bytes, texts)), BINARY))


def bytes_array(values: Sequence[str | bytes | None]) -> pa.Array:
    """Return byte strings, or texts encoded as UTF-8, as a binary array."""
    try:
        return pa.array(values, BINARY)
    except UnicodeEncodeError:
        return pa.array(list(map(_to_bytes, values)), BINARY)


def time_array(times: Sequence[int | None]) -> pa.Array:
    """Return milliseconds since the epoch as an array of timestamps. Times out of range become NULL."""
    try:
        return pa.array(times, _MS).cast(TIME)
    except (pa.ArrowInvalid, OverflowError):
        fitting = [time if time is not None and _MIN_MS <= time <= _MAX_MS else None for time in times]
        return pa.array(fitting, _MS).cast(TIME)


def int_array(numbers: Sequence[int]) -> pa.Array:
    """Return non-negative numbers as an array of 32-bit integers. Larger numbers become the largest 32-bit integer."""
    try:
        return pa.array(numbers, INT32)
    except (pa.ArrowInvalid, OverflowError):
        return pa.array([min(number, _MAX_INT32) for number in numbers], INT32)


def text_lists_array(lists: Sequence[Sequence[str]], list_type: pa.DataType) -> pa.Array:
    """Return lists of texts as an array of the given list type."""
    try:
        return pa.array(lists, list_type)
    except UnicodeEncodeError:
        texts = text_array(list(chain.from_iterable(lists)))
        return pa.ListArray.from_arrays(_offsets(map(len, lists)), texts, type=list_type)


def properties_array(messages: Sequence[Message]) -> pa.Array:
    """Return the properties of messages as an array of maps. Arrow maps preserve order and repeated names."""
    properties = [message.properties for message in messages]
    try:
        return pa.array(properties, MAP)
    except UnicodeEncodeError:
        pairs = list(chain.from_iterable(properties))
        names, values = text_array([name for name, _ in pairs]), text_array([value for _, value in pairs])
        return pa.MapArray.from_arrays(_offsets(map(len, properties)), names, values)


def _offsets(lengths: Iterable[int]) -> pa.Array:
    """Return the offsets at which lists of these lengths begin and end in the array of all items."""
    return pa.array(list(accumulate(lengths, initial=0)), INT32)


def _to_bytes(value: str | bytes | None) -> bytes | None:
    return value.encode("utf-8", "surrogatepass") if isinstance(value, str) else value


def _as_strings(array: pa.Array) -> pa.Array:
    """Return a string array over the buffers of a binary array, without checking the UTF-8."""
    return pa.Array.from_buffers(TEXT, len(array), array.buffers(), offset=array.offset)
