"""TDMsg (InLongMsg): several messages packed into one body, the format of InLong's agents and proxies that use TubeMQ.

TubeMQ itself does not parse this format. A body is `0F version`, a header, groups of messages that have a common attribute text,
and `0F version` again; numbers are big-endian:

    v0     int32 groups                                       group: text, int32 size, int8 snappy, (int32 length, data)*
    v1     int64 ms, int32 groups                             the same
    v2     int64 ms, int32 messages, int32 groups             group: text, int32 messages, int32 size, int8 snappy, ...
    v3     the same header                                    inner: int32 all, (int32 length, data, int32 length, attributes)*
    v4     one group: length, kind, ids, flags, s, count, ... body, attributes, EE01

`text` is an int16 length and `key=value` pairs joined by `&`. `size` includes the snappy byte, which is not 0 if the group is
compressed. We read all five versions and write v2, which every reader accepts. Malformed bodies, and bodies that would unpack to
more than MAX_UNPACKED_BYTES, raise RemoteProtocolError.
"""

from collections.abc import Iterator, Sequence
from itertools import islice
from struct import Struct
from typing import NamedTuple

import cramjam

from mqbridge.errors import LocalProtocolError, RemoteProtocolError

MAGIC = 0x0F
WRITTEN_VERSION = 2
NEWEST_VERSION = 4
MAX_UNPACKED_BYTES = 64 << 20
"""Limit of the unpacked size, three times TubeMQ's largest message: a few bytes of snappy may claim to unpack to 4 GiB."""
MAX_ITEMS = 100_000
"""Limit of the messages in a body: a message may be packed in one byte, but takes far more memory."""
MAX_TEXT_BYTES = 0x7FFF

_INT16, _INT32, _INT64 = Struct(">H"), Struct(">I"), Struct(">q")
_V4_HEADER = Struct(">IBHHHIHII")
_V4_SNAPPY, _V4_OWN_ATTRIBUTES, _V4_NAMED = 1, 0x1, 0x4
_V4_END = 0xEE01


class Item(NamedTuple):
    """One message: its data and the attribute text of its group."""

    data: bytes
    attributes: bytes


class Packed(NamedTuple):
    """The content of a packed body. `created` is in ms since the epoch, None in version 0."""

    version: int
    created: int | None
    items: list[Item]


class _Reader:
    """A read cursor over `data`, bounded by `end`."""

    __slots__ = ("at", "data", "end")

    def __init__(self, data: bytes, at: int, end: int) -> None:
        self.data, self.at, self.end = data, at, end

    def take(self, size: int) -> bytes:
        if size > self.end - self.at:
            raise RemoteProtocolError(
                f"a packed body ends {size - self.end + self.at} bytes too early, in the field at {self.at}"
            )
        self.at += size
        return self.data[self.at - size : self.at]

    def number(self, kind: Struct) -> int:
        value: int = kind.unpack(self.take(kind.size))[0]
        return value

    @property
    def remaining(self) -> int:
        return self.end - self.at


def is_packed(body: bytes) -> bool:
    """Return True if a body looks packed: only its first two and last two bytes tell."""
    return len(body) >= 8 and body[0] == MAGIC and body[1] <= NEWEST_VERSION and body[-2:] == body[:2]


def pack(items: Sequence[Item], created: int) -> bytes:
    """Pack messages into a body of version 2, grouped by attributes, in order. Raises LocalProtocolError."""
    groups: dict[bytes, list[bytes]] = {}
    for item in items:
        if not item.data or not 0 < len(item.attributes) <= MAX_TEXT_BYTES:
            raise LocalProtocolError(f"a packed message needs data and 1 to {MAX_TEXT_BYTES} bytes of attributes")
        groups.setdefault(item.attributes, []).append(item.data)
    mark = bytes((MAGIC, WRITTEN_VERSION))
    pieces = [mark, _INT64.pack(created), _INT32.pack(len(items)), _INT32.pack(len(groups))]
    for attributes, messages in groups.items():
        size = sum(map(len, messages)) + len(messages) * _INT32.size
        pieces += (_INT16.pack(len(attributes)), attributes, _INT32.pack(len(messages)), _INT32.pack(size + 1), b"\0")
        for data in messages:
            pieces += (_INT32.pack(len(data)), data)
    return b"".join((*pieces, mark))


def unpack(body: bytes) -> Packed:
    """Unpack a body of any version. Raises RemoteProtocolError."""
    if not is_packed(body):
        raise RemoteProtocolError(
            f"{len(body)} bytes that start with {body[:2].hex()} are not a packed body; check with is_packed first"
        )
    version, reader = body[1], _Reader(body, 2, len(body) - 2)
    if version == NEWEST_VERSION:
        return _unpack_binary(reader)
    created = reader.number(_INT64) if version >= 1 else None
    if version >= WRITTEN_VERSION:
        reader.number(_INT32)
    items: list[Item] = []
    bytes_left = MAX_UNPACKED_BYTES
    for _ in range(reader.number(_INT32)):
        attributes = reader.take(reader.number(_INT16))
        if version == WRITTEN_VERSION:
            reader.number(_INT32)
        size = reader.number(_INT32)
        if not size:
            raise RemoteProtocolError("a group of a packed body has no size")
        is_compressed = bool(reader.take(1)[0])
        inner = _decompress(reader.take(size - 1), bytes_left) if is_compressed else reader.take(size - 1)
        bytes_left -= len(inner)
        found = _items_with_attributes(inner, attributes) if version == 3 else _items(inner, attributes)
        items.extend(islice(found, MAX_ITEMS + 1 - len(items)))
        if len(items) > MAX_ITEMS:
            raise RemoteProtocolError(f"a packed body has more than {MAX_ITEMS} messages")
    return Packed(version, created, items)


def _items(inner: bytes, attributes: bytes) -> Iterator[Item]:
    reader = _Reader(inner, 0, len(inner))
    while reader.remaining:
        if size := reader.number(_INT32):
            yield Item(reader.take(size), attributes)


def _items_with_attributes(inner: bytes, attributes: bytes) -> Iterator[Item]:
    """Yield messages that are each followed by their own attributes; the last message may have none."""
    reader = _Reader(inner, 0, len(inner))
    reader.number(_INT32)
    while reader.remaining:
        data = reader.take(reader.number(_INT32))
        own = reader.take(reader.number(_INT32)) if reader.remaining else b""
        yield Item(data, attributes + b"&" + own if own else attributes)


def _decompress(data: bytes, max_bytes: int) -> bytes:
    try:
        if cramjam.snappy.decompress_raw_len(data) > max_bytes:
            raise RemoteProtocolError(f"a packed body claims to unpack to more than {MAX_UNPACKED_BYTES} bytes")
        return bytes(cramjam.snappy.decompress_raw(data))
    except cramjam.DecompressionError as error:
        raise RemoteProtocolError(f"a group of {len(data)} bytes of a packed body is not snappy: {error}") from error


def _unpack_binary(reader: _Reader) -> Packed:
    _, kind, group, stream, flags, seconds, count, _, size = _V4_HEADER.unpack(reader.take(_V4_HEADER.size))
    body = reader.take(size)
    if kind >> 5 == _V4_SNAPPY:
        body = _decompress(body, MAX_UNPACKED_BYTES)
    shared = reader.take(reader.number(_INT16))
    if reader.number(_INT16) != _V4_END:
        raise RemoteProtocolError("a packed body of version 4 does not end with EE01")
    ids = b"" if flags & _V4_NAMED else b"bid=%d&tid=%d" % (group, stream)
    attributes = b"&".join(part for part in (shared, ids, b"dt=%d" % (seconds * 1000)) if part)
    return Packed(
        NEWEST_VERSION, seconds * 1000, list(_binary_items(body, count, attributes, own=bool(flags & _V4_OWN_ATTRIBUTES)))
    )


def _binary_items(body: bytes, count: int, attributes: bytes, *, own: bool) -> Iterator[Item]:
    reader = _Reader(body, 0, len(body))
    while reader.remaining and count > 0:
        count -= 1
        data = reader.take(reader.number(_INT32))
        extra = reader.take(reader.number(_INT32)) if own else b""
        yield Item(data, attributes + b"&" + extra if extra else attributes)
