"""Encode the properties of a message as one binary value, a blob, for the option `propertiesFormat=binary`.

Unlike a map, a blob keeps the order of the pairs and repeated names. It is also faster, because Spark moves one value instead
of a map. The names of all pairs are contiguous and usually the same in many messages, so a single cache lookup encodes or decodes
them.

    blob    empty if there are no properties, else: kind, names, lengths, values
    kind    1 byte: 1 if each length has one byte, 2 if each length has four bytes (little endian)
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
_MAX_SETS, _MAX_NAMES_BYTES = 4096, 4096
"""The maximum number of cached name sets, and the maximum total length of the names in a cached set."""
_EMPTY = b""
_INVALID_BLOB = "not a value of a column of binary properties (propertiesFormat=binary)"


class _Names(NamedTuple):
    """The names of a blob, and their number."""

    texts: tuple[str, ...]
    size: int


def _encode_names(names: tuple[bytes, ...]) -> bytes:
    """Return the fields kind and names of a blob with lengths of one byte."""
    field = b"".join([encode_varint(len(names)), *(encode_varint(len(name)) for name in names), *names])
    return bytes((NARROW,)) + encode_varint(len(field)) + field


def _encode_text(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


_prefix_of_names: BoundedCache[tuple[str, ...], bytes] = BoundedCache(
    lambda names: _encode_names(tuple(map(_encode_text, names))),
    entries=_MAX_SETS,
    longest=_MAX_NAMES_BYTES,
    length=total_length,
)


def encode_pairs(pairs: Sequence[Pair]) -> bytes:
    """Return the blob of these properties."""
    if not pairs:
        return _EMPTY
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
    except ValueError:  # a length is above 255
        return b"".join((bytes((WIDE,)), prefix[1:], struct.pack(f"<{len(values)}I", *map(len, values)), *values))


def decode_pairs(blob: bytes | None) -> tuple[Pair, ...]:
    """Return the properties in a blob. Raise ValueError if the bytes are not a valid blob."""
    if not blob:
        return ()
    names, values = _split(blob)
    return tuple(zip(names.texts, [value.decode("utf-8", "surrogatepass") for value in values], strict=True))


def _split(blob: bytes) -> tuple[_Names, tuple[bytes, ...]]:
    try:
        size, at = blob[1], 2
        if size > 0x7F:
            size, at = decode_varint(blob, 1)
        field = blob[at : at + size]
        names = _names_of_field.get(field) or _names_of_field[field]
        at += size
        lengths, at = _read_lengths(blob, at, names.size)
        values = _slice(blob, at, lengths)
    except (ValueError, IndexError, struct.error, RemoteProtocolError) as error:
        raise ValueError(f"{_INVALID_BLOB}: {error}") from error
    return names, values


def _read_lengths(blob: bytes, at: int, count: int) -> tuple[Sequence[int], int]:
    if blob[0] == NARROW:
        return blob[at : at + count], at + count
    if blob[0] == WIDE:
        return struct.unpack_from(f"<{count}I", blob, at), at + 4 * count
    raise ValueError(f"kind {blob[0]} is neither {NARROW} nor {WIDE}")


def _slice(data: bytes, at: int, lengths: Sequence[int]) -> tuple[bytes, ...]:
    """Return consecutive slices of these lengths from `at` on. Raise ValueError if they do not end with the data."""
    slices = tuple([data[at : (at := at + length)] for length in lengths])
    if at != len(data):
        raise ValueError(f"by their lengths, the strings end at byte {at}, but there are {len(data)} bytes")
    return slices


def _decode_names(field: bytes) -> _Names:
    count, at = decode_varint(field, 0)
    if count > len(field):
        raise ValueError(f"the field of names has {len(field)} bytes, too few for {count} names")
    lengths = []
    for _ in range(count):
        length, at = decode_varint(field, at)
        lengths.append(length)
    names = _slice(field, at, lengths)
    return _Names(tuple([name.decode("utf-8", "surrogatepass") for name in names]), count)


_names_of_field: BoundedCache[bytes, _Names] = BoundedCache(_decode_names, entries=_MAX_SETS, longest=_MAX_NAMES_BYTES)
