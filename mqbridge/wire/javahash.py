"""Java's `String.hashCode`: all clients, in every language, choose partitions by it, and brokers filter by it."""

import sys
from operator import mul

_M32 = 0xFFFFFFFF
_UTF16 = f"utf-16-{sys.byteorder[0]}e"
BLOCK = 64
"""Units per step: takes less than half of the time of single steps. A key may be as long as a message."""
_WEIGHTS = [pow(31, power, 1 << 32) for power in range(BLOCK)][::-1]
_SHIFT = pow(31, BLOCK, 1 << 32)


def java_string_hash(text: str) -> int:
    """Return 31 * h + unit over UTF-16 code units, as an int32: it may be negative."""
    units = memoryview(text.encode(_UTF16, "surrogatepass")).cast("H")
    value, head = 0, len(units) % BLOCK
    for unit in units[:head]:
        value = (31 * value + unit) & _M32
    for at in range(head, len(units), BLOCK):
        value = (_SHIFT * value + sum(map(mul, units[at : at + BLOCK], _WEIGHTS))) & _M32
    return value - (1 << 32) if value >> 31 else value
