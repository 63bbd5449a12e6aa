"""The body of SEND_BATCH_MESSAGE, and of an inner batch (stored as one record): messages of one queue, back to back.

    int32 size | int32 magic | int32 crc | int32 flag | int32 bodyLen, body | uint16 propertiesLen, properties

size counts the whole message, itself included. magic and crc are 0: no client fills them in, no broker checks them.
"""

import struct
from collections.abc import Iterable

from mqbridge.errors import LocalProtocolError, RemoteProtocolError
from mqbridge.rocketmq.wire.properties import MAX_BYTES

_PREFIX = struct.Struct(">iiiii")
_U16 = struct.Struct(">H")

Element = tuple[int, bytes, bytes]
"""Flag (a number of the application), body and property string of a message."""

OVERHEAD_BYTES = _PREFIX.size + _U16.size
"""Bytes of a message without its body and its properties."""


def encode_element(body: bytes, properties: bytes, flag: int = 0) -> bytes:
    """Encode one message; a batch is the concatenation of its messages.

    Raises LocalProtocolError for more than MAX_BYTES of properties, or a flag beyond 32 bits.
    """
    properties_size = len(properties)
    if properties_size > MAX_BYTES:
        raise LocalProtocolError(f"{properties_size} bytes of properties exceed the {MAX_BYTES} bytes that a message may have")
    message_size = OVERHEAD_BYTES + len(body) + properties_size
    try:
        return _PREFIX.pack(message_size, 0, 0, flag, len(body)) + body + _U16.pack(properties_size) + properties
    except struct.error as error:
        raise LocalProtocolError(f"a message of {len(body)} bytes with the flag {flag} does not fit a batch: {error}") from error


def encode_batch(elements: Iterable[Element]) -> bytes:
    """Encode messages without checks: the caller ensures that no properties exceed MAX_BYTES and that flags fit 32 bits."""
    pieces: list[bytes] = []
    pack_prefix, pack_u16 = _PREFIX.pack, _U16.pack
    for flag, body, properties in elements:
        body_size, properties_size = len(body), len(properties)
        message_size = OVERHEAD_BYTES + body_size + properties_size
        pieces += (pack_prefix(message_size, 0, 0, flag, body_size), body, pack_u16(properties_size), properties)
    return b"".join(pieces)


def end_of(data: bytes, count: int) -> int:
    """Return the index after the first `count` messages of a batch that `encode_batch` has made."""
    at = 0
    for _ in range(count):
        at += _PREFIX.unpack_from(data, at)[0]
    return at


def decode_batch(data: bytes, max_messages: int | None = None) -> list[Element]:
    """Return the flag, body and property string of each message.

    Raises RemoteProtocolError for bytes that cannot be split into messages, and for more than `max_messages` messages
    (None: no limit).
    """
    elements: list[Element] = []
    at, end = 0, len(data)
    while at < end:
        if end - at < OVERHEAD_BYTES:
            raise RemoteProtocolError(
                _malformed(at, end, f"{end - at} bytes are left, and a message has {OVERHEAD_BYTES} at least")
            )
        message_size, _, _, flag, body_size = _PREFIX.unpack_from(data, at)
        body_at, message_end = at + _PREFIX.size, at + message_size
        properties_at = body_at + body_size + 2
        if body_size < 0 or not properties_at <= message_end <= end:
            problem = f"{message_size} bytes with a body of {body_size}, and {end - at} are left"
            raise RemoteProtocolError(_malformed(at, end, problem))
        if data[properties_at - 2] << 8 | data[properties_at - 1] != message_end - properties_at:
            raise RemoteProtocolError(_malformed(at, end, f"the lengths inside do not add up to its {message_size} bytes"))
        if len(elements) == max_messages:
            raise RemoteProtocolError(f"a batch of {end} bytes with more than {max_messages} messages")
        elements.append((flag, data[body_at : properties_at - 2], data[properties_at:message_end]))
        at = message_end
    return elements


def _malformed(at: int, end: int, problem: str) -> str:
    """Return the text of an error; the compiled module uses the same texts."""
    return f"the message at byte {at} of a batch of {end} cannot be read: {problem}"
