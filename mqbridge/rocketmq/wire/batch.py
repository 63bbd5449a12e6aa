"""The body of SEND_BATCH_MESSAGE and of a stored inner batch: messages of one queue, back to back.

    int32 size | int32 magic | int32 crc | int32 flag | int32 bodyLen, body | int16 propertiesLen, properties

magic and crc are 0: no client fills them in, no broker checks them.
"""

import struct
from collections.abc import Iterable

from mqbridge.errors import LocalProtocolError, RemoteProtocolError
from mqbridge.rocketmq.wire.properties import MAX_BYTES

_PREFIX = struct.Struct(">iiiii")
_U16 = struct.Struct(">H")

Element = tuple[int, bytes, bytes]
"""Flag, body and properties of a message."""

OVERHEAD_BYTES = _PREFIX.size + _U16.size
"""Bytes of a message without its body and its properties."""


def encode_element(body: bytes, properties: bytes, flag: int = 0) -> bytes:
    """Encode one message; a batch is the concatenation of its messages.

    Raises LocalProtocolError for more than MAX_BYTES of properties, or a flag beyond 32 bits.
    """
    size = len(properties)
    if size > MAX_BYTES:
        raise LocalProtocolError(f"{size} bytes of properties; a message carries up to {MAX_BYTES}")
    try:
        return _PREFIX.pack(OVERHEAD_BYTES + len(body) + size, 0, 0, flag, len(body)) + body + _U16.pack(size) + properties
    except struct.error as error:
        raise LocalProtocolError(f"a message of {len(body)} bytes with the flag {flag} does not fit a batch: {error}") from error


def encode_batch(elements: Iterable[Element]) -> bytes:
    """Encode messages without checks: the caller knows that properties fit MAX_BYTES and flags 32 bits."""
    pieces: list[bytes] = []
    pack_prefix, pack_length = _PREFIX.pack, _U16.pack
    for flag, body, properties in elements:
        length, size = len(body), len(properties)
        pieces += (pack_prefix(OVERHEAD_BYTES + length + size, 0, 0, flag, length), body, pack_length(size), properties)
    return b"".join(pieces)


def decode_batch(data: bytes, max_messages: int | None = None) -> list[Element]:
    """Return flag, body and properties of each message.

    Raises RemoteProtocolError for bytes that cannot be split into messages, and for more than `max_messages` messages.
    """
    elements: list[Element] = []
    at, end = 0, len(data)
    while at < end:
        if end - at < OVERHEAD_BYTES:
            raise RemoteProtocolError(
                _malformed(at, end, f"{end - at} bytes are left, and a message has {OVERHEAD_BYTES} at least")
            )
        size, _, _, flag, length = _PREFIX.unpack_from(data, at)
        start, stop = at + _PREFIX.size, at + size
        properties_at = start + length + 2
        if length < 0 or not properties_at <= stop <= end:
            raise RemoteProtocolError(_malformed(at, end, f"{size} bytes with a body of {length}, and {end - at} are left"))
        if data[properties_at - 2] << 8 | data[properties_at - 1] != stop - properties_at:
            raise RemoteProtocolError(_malformed(at, end, f"the lengths inside do not add up to its {size} bytes"))
        if len(elements) == max_messages:
            raise RemoteProtocolError(f"a batch of {end} bytes with more than {max_messages} messages")
        elements.append((flag, data[start : properties_at - 2], data[properties_at:stop]))
        at = stop
    return elements


def _malformed(at: int, end: int, problem: str) -> str:
    return f"the message at byte {at} of a batch of {end} cannot be read: {problem}"
