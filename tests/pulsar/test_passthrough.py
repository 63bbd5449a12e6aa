"""Entries copied from Pulsar to Pulsar mean what their messages mean when they are decoded and encoded."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mqbridge.adapter.receipt import MessageFailure
from mqbridge.mapping.parse_templates import ParseTemplates
from mqbridge.pulsar.mapping.fast import RestampedBatch, restamp, restamp_batch
from mqbridge.pulsar.mapping.passthrough import encode_entries
from mqbridge.pulsar.mapping.properties import write_keys
from mqbridge.pulsar.mapping.request import EncodedEntry, Limits, encode
from mqbridge.pulsar.mapping.stored import decode
from mqbridge.pulsar.wire import single_metadata
from mqbridge.pulsar.wire.batch import join_batch, split_batch
from mqbridge.pulsar.wire.compression import compress
from mqbridge.pulsar.wire.entry import Entry
from mqbridge.pulsar.wire.pb import PulsarApi_pb2 as pb
from mqbridge.pulsar.wire.pb.PulsarApi_pb2 import MessageMetadata, SingleMessageMetadata
from tests.strategies import Changes, changes, pulsar_natives, text

ORIGIN = "c|t|0|"
Encoded = tuple[list[EncodedEntry], list[MessageFailure]]


def metadata_of(pairs: Sequence[tuple[str, str]] = (), **fields: Any) -> SingleMessageMetadata:
    single = SingleMessageMetadata(**fields)
    for name, value in pairs:
        single.properties.add(key=name, value=value)
    return single


def entry_of(*messages: tuple[SingleMessageMetadata, bytes], number: int = 7, **metadata: Any) -> Entry:
    head = MessageMetadata(producer_name="p", sequence_id=1, publish_time=2, num_messages_in_batch=len(messages), **metadata)
    return Entry(head, join_batch(messages), ledger=3, entry=number)


_pairs = st.lists(st.tuples(st.sampled_from(["a", "b", "$msgType$", "straße", "n" * 130]), text | st.just("v" * 200)), max_size=4)
_fields = st.fixed_dictionaries(
    {},
    optional={
        "partition_key": text | st.just("k" * 200),
        "event_time": st.integers(0, (1 << 64) - 1),
        "partition_key_b64_encoded": st.just(False),
        "sequence_id": st.integers(0, (1 << 64) - 1),
        "null_value": st.just(False),
        "null_partition_key": st.just(False),
    },
)
ordinary_metadata = st.builds(lambda pairs, fields: metadata_of(pairs, **fields), _pairs, _fields)
"""What producers write that use neither tombstones nor ordering keys nor binary keys."""
ordinary_entries = st.lists(st.tuples(ordinary_metadata, st.binary(max_size=200)), min_size=1, max_size=4).map(
    lambda messages: entry_of(*messages)
)


def copies(entries: Sequence[Entry]) -> list[Entry]:
    """Entries that can be unpacked once more, each with a number of its own."""
    return [
        Entry(one.metadata, one.payload, ledger=one.ledger, entry=number, ack_set=one.ack_set)
        for number, one in enumerate(entries)
    ]


def read_back(encoded: Encoded) -> list[dict[str, object]]:
    """What a consumer of the target gets, without where it lies, and which of the encoded messages each is."""
    fields: list[dict[str, object]] = []
    for out in encoded[0]:
        out.metadata.producer_name, out.metadata.sequence_id, out.metadata.publish_time = "p", 0, 1
        messages = decode(Entry(MessageMetadata.FromString(out.metadata.SerializeToString()), out.payload))
        assert len(messages) == out.count == len(out.indexes)
        fields += [message.as_dict() | {"position": index} for index, message in zip(out.indexes, messages, strict=True)]
    return fields


@contextmanager
def fresh_templates() -> Iterator[None]:
    """No template is known, and some can be learned."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(restamp, "_templates", ParseTemplates())
        yield


def check(entries: Sequence[Entry], origin: str | None, limits: Limits) -> Encoded:
    """Both ways give the same messages in the same order, the same failures, and entries within the limits."""
    messages = [message for entry in copies(entries) for message in decode(entry)]
    expected = encode(messages, origin, limits)
    fields = read_back(expected)
    with fresh_templates():
        for _ in range(2):  # at first most metadata is walked through, then most fits a template
            got = encode_entries(copies(entries), origin, limits)
            assert read_back(got) == fields
    assert [(one.index, one.kind, one.reason) for one in got[1]] == [(one.index, one.kind, one.reason) for one in expected[1]]
    for out in got[0]:
        assert out.count == 1 or (out.count <= limits.max_messages and len(out.payload) <= limits.max_bytes)
        keys = MessageMetadata()
        write_keys(keys, messages[out.indexes[0]])
        assert [out.metadata.HasField(name) and getattr(out.metadata, name) for name in KEYS] == [
            keys.HasField(name) and getattr(keys, name) for name in KEYS
        ]
    return got


KEYS = ("partition_key", "partition_key_b64_encoded", "ordering_key")
LIMITS = st.sampled_from([Limits(), Limits(max_messages=3), Limits(max_bytes=300)])
ORIGINS = st.sampled_from([ORIGIN, None])


@settings(max_examples=200)
@given(
    entries=st.lists(st.one_of(ordinary_entries, ordinary_entries, pulsar_natives()), max_size=5),
    ack_set=st.sampled_from([(), (5,), (0,)]),
    origin=ORIGINS,
    limits=LIMITS,
)
def test_any_entries_mean_what_their_messages_mean(
    entries: list[Entry], ack_set: tuple[int, ...], origin: str | None, limits: Limits
) -> None:
    for entry in entries[1::2]:
        entry.ack_set = ack_set
    check(entries, origin, limits)


@settings(max_examples=200)
@given(
    entry=st.one_of(ordinary_entries, pulsar_natives()),
    changes=changes(b"\x0a\x12\x18\x28\x40\x80\x01\x02a\xc3"),
    origin=ORIGINS,
)
def test_metadata_that_a_template_of_the_same_length_does_not_fit(entry: Entry, changes: Changes, origin: str | None) -> None:
    """The first message leaves its template, which is tried on the changed one."""
    if not entry.is_batch or entry.metadata.HasField("deliver_at_time"):
        return
    [(single, payload), *_] = split_batch(entry.payload, entry.count)
    metadata = single.SerializeToString()
    changed = entry_of(*[(SingleMessageMetadata(), b"")] * 3)
    changed.payload = b"".join(
        len(metadata).to_bytes(4, "big") + one + payload for one in (metadata, changes(metadata), metadata)
    )
    check([changed], origin, Limits())


@given(entry=ordinary_entries, origin=ORIGINS)
def test_ordinary_batches_are_copied(entry: Entry, origin: str | None) -> None:
    with fresh_templates():
        for _ in range(2):
            batch = restamp_batch(entry, None if origin is None else origin.encode())
            assert batch is not None
            assert batch.count == entry.count
            assert batch.size == len(b"".join(batch.pieces))


@given(values=st.lists(st.sampled_from(["plain", "gr\u00fcn", "gru\u0308"]), min_size=2, max_size=5))
def test_texts_that_are_not_ascii_fit_a_template(values: list[str]) -> None:
    """All values have as many bytes, so whichever comes first leaves the template for all."""
    assert {len(value.encode()) for value in values} == {5}
    entry = entry_of(*[(metadata_of([("a", value)]), b"x") for value in values])
    with fresh_templates(), pytest.MonkeyPatch.context() as patch:
        assert restamp_batch(entry, b"") is not None
        patch.setattr(restamp, "_walk", None)
        assert restamp_batch(entry, b"") is not None
    check([entry], ORIGIN, Limits())


def test_the_copy_has_the_bytes_that_the_encoder_writes() -> None:
    single = metadata_of([("a", "1"), ("b", "2")], partition_key="k", event_time=1795218600001)
    entry = entry_of((single, b"x"), (single, b"y"))
    [copied], _ = encode_entries([entry], ORIGIN, Limits())
    [encoded], _ = encode(decode(entry), ORIGIN, Limits())
    assert copied.payload == encoded.payload
    assert copied.metadata == encoded.metadata


def test_the_sequence_id_is_left_out_and_the_origin_says_the_index_in_the_batch() -> None:
    entry = entry_of(*[(metadata_of([("a", "1")], sequence_id=number), b"%d" % number) for number in range(3)])
    entry.ack_set = (0b101,)
    with fresh_templates():
        [out], failures = encode_entries([entry], ORIGIN, Limits())
    assert failures == []
    assert [
        (payload, [(pair.key, pair.value) for pair in single.properties], single.HasField("sequence_id"))
        for single, payload in split_batch(out.payload, 2)
    ] == [
        (b"0", [("a", "1"), ("mqbridge.origin", "c|t|0|3:7:0")], False),
        (b"2", [("a", "1"), ("mqbridge.origin", "c|t|0|3:7:2")], False),
    ]


@pytest.mark.parametrize(
    ("single", "payload"),
    [
        (metadata_of([("mqbridge.origin", "c|t|0|1:2:3")]), b"x"),
        (metadata_of([("a", "1"), ("mqbridge.origin", "c|t|0|1:2:3"), ("mqbridge.hops", "2")]), b"x"),
        (metadata_of([("mqbridge.u.mqbridge.key", "a")]), b"x"),
        (metadata_of([("mqbridge.v", "1")]), b"x"),
        (metadata_of([("mqbridge.deliver_at", "5")]), b"x"),
        (metadata_of(partition_key="YQ==", partition_key_b64_encoded=True), b"x"),
        (metadata_of(partition_key="no base64!", partition_key_b64_encoded=True), b"x"),
        (metadata_of(ordering_key=b"o"), b"x"),
        (metadata_of(null_value=True), b""),
        (metadata_of(null_value=True), b"x"),
        (metadata_of(compacted_out=True), b"x"),
        (metadata_of(partition_key="", null_partition_key=True), b"x"),
    ],
)
def test_what_has_to_be_rewritten_or_left_out_is_not_copied(single: SingleMessageMetadata, payload: bytes) -> None:
    ordinary = (metadata_of([("a", "1")], partition_key="k"), b"y")
    odd = entry_of((single, payload), ordinary)
    assert restamp_batch(odd, b"") is None
    check([entry_of(ordinary), odd, entry_of(ordinary, ordinary)], ORIGIN, Limits())


def test_entries_that_are_no_batch_delayed_damaged_or_compressed() -> None:
    ordinary = entry_of((metadata_of([("a", "1")]), b"x" * 50))
    alone = Entry(MessageMetadata(producer_name="p", sequence_id=1, publish_time=2), b"z")
    delayed = entry_of((metadata_of(), b"x"), (metadata_of(), b"y"), deliver_at_time=5)
    damaged = entry_of((metadata_of(), b"x"))
    damaged.payload += b"\x00"
    size = len(ordinary.payload)
    packed = Entry(
        entry_of((metadata_of(), b""), compression=pb.ZLIB, uncompressed_size=size).metadata, compress(pb.ZLIB, ordinary.payload)
    )
    [*_], failures = check([ordinary, alone, delayed, ordinary, damaged, packed], ORIGIN, Limits())
    assert [failure.index for failure in failures] == [5]
    [out], _ = encode_entries(copies([ordinary, packed, ordinary]), ORIGIN, Limits())
    assert out.count == 3


def test_text_that_is_not_utf8_is_refused_behind_a_template() -> None:
    good, bad = (
        b"".join((single_metadata.encode_property("a", value), b"\x18\x01")) for value in (b"gr\xc3\xbcn", b"gr\xc3\xc3n")
    )
    for metadatas in ((good, bad), (bad, good)):
        entry = entry_of(*[(SingleMessageMetadata(), b"x")] * 2)
        entry.payload = b"".join(len(one).to_bytes(4, "big") + one + b"x" for one in metadatas)
        with fresh_templates():
            assert restamp_batch(entry, b"") is None
        _, failures = check([entry], ORIGIN, Limits())
        assert len(failures) == 1


def test_a_batch_beyond_the_limits_is_split_at_messages() -> None:
    entry = entry_of(*[(metadata_of(), bytes(100))] * 10)
    got, _ = check([entry], None, Limits(max_messages=4))
    assert [out.count for out in got] == [4, 4, 2]
    got, _ = check([entry], None, Limits(max_bytes=250))
    assert [out.count for out in got] == [2] * 5
    got, _ = check([entry], None, Limits(max_bytes=1))
    assert [out.count for out in got] == [1] * 10
    assert RestampedBatch([]).split(1, 1) == []


def test_messages_and_copies_keep_their_order() -> None:
    kinds = [entry_of((metadata_of(), b"copied")), entry_of((metadata_of(ordering_key=b"o"), b"encoded"))]
    got, _ = check([kinds[number % 3 == 1] for number in range(9)], ORIGIN, Limits())
    assert [out.count for out in got] == [1, 1, 2, 1, 2, 1, 1]
