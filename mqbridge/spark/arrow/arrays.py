"""Arrow arrays of lists of Python values, for the types of the columns.

Each is one call of Arrow, with a careful way behind it for what Arrow refuses: lone surrogates, which are encoded as if they were
characters, and numbers too large for their type, which become the largest that fits.
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
_MAX_INT32 = (1 << 31) - 1


def text_array(texts: Sequence[str | bytes | None]) -> pa.Array:
    """Texts, or UTF-8, as strings."""
    try:
        return pa.array(texts, TEXT)
    except UnicodeEncodeError:
        return _as_text(pa.array(list(map(_to_bytes, texts)), BINARY))


def bytes_array(values: Sequence[str | bytes | None]) -> pa.Array:
    """Byte strings, or texts as UTF-8, as binary."""
    try:
        return pa.array(values, BINARY)
    except UnicodeEncodeError:
        return pa.array(list(map(_to_bytes, values)), BINARY)


def time_array(times: Sequence[int | None]) -> pa.Array:
    """Milliseconds since the epoch as timestamps."""
    try:
        return pa.array(times, _MS).cast(TIME)
    except (pa.ArrowInvalid, OverflowError):
        fitting = [None if time is None else min(max(time, _MIN_MS), _MAX_MS) for time in times]
        return pa.array(fitting, _MS).cast(TIME)


def int_array(numbers: Sequence[int]) -> pa.Array:
    """Counters as 32-bit integers."""
    try:
        return pa.array(numbers, INT32)
    except (pa.ArrowInvalid, OverflowError):
        return pa.array([min(number, _MAX_INT32) for number in numbers], INT32)


def text_lists_array(lists: Sequence[Sequence[str]], kind: pa.DataType) -> pa.Array:
    """Lists of texts."""
    try:
        return pa.array(lists, kind)
    except UnicodeEncodeError:
        return pa.ListArray.from_arrays(_offsets(map(len, lists)), text_array(list(chain.from_iterable(lists))), type=kind)


def map_array(messages: Sequence[Message]) -> pa.Array:
    """The properties of messages as maps, which keep order and repeated names."""
    properties = [message.properties for message in messages]
    try:
        return pa.array(properties, MAP)
    except UnicodeEncodeError:
        pairs = list(chain.from_iterable(properties))
        keys, items = text_array([name for name, _ in pairs]), text_array([value for _, value in pairs])
        return pa.MapArray.from_arrays(_offsets(map(len, properties)), keys, items)


def _offsets(lengths: Iterable[int]) -> pa.Array:
    return pa.array(list(accumulate(lengths, initial=0)), INT32)


def _to_bytes(value: str | bytes | None) -> bytes | None:
    return value.encode("utf-8", "surrogatepass") if isinstance(value, str) else value


def _as_text(array: pa.Array) -> pa.Array:
    """The same bytes, called strings."""
    return pa.Array.from_buffers(TEXT, len(array), array.buffers(), offset=array.offset)
