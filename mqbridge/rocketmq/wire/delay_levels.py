"""Delay levels: numbered delays that a sender chooses from. These are the broker's defaults (setting `messageDelayLevel`)."""

from bisect import bisect_left

LEVELS_S = (1, 5, 10, 30, 60, 120, 180, 240, 300, 360, 420, 480, 540, 600, 1200, 1800, 3600, 7200)
"""The delays in seconds, from level 1 on."""
MAX_LEVEL = len(LEVELS_S)
"""The highest level; brokers treat a higher number as this level."""
RETRY_BASE_LEVEL = 3
"""Level of a message's first redelivery; each later redelivery has the next level."""
MAX_TIMER_MS = 3 * 86_400_000
"""How far in the future a message's delivery time may be, in ms: the default of 5.x brokers (`timerMaxDelaySec`).

Brokers refuse a later delivery time with MESSAGE_ILLEGAL.
"""


def delay_s(level: int) -> int:
    """Return the delay of a level in seconds; 0 for level 0, which means no delay."""
    return LEVELS_S[min(level, MAX_LEVEL) - 1] if level > 0 else 0


def level_of(seconds: float) -> int:
    """Return the lowest level whose delay is at least `seconds`; MAX_LEVEL for more than two hours, 0 for no delay."""
    return min(bisect_left(LEVELS_S, seconds) + 1, MAX_LEVEL) if seconds > 0 else 0


def retry_level(reconsume_times: int) -> int:
    """Return the level of the next redelivery of a message that was redelivered `reconsume_times` times already."""
    return min(RETRY_BASE_LEVEL + reconsume_times, MAX_LEVEL)
