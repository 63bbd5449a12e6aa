"""How much a batch may have, and how ranges become tasks."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqbridge.spark.source.admission import Density, Lag, admit
from mqbridge.spark.source.tasks import split_counts

KEYS = st.tuples(st.sampled_from("ab"), st.integers(0, 9).map(str))
ONE_EACH = st.dictionaries(KEYS, st.integers(0, 10**7).map(Lag), max_size=12)
DENSE = st.builds(Density, st.floats(0.01, 1000), st.floats(0, 1e6))
ANY = st.dictionaries(KEYS, st.builds(Lag, st.integers(0, 10**7), DENSE), max_size=12)
LIMIT = st.none() | st.integers(1, 10**8)


@given(ANY, LIMIT, LIMIT)
def test_each_partition_that_lags_gets_something_and_none_more_than_it_has(lags, rows, size) -> None:  # type: ignore[no-untyped-def]
    units = admit(lags, rows, size)
    assert units.keys() == {key for key, lag in lags.items() if lag.units}
    assert all(1 <= count <= lags[key].units for key, count in units.items())
    taken = [lags[key].with_units(count) for key, count in units.items()]
    ones = [lags[key].with_units(1) for key in units]
    if rows is not None:
        assert sum(lag.rows for lag in taken) <= max(rows, sum(lag.rows for lag in ones)) * (1 + 1e-9)
    if size is not None:
        assert sum(lag.size for lag in taken) <= max(size, sum(lag.size for lag in ones)) * (1 + 1e-9) + 1e-6
    if rows is None and size is None:
        assert units == {key: lag.units for key, lag in lags.items() if lag.units}


@given(ONE_EACH, st.integers(1, 10**8))
def test_a_limit_is_used_up_to_a_unit_per_partition(lags, rows) -> None:  # type: ignore[no-untyped-def]
    units = admit(lags, rows, None)
    total = sum(lag.units for lag in lags.values())
    assert sum(units.values()) >= min(total, rows - len(units))


def test_shares_are_in_proportion_to_lag() -> None:
    units = admit({("a", "0"): Lag(9001), ("a", "1"): Lag(1001), ("a", "2"): Lag(1)}, 1003, None)
    assert units == {("a", "0"): 901, ("a", "1"): 101, ("a", "2"): 1}


def test_bytes_limit_where_messages_are_large() -> None:
    lags = {("small", "0"): Lag(1000, Density(1.0, 10.0)), ("large", "0"): Lag(1000, Density(10.0, 1000.0))}
    units = admit(lags, 10**6, 1_000_000)
    assert 0.9 < sum(lags[key].with_units(count).size for key, count in units.items()) / 1_000_000 <= 1


@given(ONE_EACH, st.none() | st.integers(1, 40), st.none() | st.integers(1, 10**6))
def test_ranges_are_cut_as_often_as_it_is_asked_for(lags, least, most) -> None:  # type: ignore[no-untyped-def]
    lags = {key: Lag(min(lag.units, 10**4)) for key, lag in lags.items()}
    pieces = split_counts(lags, least, most)
    assert all(1 <= pieces[key] <= max(1, lag.units) for key, lag in lags.items())
    if most is not None:
        assert all(-(-lag.units // pieces[key]) <= most for key, lag in lags.items() if lag.units)
    if least is not None:
        assert sum(pieces.values()) >= min(least, sum(max(1, lag.units) for lag in lags.values()))


@pytest.mark.parametrize(("least", "found"), [(None, [1, 1]), (2, [1, 1]), (3, [2, 1]), (5, [4, 1])])
def test_the_largest_is_cut_first(least: int | None, found: list[int]) -> None:
    assert list(split_counts({("a", "0"): Lag(100), ("a", "1"): Lag(10)}, least, None).values()) == found
