"""Java's `String.hashCode`, which clients in every language agree on for choosing partitions, and brokers for filters."""

_M32 = 0xFFFFFFFF


def java_string_hash(text: str) -> int:
    """31 * h + unit over UTF-16 code units, as an int32: it may be negative."""
    value = 0
    units = text.encode("utf-16-le", "surrogatepass")
    for at in range(0, len(units), 2):
        value = (31 * value + units[at] + (units[at + 1] << 8)) & _M32
    return value - (1 << 32) if value >> 31 else value
