"""What a producer sends becomes units: a batch one for each message, in the neutral form of a record."""

import struct
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqbridge.errors import RemoteProtocolError
from mqbridge.message import Unit
from mqbridge.rocketmq.mapping.sent_units import unit_of_message, units_of_batch
from mqbridge.rocketmq.wire.batch import Element, decode_batch, encode_batch
from mqbridge.rocketmq.wire.neutral_record import read_neutral, strip_added
from mqbridge.rocketmq.wire.record import SysFlag, decode_records

pytestmark = pytest.mark.usefixtures("both_ways")

BORN = 0x0000018B_CFE56800
INT32 = st.integers(-(1 << 31), (1 << 31) - 1)
ENTRIES = [b"TAGS\x01x\x02", b"TAGS\x01y\x02", b"CLUSTER\x01c\x02", b"MSG_REGION\x01r\x02", b"a\x01\xff\x02", b"\x02", b"no end"]
PROPERTIES = st.lists(st.sampled_from(ENTRIES)).map(b"".join) | st.binary(max_size=20)
ELEMENTS = st.lists(st.tuples(INT32, st.binary(max_size=20), PROPERTIES), max_size=6)

# A batch of two messages: size, magic, checksum, flag, size of the body, body, size of the properties, properties.
BATCH = bytes.fromhex(
    "00000029 00000000 00000000 00000007 00000003 6f6e65 0010 544147530178 02 434c55535445520163"  # TAGS x, CLUSTER c
    "00000019 00000000 00000000 ffffffff 00000000        0003 6b0176"  # k v, without a separator
)
RECORDS = [
    bytes.fromhex(
        "00000065 daa320a7 7a6c86f1 00000000 00000007 0000000000000000 0000000000000000 00000000 0000018bcfe56800"
        "0000000000000000 0000000000000000 0000000000000000 00000000 0000000000000000 00000003 6f6e65 00 0007 54414753017802"
    ),
    bytes.fromhex(
        "0000005f daa320a7 00000000 00000000 ffffffff 0000000000000000 0000000000000000 00000000 0000018bcfe56800"
        "0000000000000000 0000000000000000 0000000000000000 00000000 0000000000000000 00000000        00 0004 6b017602"
    ),
]


def test_a_batch_becomes_one_record_for_each_message() -> None:
    units = units_of_batch(BATCH, BORN)
    assert units == [Unit(record, 1, None) for record in RECORDS]
    assert {type(unit) for unit in units} == {Unit}
    assert units_of_batch(b"", BORN) == []


@given(ELEMENTS, st.integers(-(1 << 63), (1 << 63) - 1))
def test_messages_keep_their_own_values(elements: list[Element], born: int) -> None:
    units = units_of_batch(encode_batch(elements), born)
    assert [read_neutral(data) for data, *_ in units] == [
        (flag, 0, born, 0, body, strip_added(properties)) for flag, body, properties in elements
    ]


def test_every_truncation_of_a_batch_is_refused_like_by_its_decoder() -> None:
    for end in set(range(1, len(BATCH))) - {41}:  # 41: the end of the first message
        with pytest.raises(RemoteProtocolError) as expected:
            decode_batch(BATCH[:end])
        with pytest.raises(RemoteProtocolError) as refused:
            units_of_batch(BATCH[:end], BORN)
        assert str(refused.value) == str(expected.value)


@pytest.mark.parametrize("field", [0, 16, 23])
@pytest.mark.parametrize("value", [b"\0\0\0\0", b"\xff\xff\xff\xff", b"\x7f\xff\xff\xff", b"\x80\0\0\0", b"\0\0\0\x17"])
def test_wrong_lengths_are_refused_like_by_the_decoder(field: int, value: bytes) -> None:
    damaged = BATCH[:field] + value + BATCH[field + 4 :]
    with pytest.raises(RemoteProtocolError) as expected:
        decode_batch(damaged)
    with pytest.raises(RemoteProtocolError) as refused:
        units_of_batch(damaged, BORN)
    assert str(refused.value) == str(expected.value)


def test_properties_are_limited_only_by_the_record() -> None:
    (unit,) = units_of_batch(encode_batch([(0, b"x", b"p" * 0xFFFE)]), BORN)
    assert read_neutral(unit.data).properties == b"p" * 0xFFFE + b"\x02"
    with pytest.raises(RemoteProtocolError, match="cannot hold 65536 bytes of properties"):
        units_of_batch(encode_batch([(0, b"x", b""), (0, b"x", b"p" * 0xFFFF)]), BORN)


def test_a_single_message_keeps_its_compressed_body() -> None:
    body, flags = zlib.compress(b"body"), SysFlag.COMPRESSED | 0x300 | SysFlag.PREPARED | SysFlag.BORN_IPV6
    unit = unit_of_message(body, b"CLUSTER\x01c\x02TAGS\x01x", flag=7, sys_flag=flags, born_ms=BORN, reconsume_times=2)
    assert read_neutral(unit.data) == (7, SysFlag.COMPRESSED | 0x300, BORN, 2, body, b"TAGS\x01x\x02")
    assert unit == Unit(unit.data, 1, None)
    (record,) = decode_records(unit.data)
    assert (record.body, record.defect) == (b"body", None)


@pytest.mark.parametrize("name", ["flag", "reconsume_times", "born_ms"])
def test_a_number_that_is_too_large_for_a_record_is_refused(name: str) -> None:
    fields = {"flag": 0, "sys_flag": 0, "born_ms": BORN, "reconsume_times": 0, name: 1 << 63}
    with pytest.raises(RemoteProtocolError, match=f"{1 << 63}.* fit a record"):
        unit_of_message(b"x", b"", **fields)
    with pytest.raises(RemoteProtocolError, match="65536 bytes of properties"):
        unit_of_message(b"x", b"p" * 0xFFFF, flag=0, sys_flag=0, born_ms=BORN, reconsume_times=0)


def test_the_checksum_is_that_of_the_body() -> None:
    (unit,) = units_of_batch(encode_batch([(0, b"one", b"")]), BORN)
    assert struct.unpack_from(">I", unit.data, 8) == (zlib.crc32(b"one") & 0x7FFFFFFF,)
