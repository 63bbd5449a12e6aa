"""TDMsg (InLongMsg): several messages packed into one body, the format of InLong's agents and proxies that use TubeMQ.

TubeMQ itself does not parse this format. A body is the byte 0F and a version byte, a header, groups of messages, and 0F and the
version again. The messages of a group have a common attribute text. Numbers are big-endian:

    version  header                                                  group
    0        int32 group count                                       text, int32 size, int8 snappy, messages
    1        int64 created, int32 group count                        as in 0
    2        int64 created, int32 message count, int32 group count   text, int32 message count, int32 size, int8 snappy, messages
    3        as in 2                                                 as in 0, but the messages begin with their int32 size
    4        the fields of _V4_HEADER                                messages, text, int16 EE01; there is only one group

    created   when the body was packed, in ms since the epoch
    text      an int16 length, then `key=value` pairs joined by `&`
    size      number of bytes of the snappy byte and the messages
    snappy    not 0 if the messages are compressed
    messages  each an int32 length and the data; in version 3, and in version 4 if a flag is set, each also has an int32 length
              and attributes of its own

We read all five versions and write version 2, which every reader accepts. Malformed bodies, and bodies whose messages would take
more than MAX_UNPACKED_BYTES, raise RemoteProtocolError: a message with attributes of its own also gets a copy of its group's, so
that the messages may be much larger than the unpacked body.
"""

from collections.abc import Iterator, Sequence
from struct import Struct
from typing import NamedTuple

import cramjam

from mqbridge.errors import LocalProtocolError, RemoteProtocolError

MAGIC = 0x0F
WRITTEN_VERSION = 2
NEWEST_VERSION = 4
MAX_UNPACKED_BYTES = 64 << 20
"""Limit of the unpacked size, and of the memory of all messages: three times TubeMQ's largest message.

A few bytes of snappy may claim to unpack to 4 GiB."""
ITEM_BYTES = 200
"""Memory that a message takes besides its data and its attributes, rounded up."""
MAX_ITEMS = 100_000
"""Limit of the messages in a body: compressed, a message may take less than a byte, but as an Item it takes far more memory."""
MAX_TEXT_BYTES = 0x7FFF
"""Limit of an attribute text: readers in Java take its length as a signed int16."""

_INT16, _INT32, _INT64 = Struct(">H"), Struct(">I"), Struct(">q")
"""Lengths and counts are read as unsigned, so that a damaged one cannot be negative."""
_V4_HEADER = Struct(">IBHHHIHII")
"""Total size, type, group id, stream id, flags, time (s since the epoch), number of messages, unique id, size of the messages."""
_V4_SNAPPY = 1
"""Value of the upper three bits of the type if the messages are compressed."""
_V4_OWN_ATTRIBUTES, _V4_NAMED = 0x1, 0x4
"""Flags: each message has attributes of its own; the text has group and stream names, so their ids are not used."""
_V4_END = 0xEE01


class Item(NamedTuple):
    """One message: its data, and the attribute text of its group with the message's own attributes, if any, appended."""

    data: bytes
    attributes: bytes


class Packed(NamedTuple):
    """The content of a packed body. `created` is when the body was packed, in ms since the epoch, None in version 0."""

    version: int
    created: int | None
    items: list[Item]


class _Reader:
    """A cursor that reads `data`, a body or the messages of a group, from `offset` to `end`."""

    __slots__ = ("data", "end", "offset")

    def __init__(self, data: bytes, offset: int, end: int) -> None:
        self.data, self.offset, self.end = data, offset, end

    def read(self, size: int) -> bytes:
        if size > self.remaining_bytes:
            raise RemoteProtocolError(
                f"a packed body ends {size - self.remaining_bytes} bytes too early, in the field at offset {self.offset}"
            )
        self.offset += size
        return self.data[self.offset - size : self.offset]

    def read_number(self, number_format: Struct) -> int:
        value: int = number_format.unpack(self.read(number_format.size))[0]
        return value

    @property
    def remaining_bytes(self) -> int:
        return self.end - self.offset


class _Items:
    """The messages of a body, within the limits."""

    __slots__ = ("bytes_left", "items")

    def __init__(self) -> None:
        self.items: list[Item] = []
        self.bytes_left = MAX_UNPACKED_BYTES

    def add(self, items: Iterator[Item], shared: bytes) -> None:
        """Add the messages of a group; `shared` are its attributes, of which messages without their own make no copy.

        Raises RemoteProtocolError if all messages together exceed a limit.
        """
        for item in items:
            self.bytes_left -= ITEM_BYTES + len(item.data) + (0 if item.attributes is shared else len(item.attributes))
            if self.bytes_left < 0:
                raise RemoteProtocolError(f"the messages of a packed body take more than the limit of {MAX_UNPACKED_BYTES} bytes")
            if len(self.items) == MAX_ITEMS:
                raise RemoteProtocolError(f"a packed body has more than {MAX_ITEMS} messages")
            self.items.append(item)


def is_packed(body: bytes) -> bool:
    """Return True if a body looks packed, judging by its first two and last two bytes; another body may look so by chance."""
    return len(body) >= 8 and body[0] == MAGIC and body[1] <= NEWEST_VERSION and body[-2:] == body[:2]


def pack(items: Sequence[Item], created: int) -> bytes:
    """Pack messages into a body of version 2; `created` is the current time in ms since the epoch.

    Messages with equal attributes form a group, in their order. Raises LocalProtocolError for a message without data, or with
    attributes that are empty or too long.
    """
    groups: dict[bytes, list[bytes]] = {}
    for item in items:
        if not item.data or not 0 < len(item.attributes) <= MAX_TEXT_BYTES:
            raise LocalProtocolError(
                f"a packed message needs data and 1 to {MAX_TEXT_BYTES} bytes of attributes, not {len(item.data)} bytes of "
                f"data and {len(item.attributes)} of attributes"
            )
        groups.setdefault(item.attributes, []).append(item.data)
    magic_and_version = bytes((MAGIC, WRITTEN_VERSION))
    pieces = [magic_and_version, _INT64.pack(created), _INT32.pack(len(items)), _INT32.pack(len(groups))]
    for attributes, messages in groups.items():
        size = sum(map(len, messages)) + len(messages) * _INT32.size
        pieces += (_INT16.pack(len(attributes)), attributes, _INT32.pack(len(messages)), _INT32.pack(size + 1), b"\0")
        for data in messages:
            pieces += (_INT32.pack(len(data)), data)
    return b"".join((*pieces, magic_and_version))


def unpack(body: bytes) -> Packed:
    """Unpack a body of any version. Raises RemoteProtocolError."""
    if not is_packed(body):
        raise RemoteProtocolError(
            f"{len(body)} bytes that start with {body[:2].hex()} are not a packed body; check with is_packed first"
        )
    version, reader = body[1], _Reader(body, 2, len(body) - 2)
    if version == NEWEST_VERSION:
        return _unpack_v4(reader)
    created = reader.read_number(_INT64) if version >= 1 else None
    if version >= 2:
        reader.read_number(_INT32)  # the number of messages in the body
    items, bytes_left = _Items(), MAX_UNPACKED_BYTES
    for _ in range(reader.read_number(_INT32)):
        attributes = reader.read(reader.read_number(_INT16))
        if version == 2:
            reader.read_number(_INT32)  # the number of messages in the group
        size = reader.read_number(_INT32)
        if not size:
            raise RemoteProtocolError(
                "a group of a packed body has size 0, but needs 1 byte at least, which tells whether snappy compresses it"
            )
        is_compressed = bool(reader.read(1)[0])
        messages = _decompress(reader.read(size - 1), bytes_left) if is_compressed else reader.read(size - 1)
        bytes_left -= len(messages)
        group_items = _read_v3_items(messages, attributes) if version == 3 else _read_items(messages, attributes)
        items.add(group_items, attributes)
    return Packed(version, created, items.items)


def _read_items(messages: bytes, attributes: bytes) -> Iterator[Item]:
    """Yield the messages of a group of version 0, 1 or 2, without empty ones."""
    reader = _Reader(messages, 0, len(messages))
    while reader.remaining_bytes:
        if size := reader.read_number(_INT32):
            yield Item(reader.read(size), attributes)


def _read_v3_items(messages: bytes, attributes: bytes) -> Iterator[Item]:
    """Yield messages that are each followed by their own attributes; the last message may have none."""
    reader = _Reader(messages, 0, len(messages))
    reader.read_number(_INT32)  # the size of all messages
    while reader.remaining_bytes:
        data = reader.read(reader.read_number(_INT32))
        own = reader.read(reader.read_number(_INT32)) if reader.remaining_bytes else b""
        yield Item(data, attributes + b"&" + own if own else attributes)


def _decompress(data: bytes, max_bytes: int) -> bytes:
    try:
        if cramjam.snappy.decompress_raw_len(data) > max_bytes:
            # `max_bytes` is less than the limit in the message: earlier groups of the body count too.
            raise RemoteProtocolError(f"a packed body unpacks to more than the limit of {MAX_UNPACKED_BYTES} bytes")
        return bytes(cramjam.snappy.decompress_raw(data))
    except cramjam.DecompressionError as error:
        raise RemoteProtocolError(f"a group of {len(data)} bytes of a packed body is not snappy: {error}") from error


def _unpack_v4(reader: _Reader) -> Packed:
    """Unpack a body of version 4. Ids and time of the header become attributes: `bid` (group), `tid` (stream), `dt` (ms)."""
    _, type_bits, group, stream, flags, seconds, count, _, size = _V4_HEADER.unpack(reader.read(_V4_HEADER.size))
    messages = reader.read(size)
    if type_bits >> 5 == _V4_SNAPPY:
        messages = _decompress(messages, MAX_UNPACKED_BYTES)
    text = reader.read(reader.read_number(_INT16))
    if reader.read_number(_INT16) != _V4_END:
        raise RemoteProtocolError("a packed body of version 4 does not end with EE01")
    ids = b"" if flags & _V4_NAMED else b"bid=%d&tid=%d" % (group, stream)
    attributes = b"&".join(part for part in (text, ids, b"dt=%d" % (seconds * 1000)) if part)
    items = _Items()
    items.add(_read_v4_items(messages, count, attributes, with_attributes=bool(flags & _V4_OWN_ATTRIBUTES)), attributes)
    return Packed(NEWEST_VERSION, seconds * 1000, items.items)


def _read_v4_items(messages: bytes, count: int, attributes: bytes, *, with_attributes: bool) -> Iterator[Item]:
    """Yield at most `count` messages; `with_attributes`: each is followed by its own attributes."""
    reader = _Reader(messages, 0, len(messages))
    while reader.remaining_bytes and count > 0:
        count -= 1
        data = reader.read(reader.read_number(_INT32))
        own = reader.read(reader.read_number(_INT32)) if with_attributes else b""
        yield Item(data, attributes + b"&" + own if own else attributes)
