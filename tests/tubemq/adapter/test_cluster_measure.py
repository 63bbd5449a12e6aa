"""Ranges of a partition as entries of its store's index."""

import pytest

from mqbridge.adapter.topics import UnitRange
from mqbridge.message import Position
from mqbridge.tubemq.adapter.cluster import index_entries_between


@pytest.mark.parametrize(
    ("begin", "end", "count"),
    [
        ((280, 0), (280 + 28 * 7, 0), 7),
        ((280, 0), (280 + 28 * 7, 2), 8),
        ((280, 0), (280, 5), 1),
        ((280, 0), (280, 0), 0),
        ((280, 0), (252, 3), 0),
    ],
)
def test_each_index_entry_is_a_unit_and_messages_after_the_last_are_one_more(begin: Position, end: Position, count: int) -> None:
    assert index_entries_between(begin, end) == ([UnitRange(begin, count, 28)] if count else [])
