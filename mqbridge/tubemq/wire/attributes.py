"""The attribute string: `key=value` pairs joined by commas.

An item without `=`, without a key or that is not UTF-8 is no pair; it stays in the string alone. A value may hold further `=`.
"""

SEPARATOR, PAIR_END = b"=", b","
MSG_TIME_DIGITS = 12
"""The value of `$msgTime$` is a minute: YYYYMMDDHHMM, in the zone of the cluster."""


def read_pair(item: bytes) -> tuple[str, str] | None:
    """One item of an attribute string, None when it is no pair."""
    try:
        key, separator, value = item.decode().partition("=")
    except UnicodeDecodeError:
        return None
    return (key, value) if separator and key else None
