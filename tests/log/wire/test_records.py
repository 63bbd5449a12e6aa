import contextlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mqbridge.errors import MappingError, RemoteProtocolError
from mqbridge.log.wire.records import VERSION, decode_row, decode_rows, encode_record, encode_row
from mqbridge.message import Message
from tests.example_counts import examples
from tests.strategies import messages

any_text = st.text(max_size=300)  # also lone surrogates, and lengths that need more than one byte
numbers = st.integers(min_value=-(1 << 63), max_value=(1 << 63) - 1)
any_message = messages(
    key=st.one_of(st.none(), any_text, st.binary(max_size=8)),
    ordering_key=st.one_of(st.none(), st.binary(max_size=8)),
    properties=st.lists(st.tuples(any_text, any_text), max_size=4).map(tuple),
    keys=st.lists(any_text, max_size=3).map(tuple),
    msg_type=st.one_of(st.none(), any_text),
    attributes=st.one_of(st.none(), st.binary(max_size=40)),
    event_time=st.one_of(st.none(), numbers),
    publish_time=st.one_of(st.none(), numbers),
    deliver_at=st.one_of(st.none(), numbers),
    delivery_count=st.integers(min_value=0, max_value=1 << 31),
    origin=st.one_of(st.none(), any_text),
    hops=st.integers(min_value=0, max_value=3),
    defect=st.one_of(st.none(), any_text),
)


def with_hops(message: Message) -> Message:
    """Return the message as it is read: no hops without an origin, at least one with it."""
    return message.replace(hops=0 if message.origin is None else max(1, message.hops))


def row_of(sent: list[Message]) -> bytes:
    return encode_row(encode_record(message, message.origin) for message in sent)


@given(st.lists(any_message, min_size=1, max_size=4), st.integers(min_value=0, max_value=1 << 50))
def test_every_field_is_decoded_as_it_was_encoded(sent: list[Message], base: int) -> None:
    read = decode_row(row_of(sent), len(sent), base)
    assert [message.as_dict() for message in read] == [
        with_hops(message).replace(position=(base + index,)).as_dict() for index, message in enumerate(sent)
    ]


@given(st.lists(any_message, min_size=1, max_size=3), st.data())
@settings(max_examples=examples(400))
def test_damaged_rows_raise_only_protocol_errors(sent: list[Message], data: st.DataObject) -> None:
    row = bytearray(row_of(sent))
    for _ in range(data.draw(st.integers(1, 4))):
        row[data.draw(st.integers(0, len(row) - 1))] = data.draw(st.integers(0, 255))
    with contextlib.suppress(RemoteProtocolError):
        assert len(decode_row(bytes(row), len(sent), 0)) == len(sent)


@given(st.lists(any_message, min_size=1, max_size=3), st.data())
def test_a_row_that_is_too_short_or_too_long_is_refused(sent: list[Message], data: st.DataObject) -> None:
    row = row_of(sent)
    with pytest.raises(RemoteProtocolError):
        decode_row(row[: data.draw(st.integers(0, len(row) - 1))], len(sent), 0)
    with pytest.raises(RemoteProtocolError):
        decode_row(row + data.draw(st.binary(min_size=1, max_size=20)), len(sent), 0)


@given(st.binary(max_size=200), st.integers(1, 5))
def test_arbitrary_bytes_raise_only_protocol_errors(row: bytes, count: int) -> None:
    with pytest.raises(RemoteProtocolError, match="offset 7"):
        decode_row(b"\x02" + row, count, 7)
    with contextlib.suppress(RemoteProtocolError):
        decode_row(VERSION + row, count, 7)


def test_none_and_empty_values_are_different() -> None:
    sent = [
        Message(None),
        Message(b""),
        Message(b"", key=""),
        Message(b"", key=b""),
        Message(b"", attributes=b"", ordering_key=b"", msg_type="", origin="", hops=1, event_time=0),
    ]
    read = decode_row(row_of(sent), len(sent), 0)
    assert [message.replace(position=()).as_dict() for message in read] == [message.as_dict() for message in sent]


def test_a_given_origin_replaces_the_origin_of_the_message() -> None:
    row = encode_row([encode_record(Message(b"x", origin="old"), "new")])
    assert decode_row(row, 1, 0)[0].origin == "new"


def test_a_number_beyond_64_bits_is_a_mapping_error() -> None:
    with pytest.raises(MappingError, match="event_time=9223372036854775808 does not fit"):
        encode_record(Message(b"x", event_time=1 << 63), None)


def test_golden_bytes_of_version_1() -> None:
    """Later releases must read the files of earlier ones, so the format must not change."""
    message = Message(
        b"body", (("a", "é"),), key="k", msg_type="t", keys=("i",), attributes=b"\xff", event_time=5, delivery_count=1
    )
    assert row_of([message]).hex(" ") == (
        "01 67 12 05 00 00 00 06 00 00 00 04 00 00 00"  # version, flags, 5 texts of 6 bytes, 4 bytes of payload
        " 01 01 01 01 01 6b 74 69 61 c3 a9"  # lengths in characters; k t i a é
        " 05 00 00 00 00 00 00 00 01 00 00 00 00 00 00 00 01 00 00 00"  # event_time, delivery_count, number of keys
        " 01 00 00 00 ff 62 6f 64 79"  # attributes, payload
    )


@pytest.mark.parametrize("hops", [0, 1, 2, 7])
def test_hops_are_stored_with_the_origin(hops: int) -> None:
    """Without a new origin, the message keeps its hops; with a new one, they increase by one."""
    message = Message(b"x", origin="cluster|topic|0|5", hops=hops)
    [unchanged] = decode_row(encode_row([encode_record(message, "".join(message.origin or ""))]), 1, 0)
    assert (unchanged.origin, unchanged.hops) == (message.origin, max(hops, 1))
    [stamped] = decode_row(encode_row([encode_record(message, "cluster|topic|0|6")]), 1, 0)
    assert stamped.hops == max(hops + 1, 1)


def test_decoding_a_range_returns_parts_of_the_first_and_last_row() -> None:
    rows = [(base, 3, row_of([Message(b"%d" % offset) for offset in range(base, base + 3)])) for base in (4, 7)]
    assert [message.payload for message in decode_rows(rows, 5, 9)] == [b"5", b"6", b"7", b"8"]
