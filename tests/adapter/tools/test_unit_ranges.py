"""Arithmetic on unit ranges: the pieces of a split range together contain exactly its units."""

import itertools

from hypothesis import given
from hypothesis import strategies as st

from mqbridge.adapter.tools.unit_ranges import count_units, position_after, split_evenly, unit_ranges_from_offsets
from mqbridge.adapter.topics import UnitRange
from mqbridge.message import Position

counts = st.lists(st.integers(1, 50), max_size=8)


def ledgers(sizes: list[int], begin: int = 0, index: int = 0) -> tuple[list[UnitRange], Position]:
    """Return unit ranges as of Pulsar ledgers 10, 20 and so on, and the end of the last; the first begins at `begin`, `index`."""
    starts = [(10 * number + 10, begin if not number else 0, index if not number else 0) for number in range(len(sizes))]
    unit_ranges = [UnitRange(start, size, component=1) for start, size in zip(starts, sizes, strict=True)]
    return unit_ranges, (10 * len(sizes), (begin if len(sizes) == 1 else 0) + sizes[-1], 0) if sizes else (10, begin, index)


def test_units_begin_a_step_apart_and_only_the_first_inside_an_entry() -> None:
    in_ledger = UnitRange((7, 3, 2), 3, component=1)
    assert [in_ledger.position(unit) for unit in range(4)] == [
        (7, 3, 2),
        (7, 4, 0),
        (7, 5, 0),
        (7, 6, 0),
    ]
    assert [UnitRange((280, 0), 2, step=28).position(unit) for unit in range(3)] == [(280, 0), (308, 0), (336, 0)]
    assert UnitRange((5,), 10).position(4) == (9,)


def test_a_range_of_offsets_is_one_unit_range() -> None:
    assert unit_ranges_from_offsets((5,), (9,)) == [UnitRange((5,), 4)]
    assert unit_ranges_from_offsets((5,), (5,)) == unit_ranges_from_offsets((6,), (5,)) == []


@given(counts, st.integers(0, 5), st.integers(0, 5))
def test_positions_ascend_unit_by_unit_up_to_the_end(sizes: list[int], begin: int, index: int) -> None:
    unit_ranges, end = ledgers(sizes, begin, index)
    total = count_units(unit_ranges)
    positions = [position_after(unit_ranges, unit, end) for unit in range(total + 3)]
    assert positions[: total + 1] == sorted(set(positions[: total + 1]))
    assert positions[0] == (unit_ranges[0].first if unit_ranges else end)
    assert positions[total:] == [end] * 3


@given(counts, st.integers(1, 20), st.integers(0, 5), st.integers(0, 5))
def test_a_range_is_split_into_even_pieces_without_gaps(sizes: list[int], pieces: int, begin: int, index: int) -> None:
    unit_ranges, end = ledgers(sizes, begin, index)
    first: Position = unit_ranges[0].first if unit_ranges else end
    cut = split_evenly(unit_ranges, first, end, pieces)
    assert len(cut) == min(pieces, count_units(unit_ranges))
    if not cut:
        return
    assert (cut[0][0], cut[-1][1]) == (first, end)
    assert all(before[1] == after[0] for before, after in itertools.pairwise(cut))
    assert all(one < other for one, other in cut)
    units = [position_after(unit_ranges, unit, end) for unit in range(count_units(unit_ranges))]
    held = [sum(one <= unit < other for unit in units) for one, other in cut]
    assert sum(held) == len(units)
    assert max(held) - min(held) <= 1
