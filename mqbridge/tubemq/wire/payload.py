"""The data field of a message: `int32 length, attributes, body` if bit 0 of the message's flag is set, else only the body.

The Java SDK's clearAttribute() sets bit 0, but writes no length. The first four bytes are then part of the body; read as a
length, they usually exceed the data. Data whose length is impossible is read as a body without attributes, as the sender
intended.
"""

from struct import Struct

from mqbridge.wire.checksum import crc32

HAS_ATTRIBUTES = 1
"""Bit 0 of the flag; the other bits are unused."""

CHECKSUM_MASK = 0x7FFFFFFF
"""Checksums are CRC-32 without the sign bit."""

CHECKSUM_MISMATCH = "its checksum does not match its content"
"""The `defect` of a Message with a wrong checksum."""

_LENGTH = Struct(">i")
LENGTH_BYTES = _LENGTH.size


def checksum(data: bytes) -> int:
    """Return the value that TransferedMessage.checkSum must have; SDKs silently skip a message with any other value."""
    return crc32(data) & CHECKSUM_MASK


def join_payload(attributes: bytes | None, body: bytes) -> tuple[bytes, int]:
    """Return the data and the flag of a message; with `attributes=None` the data is only the body."""
    if attributes is None:
        return body, 0
    return _LENGTH.pack(len(attributes)) + attributes + body, HAS_ATTRIBUTES


def split_payload(data: bytes, flag: int) -> tuple[bytes | None, bytes]:
    """Return (attributes, body); the attributes are None if the data is only the body."""
    if flag & HAS_ATTRIBUTES and len(data) >= LENGTH_BYTES:
        end = LENGTH_BYTES + _LENGTH.unpack_from(data)[0]
        if LENGTH_BYTES <= end <= len(data):
            return data[LENGTH_BYTES:end], data[end:]
    return None, data
