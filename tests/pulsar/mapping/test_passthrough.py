"""Entries that plain Python copies without decoding have the same bytes as after decoding and encoding."""

import copy
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mqbridge import native
from mqbridge.message import Partition, Share
from mqbridge.pulsar.adapter.batches import make_batch
from mqbridge.pulsar.mapping.passthrough import _copy_batch, encode_entries
from mqbridge.pulsar.mapping.request import EncodedEntry, Limits, encode_plain
from mqbridge.pulsar.mapping.stored import decode_plain
from mqbridge.pulsar.wire.batch import join_batch
from mqbridge.pulsar.wire.entry import Entry
from mqbridge.pulsar.wire.pb.PulsarApi_pb2 import MessageMetadata, SingleMessageMetadata
from mqbridge.pulsar.wire.single_metadata import encode_property
from tests.example_counts import examples
from tests.strategies import Changes, changes, pulsar_natives, text

ORIGINS = st.sampled_from(["c|t|0|", None])
LIMITS = st.sampled_from([Limits(), Limits(max_messages=3), Limits(max_bytes=300)])


def metadata_of(pairs: Sequence[tuple[str, str]] = (), **fields: Any) -> SingleMessageMetadata:
    single = SingleMessageMetadata(**fields)
    for name, value in pairs:
        single.properties.add(key=name, value=value)
    return single


def entry_of(*messages: tuple[SingleMessageMetadata, bytes], **metadata: Any) -> Entry:
    whole = MessageMetadata(publish_time=2, num_messages_in_batch=len(messages), **metadata)
    return Entry(whole, join_batch(messages), ledger=3, entry=7)


_pairs = st.lists(st.tuples(st.sampled_from(["a", "b", "$msgType$", "straße", "n" * 130]), text | st.just("v" * 200)), max_size=4)
_uint64 = st.integers(0, (1 << 64) - 1)
_fields = {"partition_key": text, "event_time": _uint64, "partition_key_b64_encoded": st.just(False), "sequence_id": _uint64}
_ordinary = st.builds(lambda pairs, fields: metadata_of(pairs, **fields), _pairs, st.fixed_dictionaries({}, optional=_fields))
ordinary_entries = st.lists(st.tuples(_ordinary, st.binary(max_size=200)), min_size=1, max_size=4).map(
    lambda found: entry_of(*found)
)


def fields(entry: EncodedEntry) -> object:
    return entry.metadata.SerializePartialToString(), entry.payload, entry.indexes


def check(entries: Sequence[Entry], origin: str | None, limits: Limits) -> None:
    others = [copy.copy(entry) for entry in entries]
    expected = encode_plain(
        [message for entry in others for message in decode_plain(entry, include_compacted_out=True)], origin, limits
    )
    copied = encode_entries(entries, origin, limits)
    assert list(map(fields, copied[0])) == list(map(fields, expected[0]))
    assert [(one.index, one.reason) for one in copied[1]] == [(one.index, one.reason) for one in expected[1]]
    assert [entry.defect for entry in entries] == [entry.defect for entry in others]


@settings(max_examples=examples(150))
@given(
    entries=st.lists(st.one_of(ordinary_entries, ordinary_entries, pulsar_natives()), max_size=4),
    ack_set=st.sampled_from([(), (5,), (2,)]),
    origin=ORIGINS,
    limits=LIMITS,
)
def test_copied_entries_equal_encoded_ones(
    entries: list[Entry], ack_set: tuple[int, ...], origin: str | None, limits: Limits
) -> None:
    for entry in entries[1::2]:
        entry.ack_set = ack_set
    check(entries, origin, limits)


@settings(max_examples=examples(150))
@given(entry=ordinary_entries, changed=changes(b"\x00\x01\x02\x18\x28\x40\x48\x80\xa2\xc3\xff"), origin=ORIGINS)
def test_unusual_metadata_bytes_keep_their_meaning(entry: Entry, changed: Changes, origin: str | None) -> None:
    """Properties without a name or a value are copied as they are."""
    entry.payload = changed(entry.payload)
    other = copy.copy(entry)
    expected = encode_plain(decode_plain(other, include_compacted_out=True), origin, Limits())
    copied = encode_entries([entry], origin, Limits())

    def read_back(found: list[EncodedEntry]) -> list[dict[str, Any]]:
        return [message.as_dict() for out in found for message in decode_plain(Entry(out.metadata, out.payload))]

    assert read_back(copied[0]) == read_back(expected[0])
    assert [(one.index, one.reason) for one in copied[1]] == [(one.index, one.reason) for one in expected[1]]


def test_ordinary_batches_are_copied() -> None:
    fields = {"partition_key": "k", "event_time": 5, "partition_key_b64_encoded": False, "sequence_id": 9}
    entry = entry_of(*[(metadata_of([("a", "1"), ("straße", "ü")], **fields), b"x"), (metadata_of(), b"")] * 2)
    entry.ack_set = (0b1101,)
    copied = _copy_batch(entry, "")
    assert copied is not None
    assert len(copied) == 3


@pytest.mark.parametrize(
    "single",
    [
        metadata_of([("mqbridge.v", "1")]),
        metadata_of(partition_key="YQ==", partition_key_b64_encoded=True),
        metadata_of(ordering_key=b"o"),
        metadata_of(null_value=True),
        metadata_of(compacted_out=True),
        metadata_of(partition_key="", null_partition_key=True),
    ],
)
def test_messages_with_other_fields_are_not_copied(single: SingleMessageMetadata) -> None:
    ordinary = (metadata_of([("a", "1")], partition_key="k"), b"y")
    odd = entry_of((single, b""), ordinary)
    assert _copy_batch(odd, "") is None
    check([entry_of(ordinary), odd, entry_of(ordinary, ordinary)], "c|t|0|", Limits())


def test_text_that_is_not_utf8_is_not_copied() -> None:
    entry = entry_of((SingleMessageMetadata(), b"x"))
    metadata = encode_property("a", "grün").replace("ü".encode(), b"\xc3\xc3") + b"\x18\x01"
    entry.payload = len(metadata).to_bytes(4, "big") + metadata + b"x"
    assert _copy_batch(entry, "") is None
    check([entry], None, Limits())


def test_batches_are_searched_for_origins_only_in_plain_python(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "compiled", None)
    batched = entry_of((metadata_of([("mqbridge.origin", "here|t|0|1")]), b"payload"))
    single = Entry(MessageMetadata(), b"payload")
    single.metadata.properties.add(key="mqbridge.origin", value="here|t|0|1")
    for entry in (single, batched):
        batch = make_batch(Partition("c", "t", "0", 0), [entry])
        assert batch.may_contain(b"here|t|0|")
        assert not batch.may_contain(b"there|")
        assert not Share(batch).batch.is_decoded
