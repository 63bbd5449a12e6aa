"""The hash that Brokers filter by: they compare it, not the message type itself, so foreign types of the same hash pass.

Whoever filters must therefore look at the type (`$msgType$` of the attributes) once more.
"""

from functools import lru_cache

NO_TYPE = -1
"""The key code of a message without a type."""


@lru_cache(maxsize=4096)
def java_hash(text: str) -> int:
    """Java's String.hashCode: over UTF-16 code units, a signed 32-bit number."""
    units = text.encode("utf-16-le", "surrogatepass")
    value = 0
    for at in range(0, len(units), 2):
        value = (31 * value + units[at] + (units[at + 1] << 8)) & 0xFFFFFFFF
    return value - (1 << 32) if value >> 31 else value
