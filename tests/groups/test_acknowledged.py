"""What is acknowledged behind a mark survives its encoding, and says of each unit what is left."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqbridge.groups.acknowledged import Acknowledged, ranges_of

UNITS = st.lists(st.tuples(st.sampled_from([1, 2, 5, 100]), st.integers(0, 3), st.integers(0, 1 << 100)), max_size=40)
"""Units as triples of their number of messages, the gap of numbers before them, and bits of acknowledged messages."""


def state_of(units: list[tuple[int, int, int]]) -> tuple[Acknowledged, list[tuple[int, int, int]]]:
    """Return the state, and the units as triples of number, message count and acknowledged bits."""
    number, numbered = 7, []
    for count, gap, bits in units:
        number += gap
        numbered.append((number, count, bits & ((1 << count) - 1)))
        number += count
    whole = [(number, bits == (1 << count) - 1) for number, count, bits in numbered]
    partial = {number: bits for number, count, bits in numbered if 0 < bits < (1 << count) - 1}
    return Acknowledged((7,), (5,), ranges_of(whole), partial), numbered


@given(UNITS)
def test_a_decoded_state_knows_every_unit(units: list[tuple[int, int, int]]) -> None:
    state, numbered = state_of(units)
    decoded = Acknowledged.decode(state.encode())
    assert decoded == state
    for number, count, bits in numbered:
        assert decoded.acknowledged_bits(number, count) == bits
    assert decoded.acknowledged_bits(10_000, 3) == 0
    assert decoded.last == max([number for number, _, bits in numbered if bits], default=-1)


def test_ten_thousand_isolated_units_are_small() -> None:
    state = Acknowledged((0,), (0,), ranges_of((number, number % 2 == 0) for number in range(1 << 60, (1 << 60) + 20_000)))
    assert len(state.ranges) == 10_000
    assert len(state.encode()) < 500_000


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{}",
        b"[1]",
        b'["x", "1", [], []]',
        b'["1", "1", 3, []]',
        b'["1", "1", [[1]], []]',
        b'["1", "1", [], [[1, 2]]]',
        b"\xff",
    ],
)
def test_anything_else_is_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        Acknowledged.decode(data)
