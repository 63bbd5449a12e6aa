"""The two key hashes that clients of every language can be configured to choose a partition by.

(The default hash of the C++ core depends on the platform, so no other client can agree with it.)
"""

from mqbridge.wire import javahash

_M32 = 0xFFFFFFFF
_POSITIVE = 0x7FFFFFFF


def java_string_hash(text: str) -> int:
    """Return Java's `String.hashCode` without its sign bit."""
    return javahash.java_string_hash(text) & _POSITIVE


def murmur3_32(data: bytes) -> int:
    """Return MurmurHash3 (x86, 32 bits, seed 0) without its sign bit."""
    value, blocks_end = 0, len(data) & ~3
    for offset in range(0, blocks_end, 4):
        value ^= _scramble(int.from_bytes(data[offset : offset + 4], "little"))
        value = (_rotate(value, 13) * 5 + 0xE6546B64) & _M32
    if blocks_end != len(data):
        value ^= _scramble(int.from_bytes(data[blocks_end:], "little"))
    value ^= len(data)
    value = (value ^ value >> 16) * 0x85EBCA6B & _M32
    value = (value ^ value >> 13) * 0xC2B2AE35 & _M32
    return (value ^ value >> 16) & _POSITIVE


def _rotate(value: int, bits: int) -> int:
    return (value << bits | value >> 32 - bits) & _M32


def _scramble(word: int) -> int:
    return _rotate(word * 0xCC9E2D51 & _M32, 15) * 0x1B873593 & _M32
