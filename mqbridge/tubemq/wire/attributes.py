"""The attribute string of a message: `key=value` pairs joined by commas.

A value may contain `=`. An item without `=`, without a key, or with bytes that are not UTF-8 is not a pair; readers ignore it.
"""

PAIR_SEPARATOR = b","
MSG_TIME_DIGITS = 12
"""Number of digits of a `$msgTime$` value. The value is a minute in the cluster's time zone: YYYYMMDDHHMM."""


def parse_pair(item: bytes) -> tuple[str, str] | None:
    """Parse one item of an attribute string; None if it is not a pair."""
    try:
        key, separator, value = item.decode().partition("=")
    except UnicodeDecodeError:
        return None
    return (key, value) if separator and key else None
