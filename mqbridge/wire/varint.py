"""Protobuf's unsigned varints, for the few places where bytes are cut or written by hand.

The encodings of 0 to 16383 come from a table: they are nearly all that occur, and a lookup takes a third of the loop's time.
"""

from mqbridge.errors import RemoteProtocolError

MAX_VARINT_BYTES = 10


def _encode(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


SMALL = [_encode(value) for value in range(1 << 14)]
"""The encodings of the small values, by value."""

CONTINUED = [bytes((value & 0x7F | 0x80, value >> 7 | 0x80)) for value in range(1 << 14)]
"""The first two bytes of a longer encoding, by the lowest 14 bits of its value."""


def encode_varint(value: int) -> bytes:
    """An unsigned value up to 64 bits."""
    return SMALL[value] if value < 1 << 14 else _encode(value)


def decode_varint(data: bytes, at: int) -> tuple[int, int]:
    """The value at `at` and the place after it. Raises RemoteProtocolError when it is cut short or too long."""
    value = shift = 0
    for place in range(at, min(at + MAX_VARINT_BYTES, len(data))):
        byte = data[place]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, place + 1
        shift += 7
    raise RemoteProtocolError(f"a varint at byte {at} of {len(data)} does not end")
