"""Units decode to the messages of a lane; a store may join them and split them again."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from mqbridge.adapter.registry import find_format, load_adapters
from mqbridge.errors import RemoteProtocolError
from mqbridge.message import Unit
from mqbridge.tubemq.mapping.stored import decode
from mqbridge.tubemq.mapping.unit_format import FORMATS, NAME, UNIT_FORM, split_unit, unit_of_data, units_of_data
from mqbridge.tubemq.wire.pb.broker_pb2 import TransferedMessage
from tests.strategies import transferred, tubemq_natives

(FORMAT,) = FORMATS
FLAGS = st.sampled_from([0, 1, 2, 3, -1, (1 << 31) - 1, -(1 << 31)])


def test_the_format_is_that_of_the_adapter() -> None:
    assert load_adapters()["tubemq"].formats == FORMATS
    assert find_format(NAME) is FORMAT
    assert FORMAT.name == NAME == "tubemq.message"


def test_a_unit_has_its_size_the_flag_and_the_data() -> None:
    """It is stored: a later version must read and write the same."""
    assert unit_of_data(b"body", -2) == Unit(bytes.fromhex("0000000c fffffffe 626f6479"), 1, None)
    assert split_unit(bytes.fromhex("0000000c fffffffe 626f6479")) == (-2, b"body")


@given(st.lists(st.tuples(st.binary(max_size=20), FLAGS)))
def test_units_are_made_joined_and_split(messages: list[tuple[bytes, int]]) -> None:
    units = units_of_data(messages)
    assert all(type(unit) is Unit for unit in units)
    assert units == [unit_of_data(data, flag) for data, flag in messages]
    stored = [unit.data for unit in units]
    assert [split_unit(data) for data in stored] == [(flag, data) for data, flag in messages]
    assert FORMAT.are_whole(stored)
    assert FORMAT.split(b"".join(stored)) == stored


@given(tubemq_natives())
def test_a_unit_decodes_to_the_message_that_a_lane_delivers(native: TransferedMessage) -> None:
    unit = unit_of_data(native.payLoadData, native.flag)._replace(published_ms=7)
    (expected,) = decode([native], 28, first=3)
    (decoded,) = FORMAT.decode(unit, [(28, 3)])
    assert decoded.as_dict() == {**expected.as_dict(), "publish_time": 7}


@pytest.mark.parametrize("flag", [3, -1])
def test_only_bit_0_of_the_flag_counts(flag: int) -> None:
    data = b"\0\0\0\3a=1body"
    (decoded,) = FORMAT.decode(unit_of_data(data, flag), [()])
    (expected,) = decode([transferred(data, 1)], 0)
    assert (decoded.payload, decoded.attributes) == (expected.payload, expected.attributes) == (b"body", b"a=1")


@given(st.binary(max_size=40), st.integers(0, 4))
@example(unit_of_data(b"body", 0).data, 2)
@example(unit_of_data(b"body", 0).data + b"!", 1)
@example(unit_of_data(b"body", 0).data[:-1], 1)
@example(b"\xff\xff\xff\xff\0\0\0\0", 1)
@example(b"", 1)
def test_a_damaged_unit_has_as_many_defects_as_messages(data: bytes, count: int) -> None:
    unit = Unit(data, count, 5)
    messages = FORMAT.decode(unit, [(index,) for index in range(count)])
    assert [message.position for message in messages] == [(index,) for index in range(count)]
    if count == 1 and FORMAT.are_whole([data]):
        assert messages[0].defect is None
        return
    for message in messages:
        assert (message.payload, message.properties, message.publish_time) == (data, (("mqbridge.raw", UNIT_FORM),), 5)
        assert (message.defect or "").startswith("the unit cannot be read: ")


@pytest.mark.parametrize("noise", [b"\0", b"\0\0\0\7", b"\0\0\0\x09\0\0\0\0", b"\xff\xff\xff\xff\0\0\0\0", bytes(20)])
def test_damaged_units_are_not_whole_and_cannot_be_split(noise: bytes) -> None:
    whole = unit_of_data(b"body", 0).data
    assert not FORMAT.are_whole([whole, noise])
    with pytest.raises(RemoteProtocolError, match="byte 12 of units"):
        FORMAT.split(whole + noise)
    with pytest.raises(RemoteProtocolError):
        split_unit(noise)
