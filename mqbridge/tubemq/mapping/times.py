"""`$msgTime$` <-> event time (ms since the epoch).

A `$msgTime$` value has twelve digits, YYYYMMDDHHMM: a minute in the cluster's time zone.
"""

from datetime import datetime, tzinfo
from functools import cache, partial

from mqbridge.mapping.bounded_cache import BoundedCache
from mqbridge.tubemq.wire.attributes import MSG_TIME_DIGITS

MsgTimes = BoundedCache[bytes, int | None]
"""Times (ms since the epoch) by `$msgTime$` value, computed on first use, for one zone; None for a value that is not a time."""
MsgTimeTexts = BoundedCache[int, str | None]
"""`$msgTime$` values by second since the epoch, computed on first use, for one zone; None outside of the years 1 to 9999."""


@cache
def msg_times_of(zone: tzinfo) -> MsgTimes:
    """Return the cache of a zone for decoding."""
    return BoundedCache(partial(_parse_msg_time, zone))


@cache
def msg_time_texts_of(zone: tzinfo) -> MsgTimeTexts:
    """Return the cache of a zone for encoding."""
    return BoundedCache(partial(_format_msg_time, zone), length=None)  # keys are integers, which have no length


def _parse_msg_time(zone: tzinfo, value: bytes) -> int | None:
    if len(value) != MSG_TIME_DIGITS or not value.isdigit():
        return None
    try:
        # Not strptime: it would also accept "2026112 3 4".
        parts = (int(value[:4]), int(value[4:6]), int(value[6:8]), int(value[8:10]), int(value[10:]))
        return int(datetime(*parts, tzinfo=zone).timestamp()) * 1000
    except (ValueError, OverflowError):
        return None


def _format_msg_time(zone: tzinfo, second: int) -> str | None:
    try:
        # `zfill`: some platforms write years before 1000 with fewer than four digits.
        return datetime.fromtimestamp(second, zone).strftime("%Y%m%d%H%M").zfill(MSG_TIME_DIGITS)
    except (ValueError, OverflowError, OSError):
        return None
