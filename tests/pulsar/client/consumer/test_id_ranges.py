"""Ranges of entry ids against a plain list."""

from hypothesis import given
from hypothesis import strategies as st

from mqbridge.pulsar.client.consumer import id_ranges
from mqbridge.pulsar.client.consumer.id_ranges import IdRanges
from mqbridge.pulsar.wire.ids import EntryId

IDS = st.tuples(st.integers(0, 2), st.integers(0, 9))
STEPS = st.lists(st.tuples(st.sampled_from(["add", "discard_up_to", "discard_after"]), IDS), max_size=30)


@given(STEPS)
def test_ranges_are_a_sorted_list(steps: list[tuple[str, EntryId]]) -> None:
    ranges, expected = IdRanges(), list[EntryId]()
    for step, entry_id in steps:
        getattr(ranges, step)(entry_id)
        if step == "add":
            expected += [entry_id] if not expected or entry_id > expected[-1] else []
        elif step == "discard_up_to":
            expected = [each for each in expected if each > entry_id]
        else:
            expected = [each for each in expected if each <= entry_id]
        assert list(ranges) == expected
        assert bool(ranges) == bool(expected)


def test_the_number_of_ids_is_bounded(monkeypatch) -> None:
    monkeypatch.setattr(id_ranges, "MAX_IDS", 5)
    ranges = IdRanges()
    for entry in range(9):
        ranges.add((1, entry))
    assert list(ranges) == [(1, entry) for entry in range(5)]
    ranges.discard_up_to((1, 3))
    ranges.add((1, 9))
    assert list(ranges) == [(1, 4), (1, 9)]


def test_the_number_of_ranges_is_bounded(monkeypatch) -> None:
    monkeypatch.setattr(id_ranges, "MAX_RANGES", 3)
    ranges = IdRanges()
    for entry in (0, 2, 4, 6, 8):
        ranges.add((1, entry))
    assert list(ranges) == [(1, 0), (1, 2), (1, 4)]
    ranges.add((1, 5))
    assert list(ranges) == [(1, 0), (1, 2), (1, 4), (1, 5)]
