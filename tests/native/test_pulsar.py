"""Pulsar's compiled decoder and encoder return the same messages, bytes and defects as the plain code."""

import copy
import re
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from mqbridge import native
from mqbridge.message import Message
from mqbridge.pulsar.adapter.sender_sequence import MessagePositions
from mqbridge.pulsar.mapping.request import EncodedEntry, EncodeResult, Limits, encode, encode_plain
from mqbridge.pulsar.mapping.stored import decode_entries, decode_plain
from mqbridge.pulsar.wire.batch import join_batch
from mqbridge.pulsar.wire.entry import Entry
from mqbridge.pulsar.wire.pb.PulsarApi_pb2 import MessageMetadata, SingleMessageMetadata
from tests.example_counts import examples
from tests.strategies import Changes, any_messages, changes, messages, pulsar_natives, values

compiled = native.compiled
if compiled is None:
    pytest.skip("mqbridge_native is not installed, or switched off", allow_module_level=True)

ORIGINS = st.sampled_from(["c|t|0|", "gr\u00fcn|t|0|", None])
LIMITS = st.sampled_from([Limits(), Limits(max_messages=2), Limits(max_bytes=120), Limits(max_messages=3, max_bytes=1)])

ESCAPED_BYTES = re.compile(rb"%[89a-fA-F]")
"""Percent-encoded bytes beyond ASCII in carried fields, which may be no UTF-8."""


# --- decode -----------------------------------------------------------------------------------------------------------


def is_utf8(message: Mapping[str, Any]) -> bool:
    """Return False if a text of the message has bytes that are not UTF-8: lone surrogates stand for them."""
    texts = [message.get("key"), message.get("msg_type"), *message.get("keys", ()), *chain(*message.get("properties", ()))]
    attributes = (message.get("attributes") or b"").decode(errors="surrogateescape")
    try:
        "".join([attributes, *(text for text in texts if isinstance(text, str))]).encode()
    except UnicodeEncodeError:
        return False
    return True


def check_decode(entries: Sequence[Entry]) -> Sequence[Message]:
    """Check that both decoders return the same messages, and find the same entries damaged; return the messages.

    The messages of damaged entries are made by the plain code, which also reads texts that are not UTF-8.
    """
    for number, entry in enumerate(entries):
        entry.entry = number
    copies = [copy.copy(entry) for entry in entries]
    expected = [message.as_dict() for entry in copies for message in decode_plain(entry, include_compacted_out=True)]
    decoded = decode_entries(entries)
    is_whole = all(message["defect"] is None for message in expected)
    is_escaped = any(ESCAPED_BYTES.search(entry.payload) for entry in entries)
    if not is_whole or (all(map(is_utf8, expected)) and not is_escaped):
        assert native.is_native(decoded) is is_whole
    assert [message.as_dict() for message in decoded] == expected
    assert [entry.defect for entry in entries] == [entry.defect for entry in copies]
    return decoded


def batch_of(payload: bytes, count: int, **fields: object) -> Entry:
    return Entry(MessageMetadata(publish_time=7, num_messages_in_batch=count), payload, ledger=3, **fields)  # type: ignore[arg-type]


def framed(*metadatas: bytes, payload: bytes = b"body") -> bytes:
    return b"".join(len(one).to_bytes(4, "big") + one + payload for one in metadatas)


ack_sets = st.sampled_from([(), (), (5,), (0,), (-1,), (2, 1)])


@settings(max_examples=examples(200))
@given(entries=st.lists(pulsar_natives(), max_size=4), ack_set=ack_sets, redelivered=st.integers(0, 3))
def test_entries_are_decoded_alike(entries: list[Entry], ack_set: tuple[int, ...], redelivered: int) -> None:
    for entry in entries[::2]:
        entry.ack_set, entry.redelivery_count = ack_set, redelivered
    check_decode(entries)


@settings(max_examples=examples(300))
@given(
    entry=pulsar_natives(), changed=changes(b"\x00\x01\x02\x04\x0a\x0b\x0c\x12\x18\x20\x28\x30\x3a\x40\x48\x7f\x80\xa1\xc3\xffam")
)
def test_entries_with_changed_bytes_are_decoded_alike(entry: Entry, changed: Changes) -> None:
    if entry.is_batch:
        entry.payload = changed(entry.payload)
        check_decode([entry])


@given(entry=pulsar_natives(), cut=st.floats(0, 1), more=st.binary(max_size=3), count=st.integers(-1, 6))
def test_torn_entries_are_decoded_alike(entry: Entry, cut: float, more: bytes, count: int) -> None:
    if entry.is_batch:
        check_decode([batch_of(entry.payload[: int(cut * len(entry.payload))] + more, count), entry])


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def _field(number: int, kind: int, value: int, data: bytes) -> bytes:
    bodies = {0: _varint(value), 1: bytes(8), 2: _varint(len(data)) + data, 3: b"", 4: b"", 5: bytes(4)}
    return _varint(number << 3 | kind) + bodies.get(kind, b"")


_numbers = st.integers(1, 11) | st.sampled_from([15, 16, 2047, (1 << 29) - 1, 0])
_uint64 = st.integers(0, 5) | st.integers(0, (1 << 64) - 1)
_leaf = st.builds(
    _field, st.integers(0, 4), st.sampled_from([0, 2, 2, 2, 5]), _uint64, values.map(str.encode) | st.binary(max_size=6)
)
_data = st.lists(_leaf, max_size=4).map(b"".join) | st.binary(max_size=8)
_wire_field = st.one_of(
    st.builds(_field, _numbers, st.integers(0, 7), _uint64, _data),
    st.builds(_field, st.sampled_from([4, 5, 6, 8, 9, 10]), st.just(0), _uint64, _data),
    st.builds(_field, st.sampled_from([1, 1, 2, 7]), st.just(2), _uint64, _data),
)
_group = st.tuples(_numbers, st.lists(_wire_field, max_size=2)).map(
    lambda group: b"".join((_varint(group[0] << 3 | 3), *group[1], _varint(group[0] << 3 | 4)))
)
_fields = st.lists(_wire_field | _group, max_size=6).map(b"".join)


@settings(max_examples=examples(500))
@given(
    fields=st.lists(_fields, min_size=1, max_size=3),
    size=st.sampled_from([b"\x18\x04", b"\x98\x80\x00", b"\x98\x84\x80\x80\x80\x10"]),
)
@example(fields=[b"\x0b" * 100 + b"\x0c" * 100], size=b"\x18\x04")
@example(fields=[b"\x0b" * 101 + b"\x0c" * 101], size=b"\x18\x04")
@example(fields=[_field(1, 2, 0, b"\x1b" * 99 + b"\x1c" * 99)], size=b"\x18\x04")
@example(fields=[_field(1, 2, 0, b"\x1b" * 100 + b"\x1c" * 100)], size=b"\x18\x04")
def test_single_message_metadata_with_any_fields_is_decoded_alike(fields: list[bytes], size: bytes) -> None:
    check_decode([batch_of(framed(*[one + size for one in fields]), len(fields))])


@given(data=st.binary(max_size=40), payload=st.binary(max_size=5))
def test_single_message_metadata_of_any_bytes_is_decoded_alike(data: bytes, payload: bytes) -> None:
    check_decode([batch_of(framed(data, payload=payload), 1), batch_of(data, 2), batch_of(data, 1)])


@pytest.mark.parametrize(
    "size", [b"\x18\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", b"\x18\x80\x80\x80\x80\x10", b"\x18\xff\xff\xff\xff\x07"]
)
def test_an_impossible_payload_size_is_a_defect(size: bytes) -> None:
    [message] = check_decode([batch_of(framed(size), 1)])
    assert message.defect


def test_an_entry_with_a_defect_does_not_affect_its_neighbours() -> None:
    good = join_batch([(SingleMessageMetadata(), b"x")])
    got = check_decode([batch_of(good, 1), batch_of(b"torn", 1, defect="its CRC32C is wrong"), batch_of(good, 1)])
    assert [message.defect for message in got] == [None, "its CRC32C is wrong", None]


@pytest.mark.parametrize("name", ["event_time", "deliver_at", "hops"])
@pytest.mark.parametrize("number", [1 << 63, -(1 << 63) - 1, 1 << 70, 10**4299, (1 << 63) - 1])
def test_numbers_that_no_system_can_write_stay_properties(name: str, number: int) -> None:
    """Otherwise any producer of the source could stop a route with such a number."""
    single = SingleMessageMetadata()
    single.properties.add(key="mqbridge.origin", value="c|t|0|7")
    single.properties.add(key=f"mqbridge.{name}", value=str(number))
    [message] = check_decode([batch_of(join_batch([(single, b"x")]), 1)])
    fits = number < 1 << 63 and name != "hops" and number >= -(1 << 63)
    assert message.properties == (() if fits else ((f"mqbridge.{name}", str(number)),))
    check_encode([message], "here|t|0|", Limits())


# --- encode -----------------------------------------------------------------------------------------------------------


def comparable(encoded: EncodeResult) -> object:
    """Return everything of the result that is sent, and the failures, in a comparable form."""

    def fields(entry: EncodedEntry) -> object:
        return entry.metadata.SerializePartialToString(), entry.payload, entry.indexes, entry.count

    return [fields(entry) for entry in encoded[0]], [(one.index, one.failure_kind, one.reason) for one in encoded[1]]


def check_encode(found: Sequence[Message], origin: str | None, limits: Limits, start: int = 0) -> None:
    """Check that both encoders return the same entries and failures."""
    assert comparable(encode(found, origin, limits, start)) == comparable(encode_plain(found, origin, limits, start))


def with_positions(found: list[Message]) -> list[Message]:
    for number, message in enumerate(found):
        message.position = ((), (number,), (28, number), (3, 4, number))[number % 4]
        message.origin, message.hops = (None, 0) if number % 2 else ("earlier", number)
    return found


defects = st.sampled_from([None, None, None, "bad"])
lists = st.lists(any_messages() | messages(defect=defects, deliver_at=st.none()), max_size=6).map(with_positions)


@settings(max_examples=examples(200))
@given(found=lists, origin=ORIGINS, limits=LIMITS, start=st.integers(0, 3))
def test_messages_are_encoded_alike(found: list[Message], origin: str | None, limits: Limits, start: int) -> None:
    check_encode(found, origin, limits, start)


@settings(max_examples=examples(150))
@given(entries=st.lists(pulsar_natives(), min_size=1, max_size=4), origin=ORIGINS, limits=LIMITS, data=st.data())
def test_decoded_messages_are_encoded_alike(
    entries: list[Entry], origin: str | None, limits: Limits, data: st.DataObject
) -> None:
    """Encode all decoded messages, a selection of them, and a list of views mixed with edited messages."""
    found = check_decode(entries)
    check_encode(found, origin, limits)
    indexes = data.draw(st.lists(st.integers(0, len(found) - 1), max_size=4)) if found else []
    check_encode(native.pick(found, indexes), origin, limits, 2)
    edits = data.draw(st.lists(st.booleans(), min_size=len(found), max_size=len(found)))
    mixed = [message.replace(payload=b"edited") if edited else message for message, edited in zip(found, edits, strict=True)]
    check_encode(mixed, origin, limits)


def test_a_number_beyond_64_bits_is_encoded_by_the_plain_code() -> None:
    message = Message(b"x", event_time=(1 << 64) + 5)
    [entry], _ = encode([message], None, Limits())
    assert [one.event_time for one in decode_plain(Entry(entry.metadata, entry.payload))] == [5]


def test_positions_are_compared_inside_the_compiled_module() -> None:
    entries = [batch_of(join_batch([(SingleMessageMetadata(), b"x")] * 2), 2) for _ in range(3)]
    found = check_decode(entries)
    assert MessagePositions(found).first_descent() is None
    assert MessagePositions(found)[-1] == (3, 2, 1)
    back = native.pick(found, [0, 1, 4, 3, 5])
    assert MessagePositions(back).first_descent() == MessagePositions(list(back)).first_descent() == 3
    assert MessagePositions(native.pick(found, [2, 2])).first_descent() == 1
