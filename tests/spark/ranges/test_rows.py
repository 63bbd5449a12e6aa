"""Ranges as rows, and their division among tasks."""

from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.pandas.types import to_arrow_schema

from mqbridge.message import Partition
from mqbridge.spark.ranges.rows import RangeRow, build_ranges, divide_ranges, is_range_schema, parse_ranges, range_schema
from mqbridge.spark.schema import message_schema

ROWS = st.builds(
    RangeRow,
    st.builds(Partition, st.text(min_size=1), st.text(min_size=1), st.text(min_size=1), st.integers(0, 99)),
    st.tuples(st.integers(0, 2**60), st.integers(-1, 9)),
    st.tuples(st.integers(0, 2**60), st.integers(-1, 9)),
    st.booleans(),
    st.integers(0, 2**40),
    st.integers(0, 2**40),
)


@given(st.lists(ROWS, max_size=5))
def test_ranges_are_read_back_unchanged_from_columns_in_any_order(rows: list[RangeRow]) -> None:
    batch = build_ranges(rows)
    assert batch.schema == to_arrow_schema(range_schema(), timezone="UTC")
    assert parse_ranges(batch.select(list(reversed(batch.schema.names)))) == rows


def test_the_schema_of_ranges_differs_from_that_of_messages() -> None:
    assert is_range_schema(range_schema())
    assert not is_range_schema(message_schema())


@given(st.lists(ROWS, max_size=30), st.integers(1, 8))
def test_tasks_get_every_range_once_and_about_the_same_work(rows: list[RangeRow], max_tasks: int) -> None:
    tasks = divide_ranges(rows, max_tasks)
    assert len(tasks) <= max_tasks
    assert all(tasks)
    assert sorted(map(str, (row for task in tasks for row in task))) == sorted(map(str, rows))
    work = [sum(max(1, row.estimated_bytes or row.estimated_messages) for row in task) for task in tasks]
    if len(tasks) > 1:
        largest = max(max(1, row.estimated_bytes or row.estimated_messages) for row in rows)
        assert max(work) - min(work) <= largest
    assert divide_ranges(list(reversed(rows)), max_tasks) == tasks, "a repeated batch is divided in the same way"
