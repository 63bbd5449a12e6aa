"""Arithmetic on unit ranges: count the units of a range, and split the range at the boundaries of units.

A unit is what `Cluster.measure` counts: a message, or an entry that may hold several messages.
"""

from collections.abc import Sequence

from mqbridge.adapter.topics import UnitRange
from mqbridge.message import Position


def unit_ranges_from_offsets(begin: Position, end: Position, step: int = 1) -> list[UnitRange]:
    """Implement `Cluster.measure` for a system whose positions are offsets: one unit every `step` offsets."""
    count = -(-(end[0] - begin[0]) // step)  # rounded up
    return [UnitRange(begin, count, step=step)] if count > 0 else []


def count_units(unit_ranges: Sequence[UnitRange]) -> int:
    """Return the total number of units."""
    return sum(unit_range.count for unit_range in unit_ranges)


def position_after(unit_ranges: Sequence[UnitRange], units: int, end: Position) -> Position:
    """Return the position after the first `units` units of a range that ends at `end`."""
    for unit_range in unit_ranges:
        if units < unit_range.count:
            return unit_range.position(units)
        units -= unit_range.count
    return end


def split_evenly(unit_ranges: Sequence[UnitRange], begin: Position, end: Position, parts: int) -> list[tuple[Position, Position]]:
    """Split the range from `begin` to `end` into at most `parts` parts, whose numbers of units differ by at most one.

    The first part begins at `begin` and the last ends at `end`, even if the unit ranges start later or end earlier. No part is
    empty; a range without units has no parts.
    """
    total = count_units(unit_ranges)
    parts = min(parts, total)
    if parts < 1:
        return []
    boundaries = [position_after(unit_ranges, total * part // parts, end) for part in range(1, parts)]
    return list(zip([begin, *boundaries], [*boundaries, end], strict=True))
