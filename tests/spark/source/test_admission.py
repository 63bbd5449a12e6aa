"""The division of a batch's limits among partitions, and of ranges among tasks."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqbridge.spark.source.admission import Density, Lag, admit
from mqbridge.spark.source.tasks import plan_task_counts

KEYS = st.tuples(st.sampled_from("ab"), st.integers(0, 9).map(str))
SINGLE_MESSAGE_LAGS = st.dictionaries(KEYS, st.integers(0, 10**7).map(Lag), max_size=12)
DENSITIES = st.builds(Density, st.floats(0.01, 1000), st.floats(0, 1e6))
ANY_LAGS = st.dictionaries(KEYS, st.builds(Lag, st.integers(0, 10**7), DENSITIES), max_size=12)
LIMIT = st.none() | st.integers(1, 10**8)


@given(ANY_LAGS, LIMIT, LIMIT)
def test_each_lagging_partition_gets_at_least_one_unit_and_at_most_its_lag(lags, rows, size) -> None:  # type: ignore[no-untyped-def]
    units = admit(lags, rows, size)
    assert units.keys() == {key for key, lag in lags.items() if lag.units}
    assert all(1 <= count <= lags[key].units for key, count in units.items())
    admitted = [lags[key].with_units(count) for key, count in units.items()]
    first_units = [lags[key].with_units(1) for key in units]
    if rows is not None:
        assert sum(lag.rows for lag in admitted) <= max(rows, sum(lag.rows for lag in first_units)) * (1 + 1e-9)
    if size is not None:
        assert sum(lag.size for lag in admitted) <= max(size, sum(lag.size for lag in first_units)) * (1 + 1e-9) + 1e-6
    if rows is None and size is None:
        assert units == {key: lag.units for key, lag in lags.items() if lag.units}


@given(SINGLE_MESSAGE_LAGS, st.integers(1, 10**8))
def test_a_limit_is_used_completely_except_for_one_unit_per_partition(lags, rows) -> None:  # type: ignore[no-untyped-def]
    units = admit(lags, rows, None)
    total = sum(lag.units for lag in lags.values())
    assert sum(units.values()) >= min(total, rows - len(units))


def test_shares_are_in_proportion_to_lag() -> None:
    units = admit({("a", "0"): Lag(9001), ("a", "1"): Lag(1001), ("a", "2"): Lag(1)}, 1003, None)
    assert units == {("a", "0"): 901, ("a", "1"): 101, ("a", "2"): 1}


def test_the_limit_of_bytes_considers_the_size_of_messages() -> None:
    lags = {("small", "0"): Lag(1000, Density(1.0, 10.0)), ("large", "0"): Lag(1000, Density(10.0, 1000.0))}
    units = admit(lags, 10**6, 1_000_000)
    assert 0.9 < sum(lags[key].with_units(count).size for key, count in units.items()) / 1_000_000 <= 1


@given(SINGLE_MESSAGE_LAGS, st.none() | st.integers(1, 40), st.none() | st.integers(1, 10**6))
def test_ranges_are_split_into_enough_tasks_of_the_allowed_size(lags, min_tasks, max_task_rows) -> None:  # type: ignore[no-untyped-def]
    lags = {key: Lag(min(lag.units, 10**4)) for key, lag in lags.items()}
    counts = plan_task_counts(lags, min_tasks, max_task_rows)
    assert all(1 <= counts[key] <= max(1, lag.units) for key, lag in lags.items())
    if max_task_rows is not None:
        assert all(-(-lag.units // counts[key]) <= max_task_rows for key, lag in lags.items() if lag.units)
    if min_tasks is not None:
        assert sum(counts.values()) >= min(min_tasks, sum(max(1, lag.units) for lag in lags.values()))


@pytest.mark.parametrize(("min_tasks", "counts"), [(None, [1, 1]), (2, [1, 1]), (3, [2, 1]), (5, [4, 1])])
def test_the_largest_range_is_split_first(min_tasks: int | None, counts: list[int]) -> None:
    assert list(plan_task_counts({("a", "0"): Lag(100), ("a", "1"): Lag(10)}, min_tasks, None).values()) == counts
