"""Java's `String.hashCode`: Pulsar and RocketMQ clients choose partitions by it, and RocketMQ brokers filter tags."""

import sys
from operator import mul

_M32 = 0xFFFFFFFF
_UTF16 = f"utf-16-{sys.byteorder[0]}e"
"""UTF-16 in this machine's byte order, in which `memoryview.cast` reads code units."""
BLOCK = 64
"""Code units per step: blocks take less than half of the time of single units. A key may be as long as a message."""
_WEIGHTS = [pow(31, power, 1 << 32) for power in range(BLOCK)][::-1]
"""Weight of each code unit of a block: 31 to the power of the number of units after it."""
_BLOCK_WEIGHT = pow(31, BLOCK, 1 << 32)
"""Weight of the hash of all units before a block."""


def java_string_hash(text: str) -> int:
    """Return the hash as an int32, which may be negative: `h = 31 * h + unit` for each UTF-16 code unit."""
    units = memoryview(text.encode(_UTF16, "surrogatepass")).cast("H")
    value, first_block = 0, len(units) % BLOCK  # the units before the first whole block are hashed one by one
    for unit in units[:first_block]:
        value = (31 * value + unit) & _M32
    for start in range(first_block, len(units), BLOCK):
        value = (_BLOCK_WEIGHT * value + sum(map(mul, units[start : start + BLOCK], _WEIGHTS))) & _M32
    return value - (1 << 32) if value >> 31 else value
