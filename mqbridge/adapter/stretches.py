"""Arithmetic on the stretches of a range (`Cluster.measure`): counting its units, and cutting it between them."""

from collections.abc import Sequence

from mqbridge.adapter.topics import Stretch
from mqbridge.message import Position


def dense_stretches(begin: Position, end: Position, step: int = 1) -> list[Stretch]:
    """`Cluster.measure` of a system whose positions are offsets, `step` apart."""
    count = -(-(end[0] - begin[0]) // step)
    return [Stretch(begin, count, step)] if count > 0 else []


def units_of(stretches: Sequence[Stretch]) -> int:
    """How many units these stretches have together."""
    return sum(stretch.count for stretch in stretches)


def position_behind(stretches: Sequence[Stretch], units: int, end: Position) -> Position:
    """Where the first so many units of a range end, which ends at `end` itself."""
    for stretch in stretches:
        if units < stretch.count:
            return stretch.position(units)
        units -= stretch.count
    return end


def cut_evenly(stretches: Sequence[Stretch], begin: Position, end: Position, pieces: int) -> list[tuple[Position, Position]]:
    """The range from `begin` to `end` in at most so many pieces of as many units each, one more or less.

    The first begins at `begin` and the last ends at `end`, whatever the stretches say. None is empty; a range without units is
    none.
    """
    total = units_of(stretches)
    pieces = min(pieces, total)
    if pieces < 1:
        return []
    cuts = [position_behind(stretches, total * piece // pieces, end) for piece in range(1, pieces)]
    return list(zip([begin, *cuts], [*cuts, end], strict=True))
