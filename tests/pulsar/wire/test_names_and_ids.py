"""Topic names, message ids, bit sets, key hashes and the error table."""

import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqbridge.errors import Failure
from mqbridge.pulsar.wire import codes, ids
from mqbridge.pulsar.wire.hashing import java_string_hash, murmur3_32
from mqbridge.pulsar.wire.names import TopicName, parse_topic
from mqbridge.pulsar.wire.pb import PulsarApi_pb2 as pb


@pytest.mark.parametrize(
    ("text", "full", "short"),
    [
        ("orders", "persistent://public/default/orders", "orders"),
        ("acme/shop/orders", "persistent://acme/shop/orders", "acme/shop/orders"),
        ("persistent://public/default/orders", "persistent://public/default/orders", "orders"),
        ("non-persistent://a/b/c", "non-persistent://a/b/c", "non-persistent://a/b/c"),
        ("persistent://prop/cluster/ns/orders", "persistent://prop/cluster/ns/orders", "persistent://prop/cluster/ns/orders"),
        ("%RETRY%group", "persistent://public/default/%RETRY%group", "%RETRY%group"),
    ],
)
def test_every_form_of_a_topic_name_is_parsed(text, full, short):
    name = parse_topic(text)
    assert (str(name), name.short()) == (full, short)
    assert parse_topic(str(name)) == parse_topic(name.short()) == name


@pytest.mark.parametrize(
    "text", ["", "  ", "a/b", "x://a/b/c", "persistent://a/b", "a/b/c/d", "a b/c/d", "/a/b", "persistent://"]
)
def test_an_invalid_topic_name_is_refused(text):
    with pytest.raises(ValueError, match="topic name"):
        parse_topic(text)


def test_another_default_namespace():
    name = parse_topic("orders", "acme/shop")
    assert str(name) == "persistent://acme/shop/orders"
    assert name.short("acme/shop") == "orders"


@pytest.mark.parametrize(
    ("local", "index", "parent"),
    [
        ("x-partition-0", 0, "x"),
        ("x-partition-12", 12, "x"),
        ("x-partition-01", -1, "x-partition-01"),
        ("x-partition--1", -1, "x-partition--1"),
        ("-partition-1", -1, "-partition-1"),
        ("x", -1, "x"),
    ],
)
def test_partition_index_and_parent(local, index, parent):
    name = TopicName("persistent", "a", "b", local)
    assert (name.partition_index, name.parent.local) == (index, parent)
    if index >= 0:
        assert name.parent.partition(index) == name


@given(st.integers(-(1 << 63), (1 << 63) - 1), st.integers(-(1 << 63), (1 << 63) - 1))
def test_message_ids_survive_the_round_trip(ledger, entry):
    assert ids.entry_id(ids.message_id(ledger, entry)) == (ledger, entry)


def test_earliest_has_the_ids_that_other_clients_write():
    assert ids.message_id(*ids.EARLIEST).ledgerId == (1 << 64) - 1
    assert ids.EARLIEST < (0, 0) < ids.LATEST


@pytest.mark.parametrize(
    ("count", "acked", "words"),
    [(3, [], [7]), (3, [0], [6]), (3, [0, 2], [2]), (3, [0, 1, 2], []), (70, [65], [-1, 61])],
)
def test_masks_become_the_words_of_ack_sets(count, acked, words):
    mask = ids.full_mask(count)
    for index in acked:
        mask &= ~(1 << index)
    assert ids.to_words(mask) == words
    assert ids.from_words(words) == mask


def test_the_memory_for_a_long_bit_set_is_in_proportion_to_its_words():
    """A broker's frame has room for millions of words."""
    words = [1] * 100_000
    tracemalloc.start()
    try:
        mask = ids.from_words(words)
        assert ids.to_words(mask) == words
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert mask.bit_count() == 100_000
    assert peak < 100 * len(words)


@given(st.integers(0, (1 << 300) - 1))
def test_bit_sets_survive_the_round_trip(mask):
    words = ids.to_words(mask)
    assert ids.from_words(words) == mask
    assert not words or words[-1] != 0


@pytest.mark.parametrize(
    ("text", "murmur", "java"),
    [
        ("", 0, 0),
        ("a", 1009084850, 97),
        ("abc", 870159354, 96354),
        ("key1", 462881061, 3288498),
        ("hello world", 1586663183, 1794106052),
    ],
)
def test_known_hashes(text, murmur, java):
    assert (murmur3_32(text.encode()), java_string_hash(text)) == (murmur, java)


def test_java_hashes_utf16_units():
    assert java_string_hash("\U0001f600") == (0xD83D * 31 + 0xDE00) & 0x7FFFFFFF


def test_every_error_code_has_its_row():
    assert {code.number: code.name for code in codes.TABLE} == {number: name for name, number in pb.ServerError.items()}


def test_refusals_name_the_request_and_the_remedy():
    error = codes.refusal_error(6, "not served\nstack trace", "opening x")
    assert (error.code, error.failure) == (6, Failure.REFRESH)
    assert "opening x: ServiceNotReady" in str(error)
    assert "stack trace" not in str(error)
    assert codes.refusal_error(999, "", "x").failure is Failure.RETRY
