"""What a message's bytes consist of: with bit 0 of the flag set, `int32 length, attributes, body`, else only the body.

Java's clearAttribute() sets the flag and writes no length. Then the first four bytes are body and mostly no possible length, so
such bytes are read as a body, which is what was meant.
"""

from struct import Struct

from mqbridge.wire.checksum import crc32

HAS_ATTRIBUTES = 1
"""Bit 0 of the flag; the others are unused."""

CHECKSUM_MASK = 0x7FFFFFFF
"""Checksums are CRC-32 without the sign bit."""

DAMAGED = "its checksum does not match its content"

_LENGTH = Struct(">i")
LENGTH_BYTES = _LENGTH.size
read_length = _LENGTH.unpack_from
"""For loops over messages that cannot afford `split_payload`: the length of the attributes, as a tuple of one."""


def checksum(data: bytes) -> int:
    """What TransferedMessage.checkSum must be; other values make every SDK skip the message without a word."""
    return crc32(data) & CHECKSUM_MASK


def join_payload(attributes: bytes | None, body: bytes) -> tuple[bytes, int]:
    """Bytes and flag of a message; no attribute block for None."""
    if attributes is None:
        return body, 0
    return _LENGTH.pack(len(attributes)) + attributes + body, HAS_ATTRIBUTES


def split_payload(data: bytes, flag: int) -> tuple[bytes | None, bytes]:
    """Attributes (None without a block) and body."""
    if flag & HAS_ATTRIBUTES and len(data) >= LENGTH_BYTES:
        end = LENGTH_BYTES + read_length(data)[0]
        if LENGTH_BYTES <= end <= len(data):
            return data[LENGTH_BYTES:end], data[end:]
    return None, data
