"""Units become the records of a pull's response: the message's own values, and those of the queue that serves them."""

import zlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqbridge.errors import RemoteProtocolError
from mqbridge.message import Unit
from mqbridge.rocketmq.mapping.sent_units import unit_of_message
from mqbridge.rocketmq.mapping.served_records import RecordPlace, encode_served
from mqbridge.rocketmq.wire.neutral_record import encode_neutral, neutral_records
from mqbridge.rocketmq.wire.properties import MAX_BYTES
from mqbridge.rocketmq.wire.record import Record, SysFlag, decode_records, encode_record

pytestmark = pytest.mark.usefixtures("both_ways")

IPV4, IPV6 = bytes.fromhex("7f000001 00002a9f"), bytes(15) + b"\1" + b"\0\0\x2a\x9f"
PLACE = RecordPlace(b"T", 3, IPV4, 0x1000, b"CLUSTER\x01c\x02")
BORN, STORED = 0x18B_CFE5_6800, 0x18B_CFE5_6801
INT32 = st.integers(-(1 << 31), (1 << 31) - 1)
TOPICS = st.sampled_from(["T", "t" * 127, "t" * 128, "größe"])

RECORD = bytes.fromhex(
    "00000070 daa320a7 7a6c86f1 00000003 00000007 0000000000000009 0000000000001009 00000000 0000018bcfe56800"
    "7f00000100002a9f 0000018bcfe56801 7f00000100002a9f 00000002 0000000000000000 00000003 6f6e65 01 54"
    "0011 54414753017802 434c5553544552016302"
)


def unit(body: bytes = b"one", properties: bytes = b"TAGS\x01x\x02", published_ms: int | None = STORED, **fields: int) -> Unit:
    own = {"flag": 7, "sys_flag": 0, "born_ms": BORN, "reconsume_times": 2, **fields}
    return unit_of_message(body, properties, **own)._replace(published_ms=published_ms)


def refusal(data: bytes) -> str:
    with pytest.raises(RemoteProtocolError) as refused:
        encode_served([unit(), Unit(data, 1, None)], [5, 8], PLACE, frozenset({"x"}))
    return str(refused.value)


def test_a_record_has_the_values_of_the_message_and_of_the_queue() -> None:
    assert encode_served([unit()], [9], PLACE) == (RECORD, 1)
    ((neutral, offset, stored_ms),) = neutral_records(RECORD)
    assert (neutral, offset, stored_ms) == (unit().data, 9, STORED)
    assert encode_served([], [], PLACE) == (b"", 0)


@given(
    st.lists(st.tuples(st.binary(max_size=9), INT32, st.integers(0, 1 << 60), st.integers(0, 9), st.booleans())),
    st.integers(0, 1 << 60),
    TOPICS,
    st.sampled_from([IPV4, IPV6]),
)
def test_the_records_are_those_of_a_broker(
    messages: list[tuple[bytes, int, int, int, bool]], first: int, topic: str, host: bytes
) -> None:
    place = RecordPlace(topic.encode(), 3, host, 77, b"TRACE_ON\x01true\x02")
    units, expected = [], []
    for at, (content, flag, born, reconsumed, is_compressed) in enumerate(messages):
        body, sys_flag = (zlib.compress(content), SysFlag.COMPRESSED) if is_compressed else (content, 0)
        own: dict[str, Any] = {"flag": flag, "sys_flag": sys_flag, "reconsume_times": reconsumed}
        units.append(unit(body, b"a\x01\xff\x02", born, born_ms=born, **own))
        location: dict[str, Any] = {"queue_id": 3, "queue_offset": first + at, "physical_offset": first + at + 77}
        times: dict[str, Any] = {"born_timestamp": born, "store_timestamp": born}
        whole = Record(topic, body, b"a\x01\xff\x02" + place.added, born_host=host, store_host=host, **own, **location, **times)
        expected.append(encode_record(whole))
    served, count = encode_served(units, range(first, first + len(units)), place)
    assert (served, count) == (b"".join(expected), len(units))
    records = decode_records(served)
    assert [record.body for record in records] == [content for content, *_ in messages]
    assert [record.queue_offset for record in records] == [*range(first, first + len(units))]
    ipv6_bits = SysFlag.BORN_IPV6 | SysFlag.STORE_IPV6 if host is IPV6 else 0
    assert all(record.sys_flag == ipv6_bits and record.topic == topic for record in records)
    assert all(record.store_host == record.born_host == host and record.prepared_offset == 0 for record in records)


def test_only_messages_with_one_of_the_tags_are_served() -> None:
    blocks = [
        b"TAGS\x01x\x02",
        b"TAGS\x01y\x02TAGS\x01x\x02",
        b"TAGS\x01x\x02TAGS\x01y\x02",
        b"",
        b"XTAGS\x01x\x02",
        b"TAGS\x01x\x02TAGS\x01\x02",
        b"TAGS\x01?\x02",
    ]
    units, numbers = [unit(properties=block) for block in blocks], [3, 5, 8, 9, 20, 21, 30]

    def served(*tags: str) -> list[int]:
        data, count = encode_served(units, numbers, PLACE, frozenset(tags))
        offsets = [record.queue_offset for record in decode_records(data)]
        assert count == len(offsets)
        return offsets

    assert served() == numbers
    assert served("x") == [3, 5]
    assert served("y", "z") == [8]
    assert served("z") == served("") == served("\udcff") == served("\ud800") == []
    assert encode_served([unit(properties="TAGS\x01größe\x02".encode())], [1], PLACE, frozenset({"größe"}))[1] == 1


def test_entries_are_added_only_where_they_fit() -> None:
    room = MAX_BYTES - len(PLACE.added)
    for size, has_added in ((room - 1, True), (room, True), (room + 1, False), (MAX_BYTES, False)):
        own = b"p" * (size - 1) + b"\x02"
        (record,) = decode_records(encode_served([unit(properties=own)], [1], PLACE)[0])
        assert record.properties == own + (PLACE.added if has_added else b"")
    data = unit(properties=b"p" * MAX_BYTES).data
    assert (
        refusal(data) == "the unit at offset 8 cannot be served: it has 32768 bytes of properties, and clients read at most 32767"
    )


def test_a_unit_without_a_publish_time_has_the_store_timestamp_0() -> None:
    (record,) = decode_records(encode_served([unit(published_ms=None)], [1], PLACE)[0])
    assert record.store_timestamp == 0


def test_a_unit_that_is_no_neutral_record_is_refused_even_if_a_filter_would_leave_it_out() -> None:
    whole = unit(properties=b"TAGS\x01y\x02").data

    def changed(at: int, value: bytes) -> bytes:
        return whole[:at] + value + whole[at + len(value) :]

    prefix = "the unit at offset 8 cannot be served: "
    damaged = {
        b"": "it has 0 bytes, and a record has 91 at least",
        whole[:90]: "it has 90 bytes, and a record has 91 at least",
        whole[:-1]: "a record of 101 bytes with the magic DAA320A7, in 100 bytes",
        whole + b"\0": "a record of 101 bytes with the magic DAA320A7, in 102 bytes",
        changed(4, b"\xda\xa3\x20\xab"): "a record of 101 bytes with the magic DAA320AB, in 101 bytes",
        changed(36, b"\0\0\0\x10"): "its system flag is 16",
        changed(36, b"\0\0\0\xc0"): "its system flag is 192",
        changed(36, b"\xff\0\0\0"): "its system flag is 4278190080",
        changed(84, b"\0\0\0\2"): "the lengths inside do not add up to its 101 bytes",
        changed(84, b"\0\0\0\x0b"): "the lengths inside do not add up to its 101 bytes",
        changed(84, b"\xff\xff\xff\xff"): "the lengths inside do not add up to its 101 bytes",
        changed(84, b"\x7f\xff\xff\xff"): "the lengths inside do not add up to its 101 bytes",
        changed(91, b"\1"): "the lengths inside do not add up to its 101 bytes",
        changed(93, b"\6"): "the lengths inside do not add up to its 101 bytes",
        # At 20, the topic of a body of -68 bytes would begin, and properties up to the end.
        changed(20, b"\0\0\x4e")[:84] + b"\xff\xff\xff\xbc" + whole[88:]: "the lengths inside do not add up to its 101 bytes",
        whole[:-1] + b"z": "its last property has no separator",
    }
    assert {data: refusal(data) for data in damaged} == {data: prefix + problem for data, problem in damaged.items()}


def test_a_wrong_checksum_is_served_as_it_is_stored() -> None:
    stored = bytearray(encode_neutral(b"one"))
    stored[8] ^= 1
    (record,) = decode_records(encode_served([Unit(bytes(stored), 1, None)], [1], PLACE)[0])
    assert "CRC" in (record.defect or "")


def test_there_is_one_number_for_each_unit() -> None:
    for numbers in ([1], [1, 2, 3], range(0)):
        with pytest.raises(ValueError, match="zip"):
            encode_served([unit(), unit()], numbers, PLACE)
