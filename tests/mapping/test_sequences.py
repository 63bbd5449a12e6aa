"""Converting positions to sequence ids and back."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqbridge.errors import ClusterError, Failure
from mqbridge.mapping.sequences import position_of_sequence, sequence_of
from mqbridge.message import Position

MOST = (1 << 63) - 1

GOLDEN: list[tuple[Position, int]] = [
    ((0,), 0),
    ((1_000_000,), 1_000_000),
    (((1 << 61) - 1,), (1 << 61) - 1),
    ((0, 0), 1 << 61),
    ((28, 3), (1 << 61) + (28 << 15) + 3),
    (((1 << 46) - 1, (1 << 15) - 1), (1 << 62) - 1),
    ((0, 0, 0), 1 << 62),
    ((5, 7, 2), (1 << 62) + (5 << 34) + (7 << 13) + 2),
    (((1 << 28) - 1, (1 << 21) - 1, (1 << 13) - 1), MOST),
]


def parts(*widths: int) -> st.SearchStrategy[Position]:
    """Generate positions whose components have these widths in bits; the lowest and highest values are frequent."""
    fields = [st.one_of(st.integers(0, (1 << width) - 1), st.sampled_from([0, 1, (1 << width) - 1])) for width in widths]
    return st.tuples(*fields)


positions = st.one_of(parts(61), parts(46, 15), parts(28, 21, 13))


@pytest.mark.parametrize(("position", "sequence"), GOLDEN)
def test_known_positions_and_sequence_ids(position: Position, sequence: int) -> None:
    assert sequence_of(position) == sequence
    assert position_of_sequence(sequence) == position


@given(positions)
def test_positions_survive_the_round_trip(position: Position) -> None:
    sequence = sequence_of(position)
    assert 0 <= sequence <= MOST
    assert position_of_sequence(sequence) == position


@given(st.integers(0, MOST))
def test_every_sequence_id_has_one_position(sequence: int) -> None:
    assert sequence_of(position_of_sequence(sequence)) == sequence


@given(st.one_of(st.lists(parts(61)), st.lists(parts(46, 15)), st.lists(parts(28, 21, 13))))
def test_sequence_ids_keep_the_order_of_positions(found: list[Position]) -> None:
    for one, other in pairwise(sorted(found)):
        assert (sequence_of(one) < sequence_of(other)) == (one < other)


@pytest.mark.parametrize(
    "position",
    [
        (),
        (-1,),
        (1 << 61,),
        (1 << 46, 0),
        (0, 1 << 15),
        (1 << 28, 0, 0),
        (0, 1 << 21, 0),
        (0, 0, 1 << 13),
        (-1, -1, 0),
        (1, 2, 3, 4),
    ],
)
def test_positions_that_do_not_fit_are_refused(position: Position) -> None:
    with pytest.raises(ClusterError, match="remove the sender's name") as caught:
        sequence_of(position)
    assert caught.value.failure is Failure.FATAL
