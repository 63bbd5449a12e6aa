"""`Cluster.measure`: ranges of a partition as counted entries of its ledgers."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqbridge.adapter.tools.unit_ranges import count_units, position_after
from mqbridge.adapter.topics import UnitRange
from mqbridge.errors import ClusterError, Unreachable
from mqbridge.message import Position
from mqbridge.pulsar.adapter.registration import ADAPTER
from mqbridge.pulsar.adapter.unit_ranges import unit_ranges_between

ENTRIES = {3: 10, 5: 0, 8: 4, 9: 7}
"""Numbers of entries of four ledgers, by ledger id."""


def entry(ledger: int, first: int, count: int, index: int = 0) -> UnitRange:
    return UnitRange((ledger, first, index), count, component=1)


@pytest.mark.parametrize(
    ("begin", "end", "expected"),
    [
        ((3, 2, 0), (3, 7, 0), [entry(3, 2, 5)]),
        ((3, 2, 4), (3, 2, 6), [entry(3, 2, 1, 4)]),
        ((3, 2, 4), (3, 7, 1), [entry(3, 2, 6, 4)]),
        ((3, 2, 0), (9, 3, 0), [entry(3, 2, 8), entry(8, 0, 4), entry(9, 0, 3)]),
        ((3, 10, 0), (8, 1, 0), [entry(8, 0, 1)]),
        ((3, 9, 0), (8, 0, 0), [entry(3, 9, 1)]),
        ((3, 10, 0), (5, 0, 0), []),
        ((-1, -1, 0), (3, 4, 0), [entry(3, 0, 4)]),
        ((2, 6, 0), (3, 4, 0), [UnitRange((2, 6, 0), 1), entry(3, 0, 4)]),
        ((9, 3, 0), (9, 3, 0), []),
        ((9, 3, 0), (8, 1, 0), []),
    ],
)
def test_ranges_with_known_ledger_sizes(begin: Position, end: Position, expected: list[UnitRange]) -> None:
    assert unit_ranges_between(begin, end, ENTRIES) == expected


@pytest.mark.parametrize(
    ("begin", "end", "expected"),
    [
        ((3, 2, 0), (3, 7, 0), [entry(3, 2, 5)]),
        ((3, 2, 1), (9, 3, 0), [UnitRange((3, 2, 1), 1), entry(9, 0, 3)]),
        ((-1, -1, 0), (3, 4, 0), [UnitRange((-1, -1, 0), 1), entry(3, 0, 4)]),
        ((3, 2, 0), (9, 0, 0), [UnitRange((3, 2, 0), 1)]),
    ],
)
def test_ledgers_of_unknown_size_are_one_unit(begin: Position, end: Position, expected: list[UnitRange]) -> None:
    assert unit_ranges_between(begin, end, None) == expected


@given(st.lists(st.integers(0, 20), min_size=1, max_size=6), st.data())
def test_every_entry_of_the_range_is_one_unit(sizes: list[int], data: Any) -> None:
    entries = {2 * number + 1: size for number, size in enumerate(sizes)}
    positions = [(ledger, number, 0) for ledger, size in entries.items() for number in range(size)]
    last = max(entries)
    ends = [*positions, (last, sizes[-1], 0)]
    begin, end = sorted(data.draw(st.tuples(st.sampled_from(ends), st.sampled_from(ends))))
    unit_ranges = unit_ranges_between(begin, end, entries)
    within = [position for position in positions if begin <= position < end]
    assert [position_after(unit_ranges, unit, end) for unit in range(count_units(unit_ranges))] == within


async def test_a_guessed_admin_url_may_be_unreachable(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only a configured `admin_url` must be reachable."""

    async def unreachable(*_: Any) -> Any:
        raise Unreachable("nobody answers there")

    for url, is_guess in (("pulsar://127.0.0.1:1", True), ("pulsar://127.0.0.1:1?admin=http://127.0.0.1:2", False)):
        cluster = ADAPTER.make_cluster("c", ADAPTER.cluster_model.from_url(url))
        monkeypatch.setattr(cluster._admin, "internal_stats", unreachable)  # type: ignore[attr-defined]
        if is_guess:
            assert await cluster.measure("t", "0", (3, 2, 0), (9, 3, 0)) == [UnitRange((3, 2, 0), 1), entry(9, 0, 3)]
        else:
            with pytest.raises(ClusterError):
                await cluster.measure("t", "0", (3, 2, 0), (9, 3, 0))
        await cluster.close()
