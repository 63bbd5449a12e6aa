"""Batches whose messages have numbers: what a pull gets of one."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqbridge.adapter.numbering import OffsetNumbering, PackedNumbering
from mqbridge.listener.numbered import NumberedBatch
from mqbridge.message import Batch, Message, Unit
from tests.listener.scripted_lane import FORMAT, MESSAGE_BYTES, PARTITION, make_batch, payload_of

MUCH = 1 << 20


def numbered(*numbers: int, first: int | None = None, end: int | None = None, format_name: str = "messages") -> NumberedBatch:
    return NumberedBatch(make_batch(numbers, first, end, format_name=format_name), OffsetNumbering(), FORMAT)


def test_a_batch_without_holes_counts_its_numbers() -> None:
    batch = numbered(5, 6, 7)
    assert (batch.first, batch.end, batch.numbers) == (5, 8, range(5, 8))


def test_each_message_of_a_batch_with_holes_has_its_own_number() -> None:
    batch = numbered(5, 8, 9, first=3, end=12)
    assert (batch.first, batch.end, list(batch.numbers)) == (3, 12, [5, 8, 9])
    assert [batch.count_before(number) for number in (0, 5, 6, 8, 9, 10, 99)] == [0, 0, 1, 1, 2, 3, 3]


def test_units_of_the_format_are_handed_out_as_they_are() -> None:
    found = numbered(5, 6, 8, format_name=FORMAT).cut(6, 10, MUCH)
    assert found.units is not None
    assert [unit.data for unit in found.units] == [payload_of(6), payload_of(8)]
    assert (list(found.numbers), found.next, found.messages) == ([6, 8], 9, None)


@pytest.mark.parametrize("format_name", ["messages", "other.unit"])
def test_units_of_another_format_become_messages(format_name: str) -> None:
    found = numbered(5, 6, 8, format_name=format_name).cut(6, 10, MUCH)
    assert found.messages is not None
    assert [message.payload for message in found.messages] == [payload_of(6), payload_of(8)]
    assert (list(found.numbers), found.next, found.units) == ([6, 8], 9, None)


@pytest.mark.parametrize("counts", [(1, 2), (3,), (1, 1)])
def test_units_of_several_messages_become_messages(counts: tuple[int, ...]) -> None:
    units = [Unit(b"x", count, None, (index,)) for index, count in enumerate(counts)]
    messages = [Message(b"%d" % number, position=(number,)) for number in range(3)]
    batch = Batch(PARTITION, messages, count=3, size=3, first=(0,), next=(3,), format=FORMAT, units=lambda: units)
    found = NumberedBatch(batch, OffsetNumbering(), FORMAT).cut(0, 10, MUCH)
    assert (found.messages, found.units, list(found.numbers)) == (messages, None, [0, 1, 2])


@pytest.mark.parametrize("format_name", ["messages", FORMAT])
def test_a_slice_has_no_more_messages_and_bytes_than_wanted_but_one(format_name: str) -> None:
    batch = numbered(0, 1, 2, 3, format_name=format_name)
    assert list(batch.cut(0, 2, MUCH).numbers) == [0, 1]
    assert list(batch.cut(0, 10, 2 * MESSAGE_BYTES).numbers) == [0, 1]
    assert list(batch.cut(0, 10, 3 * MESSAGE_BYTES - 1).numbers) == [0, 1]
    assert list(batch.cut(1, 10, 0).numbers) == [1]
    assert batch.cut(1, 10, 0).next == 2


def test_the_next_number_is_that_of_the_next_message() -> None:
    batch = numbered(2, 5, 9, first=0, end=20)
    assert batch.cut(0, 1, MUCH).next == 5, "a hole is passed"
    assert batch.cut(3, 1, MUCH) == ([5], 9, None, batch.batch.messages[1:2])
    assert batch.cut(9, 1, MUCH).next == 20, "so is one at the end"


def test_nothing_is_behind_the_last_message_but_the_end() -> None:
    assert numbered(2, 5, end=9).cut(7, 1, MUCH) == ([], 9, None, [])


@pytest.mark.parametrize("format_name", ["messages", FORMAT])
def test_the_numbers_stay_when_contents_are_dropped(format_name: str) -> None:
    batch = numbered(2, 5, end=9, format_name=format_name)
    handed_out = batch.cut(2, 10, MUCH)
    batch.drop_contents()
    assert (batch.first, batch.end, list(batch.numbers), batch.count_before(5), batch.batch.count) == (2, 9, [2, 5], 1, 2)
    assert (batch._units, batch._messages, batch.batch.data, list(batch.batch.messages)) == (None, None, None, [])
    assert len(handed_out.units or handed_out.messages or ()) == 2, "what was handed out is not"


@given(st.sets(st.integers(0, 30), min_size=1), st.integers(1, 9), st.integers(0, 90), st.integers(0, 3))
def test_consecutive_slices_are_the_whole_batch(members: set[int], max_messages: int, max_bytes: int, hole: int) -> None:
    numbers = sorted(members)
    batch = numbered(*numbers, first=0, end=numbers[-1] + 1 + hole)
    found: list[int] = []
    number = 0
    while number < batch.end:
        cut = batch.cut(number, max_messages, max_bytes)
        assert 0 < len(cut.numbers) <= max_messages
        assert len(cut.numbers) == 1 or len(cut.numbers) * MESSAGE_BYTES <= max_bytes
        assert cut.messages is not None
        assert [message.position for message in cut.messages] == [(each,) for each in cut.numbers]
        found += cut.numbers
        number = cut.next
    assert (found, number) == (numbers, batch.end)


def test_numbers_that_do_not_count_messages_are_exact_at_the_ends_of_entries() -> None:
    """Two entries of Pulsar, of two messages and of one: the next entry begins far behind the last message of the one before."""
    positions = [(7, 3, 3), (7, 3, 4), (7, 4, 0)]
    numbering = PackedNumbering(3)
    messages = [Message(b"x", position=position) for position in positions]
    batch = NumberedBatch(Batch(PARTITION, messages, count=3, size=3, first=(7, 3, 3), next=(7, 5, 0)), numbering, FORMAT)
    assert [numbering.position(number) for number in batch.numbers] == positions
    first, second, third = batch.numbers
    assert (batch.first, batch.last, batch.end) == (first, third, numbering.number((7, 5, 0)))
    assert [batch.count_before(number) for number in (first, first + 1, second + 1, third, third + 1)] == [0, 1, 2, 2, 3]
    assert [batch.after(number) for number in (first, second, third, batch.end)] == [first, first + 1, second + 1, third + 1]
    assert batch.cut(first, 2, MUCH) == ([first, second], third, None, messages[:2])
    assert batch.cut(second + 1, 9, MUCH) == ([third], batch.end, None, messages[2:])
    assert batch.cut(third + 1, 9, MUCH).numbers == []


def test_a_full_entry_needs_no_list_of_numbers() -> None:
    messages = [Message(b"x", position=(7, 3, index)) for index in range(8192)]
    batch = Batch(PARTITION, messages, count=8192, size=8192, first=(7, 3, 0), next=(7, 4, 0))
    found = NumberedBatch(batch, PackedNumbering(3), FORMAT)
    assert isinstance(found.numbers, range)
    assert found.last + 1 == found.end == PackedNumbering(3).number((7, 4, 0))
