"""The properties of a message as one binary value: `propertiesFormat=binary`.

Lossless where a map is not: pairs keep their order, and a name may occur twice. It is also faster, because Spark moves one value
instead of a map, and because the names, which repeat from message to message, lie in one piece: writing and reading them is one
look-up.

    blob    nothing at all for no properties, else kind, names, lengths, values
    kind    1 byte: 1 for lengths of one byte each, 2 for lengths of four (little endian)
    names   size of what follows (varint), number of pairs (varint), length of each name in bytes (varint), names in UTF-8
    lengths of the values in bytes, one per pair
    values  in UTF-8

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
"""How many sets of names are cached at once, and how long the names of one may be in all."""
_EMPTY = b""
_NO_BLOB = "this is no value of a column of binary properties"


class _Names(NamedTuple):
    """The names of a blob, and how many."""

    texts: tuple[str, ...]
    size: int


def _encode_names(names: tuple[bytes, ...]) -> bytes:
    """Kind and names of a narrow blob."""
    part = b"".join([encode_varint(len(names)), *(encode_varint(len(name)) for name in names), *names])
    return bytes((NARROW,)) + encode_varint(len(part)) + part


def _encode_text(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


_head_of_texts: BoundedCache[tuple[str, ...], bytes] = BoundedCache(
    lambda names: _encode_names(tuple(map(_encode_text, names))),
    entries=_MAX_SETS,
    longest=_MAX_NAMES_BYTES,
    length=total_length,
)


def encode_pairs(pairs: Sequence[Pair]) -> bytes:
    """The blob of some properties."""
    if not pairs:
        return _EMPTY
    names, texts = zip(*pairs)  # noqa: B905 - pairs are pairs; `strict` takes twice as long
    head = _head_of_texts.get(names) or _head_of_texts[names]
    try:
        return _join(head, [text.encode() for text in texts])
    except UnicodeEncodeError:
        return _join(head, [_encode_text(text) for text in texts])


def encode_properties(messages: Sequence[Message]) -> list[bytes]:
    """The blobs of some messages' properties."""
    return [encode_pairs(message.properties) for message in messages]


def _join(head: bytes, values: Sequence[bytes]) -> bytes:
    try:
        return b"".join((head, bytes(map(len, values)), *values))
    except ValueError:  # a length above 255
        return b"".join((bytes((WIDE,)), head[1:], struct.pack(f"<{len(values)}I", *map(len, values)), *values))


def decode_pairs(blob: bytes | None) -> tuple[Pair, ...]:
    """The properties in a blob. Raises ValueError for bytes that are none."""
    if not blob:
        return ()
    names, values = _split(blob)
    return tuple(zip(names.texts, [value.decode("utf-8", "surrogatepass") for value in values], strict=True))


def _split(blob: bytes) -> tuple[_Names, tuple[bytes, ...]]:
    try:
        size, at = blob[1], 2
        if size > 0x7F:
            size, at = decode_varint(blob, 1)
        part = blob[at : at + size]
        names = _names_of.get(part) or _names_of[part]
        at += size
        lengths, at = _read_lengths(blob, at, names.size)
        values = _slice(blob, at, lengths)
    except (ValueError, IndexError, struct.error, RemoteProtocolError) as error:
        raise ValueError(f"{_NO_BLOB}: {error}") from error
    return names, values


def _read_lengths(blob: bytes, at: int, count: int) -> tuple[Sequence[int], int]:
    if blob[0] == NARROW:
        return blob[at : at + count], at + count
    if blob[0] == WIDE:
        return struct.unpack_from(f"<{count}I", blob, at), at + 4 * count
    raise ValueError(f"kind {blob[0]} is neither {NARROW} nor {WIDE}")


def _slice(data: bytes, at: int, lengths: Sequence[int]) -> tuple[bytes, ...]:
    """What lies end to end from `at` to the end of the data."""
    pieces = tuple([data[at : (at := at + length)] for length in lengths])
    if at != len(data):
        raise ValueError(f"texts end at byte {at} of {len(data)}")
    return pieces


def _decode_names(part: bytes) -> _Names:
    count, at = decode_varint(part, 0)
    if count > len(part):
        raise ValueError(f"{count} names in {len(part)} bytes")
    lengths = []
    for _ in range(count):
        length, at = decode_varint(part, at)
        lengths.append(length)
    names = _slice(part, at, lengths)
    return _Names(tuple([name.decode("utf-8", "surrogatepass") for name in names]), count)


_names_of: BoundedCache[bytes, _Names] = BoundedCache(_decode_names, entries=_MAX_SETS, longest=_MAX_NAMES_BYTES)
