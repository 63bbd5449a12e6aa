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
from collections.abc import Callable, Sequence

from mqbridge.errors import RemoteProtocolError
from mqbridge.mapping.bounded_cache import BoundedCache
from mqbridge.mapping.lazy_properties import NO_NAMES, LazyMessage, PropertyNames, names_cache, property_names
from mqbridge.message import Message, Pair
from mqbridge.wire.varint import decode_varint, encode_varint

NARROW, WIDE = 1, 2
_MAX_NAMES_BYTES = 4096
_EMPTY = b""
NO_HEAD = b"\x00"
"""What no blob begins with."""
_LONGEST_REPEATED = 40
"""Longer values are seldom as long as others."""
_NO_BLOB = "this is no value of a column of binary properties"

SplitProperties = tuple[PropertyNames, tuple[bytes, ...]]
"""Names and values of a lazy message."""


class _Names:
    """The names of a blob: as text, and as a `PropertyNames` unless one holds a lone surrogate."""

    __slots__ = ("count", "head", "shared", "texts")

    def __init__(self, names: tuple[bytes, ...]) -> None:
        self.count = len(names)
        self.head = _encode_names(names)
        self.texts = tuple([name.decode("utf-8", "surrogatepass") for name in names])
        try:
            self.shared: PropertyNames | None = property_names(names)
        except UnicodeDecodeError:
            self.shared = None


def _encode_names(names: tuple[bytes, ...]) -> bytes:
    """Kind and names of a narrow blob."""
    part = b"".join([encode_varint(len(names)), *(encode_varint(len(name)) for name in names), *names])
    return bytes((NARROW,)) + encode_varint(len(part)) + part


def _encode_text(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


_head_of_texts: BoundedCache[tuple[str, ...], bytes] = names_cache(lambda names: _encode_names(tuple(map(_encode_text, names))))


def _head_of_names(names: PropertyNames) -> bytes:
    return _encode_names(names.names)


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
    """The blobs of some messages' properties; text that is not decoded yet stays so."""
    known, head = None, b""
    blobs = []
    for message in messages:
        if not isinstance(message, LazyMessage):
            blobs.append(encode_pairs(message.properties))
            continue
        if (names := message.property_names) is not known:
            known, head = names, names.target_cache("blob", _head_of_names)
        blobs.append(_join(head, message.values) if message.values else _EMPTY)
    return blobs


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


def split_blobs(blobs: Sequence[bytes | None]) -> list[SplitProperties] | None:
    """Names and values for lazy messages; None when a name is not UTF-8. The caller looks after the values.

    Blobs with the same names and the same lengths are cut by the same `struct`, which takes a third of the time of slicing.

    Raises ValueError for bytes that are no blob.
    """
    found: list[SplitProperties] = []
    head, end, shared = NO_HEAD, 0, NO_NAMES  # of the narrow blob before: kind and names, and where its values begin
    for blob in blobs:
        if not blob:
            found.append((NO_NAMES, ()))
            continue
        if blob.startswith(head) and (cut := _cuts.get(blob[:end])) is not None:
            try:
                found.append((shared, cut(blob)))
            except struct.error as error:
                raise ValueError(f"{_NO_BLOB}: it has {len(blob)} bytes") from error
            continue
        names, values = _split(blob)
        if names.shared is None:
            return None
        shared = names.shared
        found.append((shared, values))
        head, end = NO_HEAD, 0
        if blob[0] == NARROW:
            head = names.head
            end = len(head) + names.count
            if max(blob[len(head) : end], default=0) <= _LONGEST_REPEATED:
                _learn(blob, end, values)
    return found


def _learn(blob: bytes, end: int, values: Sequence[bytes]) -> None:
    _cuts.keep(blob[:end], struct.Struct("".join([f"{end}x", *(f"{len(value)}s" for value in values)])).unpack)


def _split(blob: bytes) -> tuple[_Names, tuple[bytes, ...]]:
    try:
        size, at = blob[1], 2
        if size > 0x7F:
            size, at = decode_varint(blob, 1)
        part = blob[at : at + size]
        names = _names_of.get(part) or _names_of[part]
        at += size
        lengths, at = _read_lengths(blob, at, names.count)
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
    return _Names(_slice(part, at, lengths))


_names_of: BoundedCache[bytes, _Names] = BoundedCache(_decode_names, longest=_MAX_NAMES_BYTES)
_cuts: BoundedCache[bytes, Callable[[bytes], tuple[bytes, ...]]] = BoundedCache()
"""By kind, names and lengths."""
