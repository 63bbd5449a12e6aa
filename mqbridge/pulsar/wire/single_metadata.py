"""SingleMessageMetadata by hand: the fields, properties and key of one message of a batch entry.

Encoding and decoding without a protobuf object takes a fraction of the time. All known writers put the fields in the order of
their tags, so properties and key come first. A property is a KeyValue: name and value, each with its length.
"""

import struct
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import ClassVar, NamedTuple

from mqbridge.wire.varint import CONTINUED, SMALL, decode_varint, encode_varint

PROPERTY, PARTITION_KEY, PAYLOAD_SIZE, COMPACTED_OUT, EVENT_TIME = 0x0A, 0x12, 0x18, 0x20, 0x28
KEY_IS_BASE64, ORDERING_KEY, SEQUENCE_ID, NULL_VALUE, NULL_PARTITION_KEY = 0x30, 0x3A, 0x40, 0x48, 0x50
"""Tags of the fields."""
NAME, VALUE = 0x0A, 0x12
"""Tags in a property."""

PAYLOAD_SIZE_TAG, ORDERING_KEY_TAG, KEY_IS_BASE64_TRUE, NULL_VALUE_TRUE = b"\x18", b"\x3a", b"\x30\x01", b"\x48\x01"
"""The same as encoders append them; flags with their value."""

MAX_CACHED_LENGTH = 16384
"""Prefixes are cached for lengths below this."""
MAX_CACHED_NAMES = 4096
_UINT64 = (1 << 64) - 1
_SIZE = struct.Struct(">I")
_PROPERTY_PREFIXES = [b"\x0a" + size for size in SMALL]
_VALUE_PREFIXES = [b"\x12" + size for size in SMALL]


class UnsupportedLayout(Exception):
    """Valid or not, these bytes are nothing that the fast code reads: protobuf has to."""


# --- encode -----------------------------------------------------------------------------------------------------------


def encode_property(name: str, value: bytes) -> bytes:
    """A property; `value` is UTF-8."""
    encoded_name = _encode_name(name)
    try:
        pair = encoded_name + _VALUE_PREFIXES[len(value)] + value
        return _PROPERTY_PREFIXES[len(pair)] + pair
    except IndexError:
        pair = encoded_name + b"\x12" + encode_varint(len(value)) + value
        return b"\x0a" + encode_varint(len(pair)) + pair


@lru_cache(maxsize=MAX_CACHED_NAMES)
def _encode_name(name: str) -> bytes:
    data = name.encode()
    return b"\x0a" + encode_varint(len(data)) + data


def property_prefix(name: bytes, length: int) -> bytes:
    """All bytes of a property up to its value, which has this length."""
    pair = b"".join((b"\x0a", encode_varint(len(name)), name, b"\x12", encode_varint(length)))
    return b"\x0a" + encode_varint(len(pair) + length) + pair


class PropertyPrefixes(dict[int, bytes]):
    """The prefixes of one property name, by the length of the value."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self._name = name.encode()

    def __missing__(self, length: int) -> bytes:
        prefix = property_prefix(self._name, length)
        if length < MAX_CACHED_LENGTH:
            self[length] = prefix
        return prefix


def encode_partition_key(key: str, is_base64: bool = False) -> bytes:
    """The key and, directly behind it, the flag of a binary one."""
    data = key.encode()
    return b"\x12" + encode_varint(len(data)) + data + (KEY_IS_BASE64_TRUE if is_base64 else b"")


def encode_event_time(time: int) -> bytes:
    """A time other than 0, which means none."""
    if 1 << 28 <= time < 1 << 42:  # from 1970-01-04 to 2109: six bytes, each two of them from a table
        return b"".join((b"\x28", CONTINUED[time & 0x3FFF], CONTINUED[time >> 14 & 0x3FFF], SMALL[time >> 28]))
    return b"\x28" + encode_varint(time & _UINT64)


def encode_prefix(
    payload_size: int,
    properties: Iterable[tuple[str, str]] = (),
    key: str | None = None,
    is_base64: bool = False,
    ordering_key: bytes | None = None,
    event_time: int = 0,
) -> bytes:
    """The metadata and, before it, its uint32 size; in protobuf's order of fields. -1 is the payload size of a null value."""
    is_null = payload_size < 0
    fields = [encode_property(name, value.encode()) for name, value in properties]
    if key is not None:
        fields.append(encode_partition_key(key))
    fields += (PAYLOAD_SIZE_TAG, encode_varint(0 if is_null else payload_size))
    if event_time:
        fields.append(encode_event_time(event_time))
    if is_base64:
        fields.append(KEY_IS_BASE64_TRUE)
    if ordering_key is not None:
        fields += (ORDERING_KEY_TAG, encode_varint(len(ordering_key)), ordering_key)
    if is_null:
        fields.append(NULL_VALUE_TRUE)
    metadata = b"".join(fields)
    return _SIZE.pack(len(metadata)) + metadata


class _PlainPrefixes(dict[int, bytes]):
    """By payload size: size and metadata of a message that has only a payload."""

    def __missing__(self, size: int) -> bytes:
        prefix = encode_prefix(size)
        if size < MAX_CACHED_LENGTH:
            self[size] = prefix
        return prefix


PLAIN_PREFIXES = _PlainPrefixes()


# --- decode -----------------------------------------------------------------------------------------------------------

_NUMBERS = frozenset({PAYLOAD_SIZE, EVENT_TIME, KEY_IS_BASE64, SEQUENCE_ID, NULL_VALUE, NULL_PARTITION_KEY})
_BYTES = frozenset({PARTITION_KEY, ORDERING_KEY})
_FLAGS = frozenset({KEY_IS_BASE64, NULL_VALUE, NULL_PARTITION_KEY})


class SingleMetadataParser:
    """The fields between two offsets: names and values of properties, numbers and byte strings by their tags.

    The last one of a repeated field counts, as in protobuf. A property's bytes up to its value repeat from message to message, so
    they are looked up in `known_names`; properties with other names are given to `add_property`.
    """

    __slots__ = ("names", "numbers", "texts", "values")
    known_names: ClassVar[Mapping[bytes, bytes]]

    def __init__(self, data: bytes, at: int, end: int) -> None:
        """Raises UnsupportedLayout, IndexError, RemoteProtocolError: read the bytes with protobuf then."""
        self.names: list[bytes] = []
        self.values: list[bytes] = []
        self.numbers: dict[int, int] = {}
        self.texts: dict[int, bytes] = {}
        names, values, known = self.names, self.values, self.known_names
        while at < end:
            tag = data[at]
            if tag == PROPERTY:
                value_at = at + data[at + 3] + 6
                name = known.get(data[at:value_at])
                if name is not None:
                    at += 2 + data[at + 1]
                    names.append(name)
                    values.append(data[value_at:at])
                else:
                    at = self._read_property(data, at)
            elif tag in _NUMBERS:
                if (number := data[at + 1]) < 0x80:
                    at += 2
                elif data[at + 2] < 0x80:
                    number += (data[at + 2] - 1) << 7
                    at += 3
                else:
                    number, at = decode_varint(data, at + 1)
                self.numbers[tag] = number
            elif tag in _BYTES:
                size, start = decode_varint(data, at + 1)
                at = start + size
                self.texts[tag] = data[start:at]
            else:
                raise UnsupportedLayout
        if at != end or PAYLOAD_SIZE not in self.numbers:
            raise UnsupportedLayout

    def _read_property(self, data: bytes, at: int) -> int:
        """Read a property whose prefix is not known; returns the offset behind it."""
        name_at, name_end, value_at, end = split_property(data, at)
        prefix = data[at:value_at] if value_at == at + name_end - name_at + 6 else None
        self.add_property(data[name_at:name_end], data[value_at:end], prefix)
        return end

    def add_property(self, name: bytes, value: bytes, prefix: bytes | None) -> None:
        """Keep a property, if it is wanted. `prefix` is a key for `known_names`, None where a length takes more than one byte."""
        raise NotImplementedError


class Span(NamedTuple):
    """Where the value of a field lies; `name` is that of a property."""

    tag: int
    start: int
    end: int
    name: bytes = b""


def value_spans(data: bytes) -> list[Span]:
    """The values of metadata whose fields stand in the order of their tags, each once, with all flags off.

    What lies between the values are tags, lengths, names and flags: where another metadata has the same bytes at these offsets,
    it has the same fields. Raises UnsupportedLayout, IndexError, RemoteProtocolError.
    """
    spans: list[Span] = []
    at = last = 0
    while at < len(data):
        tag = data[at]
        if tag < last or (tag == last and tag != PROPERTY):
            raise UnsupportedLayout
        last = tag
        if tag in _FLAGS:
            if data[at + 1]:
                raise UnsupportedLayout
            at += 2
            continue
        if tag == PROPERTY:
            name_at, name_end, start, end = split_property(data, at)
            spans.append(Span(tag, start, end, data[name_at:name_end]))
        elif tag == PARTITION_KEY:
            size, start = decode_varint(data, at + 1)
            end = start + size
            spans.append(Span(tag, start, end))
        elif tag in {PAYLOAD_SIZE, EVENT_TIME, SEQUENCE_ID}:
            _, end = decode_varint(data, at + 1)
            spans.append(Span(tag, at + 1, end))
        else:
            raise UnsupportedLayout
        at = end
    if at != len(data) or all(span.tag != PAYLOAD_SIZE for span in spans):
        raise UnsupportedLayout
    return spans


def split_property(data: bytes, at: int) -> tuple[int, int, int, int]:
    """Begin and end of the name and of the value. Raises UnsupportedLayout, IndexError, RemoteProtocolError."""
    size, item_at = decode_varint(data, at + 1)
    name_size, name_at = decode_varint(data, item_at + 1)
    name_end, end = name_at + name_size, item_at + size
    value_size, value_at = decode_varint(data, name_end + 1)
    if data[item_at] != NAME or data[name_end] != VALUE or value_at + value_size != end:
        raise UnsupportedLayout
    return name_at, name_end, value_at, end


def is_varint(data: bytes) -> bool:
    """Whether bytes are exactly one varint."""
    return data[-1] < 0x80 and (len(data) == 1 or min(data[:-1]) > 0x7F)
