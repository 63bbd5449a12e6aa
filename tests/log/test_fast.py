"""The fast code of records gives what the plain code gives."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mqbridge.errors import MappingError, RemoteProtocolError
from mqbridge.log.mapping import fast
from mqbridge.log.mapping.fast import LogMessage
from mqbridge.log.wire import records
from mqbridge.message import Message
from tests.log.test_records import any_message, row_of
from tests.strategies import messages

ascii_text = st.text(st.characters(max_codepoint=127), max_size=12)
times = st.one_of(st.none(), st.integers(min_value=0, max_value=1 << 50))
ordinary = messages(
    payload=st.binary(max_size=20),
    key=st.one_of(st.none(), ascii_text),
    ordering_key=st.none(),
    properties=st.lists(st.tuples(st.sampled_from(["a", "b%b", "%"]), ascii_text), max_size=3).map(tuple),
    keys=st.just(()),
    msg_type=st.one_of(st.none(), ascii_text),
    attributes=st.none(),
    event_time=times,
    publish_time=times,
    deliver_at=st.none(),
    delivery_count=st.just(0),
    origin=st.one_of(st.none(), ascii_text),
    hops=st.just(0),
    defect=st.none(),
)
either = st.lists(st.one_of(ordinary, any_message), min_size=1, max_size=5)


def outcome(decode: Any, row: bytes, count: int) -> Any:
    try:
        return [message.as_dict() for message in decode(row, count, 7)]
    except RemoteProtocolError as error:
        return str(error)


@given(either)
def test_rows_are_read_alike(sent: list[Message]) -> None:
    assert outcome(fast.decode_row, row_of(sent), len(sent)) == outcome(records.decode_row, row_of(sent), len(sent))


@given(st.lists(ordinary, min_size=1, max_size=5))
def test_ordinary_records_take_the_fast_way(sent: list[Message]) -> None:
    assert {type(message) for message in fast.decode_row(row_of(sent), len(sent), 0)} == {LogMessage}


@given(either, st.data())
@settings(max_examples=300)
def test_of_damaged_rows_only_protocol_errors_come_out(sent: list[Message], data: st.DataObject) -> None:
    row = bytearray(row_of(sent))
    for _ in range(data.draw(st.integers(1, 4))):
        row[data.draw(st.integers(0, len(row) - 1))] = data.draw(st.integers(0, 255))
    damaged = bytes(row)[: data.draw(st.integers(0, len(row)))]
    found, plain = (outcome(each, damaged, len(sent)) for each in (fast.decode_row, records.decode_row))
    assert isinstance(found, str) == isinstance(plain, str)
    assert isinstance(found, str) or found == plain


@given(either, st.one_of(st.none(), st.just("cluster|topic|0|5")))
def test_messages_are_written_alike(sent: list[Message], origin: str | None) -> None:
    for message in fast.decode_row(row_of(sent), len(sent), 0):
        assert fast.encode_record(message, origin) == records.encode_record(message, origin)
        assert fast.encode_record(message, message.origin) == records.encode_record(message, message.origin)


@pytest.mark.parametrize("hops", [0, 1, 2, 7])
def test_hops_are_written_alike(hops: int) -> None:
    """A row of Spark may say them; where nothing is stamped, its origin is kept with them."""
    [message] = fast.decode_row(row_of([Message(b"x", origin="cluster|topic|0|5")]), 1, 0)
    message.hops = hops
    for origin in (message.origin, "cluster|topic|0|6", None):
        record = fast.encode_record(message, origin)
        assert record == records.encode_record(message, origin)
    [found] = records.decode_row(records.encode_row([fast.encode_record(message, message.origin)]), 1, 0)
    assert found.hops == max(hops, 1)


def test_a_number_beyond_64_bits_is_refused() -> None:
    [message] = fast.decode_row(row_of([Message(b"x")]), 1, 0)
    message.event_time = 1 << 63
    with pytest.raises(MappingError, match="number of the message"):
        fast.encode_record(message, None)


def test_rows_are_cut_at_both_ends() -> None:
    rows = [(base, 3, row_of([Message(b"%d" % offset) for offset in range(base, base + 3)])) for base in (4, 7)]
    assert [message.payload for message in fast.decode_rows(rows, 5, 9)] == [b"5", b"6", b"7", b"8"]
