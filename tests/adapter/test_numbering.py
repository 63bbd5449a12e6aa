"""Numbers of positions are ordered as the positions are, and lead back to them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqbridge.adapter.numbering import Numbering, OffsetNumbering, PackedNumbering

ENTRIES = st.tuples(st.integers(0, (1 << 28) - 1), st.integers(0, (1 << 21) - 1), st.integers(0, (1 << 13) - 1))
PACKS = st.tuples(st.integers(0, (1 << 46) - 1), st.integers(0, (1 << 15) - 1))


@given(st.lists(ENTRIES, min_size=2, max_size=2), st.lists(PACKS, min_size=2, max_size=2), st.integers(0, (1 << 63) - 1))
def test_numbers_keep_the_order(entries: list[tuple[int, ...]], packs: list[tuple[int, ...]], offset: int) -> None:
    for numbering, positions in ((PackedNumbering(3), entries), (PackedNumbering(2), packs), (OffsetNumbering(), [(offset,)])):
        numbers = [numbering.number(position) for position in positions]
        assert [numbering.position(number) for number in numbers] == positions
        assert (numbers == sorted(numbers)) == (positions == sorted(positions))


@pytest.mark.parametrize(
    ("numbering", "position"),
    [
        (OffsetNumbering(), (1, 2)),
        (OffsetNumbering(), (-1,)),
        (OffsetNumbering(), (1 << 63,)),
        (PackedNumbering(3), (1, 2)),
        (PackedNumbering(3), (-1, -1, 0)),
        (PackedNumbering(3), (1 << 28, 0, 0)),
    ],
)
def test_a_position_without_a_number_is_refused(numbering: Numbering, position: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=r"position|offset"):
        numbering.number(position)


def test_the_position_before_all_messages_has_the_first_number() -> None:
    numbering = PackedNumbering(3, (-1, -1, 0))
    assert numbering.number((-1, -1, 0)) == numbering.number((-1, 0, 0)) == 0
    assert numbering.position(0) == (-1, -1, 0)
    assert numbering.number((0, 0, 0)) > 0
    with pytest.raises(ValueError, match="position"):
        numbering.position(1)


@pytest.mark.parametrize("numbering", [OffsetNumbering(), PackedNumbering(2), PackedNumbering(3)])
@pytest.mark.parametrize("number", [-1, 1 << 63])
def test_a_number_without_a_position_is_refused(numbering: Numbering, number: int) -> None:
    with pytest.raises(ValueError, match=str(number)):
        numbering.position(number)
