"""What a TubeMQ SDK sent comes back as it was from any system; what others wrote comes as attributes that an SDK can read."""

import base64
from collections.abc import Callable

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from mqbridge.adapter.formats import batch_of_units
from mqbridge.mapping.message_checksum import message_checksum
from mqbridge.message import Message, Unit
from mqbridge.tubemq.mapping.properties import parse_pairs
from mqbridge.tubemq.mapping.sdk_units import SentMessageFormat, message_of_unit, unit_of_message
from mqbridge.tubemq.mapping.stored import decode
from mqbridge.tubemq.mapping.table import BLOCK, DEFECT
from mqbridge.tubemq.mapping.unit_format import MessageFormat, split_unit, unit_of_data
from mqbridge.tubemq.wire.payload import join_payload, split_payload
from tests.example_counts import examples
from tests.mapping.test_mapping_round_trips import SYSTEMS
from tests.strategies import any_messages, attribute_strings, names, transferred, tubemq_natives, values

JAVA = b"$msgType$=paid,$msgTime$=202611202350,region=eu,a=1,a=2"
"""An attribute string in the order of a Java producer."""
GATEWAYS = b"$msgType$=t,a=1,mqbridge.key=k,mqbridge.origin=c|t|0|1"

gateway_items = st.lists(
    st.tuples(names, values).map(lambda pair: f"{pair[0]}={pair[1]}".encode())
    | st.sampled_from([b"mqbridge.v=1", b"mqbridge.null=1", b"mqbridge.key=k", b"mqbridge.hops=2", b"mqbridge.origin=o|t|0|1"])
    | st.sampled_from([b"mqbridge.u.a=%", b"%=%25%2C", b"$msgType$=%C3", b"mqbridge.event_time=5", b"mqbridge.attributes=x%2Cy"])
    | st.sampled_from([b"mqbridge.tubemq.block=1", b"mqbridge.rocketmq.block=1", b"mqbridge.raw=x"]),
    max_size=6,
).map(b",".join)
strings = attribute_strings | gateway_items
sent_data = st.one_of(
    tubemq_natives().map(lambda native: (native.payLoadData, native.flag)),
    st.builds(join_payload, strings, st.binary(max_size=8)),
    st.tuples(st.binary(max_size=20), st.integers(-(1 << 31), (1 << 31) - 1)),
    st.tuples(st.builds(join_payload, strings, st.just(b"body")).map(lambda joined: joined[0]), st.sampled_from([0, 2, 3, -1])),
)
"""Data and flags of producers, odd ones and those of a gateway included."""


def content_of(message: Message) -> tuple[bytes | None, bytes]:
    """Return the attribute string and the body that an SDK gets for the message."""
    flag, data = split_unit(unit_of_message(message).data)
    attributes, body = split_payload(data, flag)
    assert flag == (attributes is not None)
    return attributes, body


def pairs_of(message: Message) -> list[tuple[str, str]]:
    return list(parse_pairs(content_of(message)[0] or b""))


def sent(attributes: bytes | None = JAVA, body: bytes = b"body") -> Message:
    return message_of_unit(unit_of_data(*join_payload(attributes, body)))


# --- what an SDK sent -----------------------------------------------------------------------------------------------------


@given(sent_data)
@example((b"\0\0\0\0", 1))
@example((b"", 0))
@example((b"no length", 1))
@example((b"\xff\xff\xff\xffbody", 1))
def test_an_sdk_gets_what_an_sdk_sent(content: tuple[bytes, int]) -> None:
    original = unit_of_data(*content)
    message = message_of_unit(original)
    assert message.defect is None
    assert unit_of_message(message) == original


@pytest.mark.parametrize("system", SYSTEMS)
@settings(max_examples=examples(300), suppress_health_check=[HealthCheck.too_slow])
@given(contents=st.lists(sent_data, min_size=1, max_size=3))
def test_an_sdk_gets_what_an_sdk_sent_through_any_system(system: str, contents: list[tuple[bytes, int]]) -> None:
    originals = [unit_of_data(*content) for content in contents]
    delivered = SYSTEMS[system].through([message_of_unit(unit) for unit in originals], None)
    assert [unit_of_message(message).data for message in delivered] == [unit.data for unit in originals]


@pytest.mark.parametrize("attributes", [None, b"", JAVA, b"odd,,=,a==,\xff=1", b"mqbridge.zzz=1"])
def test_usual_messages_are_stored_without_anything_added(attributes: bytes | None) -> None:
    data, flag = join_payload(attributes, b"body")
    message = message_of_unit(unit_of_data(data, flag))
    [expected] = decode([transferred(data, flag)], 0)
    assert message.as_dict() == {**expected.as_dict(), "position": ()}


@pytest.mark.parametrize(
    ("data", "flag", "value"),
    [
        (b"body", 1, "1:cae7b472:1:n:"),
        (b"body", -2, "1:49e6cd2f:-2:n:"),
        (*join_payload("a=ü,mqbridge.key=k".encode(), b"body"), "1:2e75ed30:1:t:a=ü,mqbridge.key=k"),
        (*join_payload(b"\xff,mqbridge.key=k", b"body"), "1:0a0398cb:1:b:/yxtcWJyaWRnZS5rZXk9aw=="),
    ],
)
def test_the_value_of_a_stored_message_does_not_change(data: bytes, flag: int, value: str) -> None:
    """It is stored: a later version must write and read the same."""
    message = message_of_unit(unit_of_data(data, flag))
    assert message.properties[0] == (BLOCK, value)
    assert unit_of_message(message) == unit_of_data(data, flag)


def test_native_consumers_of_the_backing_read_the_fields_that_a_gateway_wrote() -> None:
    message = sent(GATEWAYS)
    assert (message.key, message.msg_type, message.origin, message.hops) == ("k", "t", "c|t|0|1", 1)
    assert message.properties[1:] == (("$msgType$", "t"), ("a", "1"))
    assert content_of(message) == (GATEWAYS, b"body")


def test_the_position_and_the_publish_time_are_those_of_the_message() -> None:
    message = sent().replace(origin="c|t|0|1", hops=1, delivery_count=4, publish_time=9, position=(7, 2))
    unit = unit_of_message(message)
    assert unit == Unit(unit_of_data(*join_payload(JAVA, b"body")).data, 1, 9, (7, 2))
    stored = message_of_unit(unit)
    assert (stored.publish_time, stored.position) == (9, (7, 2))


def test_a_batch_of_sent_units_has_messages_with_the_block() -> None:
    units = [unit_of_data(b"1", 1), unit_of_data(*join_payload(GATEWAYS, b"2"))]
    batch = batch_of_units(SentMessageFormat(), units)
    assert batch.format == "tubemq.message"
    assert [unit_of_message(message).data for message in batch.messages] == [each.data for each in units]


@given(st.binary(max_size=60), st.integers(0, 3))
def test_damaged_units_never_raise(data: bytes, count: int) -> None:
    damaged = Unit(data, count, None)
    messages = SentMessageFormat().decode(damaged, [(index,) for index in range(count)])
    if count != 1 or not MessageFormat().are_whole([data]):
        expected = MessageFormat().decode(damaged, [(index,) for index in range(count)])
        assert [message.as_dict() for message in messages] == [message.as_dict() for message in expected]


# --- changed on the way ---------------------------------------------------------------------------------------------------

EDITS: dict[str, tuple[Callable[[Message], Message], bytes]] = {
    "property": (
        lambda message: message.replace(properties=(*message.properties, ("b", "3"))),
        b"$msgType$=paid,$msgTime$=202611202350,region=eu,a=1,a=2,b=3",
    ),
    "removed": (
        lambda message: message.replace(properties=message.properties[:-2]),
        b"$msgType$=paid,$msgTime$=202611202350,region=eu",
    ),
    "msg_type": (
        lambda message: message.replace(msg_type="other"),
        b"$msgType$=other,$msgTime$=202611202350,region=eu,a=1,a=2",
    ),
    "no msg_type": (lambda message: message.replace(msg_type=None), b"$msgTime$=202611202350,region=eu,a=1,a=2"),
    "nothing left": (lambda message: message.replace(properties=(), msg_type=None, event_time=None), b""),
    "payload": (lambda message: message.replace(payload=b"other"), JAVA),
    "no payload": (lambda message: message.replace(payload=None), JAVA),
    "key": (lambda message: message.replace(key="other"), JAVA),
}


@pytest.mark.parametrize("edit", EDITS)
def test_an_edited_message_has_its_own_fields(edit: str) -> None:
    change, expected = EDITS[edit]
    message = change(sent())
    assert content_of(message) == (expected or None, message.payload or b"")


def test_an_edited_message_of_a_gateway_has_its_own_fields_without_those_of_gateways() -> None:
    for message in (sent(GATEWAYS).replace(payload=b"other"), sent(GATEWAYS).replace(key="other")):
        assert content_of(message) == (b"$msgType$=t,a=1", message.payload)


def test_an_event_time_that_the_string_does_not_tell_is_written() -> None:
    message = sent(b"a=1").replace(event_time=1795218659999)
    assert content_of(message)[0] == b"$msgTime$=202611202350,a=1"
    assert (
        content_of(sent(b"a=1,$msgTime$=x").replace(event_time=1, msg_type="t"))[0] == b"$msgType$=t,$msgTime$=197001010000,a=1"
    )


def test_copied_properties_on_another_message_do_not_count() -> None:
    first, second = sent(GATEWAYS), sent(None, b"other")
    assert pairs_of(second.replace(properties=first.properties)) == [("a", "1")]
    twice = first.replace(properties=first.properties[:1] * 2 + first.properties[1:])
    assert content_of(twice)[0] == b"$msgType$=t,a=1"


parts = st.sampled_from(["1", "", "n", "t", "b", "-1", "9" * 5000, "007", "=", "YQ==", "a=1", "\udcff", "\ud800", "\u0661"])


@given(st.lists(parts, max_size=5).map(":".join) | st.text(max_size=40), any_messages(), st.booleans())
@example(":1:n:x", Message(b"x"), True)
@example(":1:b:YQ", Message(b"x"), True)
@example(":1:t:\udcff", Message(b"x"), True)
@example(f":{1 << 31}:n:", Message(b"x"), True)
def test_hostile_blocks_never_raise(rest: str, message: Message, fits: bool) -> None:
    """Also with the CRC that fits: anybody can compute it."""
    others = message.properties
    crc = message_checksum(rest, message, others) if fits else "00000000"
    split_unit(unit_of_message(message.replace(properties=((BLOCK, f"1:{crc}{rest}"), *others))).data)


@pytest.mark.parametrize("value", ["", "1", "1:", "1:00000000", "1:00000000:1:n:", "2:00000000:1:n:", ":" * 9, "1:" + "9" * 9999])
def test_blocks_that_are_none_are_ignored(value: str) -> None:
    assert pairs_of(Message(b"x", ((BLOCK, value), ("a", "1")))) == [("a", "1")]


def test_a_block_of_another_version_is_ignored() -> None:
    message = Message(b"x", msg_type="tag")
    value = f"2:{message_checksum(':3:n:', message, ())}:3:n:"
    assert pairs_of(message.replace(properties=((BLOCK, value),))) == [("$msgType$", "tag")]


@pytest.mark.parametrize(
    ("rest", "content"),
    [
        (":3:n:", (3, b"x")),
        (":0:t:a", (0, b"\0\0\0\1ax")),
        (":-1:b:" + base64.b64encode(b"\xff").decode(), (-1, b"\0\0\0\1\xffx")),
    ],
)
def test_blocks_with_the_right_crc_count(rest: str, content: tuple[int, bytes]) -> None:
    message = Message(b"x", (("a", "1"),), event_time=5)
    value = f"1:{message_checksum(rest, message, message.properties)}{rest}"
    assert split_unit(unit_of_message(message.replace(properties=((BLOCK, value), ("a", "1")))).data) == content


# --- messages of other systems' clients -----------------------------------------------------------------------------------


def test_a_message_of_another_system_has_attributes_that_an_sdk_reads() -> None:
    message = Message(
        b"body", (("a", "1"), ("mqbridge.key", "x"), ("a", "2"), ("k=v,", "100%"), ("", "4"), ("e", ""), ("s", " ")),
        "key", b"o", ("k", "l"), "tag,", b"attributes", 1795218659999, 60, 70, 3, (1, 2), "c|t|0|1", 2,
    )  # fmt: skip
    expected = b"$msgType$=tag%2C,$msgTime$=202611202350,a=1,a=2,k%3Dv%2C=100%25,%=4,e=%,s=%20"
    assert content_of(message) == (expected, b"body")


@pytest.mark.parametrize("payload", [b"body", b"", None])
def test_a_message_without_fields_has_no_attributes(payload: bytes | None) -> None:
    assert content_of(Message(payload)) == (None, payload or b"")
    assert content_of(Message(payload, key="k", keys=("a",), publish_time=5, deliver_at=7)) == (None, payload or b"")
    assert content_of(Message(payload, msg_type="")) == (None, payload or b"")


@given(any_messages())
def test_any_message_becomes_a_unit_without_pairs_of_gateways(message: Message) -> None:
    message.attributes = None
    attributes, body = content_of(message)
    assert body == (message.payload or b"")
    assert all(not name.startswith("mqbridge.") for name, _ in pairs_of(message))
    assert (attributes or b"").count(b"$msgType$") == bool(message.msg_type)
    items = (attributes or b"=").decode().split(",")
    assert all(item.count("=") == 1 for item in items)


def test_sdks_do_not_take_a_users_pair_for_the_type() -> None:
    """Java SDKs take the last item that contains `$msgType$`, wherever it is."""
    message = Message(b"x", (("$msgType$", "user"), ("x$msgType$", "1"), ("b", "$msgTime$"), ("c", "$5")), msg_type="t")
    assert content_of(message)[0] == b"$msgType$=t,x%24msgType%24=1,b=%24msgTime%24,c=$5"
    assert content_of(Message(b"x", (("$msgType$", "user"),)))[0] is None


def test_lone_surrogates_and_bytes_that_are_not_utf8_are_written() -> None:
    message = Message(b"x", (("a\ud800", "\udcb4"),), msg_type="\udfff")
    assert content_of(message)[0] == "$msgType$=\ufffd,a\ufffd=%B4".encode()


@pytest.mark.parametrize("event_time", [1 << 62, -(1 << 62)])
def test_an_event_time_that_no_attribute_can_tell_is_left_out(event_time: int) -> None:
    assert content_of(Message(b"x", (("a", "1"),), event_time=event_time))[0] == b"a=1"


def test_a_message_with_a_defect_shows_its_raw_payload() -> None:
    message = message_of_unit(Unit(b"no unit", 1, 5))
    attributes, body = content_of(message)
    assert body == b"no unit"
    assert attributes == (
        b"mqbridge.raw=tubemq.unit.v1,mqbridge.tubemq.defect=the unit cannot be read: it has 7 bytes%2C and a unit has 8 at least"
    )
    damaged = sent().replace(defect="\ud800" * 5000)
    assert pairs_of(damaged) == [*parse_pairs(JAVA), (DEFECT, "\ufffd" * 1000)]
    assert "mqbridge.key" not in dict(pairs_of(sent(GATEWAYS).replace(defect="x")))
