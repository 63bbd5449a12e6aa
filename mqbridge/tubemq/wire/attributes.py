"""The attribute string: `key=value` pairs joined by commas.

An item without `=`, without a key, or not in UTF-8 is not a pair and exists only in the string. A value may contain `=`.
"""

SEPARATOR, PAIR_SEPARATOR = b"=", b","
MSG_TIME_DIGITS = 12
"""Length of a `$msgTime$` value, a minute: YYYYMMDDHHMM in the cluster's time zone."""


def parse_pair(item: bytes) -> tuple[str, str] | None:
    """Parse one item of an attribute string; None if it is not a pair."""
    try:
        key, separator, value = item.decode().partition("=")
    except UnicodeDecodeError:
        return None
    return (key, value) if separator and key else None
