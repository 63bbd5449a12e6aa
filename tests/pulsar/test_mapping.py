"""Pulsar's mapping: every message is the same after encoding it into an entry and decoding that."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqbridge.errors import Failure, RemoteProtocolError
from mqbridge.message import Message
from mqbridge.pulsar.mapping.properties import write_fields
from mqbridge.pulsar.mapping.request import Limits, encode, encode_by_key
from mqbridge.pulsar.mapping.stored import decode_entries
from mqbridge.pulsar.wire.batch import join_batch, split_batch
from mqbridge.pulsar.wire.entry import Entry, decode_entry
from mqbridge.pulsar.wire.pb.PulsarApi_pb2 import MessageMetadata, SingleMessageMetadata
from mqbridge.tubemq.mapping import stored as tubemq
from tests.strategies import attribute_strings, comparable_fields, messages
from tests.tubemq.test_mapping import encode as encode_tubemq
from tests.tubemq.test_mapping import native, read

pytestmark = pytest.mark.usefixtures("transcoder")

FORM = ("mqbridge.raw", "pulsar.entry.v1")
ORIGIN = "c|t|1:0|"
ITEMS = [
    b"$msgType$=t",
    b"$msgTime$=202611202350",
    b"$msgTime$=x",
    b"x$msgTime$=202611202350",
    b"a=1",
    b"a",
    b"=",
    b"",
    b"a=\xff",
    b"k==v",
]


def decode(entry: Entry) -> Sequence[Message]:
    return decode_entries([entry])


def through(sent: Sequence[Message], origin: str | None = None, limits: Limits | None = None) -> list[Message]:
    """Encode the messages into entries, encode and decode the entries, and return the decoded messages."""
    entries, failures = encode(sent, origin, limits or Limits())
    assert failures == []
    decoded = []
    for outgoing in entries:
        outgoing.metadata.producer_name, outgoing.metadata.sequence_id, outgoing.metadata.publish_time = "p", 0, 1
        metadata = MessageMetadata.FromString(outgoing.metadata.SerializeToString())
        decoded += decode(Entry(metadata, outgoing.payload, ledger=1, entry=2))
    return decoded


@given(sent=st.lists(messages(), min_size=1, max_size=5), stamped=st.booleans())
def test_any_message_survives_the_round_trip(sent: list[Message], stamped: bool) -> None:
    for message in sent:
        message.position = (28, 3)
        message.msg_type = message.property("$msgType$")
        message.deliver_at = None if message.deliver_at is None else message.deliver_at + 1
    decoded = through(sent, ORIGIN if stamped else None)
    assert [comparable_fields(message) for message in decoded] == [comparable_fields(message) for message in sent]
    assert all(message.origin == (ORIGIN + "28:3" if stamped else None) for message in decoded)


@given(attributes=st.one_of(st.binary(max_size=30), st.text(max_size=30).map(str.encode)), body=st.binary(max_size=10))
def test_tubemq_to_pulsar_and_back_is_byte_for_byte(attributes: bytes, body: bytes) -> None:
    if b"mqbridge." in attributes:
        return  # only a gateway writes such properties
    original = native(attributes, body)
    [message] = through(tubemq.decode([original], 0))
    assert encode_tubemq(message, None).data == original.payLoadData


@given(message=messages())
def test_pulsar_to_tubemq_and_back(message: Message) -> None:
    [first] = through([message])
    [again] = through([read(encode_tubemq(first, None))])
    assert comparable_fields(again) == comparable_fields(first)


@given(
    attributes=st.one_of(st.binary(max_size=30), st.lists(st.sampled_from(ITEMS)).map(b",".join)),
    origin=st.sampled_from([None, ORIGIN]),
)
def test_lazy_and_plain_messages_have_the_same_bytes(attributes: bytes, origin: str | None) -> None:
    lazy_messages = tubemq.decode([native(attributes), native(b"")], 280)
    from_lazy, _ = encode(lazy_messages, origin, Limits())
    from_plain, _ = encode([message.replace() for message in lazy_messages], origin, Limits())
    # The payloads are joined: messages with reserved names may be encoded into entries of their own.
    assert b"".join(entry.payload for entry in from_lazy) == b"".join(entry.payload for entry in from_plain)


@given(
    sent=st.lists(messages(attributes=st.none() | attribute_strings, msg_type=st.none() | st.just("t")), min_size=1, max_size=4),
    origin=st.sampled_from([None, ORIGIN]),
)
def test_a_message_has_the_same_fields_in_a_batch_and_alone(sent: list[Message], origin: str | None) -> None:
    for number, message in enumerate(sent):
        message.position, message.deliver_at = (28, number), None
        message.origin, message.hops = (None, 0) if number % 2 else ("earlier", number)
    [entry], _ = encode(sent, origin, Limits())
    singles = split_batch(entry.payload, len(sent))
    for message, (single, payload) in zip(sent, singles, strict=True):
        alone = MessageMetadata()
        write_fields(alone, message, origin)
        assert payload == (message.payload or b"")
        assert [(pair.key, pair.value) for pair in single.properties] == [(pair.key, pair.value) for pair in alone.properties]
        for name in ("partition_key", "partition_key_b64_encoded", "ordering_key", "event_time", "null_value"):
            assert (single.HasField(name), getattr(single, name)) == (alone.HasField(name), getattr(alone, name))  # type: ignore[arg-type]


@given(single=st.binary(max_size=40), payload=st.binary(max_size=5))
def test_damage_is_a_defect_for_every_decoder(single: bytes, payload: bytes) -> None:
    entry = batch_entry(1)
    entry.payload = len(single).to_bytes(4, "big") + single + payload
    [message] = decode(entry) or [Message(None)]
    try:
        split_batch(entry.payload, 1)
    except RemoteProtocolError:
        assert message.defect
        assert raw_payload(message) == entry.payload


def test_text_that_is_not_utf8_is_kept_byte_for_byte() -> None:
    """The producer wrote GBK. Bytes of the text are lone surrogates in Python, and the same bytes in the copy."""
    entry = batch_entry(2)
    raw = b"\x0a\x0a\x0a\x04ci\xb4\xf3\x12\x02\xb4\xf3\x12\x02k\xff\x18\x01"
    plain = SingleMessageMetadata(payload_size=1).SerializeToString()
    entry.payload = b"".join(len(single).to_bytes(4, "big") + single + b"x" for single in (raw, plain))
    first, second = decode(entry)
    assert (first.defect, first.payload, first.key) == (None, b"x", "k\udcff")
    assert first.properties == (("ci\udcb4\udcf3", "\udcb4\udcf3"),)
    assert (second.defect, second.properties) == (None, ())
    [copy], failures = encode([first, second], None, Limits())
    assert failures == []
    assert raw in copy.payload
    assert copy.metadata.partition_key == b"k\xff"
    late = first.replace(deliver_at=5)
    [alone], _ = encode([late], None, Limits())
    assert decode(Entry(alone.metadata, alone.payload))[0].properties == first.properties


def test_entries_by_key_have_the_messages_of_one_key_in_order() -> None:
    keys: list[tuple[str | bytes | None, bytes | None]] = [
        ("a", None),
        ("b", None),
        (None, None),
        ("a", b"o"),
        ("a", None),
        (b"\xff", None),
    ]
    sent = [Message(b"%d" % n, key=keys[n % 6][0], ordering_key=keys[n % 6][1], position=(n,)) for n in range(24)]
    sent[7] = Message(b"damaged", position=(7,), defect="damaged")
    entries, failures = encode_by_key(sent, None, Limits(max_messages=3))
    assert [(failure.index, failure.failure_kind) for failure in failures] == [(7, Failure.REFUSED)]
    seen: list[int] = []
    for entry in entries:
        indexes = list(entry.indexes)
        assert (len(indexes), indexes) == (entry.count, sorted(indexes))
        assert {(sent[index].key, sent[index].ordering_key) for index in indexes} == {keys[indexes[0] % 6]}
        assert entry.count <= 3
        decoded = decode(Entry(entry.metadata, entry.payload))
        assert [message.payload for message in decoded] == [sent[index].payload for index in indexes]
        seen += indexes
    assert sorted(seen) == [index for index in range(24) if index != 7]


def test_a_lone_surrogate_that_stands_for_no_byte_is_refused_alone() -> None:
    messages = [Message(b"1"), Message(b"2", (("a", "\ud800"),)), Message(b"3", key="\ud800", deliver_at=5), Message(b"4")]
    entries, failures = encode(messages, None, Limits())
    assert [list(entry.indexes) for entry in entries] == [[0], [3]]
    assert [(failure.index, failure.failure_kind) for failure in failures] == [(1, Failure.REFUSED), (2, Failure.REFUSED)]
    assert "not valid Unicode" in failures[0].reason


def test_a_type_that_equals_the_first_property_is_still_carried() -> None:
    [message] = through([Message(b"x", (("a", "t"),), msg_type="t")])
    assert (message.msg_type, message.properties) == ("t", (("a", "t"),))


def test_user_properties_with_reserved_names_are_kept() -> None:
    pairs = (("mqbridge.null", "1"), ("mqbridge.event_time", "007"), ("mqbridge.hops", "x"), ("mqbridge.v", "1"))
    entry = batch_entry(1)
    single = SingleMessageMetadata()
    for key, value in pairs:
        single.properties.add(key=key, value=value)
    entry.payload = join_batch([(single, b"A")])
    [message] = decode(entry)
    assert (message.payload, message.properties, message.event_time) == (b"A", pairs, None)


@pytest.mark.parametrize(
    ("origin", "hops", "stamp", "then"), [(None, 0, True, 1), ("o", 1, True, 2), ("o", 2, True, 3), ("o", 3, False, 3)]
)
@pytest.mark.parametrize("deliver_at", [None, 5])
def test_hops_are_counted_with_each_stamped_origin(
    origin: str | None, hops: int, stamp: bool, then: int, deliver_at: int | None
) -> None:
    [message] = through(
        [Message(b"x", origin=origin, hops=hops, position=(1,), deliver_at=deliver_at)], ORIGIN if stamp else None
    )
    assert (message.origin, message.hops) == (ORIGIN + "1" if stamp else "o", then)


def test_properties_of_a_tubemq_message_for_pulsar_consumers() -> None:
    entries, _ = encode(tubemq.decode([native(b"$msgType$=t1,$msgTime$=202611202350,k=v1")], 280), ORIGIN, Limits())
    [outgoing] = entries
    size = int.from_bytes(outgoing.payload[:4], "big")
    single = SingleMessageMetadata.FromString(outgoing.payload[4 : 4 + size])
    assert [(p.key, p.value) for p in single.properties] == [
        ("$msgType$", "t1"),
        ("$msgTime$", "202611202350"),
        ("k", "v1"),
        ("mqbridge.attributes", "$msgType$=t1,$msgTime$=202611202350,k=v1"),
        ("mqbridge.origin", "c|t|1:0|280:0"),
    ]
    assert single.event_time == 1795218600000
    assert outgoing.payload[4 + size :] == b"body"


def test_entries_respect_the_limits_and_the_order() -> None:
    sent = [Message(bytes([n]) * 100) for n in range(50)]
    entries, _ = encode(sent, None, Limits(max_messages=7))
    assert [outgoing.count for outgoing in entries] == [7] * 7 + [1]
    entries, _ = encode(sent, None, Limits(max_bytes=1000))
    assert all(len(outgoing.payload) <= 1000 for outgoing in entries)
    assert [i for outgoing in entries for i in outgoing.indexes] == list(range(50))
    entries, _ = encode([Message(b"a"), Message(b"b" * 5000), Message(b"c")], None, Limits(max_bytes=1000))
    assert [outgoing.count for outgoing in entries] == [1, 1, 1]


def test_a_delayed_message_gets_an_entry_of_its_own() -> None:
    entries, _ = encode([Message(b"a"), Message(b"b", deliver_at=5), Message(b"c")], None, Limits())
    assert [outgoing.metadata.HasField("num_messages_in_batch") for outgoing in entries] == [True, False, True]
    assert [list(outgoing.indexes) for outgoing in entries] == [[0], [1], [2]]


def test_an_unreadable_message_is_reported_and_spares_the_others() -> None:
    entries, failures = encode([Message(b"a"), Message(b"?", defect="bad"), Message(b"c")], None, Limits())
    assert [list(outgoing.indexes) for outgoing in entries] == [[0], [2]]
    assert [(failure.index, failure.reason) for failure in failures] == [(1, "the message could not be read: bad")]


def batch_entry(count: int, **fields: object) -> Entry:
    metadata = MessageMetadata(producer_name="p", sequence_id=0, publish_time=1, num_messages_in_batch=count)
    payload = join_batch([(SingleMessageMetadata(), bytes([65 + n])) for n in range(count)])
    return Entry(metadata, payload, ledger=1, entry=2, **fields)  # type: ignore[arg-type]


@pytest.mark.parametrize(("ack_set", "left"), [((), b"ABC"), ((7,), b"ABC"), ((6,), b"BC"), ((2,), b"B")])
def test_acknowledged_messages_of_a_batch_are_skipped(ack_set: tuple[int, ...], left: bytes) -> None:
    decoded = decode(batch_entry(3, ack_set=ack_set))
    assert b"".join(message.payload or b"" for message in decoded) == left
    assert [message.position[2] for message in decoded] == [b"ABC".index(byte) for byte in left]


def test_a_broken_batch_is_one_defective_message() -> None:
    entry = batch_entry(3)
    entry.payload = entry.payload[:-1]
    [message] = decode(entry)
    assert message.defect
    assert raw_payload(message) == entry.payload


def raw_payload(message: Message) -> bytes:
    """Return the payload of the entry that a raw message contains."""
    entry = decode_entry(message.payload or b"")
    assert entry.defect is None
    assert message.properties[-1] == FORM
    return entry.payload


def test_a_key_with_invalid_base64_stays_text() -> None:
    entry = batch_entry(1)
    entry.payload = join_batch([(SingleMessageMetadata(partition_key="no base64!", partition_key_b64_encoded=True), b"A")])
    [message] = decode(entry)
    assert message.key == "no base64!"


def test_the_size_of_a_compressed_entry_is_its_unpacked_size() -> None:
    entry = Entry(MessageMetadata(compression=1, uncompressed_size=1000), b"x" * 10)
    assert entry.size == 1000
    assert batch_entry(3).size == len(batch_entry(3).payload)
