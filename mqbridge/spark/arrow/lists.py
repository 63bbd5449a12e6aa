"""Arrow arrays as lists of Python values: the way back of `arrays`."""

from itertools import pairwise
from typing import Any

import pyarrow as pa

from mqbridge.message import Pair
from mqbridge.spark.arrow.arrays import BINARY, TEXT
from mqbridge.spark.property_blob import decode_pairs

_MS = pa.timestamp("ms", "UTC")


def values_of(array: pa.Array) -> list[Any]:
    """Byte strings, numbers or booleans."""
    return list(array.to_pylist())


def counts_of(array: pa.Array) -> list[int]:
    """Numbers; none is zero."""
    return [number or 0 for number in array.to_pylist()]


def texts_of(array: pa.Array) -> list[Any]:
    """Strings, or UTF-8, as texts."""
    try:
        return list(array.cast(TEXT).to_pylist())
    except (pa.ArrowInvalid, UnicodeDecodeError):
        return list(map(_to_text, array.cast(BINARY).to_pylist()))


def text_lists_of(array: pa.Array) -> list[tuple[str, ...]]:
    """Lists of texts; texts that are null are left out."""
    if not len(array.flatten()):
        return [()] * len(array)
    try:
        found = array.to_pylist()
    except UnicodeDecodeError:
        found = [texts and list(map(_to_text, texts)) for texts in array.cast(pa.list_(BINARY)).to_pylist()]
    return [tuple([text for text in texts if text is not None]) if texts else () for texts in found]


def times_of(array: pa.Array) -> list[Any]:
    """Timestamps as milliseconds since the epoch; what is below is cut off."""
    return list(array.cast(_MS, safe=False).cast(pa.int64()).to_pylist())


def positions_of(array: pa.Array) -> list[tuple[int, ...]]:
    """Lists of numbers; none is the empty position."""
    if not array.null_count:
        return list(map(tuple, array.to_pylist()))
    return [tuple(position or ()) for position in array.to_pylist()]


def properties_of(array: pa.Array) -> list[tuple[Pair, ...]]:
    """Maps or blobs as properties; values that are null are left out. Raises ValueError for bytes that are no blob."""
    if not pa.types.is_map(array.type):
        return list(map(decode_pairs, array.to_pylist()))
    names, values = texts_of(array.keys), texts_of(array.items)
    return [
        tuple([pair for pair in zip(names[begin:end], values[begin:end], strict=True) if pair[1] is not None])
        for begin, end in pairwise(array.offsets.to_pylist())
    ]


def _to_text(value: bytes | None) -> str | None:
    return None if value is None else value.decode("utf-8", "surrogatepass")
