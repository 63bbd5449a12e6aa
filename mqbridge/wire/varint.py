"""Protobuf's unsigned varints, for code that parses or writes protobuf bytes directly.

The encodings of 0 to 16383 are in a table: nearly all values are that small, and a lookup takes a third of the loop's time.
"""

from mqbridge.errors import RemoteProtocolError

MAX_VARINT_BYTES = 10
"""Length of the longest encoding, that of a 64-bit value."""


def _encode(value: int) -> bytes:
    """Encode an unsigned value, without the table."""
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


SMALL_VARINTS = [_encode(value) for value in range(1 << 14)]
"""The encodings of small values, by value."""

TWO_BYTE_PREFIXES = [bytes((value & 0x7F | 0x80, value >> 7 | 0x80)) for value in range(1 << 14)]
"""The first two bytes of a longer encoding, by the lowest 14 bits of its value."""


def encode_varint(value: int) -> bytes:
    """Encode an unsigned value of up to 64 bits."""
    if value < 1 << 14:
        return SMALL_VARINTS[value]
    leading = TWO_BYTE_PREFIXES[value & 0x3FFF]
    value >>= 14
    while value >= 1 << 14:  # 14 bits at once: a value of 63 bits takes a third of the time of `_encode`
        leading += TWO_BYTE_PREFIXES[value & 0x3FFF]
        value >>= 14
    return leading + SMALL_VARINTS[value]


def decode_varint(data: bytes, at: int) -> tuple[int, int]:
    """Decode the value at offset `at`; return the value and the offset after it.

    An encoding of ten bytes may contain up to 70 bits, which are all returned. Raises RemoteProtocolError if the encoding is
    incomplete or longer.
    """
    try:  # nearly all values have one or two bytes
        if (first := data[at]) < 0x80:
            return first, at + 1
        if (second := data[at + 1]) < 0x80:
            return first & 0x7F | second << 7, at + 2
    except IndexError:
        pass
    value = shift = 0
    for index in range(at, min(at + MAX_VARINT_BYTES, len(data))):
        byte = data[index]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, index + 1
        shift += 7
    raise RemoteProtocolError(f"a varint at byte {at} of {len(data)} does not end")
