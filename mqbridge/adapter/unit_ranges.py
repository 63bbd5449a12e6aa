"""Arithmetic on unit ranges: count the units of a range, and split it between units.

A unit is what `Cluster.measure` counts in a system: a message, or an entry that may hold several.
"""

from collections.abc import Sequence

from mqbridge.adapter.topics import UnitRange
from mqbridge.message import Position


def dense_unit_ranges(begin: Position, end: Position, step: int = 1) -> list[UnitRange]:
    """Return one unit range with a unit every `step` offsets; implements `Cluster.measure` for offset-based systems."""
    count = -(-(end[0] - begin[0]) // step)
    return [UnitRange(begin, count, step)] if count > 0 else []


def units_of(unit_ranges: Sequence[UnitRange]) -> int:
    """Return the total number of units."""
    return sum(unit_range.count for unit_range in unit_ranges)


def position_behind(unit_ranges: Sequence[UnitRange], units: int, end: Position) -> Position:
    """Return the position after the first `units` units of a range that ends at `end`."""
    for unit_range in unit_ranges:
        if units < unit_range.count:
            return unit_range.position(units)
        units -= unit_range.count
    return end


def cut_evenly(unit_ranges: Sequence[UnitRange], begin: Position, end: Position, pieces: int) -> list[tuple[Position, Position]]:
    """Split the range from `begin` to `end` into at most `pieces` ranges, whose numbers of units differ by at most one.

    The first begins at `begin` and the last ends at `end`, even if the unit ranges start later or end earlier. No piece is empty;
    a range without units gives no piece.
    """
    total = units_of(unit_ranges)
    pieces = min(pieces, total)
    if pieces < 1:
        return []
    cuts = [position_behind(unit_ranges, total * piece // pieces, end) for piece in range(1, pieces)]
    return list(zip([begin, *cuts], [*cuts, end], strict=True))
