"""Memos: what names and short texts mean, remembered because they repeat from message to message. All are bounded."""

from typing import TypeVar

ENTRIES = 16384
"""A memo is emptied when it holds this many: messages repeat few texts, or so many that no memo would help."""
LONGEST = 256
"""Bytes or characters. What is longer seldom repeats (tokens, sentences) and is not kept."""

K = TypeVar("K")
V = TypeVar("V")


def remember(memo: dict[K, V], key: K, value: V, size: int = 0) -> V:
    """Keep what a key means, if `size`, its length, is not beyond LONGEST; gives the value back."""
    if size <= LONGEST:
        if len(memo) >= ENTRIES:
            memo.clear()
        memo[key] = value
    return value
