"""Converts Arrow arrays to lists of Python values: the inverse of `arrays`."""

from itertools import pairwise
from typing import Any

import pyarrow as pa

from mqbridge.message import Pair
from mqbridge.spark.arrow.arrays import BINARY, TEXT
from mqbridge.spark.property_blob import decode_pairs

_MS = pa.timestamp("ms", "UTC")


def values_of(array: pa.Array) -> list[Any]:
    """Return byte strings, numbers or booleans, with None for NULL."""
    return list(array.to_pylist())


def counts_of(array: pa.Array) -> list[int]:
    """Return numbers, with 0 for NULL."""
    return [number or 0 for number in array.to_pylist()]


def texts_of(array: pa.Array) -> list[Any]:
    """Return strings, or bytes in UTF-8, as texts, with None for NULL. Lone surrogates are kept (`surrogatepass`)."""
    try:
        return list(array.cast(TEXT).to_pylist())
    except (pa.ArrowInvalid, UnicodeDecodeError):
        return list(map(_to_text, array.cast(BINARY).to_pylist()))


def text_lists_of(array: pa.Array) -> list[tuple[str, ...]]:
    """Return lists of texts, without the texts that are NULL."""
    if not len(array.flatten()):  # every list is empty or NULL
        return [()] * len(array)
    try:
        lists = array.to_pylist()
    except UnicodeDecodeError:
        # `texts and`: NULL and the empty list stay as they are.
        lists = [texts and list(map(_to_text, texts)) for texts in array.cast(pa.list_(BINARY)).to_pylist()]
    return [tuple([text for text in texts if text is not None]) if texts else () for texts in lists]


def times_of(array: pa.Array) -> list[Any]:
    """Return timestamps as whole milliseconds since the epoch, with None for NULL."""
    return list(array.cast(_MS, safe=False).cast(pa.int64()).to_pylist())


def positions_of(array: pa.Array) -> list[tuple[int, ...]]:
    """Return lists of numbers as positions, with the empty position for NULL."""
    if not array.null_count:
        return list(map(tuple, array.to_pylist()))
    return [tuple(position or ()) for position in array.to_pylist()]


def properties_of(array: pa.Array) -> list[tuple[Pair, ...]]:
    """Return maps or blobs (see `property_blob`) as properties, without pairs whose value is NULL.

    Raises ValueError for an invalid blob.
    """
    if not pa.types.is_map(array.type):
        return list(map(decode_pairs, array.to_pylist()))
    names, values = texts_of(array.keys), texts_of(array.items)
    return [
        tuple([pair for pair in zip(names[begin:end], values[begin:end], strict=True) if pair[1] is not None])
        for begin, end in pairwise(array.offsets.to_pylist())
    ]


def _to_text(value: bytes | None) -> str | None:
    return None if value is None else value.decode("utf-8", "surrogatepass")
