"""Batches of entries without decoding: masks of messages, entries restricted to some messages, searches for text."""

import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqbridge.message import Partition
from mqbridge.pulsar.adapter.batches import FORMAT, deliverable_mask, keep_messages, make_batch, masks_by_entry
from mqbridge.pulsar.mapping.stored import decode_plain
from mqbridge.pulsar.wire.batch import join_batch
from mqbridge.pulsar.wire.entry import Entry
from mqbridge.pulsar.wire.ids import full_mask, to_words
from mqbridge.pulsar.wire.pb.PulsarApi_pb2 import MessageMetadata, SingleMessageMetadata

PARTITION = Partition("c", "t", "0", 0)


def entry_of(number: int, count: int, mask: int = 0, *, broken: bool = False) -> Entry:
    payload = join_batch([(SingleMessageMetadata(), b"%d-%d" % (number, index)) for index in range(count)])
    metadata = MessageMetadata(num_messages_in_batch=count)
    return Entry(metadata, b"!" if broken else payload, ledger=1, entry=number, ack_set=tuple(to_words(mask)))


entries = st.lists(
    st.integers(1, 70).flatmap(lambda count: st.tuples(st.just(count), st.integers(0, full_mask(count)), st.booleans())),
    min_size=1,
    max_size=5,
).map(lambda parts: [entry_of(number, count, mask, broken=broken) for number, (count, mask, broken) in enumerate(parts)])


@given(entries, st.data())
def test_message_indexes_become_masks_of_their_entries(found, data):
    batch = make_batch(PARTITION, found)
    messages = batch.messages
    indexes = sorted(data.draw(st.sets(st.integers(0, len(messages) - 1))))
    masks = masks_by_entry(found, indexes)
    expected: dict[tuple[int, int], int] = {}
    for index in indexes:
        ledger, entry, at = messages[index].position
        expected[ledger, entry] = expected.get((ledger, entry), 0) | 1 << at
    assert masks == expected
    assert (batch.format, batch.data) == (FORMAT, found)
    batch.release_messages()
    assert [message.payload for message in batch.messages] == [message.payload for message in messages]


@given(st.integers(1, 20), st.integers(0, 20), st.integers(0, 20), st.integers(0, (1 << 20) - 1))
def test_an_entry_is_restricted_to_a_range_of_messages(count, begin, end, mask):
    entry = entry_of(0, count, mask & full_mask(count))
    before = deliverable_mask(entry)
    kept = [index for index in range(count) if before >> index & 1 and begin <= index < end]
    assert keep_messages(entry, begin, end) == bool(kept)
    if kept:
        assert [message.position[2] for message in make_batch(PARTITION, [entry]).messages] == kept


def test_counting_a_batch_does_not_decode_it():
    batch = make_batch(PARTITION, [entry_of(3, 5, 0b11100), entry_of(4, 2)])
    assert (batch.count, batch.first, batch.next, batch.is_decoded) == (5, (1, 3, 2), (1, 5, 0), False)
    assert batch.held_bytes > batch.size > 0
    assert [message.position for message in batch.messages] == [(1, 3, 2), (1, 3, 3), (1, 3, 4), (1, 4, 0), (1, 4, 1)]


@pytest.mark.parametrize("announced", [0, -1])
def test_an_entry_with_an_impossible_message_count_is_one_message(announced):
    entry = Entry(MessageMetadata(num_messages_in_batch=announced), b"no framing", ledger=1, entry=2)
    batch = make_batch(PARTITION, [entry])
    assert (batch.count, batch.first) == (1, (1, 2, 0))
    assert [message.defect is not None for message in batch.messages] == [True]
    assert masks_by_entry([entry], [0]) == {(1, 2): 1}


def test_masks_of_a_partly_acknowledged_entry_are_fast():
    """Searching every message from the beginning of the entry would take more than an hour."""
    count = 100_000
    entry = entry_of(0, count, full_mask(count) & ~1)
    masks = masks_by_entry([entry], range(1, count - 1, 2))
    assert masks == {(1, 0): sum(1 << number for number in range(2, count, 2))}


def test_messages_marked_as_compacted_are_counted_and_delivered():
    """A message that is counted but not delivered would shift the indexes of all later messages of the batch."""
    singles = [(SingleMessageMetadata(compacted_out=at == 0), b"%d" % at) for at in range(3)]
    entry = Entry(MessageMetadata(num_messages_in_batch=3), join_batch(singles), ledger=1, entry=2)
    batch = make_batch(PARTITION, [entry])
    assert batch.count == len(batch.messages) == 3
    assert masks_by_entry([entry], [2]) == {(1, 2): 0b100}
    assert [message.payload for message in decode_plain(entry)] == [b"1", b"2"]


def test_an_announced_message_count_allocates_nothing():
    entry = Entry(MessageMetadata(num_messages_in_batch=(1 << 31) - 1), b"no framing", ledger=1, entry=2)
    tracemalloc.start()
    try:
        entry.unpack()
        batch = make_batch(PARTITION, [entry])
        assert [message.defect is not None for message in batch.messages] == [True]
        assert masks_by_entry([entry], [0]) == {(1, 2): 1}
        assert keep_messages(entry, 0, 1 << 31)
        assert not keep_messages(entry_of(3, 5), 1 << 31)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()
