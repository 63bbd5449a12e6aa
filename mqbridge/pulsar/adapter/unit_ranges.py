"""Divides ranges of a partition into unit ranges, by which readers measure a range and split it evenly.

A unit is one entry of a ledger. The entries of a ledger are numbered from 0, and only the REST interface knows the number of
entries of a closed ledger.
"""

from collections.abc import Mapping

from mqbridge.adapter.topics import UnitRange
from mqbridge.message import Position

ENTRY_COMPONENT = 1
"""Index of the entry id in a position (ledger, entry, index in the batch)."""


def unit_ranges_between(begin: Position, end: Position, entry_counts: Mapping[int, int] | None) -> list[UnitRange]:
    """Return the unit ranges from `begin` up to, not including, `end`.

    `begin` may have ledger -1 (before every ledger), because the partition held no message yet. `entry_counts` maps the id of
    each existing ledger to its number of entries; None if the counts are unknown. If the ledger of `begin` has no count,
    everything before the next range is one unit: a reader that starts there finds out whether the ledger was deleted.
    """
    if end <= begin:
        return []
    # The ledger of `end`: all its entries before `end`, including the entry in which the range ends.
    last = UnitRange((end[0], 0, 0), count=end[1] + (end[2] > 0), component=ENTRY_COMPONENT)
    if begin[0] == end[0]:
        return [UnitRange(begin, count=last.count - begin[1], component=ENTRY_COMPONENT)]
    ranges: list[UnitRange] = []
    if entry_counts is None or (begin[0] >= 0 and begin[0] not in entry_counts):
        ranges.append(UnitRange(begin, count=1))  # of the default component 0, because the unit may span ledgers
    elif begin[0] >= 0:
        ranges.append(UnitRange(begin, count=entry_counts[begin[0]] - begin[1], component=ENTRY_COMPONENT))
    between = sorted(ledger for ledger in entry_counts or () if begin[0] < ledger < end[0])
    ranges += [UnitRange((ledger, 0, 0), count=(entry_counts or {})[ledger], component=ENTRY_COMPONENT) for ledger in between]
    return [unit_range for unit_range in (*ranges, last) if unit_range.count > 0]
