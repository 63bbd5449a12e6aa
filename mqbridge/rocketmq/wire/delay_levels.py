"""Delay levels: the default of a broker's `messageDelayLevel`."""

from bisect import bisect_left

LEVELS_S = (1, 5, 10, 30, 60, 120, 180, 240, 300, 360, 420, 480, 540, 600, 1200, 1800, 3600, 7200)
"""Seconds of level 1 and up."""
MAX_LEVEL = len(LEVELS_S)
"""Brokers treat a higher level as this one."""
RETRY_BASE_LEVEL = 3
"""A message that is sent back for the n-th time (from 0) waits for level 3 + n."""
MAX_TIMER_MS = 3 * 86_400_000
"""Longest delay of a delivery time that 5.x brokers accept (`timerMaxDelaySec`); longer ones fail with MESSAGE_ILLEGAL."""


def delay_s(level: int) -> int:
    """Return the delay of a level in seconds; 0 for no level."""
    return LEVELS_S[min(level, MAX_LEVEL) - 1] if level > 0 else 0


def level_of(seconds: float) -> int:
    """Return the lowest level of at least this delay, the highest for more than two hours; 0 for no delay."""
    return min(bisect_left(LEVELS_S, seconds) + 1, MAX_LEVEL) if seconds > 0 else 0


def retry_level(reconsume_times: int) -> int:
    """Return the delay level of the next redelivery of a message that was sent back `reconsume_times` before."""
    return min(RETRY_BASE_LEVEL + reconsume_times, MAX_LEVEL)
