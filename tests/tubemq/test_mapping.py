"""TubeMQ's mapping: TubeMQ messages round-trip byte for byte, messages of other systems are restored completely."""

import struct
from collections.abc import Iterator
from datetime import UTC, datetime, tzinfo
from typing import NamedTuple
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqbridge.message import Message
from mqbridge.native import compiled
from mqbridge.tubemq.mapping import share, stored
from mqbridge.tubemq.mapping.properties import parse_pairs
from mqbridge.tubemq.mapping.share import encode_share
from mqbridge.tubemq.mapping.stored import decode
from mqbridge.tubemq.mapping.times import msg_times_of
from mqbridge.tubemq.wire.attributes import parse_pair
from mqbridge.tubemq.wire.pb.broker_pb2 import TransferedMessage
from tests.strategies import comparable_fields, messages, transferred


class EncodedRequest(NamedTuple):
    data: bytes
    flag: int
    msg_type: str | None
    msg_time: str | None


PREFIX, POSITION = "c|t|1:0|", (28, 3)
STAMP = "c|t|1:0|28:3"


@pytest.fixture(scope="module", params=["plain", "compiled"], autouse=True)
def _implementation(request: pytest.FixtureRequest) -> Iterator[None]:
    """Run every test with the plain code and with the compiled module."""
    if request.param == "compiled" and compiled is None:
        pytest.skip("the compiled module is not installed, or is turned off")
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "plain":
            patch.setattr(share, "compiled", None)
            patch.setattr(stored, "compiled", None)
        yield


def encode(message: Message, prefix: str | None, zone: tzinfo = UTC) -> EncodedRequest:
    return EncodedRequest(*encode_share([message], prefix, zone)[0])


def read(encoded: EncodedRequest) -> Message:
    return decode([transferred(encoded.data, encoded.flag)], 0)[0]


def native(attributes: bytes, body: bytes = b"body") -> TransferedMessage:
    return transferred(struct.pack(">i", len(attributes)) + attributes + body, 1)


def test_attributes_become_properties_of_the_same_names() -> None:
    [message] = decode([native(b"$msgType$=t1,$msgTime$=202611202350,k=v1")], 280)
    assert message.payload == b"body"
    assert message.properties == (("$msgType$", "t1"), ("$msgTime$", "202611202350"), ("k", "v1"))
    assert (message.msg_type, message.event_time) == ("t1", 1795218600000)
    assert message.attributes == b"$msgType$=t1,$msgTime$=202611202350,k=v1"
    assert message.position == (280, 0)


def test_a_missing_attribute_block_differs_from_an_empty_one() -> None:
    without, empty = decode([transferred(b"x", 0), native(b"", b"x")], 0)
    assert (without.attributes, without.payload) == (None, b"x")
    assert (empty.attributes, empty.payload) == (b"", b"x")


@pytest.mark.parametrize("data", [b"\x7f\xff\xff\xffabc", b"\xff\xff\xff\xffabc", b"ab"])
def test_data_with_the_flag_but_without_a_block_is_all_body(data: bytes) -> None:
    [message] = decode([transferred(data, 1)], 0)
    assert (message.payload, message.attributes, message.defect) == (data, None, None)


def test_a_wrong_checksum_is_a_defect_of_that_message_only() -> None:
    broken = transferred(b"abc", 0)
    broken.checkSum ^= 1
    first, second = decode([broken, transferred(b"fine", 0)], 0)
    assert first.defect == "its checksum does not match its content"
    assert first.payload == broken.SerializeToString(), "the whole stored message"
    assert first.properties == (("mqbridge.raw", "tubemq.message.v1"),)
    assert second.defect is None
    requests = encode_share([second, first], None)
    assert requests.failures == [(1, "the message at (0, 0) could not be read: its checksum does not match its content")]
    with pytest.raises(IndexError):
        requests[1]


@given(
    attributes=st.one_of(st.binary(max_size=30), st.text(max_size=30).map(str.encode)),
    body=st.binary(max_size=10),
    stamped=st.booleans(),
)
def test_a_message_of_an_sdk_keeps_its_attribute_string(attributes: bytes, body: bytes, stamped: bool) -> None:
    [message] = decode([native(attributes, body)], 28, first=3)
    encoded = encode(message, PREFIX if stamped else None)
    if not stamped:
        assert encoded.data == native(attributes, body).payLoadData
    again = read(encoded)
    assert comparable_fields(again) == comparable_fields(message)
    assert again.origin == (STAMP if stamped else None)


@given(
    items=st.lists(
        st.text("a=,%\n é", max_size=5).map(str.encode) | st.sampled_from([b"a=\xff", b"\xff=a", b"=", b""]), max_size=6
    )
)
def test_an_attribute_string_has_the_pairs_of_its_items(items: list[bytes]) -> None:
    string = b",".join(items)
    assert parse_pairs(string) == tuple(pair for item in string.split(b",") if (pair := parse_pair(item)) is not None)


@given(message=messages(msg_type=st.one_of(st.none(), st.text("ab,=%", min_size=1, max_size=4))), stamped=st.booleans())
def test_a_message_of_another_system_is_restored_completely(message: Message, stamped: bool) -> None:
    if message.msg_type is None:
        message.msg_type = message.property("$msgType$")
    message.position = POSITION
    again = read(encode(message, PREFIX if stamped else None))
    assert comparable_fields(again) == comparable_fields(message)
    assert again.origin == (STAMP if stamped else None)


def test_an_edited_message_gets_a_new_string_and_keeps_the_old_one() -> None:
    [message] = decode([native(b"a=1")], 0)
    again = read(encode(message.replace(properties=(("a", "2"),)), None))
    assert again.properties == (("a", "2"),)
    assert again.attributes == b"a=1"


@pytest.mark.parametrize(
    "attributes",
    [
        b"a=1,mqbridge.event_time=soon",
        b"mqbridge.null=1",
        b"mqbridge.key",
        b"mqbridge.zzz=1",
        b",,mqbridge.key",
    ],
)
def test_a_users_string_that_resembles_a_gateways_is_kept(attributes: bytes) -> None:
    [message] = decode([native(attributes)], 0)
    assert (message.attributes, message.payload) == (attributes, b"body")
    assert encode(message, None).data == native(attributes).payLoadData


def test_an_appended_message_type_is_read_as_the_type() -> None:
    [message] = decode([native(b"a=1,mqbridge.msg_type=t")], 0)
    assert (message.msg_type, message.attributes) == ("t", b"a=1")


def test_an_attribute_string_of_a_user_with_items_of_a_gateway_is_rebuilt() -> None:
    for attributes in (b"a=1,mqbridge.v=1", b"mqbridge.key=k"):
        pairs = tuple((key, value) for key, _, value in (item.partition("=") for item in attributes.decode().split(",")))
        message = Message(b"x", pairs, attributes=attributes)
        assert comparable_fields(read(encode(message, None))) == comparable_fields(message)


def test_a_property_named_msgtype_is_not_the_message_type() -> None:
    again = read(encode(Message(b"x", (("$msgType$", "t"),)), None))
    assert (again.msg_type, again.properties) == (None, (("$msgType$", "t"),))


@pytest.mark.parametrize("value", ["", " ", "\t", "%", "\u3000"])
def test_sdks_never_find_a_blank_key_or_value(value: str) -> None:
    encoded = encode(Message(b"x", ((value, value),)), None)
    text = encoded.data[4 : 4 + struct.unpack_from(">i", encoded.data)[0]].decode()
    key, _, written = text.split(",")[0].partition("=")
    assert key.strip()
    assert written.strip()
    assert read(encoded).properties == ((value, value),)


@pytest.mark.parametrize(("origin", "hops", "then"), [(None, 0, 1), ("o", 1, 2), ("o", 2, 3)])
@pytest.mark.parametrize("attributes", [None, b"a=1"])
def test_hops(origin: str | None, hops: int, then: int, attributes: bytes | None) -> None:
    properties = () if attributes is None else (("a", "1"),)
    message = Message(b"x", properties, attributes=attributes, origin=origin, hops=hops, position=POSITION)
    again = read(encode(message, PREFIX))
    assert (again.origin, again.hops, again.attributes) == (STAMP, then, attributes)
    kept = read(encode(again, None))
    assert (kept.origin, kept.hops) == (STAMP, then)


def test_a_decoded_message_is_written_back_with_its_hops() -> None:
    [message] = decode([native(b"a=1,mqbridge.origin=o,mqbridge.hops=2")], 0)
    for requests in (encode_share([message], None), share.PlainRequests([message], None, UTC)):
        assert requests[0][0] == native(b"a=1,mqbridge.origin=o,mqbridge.hops=2").payLoadData


def test_bytes_that_are_not_utf8_are_escaped() -> None:
    """Java SDKs decode attribute strings as UTF-8, so such bytes of another system's texts are percent-encoded."""
    message = Message(b"x", (("ci\udcb4\udcf3", "\udcb4=\udcf3"),), key="k\udcff", keys=("a\udcff,", "b"), msg_type="t\udcff")
    encoded = encode(message, None)
    assert b"ci%B4%F3=%B4%3D%F3" in encoded.data
    assert encoded.msg_type == "t%FF"
    copy = read(encoded)
    assert (copy.properties, copy.key, copy.keys, copy.msg_type) == (message.properties, message.key, message.keys, "t\udcff")


def test_lone_surrogates_are_refused() -> None:
    requests = encode_share([Message(b"x", (("a", "\ud800"),), position=(1, 2)), Message(b"fine")], None)
    [(index, problem)] = requests.failures
    assert index == 0
    assert problem.startswith("the message at (1, 2) has texts that are not valid Unicode: ")
    assert requests[1][0] == b"fine"


def test_sdks_find_type_and_time() -> None:
    encoded = encode(Message(b"x", (("a", "1"),), msg_type="t1", event_time=1795219034805), None, UTC)
    text = encoded.data[4 : 4 + struct.unpack_from(">i", encoded.data)[0]]
    assert dict(item.split("=") for item in text.decode().split(","))["$msgType$"] == "t1"
    assert dict(item.split("=") for item in text.decode().split(","))["$msgTime$"] == "202611202357"
    assert (encoded.msg_type, encoded.msg_time) == ("t1", "202611202357")


def test_the_broker_never_gets_an_empty_message() -> None:
    assert encode(Message(b""), None).data
    assert read(encode(Message(None), None)).payload is None


def test_an_ambiguous_minute_is_the_earlier_one() -> None:
    """When clocks are set back, a `$msgTime$` value fits two minutes; SDKs take the first."""
    msg_times = msg_times_of(ZoneInfo("Europe/Berlin"))
    assert msg_times[b"202610250230"] == int(datetime(2026, 10, 25, 0, 30, tzinfo=UTC).timestamp()) * 1000
