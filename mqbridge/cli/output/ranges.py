"""Ranges of offsets as text, for tables."""

from collections.abc import Sequence

SHOWN_RANGES = 5
"""Number of ranges that a cell of a table shows."""


def ranges_text(ranges: Sequence[tuple[int, int]]) -> str:
    """Return ranges of offsets, each from its begin to before its end, as a text with the first and the last offset of each."""
    shown = ", ".join(f"{begin}-{end - 1}" if begin < end - 1 else f"{begin}" for begin, end in ranges[:SHOWN_RANGES])
    return shown + (f" and {len(ranges) - SHOWN_RANGES} more ranges" if len(ranges) > SHOWN_RANGES else "")
