"""Hash functions of message keys, by which producers choose the partition.

The Java hash and MurmurHash3 exist in the official clients of all languages. The default of the C++ client is not among them: it
depends on the platform, so no other client can compute the same hash.
"""

from mqbridge.wire import javahash

_UINT32_MASK = 0xFFFFFFFF
_POSITIVE_MASK = 0x7FFFFFFF


def java_string_hash(text: str) -> int:
    """Return Java's `String.hashCode` with its sign bit cleared."""
    return javahash.java_string_hash(text) & _POSITIVE_MASK


def murmur3_32(data: bytes) -> int:
    """Return MurmurHash3 (x86, 32 bits, seed 0) with its sign bit cleared."""
    value, blocks_end = 0, len(data) & ~3
    for offset in range(0, blocks_end, 4):
        value ^= _scramble(int.from_bytes(data[offset : offset + 4], "little"))
        value = (_rotate(value, 13) * 5 + 0xE6546B64) & _UINT32_MASK
    if blocks_end != len(data):
        value ^= _scramble(int.from_bytes(data[blocks_end:], "little"))
    value ^= len(data)
    value = (value ^ value >> 16) * 0x85EBCA6B & _UINT32_MASK
    value = (value ^ value >> 13) * 0xC2B2AE35 & _UINT32_MASK
    return (value ^ value >> 16) & _POSITIVE_MASK


def _rotate(value: int, bits: int) -> int:
    return (value << bits | value >> 32 - bits) & _UINT32_MASK


def _scramble(word: int) -> int:
    return _rotate(word * 0xCC9E2D51 & _UINT32_MASK, 15) * 0x1B873593 & _UINT32_MASK
