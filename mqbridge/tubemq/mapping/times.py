"""`$msgTime$` <-> time. The attribute has twelve digits, YYYYMMDDHHMM: a minute in the cluster's time zone."""

from datetime import datetime, tzinfo
from functools import cache, partial

from mqbridge.mapping.bounded_cache import BoundedCache
from mqbridge.tubemq.wire.attributes import MSG_TIME_DIGITS

Minutes = BoundedCache[bytes, int | None]
"""Cache from `$msgTime$` values to times (ms since the epoch), for one zone; None for a value that is not a time."""
MinuteTexts = BoundedCache[int, str | None]
"""Cache from seconds since the epoch to `$msgTime$` values, for one zone; None for a time that they cannot express."""


@cache
def minutes_of(zone: tzinfo) -> Minutes:
    """Return the cache of a zone for decoding."""
    return BoundedCache(partial(_read, zone))


@cache
def minute_texts_of(zone: tzinfo) -> MinuteTexts:
    """Return the cache of a zone for encoding."""
    return BoundedCache(partial(_write, zone), length=None)


def _read(zone: tzinfo, value: bytes) -> int | None:
    if len(value) != MSG_TIME_DIGITS or not value.isdigit():
        return None
    try:
        # Slices of fixed positions are strict; strptime would also accept "2026112 3 4".
        parts = (int(value[:4]), int(value[4:6]), int(value[6:8]), int(value[8:10]), int(value[10:]))
        return int(datetime(*parts, tzinfo=zone).timestamp()) * 1000
    except (ValueError, OverflowError):
        return None


def _write(zone: tzinfo, second: int) -> str | None:
    try:
        return datetime.fromtimestamp(second, zone).strftime("%Y%m%d%H%M").zfill(MSG_TIME_DIGITS)
    except (ValueError, OverflowError, OSError):
        return None
