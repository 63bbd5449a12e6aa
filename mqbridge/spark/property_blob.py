"""Encodes the properties of a message as one binary value, a blob, for the option `propertiesFormat=binary`.

Unlike a map, a blob keeps the order of the pairs and repeated names. It is also faster, because Spark moves one value instead
of a map. All names of a blob are in one field, before all values. Many messages have the same names, so one cache lookup encodes
or decodes the whole field.

    blob    empty if there are no properties, else: kind, names, lengths, values
    kind    1 byte: 1 if the field `lengths` has one byte per length, 2 if it has four bytes per length (little endian)
    names   size in bytes of the rest of this field (varint), number of pairs (varint), length of each name in bytes (varint),
            the names in UTF-8
    lengths length of each value in bytes, one per pair
    values  the values in UTF-8

Lone surrogates are encoded as if they were characters, as in the embedded log.
"""

import struct
from collections.abc import Sequence
from typing import NamedTuple

from mqbridge.errors import RemoteProtocolError
from mqbridge.mapping.bounded_cache import BoundedCache, total_length
from mqbridge.message import Message, Pair
from mqbridge.wire.varint import decode_varint, encode_varint

NARROW, WIDE = 1, 2
"""The kinds of blobs: one byte (NARROW) or four bytes (WIDE) per length of a value."""
_MAX_NAME_SETS, _MAX_NAMES_BYTES = 4096, 4096
"""The maximum number of cached name sets, and the maximum total length of the names in a cached set."""
_EMPTY_BLOB = b""
_INVALID_BLOB = "not a value of a column of binary properties (propertiesFormat=binary)"


class _Names(NamedTuple):
    """The names of a blob, and how many there are."""

    texts: tuple[str, ...]
    name_count: int


def _encode_names(names: tuple[bytes, ...]) -> bytes:
    """Return the fields kind and names of a blob. The kind is NARROW; `_join` replaces it if a value is long."""
    field = b"".join([encode_varint(len(names)), *(encode_varint(len(name)) for name in names), *names])
    return bytes((NARROW,)) + encode_varint(len(field)) + field


def _encode_text(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


# This cache and `_names_of_field`: `cache.get(key) or cache[key]` computes the value only for a key that is not in the cache.
_prefix_of_names: BoundedCache[tuple[str, ...], bytes] = BoundedCache(
    lambda names: _encode_names(tuple(map(_encode_text, names))),
    max_entries=_MAX_NAME_SETS,
    max_length=_MAX_NAMES_BYTES,
    length=total_length,
)
"""The encoded fields `kind` and `names` of a blob, by the names of its properties."""


def encode_pairs(pairs: Sequence[Pair]) -> bytes:
    """Return the blob of these properties."""
    if not pairs:
        return _EMPTY_BLOB
    names, texts = zip(*pairs)  # noqa: B905 - each pair has two items; `strict` takes twice as long
    prefix = _prefix_of_names.get(names) or _prefix_of_names[names]
    try:
        return _join(prefix, [text.encode() for text in texts])
    except UnicodeEncodeError:
        return _join(prefix, [_encode_text(text) for text in texts])


def encode_properties(messages: Sequence[Message]) -> list[bytes]:
    """Return one blob per message, with its properties."""
    return [encode_pairs(message.properties) for message in messages]


def _join(prefix: bytes, values: Sequence[bytes]) -> bytes:
    try:
        return b"".join((prefix, bytes(map(len, values)), *values))
    except ValueError:  # a value is longer than 255 bytes: each length needs four bytes
        return b"".join((bytes((WIDE,)), prefix[1:], struct.pack(f"<{len(values)}I", *map(len, values)), *values))


def decode_pairs(blob: bytes | None) -> tuple[Pair, ...]:
    """Return the properties in a blob; none for None. Raises ValueError if the bytes are not a valid blob."""
    if not blob:
        return ()
    names, values = _split_blob(blob)
    return tuple(zip(names.texts, [value.decode("utf-8", "surrogatepass") for value in values], strict=True))


def _split_blob(blob: bytes) -> tuple[_Names, tuple[bytes, ...]]:
    """Return the names and the encoded values of a blob. Raises ValueError."""
    try:
        size, offset = blob[1], 2  # correct for sizes below 128, whose varint is one byte
        if size > 0x7F:
            size, offset = decode_varint(blob, 1)
        field = blob[offset : offset + size]
        names = _names_of_field.get(field) or _names_of_field[field]
        offset += size
        lengths, offset = _read_lengths(blob, offset, names.name_count)
        values = _slice(blob, offset, lengths)
    except (ValueError, IndexError, struct.error, RemoteProtocolError) as error:
        raise ValueError(f"{_INVALID_BLOB}: {error}") from error
    return names, values


def _read_lengths(blob: bytes, offset: int, count: int) -> tuple[Sequence[int], int]:
    """Return the `count` lengths that begin at `offset`, and the offset after them. Raises ValueError for an unknown kind."""
    if blob[0] == NARROW:
        return blob[offset : offset + count], offset + count
    if blob[0] == WIDE:
        return struct.unpack_from(f"<{count}I", blob, offset), offset + 4 * count
    raise ValueError(f"the first byte is {blob[0]}, but must be {NARROW} or {WIDE}")


def _slice(data: bytes, offset: int, lengths: Sequence[int]) -> tuple[bytes, ...]:
    """Return consecutive slices of these lengths from `offset` on. Raises ValueError if they do not end with the data."""
    slices = tuple([data[offset : (offset := offset + length)] for length in lengths])
    if offset != len(data):
        raise ValueError(f"the lengths of the property names or values end at byte {offset}, but the data has {len(data)} bytes")
    return slices


def _decode_names(field: bytes) -> _Names:
    """Decode the field names of a blob, without its leading size. Raises ValueError, RemoteProtocolError."""
    count, offset = decode_varint(field, 0)
    if count > len(field):
        raise ValueError(f"the names of the properties have {len(field)} bytes, too few for {count} names")
    lengths = []
    for _ in range(count):
        length, offset = decode_varint(field, offset)
        lengths.append(length)
    names = _slice(field, offset, lengths)
    return _Names(tuple([name.decode("utf-8", "surrogatepass") for name in names]), count)


_names_of_field: BoundedCache[bytes, _Names] = BoundedCache(
    _decode_names, max_entries=_MAX_NAME_SETS, max_length=_MAX_NAMES_BYTES
)
"""The names of a blob, by its encoded field `names` without the leading size."""
