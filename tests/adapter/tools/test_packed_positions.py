"""Packed positions behave like a list of positions, in little memory."""

import tracemalloc

from hypothesis import given
from hypothesis import strategies as st

from mqbridge.adapter.tools.packed_positions import PackedPositions
from mqbridge.message import Position

numbers = st.integers(0, 6)
a_position = st.one_of(st.tuples(numbers), st.tuples(numbers, numbers), st.tuples(numbers, numbers, numbers))


@given(st.lists(a_position, max_size=30), a_position, a_position)
def test_a_range_returns_the_added_positions_within_it(added: list[Position], first: Position, last: Position) -> None:
    positions = PackedPositions()
    for position in added:
        positions.add(position)
    assert list(positions) == added
    assert len(positions) == len(added)
    assert positions.between(first, last) == {position for position in added if first <= position <= last}
    assert positions.highest == max(added, default=())
    if added:
        assert positions.lowest == min(added)


def test_positions_beyond_64_bits_are_ignored() -> None:
    positions = PackedPositions()
    for position in ((1, 2), (3, 1 << 63), (4, 5)):
        positions.add(position)
    assert list(positions) == [(1, 2), (4, 5)]


def test_a_million_positions_take_less_than_20_megabytes() -> None:
    positions = PackedPositions()
    tracemalloc.start()
    for begin in (500_000, 0):
        for number in range(begin, begin + 500_000):
            positions.add((number, 1 << 40))
    size, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert size < 20_000_000
    assert positions.between((499_998, 0), (500_001, 0)) == {(number, 1 << 40) for number in range(499_998, 500_001)}
