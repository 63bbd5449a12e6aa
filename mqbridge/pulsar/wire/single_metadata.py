"""Hand-written encoder of SingleMessageMetadata with its size prefix; it takes a third of the time of a protobuf object.

The bytes are the same as protobuf's: fields in the order of their numbers, each after its tag byte (field number << 3 | wire
type). A property is a KeyValue, field 1: name (1) and value (2), each with its length.
"""

import struct
from collections.abc import Iterable
from functools import lru_cache

from mqbridge.pulsar.wire.pb.PulsarApi_pb2 import KeyValue, MessageMetadata
from mqbridge.wire.text import encode_text
from mqbridge.wire.varint import SMALL_VARINTS, TWO_BYTE_PREFIXES, encode_varint

CACHED_PAYLOAD_SIZES = 16384
"""Number of payload sizes, from 0 on, whose prefixes are cached for messages that have only a payload."""
MAX_CACHED_PROPERTY_PREFIXES = 4096
"""Maximum number of cached prefixes of properties, one for each name and length of the value; a full cache is cleared."""
MAX_CACHED_NAME_LENGTH = 256
"""Properties whose names have more characters are not cached, to bound the memory of the cache."""
MAX_CACHED_TIMES = 64
"""Maximum number of cached event times. Few are enough: the messages of one batch are made within a few milliseconds."""
_UINT64 = (1 << 64) - 1
_SIZE = struct.Struct(">I")


class _PropertyPrefixes(dict[tuple[str, int], bytes]):
    """Cache: (name, size of the encoded value) -> the encoded property up to its value."""

    def __missing__(self, key: tuple[str, int]) -> bytes:
        name, size = key
        data = encode_text(name)
        key_value = b"".join((b"\x0a", encode_varint(len(data)), data, b"\x12", encode_varint(size)))
        prefix = b"\x0a" + encode_varint(len(key_value) + size) + key_value
        if len(name) <= MAX_CACHED_NAME_LENGTH:
            if len(self) >= MAX_CACHED_PROPERTY_PREFIXES:
                self.clear()
            self[key] = prefix
        return prefix


_PROPERTY_PREFIXES = _PropertyPrefixes()


def encode_property(name: str, value: str) -> bytes:
    """Encode one property."""
    return b"".join(encode_properties([(name, value)]))


def encode_properties(properties: Iterable[tuple[str, str]]) -> list[bytes]:
    """Encode properties as a list of byte strings to be joined: prefix and value of each property."""
    parts: list[bytes] = []
    add, prefixes = parts.append, _PROPERTY_PREFIXES
    for name, value in properties:
        data = encode_text(value)
        add(prefixes[name, len(data)])
        add(data)
    return parts


@lru_cache(maxsize=MAX_CACHED_TIMES)
def _encode_event_time(time: int) -> bytes:
    """Encode the field of an event time in ms since the epoch."""
    if 1 << 28 <= time < 1 << 42:  # from 1970-01-04 to 2109
        # A varint of six bytes is joined from table entries of two bytes, each by 14 bits of the time: faster than a loop.
        low, middle = TWO_BYTE_PREFIXES[time & 0x3FFF], TWO_BYTE_PREFIXES[time >> 14 & 0x3FFF]
        return b"".join((b"\x28", low, middle, SMALL_VARINTS[time >> 28]))
    return b"\x28" + encode_varint(time & _UINT64)


def encode_prefix(
    payload_size: int,
    properties: Iterable[tuple[str, str]] = (),
    key: str | None = None,
    is_base64: bool = False,
    ordering_key: bytes | None = None,
    event_time: int = 0,
    encoded_properties: bytes = b"",
) -> bytes:
    """Return the uint32 size of the metadata, and the metadata. Payload size -1 means a null value, event time 0 means none.

    `encoded_properties` are written before `properties`. `is_base64` is True if `key` is the base64 text of a binary key.
    """
    fields = [encoded_properties, *encode_properties(properties)]
    if key is not None:
        data = encode_text(key)
        fields += (b"\x12", encode_varint(len(data)), data)  # partition_key
    fields += (b"\x18", encode_varint(payload_size) if payload_size > 0 else b"\0")  # payload_size
    if event_time:
        fields.append(_encode_event_time(event_time))
    if is_base64:
        fields.append(b"\x30\x01")  # partition_key_b64_encoded
    if ordering_key is not None:
        fields += (b"\x3a", encode_varint(len(ordering_key)), ordering_key)  # ordering_key
    if payload_size < 0:
        fields.append(b"\x48\x01")  # null_value
    metadata = b"".join(fields)
    return _SIZE.pack(len(metadata)) + metadata


# The protobuf library takes no strings that are not UTF-8, but it parses and writes them.


def add_properties(metadata: MessageMetadata, properties: Iterable[tuple[str, str]]) -> None:
    """Add properties to the metadata of an entry."""
    for name, value in properties:
        try:
            metadata.properties.append(KeyValue(key=name, value=value))
        except UnicodeEncodeError:
            raw = _delimited(b"\x0a", name) + _delimited(b"\x12", value)
            metadata.MergeFromString(b"\x22" + encode_varint(len(raw)) + raw)


def set_key(metadata: MessageMetadata, key: str) -> None:
    """Set the key of an entry."""
    try:
        metadata.partition_key = key
    except UnicodeEncodeError:
        metadata.MergeFromString(_delimited(b"\x32", key))


def _delimited(tag: bytes, text: str) -> bytes:
    data = encode_text(text)
    return tag + encode_varint(len(data)) + data


class _PlainPrefixes(dict[int, bytes]):
    """Cache: payload size -> prefix of a message that has only a payload."""

    def __missing__(self, size: int) -> bytes:
        prefix = encode_prefix(size)
        if size < CACHED_PAYLOAD_SIZES:
            self[size] = prefix
        return prefix


PLAIN_PREFIXES = _PlainPrefixes()
"""The prefixes, see `encode_prefix`, of messages without any field but the payload size."""
