"""What a RocketMQ SDK sent comes back as it was from any system; what others wrote comes as properties that an SDK can read."""

import base64
import zlib
from collections.abc import Callable, Sequence

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from mqbridge.adapter.formats import batch_of_units
from mqbridge.log.wire.records import decode_row, encode_record, encode_row
from mqbridge.message import Message, Partition, Unit
from mqbridge.rocketmq.mapping.limits import MAX_PROPERTIES_BYTES
from mqbridge.rocketmq.mapping.sdk_units import (
    SentRecordFormat,
    message_of_unit,
    unit_of_message,
    with_unique_id,
)
from mqbridge.rocketmq.mapping.table import BLOCK, CUT, DEFECT
from mqbridge.rocketmq.mapping.unit_format import RecordFormat
from mqbridge.rocketmq.wire.neutral_record import Content, encode_neutral, read_neutral
from mqbridge.rocketmq.wire.properties import MAX_BYTES, find
from mqbridge.rocketmq.wire.properties import decode as decode_properties
from mqbridge.rocketmq.wire.record import Record, SysFlag, decode_records
from tests.example_counts import examples
from tests.mapping.test_mapping_round_trips import SYSTEMS
from tests.rocketmq.mapping.test_unit_format import unit
from tests.strategies import any_messages, rocketmq_natives

QUEUE = Partition("backing", "orders", "broker-a:3", 3)
JAVA = b"KEYS\x01k1 k2\x02UNIQ_KEY\x01AC11\x02WAIT\x01true\x02TAGS\x01paid\x02region\x01eu\x02"
"""A property string in the order of a Java producer."""
RETRIED = JAVA + b"RETRY_TOPIC\x01orders\x02ORIGIN_MESSAGE_ID\x0101\x02DELAY\x013\x02REAL_TOPIC\x01%RETRY%g\x02"

entries = st.lists(st.binary(max_size=6) | st.sampled_from([b"a\x01b", b"mqbridge.null\x011", b"TAGS\x01", b"\x01", b"~\x01|"]))
strings = st.one_of(
    rocketmq_natives().map(lambda record: record.properties),
    entries.map(b"\x02".join),
    st.binary(max_size=60),
)
bodies = st.just(b"\x00") | st.binary(min_size=1, max_size=40)
int32s, times = st.integers(-(1 << 31), (1 << 31) - 1), st.integers(-(1 << 40), 1 << 62)


def content_of(found: Unit) -> Content:
    """Return the fields of a unit, which must be readable."""
    decode_records(found.data)
    return read_neutral(found.data)


def pairs_of(message: Message) -> list[tuple[str, str]]:
    """Return the properties that an SDK gets for the message."""
    return decode_properties(content_of(unit_of_message(message)).properties)


def sent(block: bytes = JAVA, body: bytes = b"body", **fields: int) -> Message:
    return message_of_unit(unit(body, block, **fields))


# --- what an SDK sent -----------------------------------------------------------------------------------------------------


@given(bodies, strings, int32s, times, st.integers(0, 99))
@example(b"x", b"a\x01" + b"v" * (MAX_BYTES - 2), 0, 0, 0)
@example(b"x", bytes(range(3, 256)) * 129, 0, 0, 0)
@example(b"\x00", b"mqbridge.null\x011\x02", 1, 2, 3)
@example(b"\x00", b"mqbridge.empty\x011\x02mqbridge.event_time\x015\x02", 1, 2, 3)
@example(b"x", b"mqbridge.rocketmq.block\x011:0::::t:\x02mqbridge.rocketmq.flag\x017\x02", 5, 0, 0)
def test_an_sdk_gets_what_an_sdk_sent(body: bytes, block: bytes, flag: int, born: int, reconsumed: int) -> None:
    original = Unit(encode_neutral(body, block[:MAX_BYTES], flag=flag, born_timestamp=born, reconsume_times=reconsumed), 1, None)
    message = message_of_unit(original)
    assert message.defect is None
    assert [name for name, _ in message.properties].count(BLOCK) == 1
    assert unit_of_message(message) == original


@pytest.mark.parametrize("system", SYSTEMS)
@settings(max_examples=examples(200), suppress_health_check=[HealthCheck.too_slow])
@given(natives=st.lists(rocketmq_natives(), min_size=1, max_size=3), odd=strings)
def test_an_sdk_gets_what_an_sdk_sent_through_any_system(system: str, natives: list[Record], odd: bytes) -> None:
    originals = [
        encode_neutral(
            native.body,
            native.properties if index else odd,
            flag=native.flag,
            born_timestamp=native.born_timestamp,
            reconsume_times=native.reconsume_times,
        )
        for index, native in enumerate(natives)
    ]
    messages = [message_of_unit(Unit(data, 1, None)) for data in originals]
    # An attribute string with a time cannot be stored without an event time: that of a copy which an SDK sent on.
    if any(b"$msgTime$" in (message.attributes or b"") for message in messages):
        return
    delivered = SYSTEMS[system].through(messages, None)
    assert [unit_of_message(message).data for message in delivered] == originals


def test_native_consumers_of_the_backing_read_the_fields_and_properties() -> None:
    message = sent(RETRIED, flag=5, reconsume_times=2)
    assert (message.key, message.keys, message.msg_type) == ("k1", ("k1", "k2"), "paid")
    assert message.properties[1:] == (("UNIQ_KEY", "AC11"), ("region", "eu"), ("mqbridge.rocketmq.flag", "5"))
    assert message.event_time == content_of(unit()).born_timestamp
    name, value = message.properties[0]
    assert name == BLOCK
    assert value.startswith("1:")
    assert ":5:2::t:KEYS~k1 k2|UNIQ_KEY~AC11|WAIT~true|" in value
    assert content_of(unit_of_message(message)).properties == RETRIED


def test_the_value_of_a_stored_message_does_not_change() -> None:
    """It is stored: a later version must write and read the same."""
    message = sent(b"TAGS\x01t\x02a\x01\xc3\xbc\x02", b"body", flag=-5, reconsume_times=2)
    assert message.properties[0] == (BLOCK, "1:56a475c2:-5:2::t:TAGS~t|a~ü|")


@pytest.mark.parametrize("block", [b"a\x01~\x02", b"a\x01|\x02", b"a\x01\n\x02", b"a\x01\xb4\xf3\x02", b"a\x01\xed\xa0\x80\x02"])
def test_a_string_that_is_no_plain_text_is_carried_in_base64(block: bytes) -> None:
    [(_, value), _] = sent(block).properties
    assert value.endswith(":b:" + base64.b64encode(block).decode())
    assert content_of(unit_of_message(sent(block))).properties == block


def test_a_compressed_body_is_stored_decompressed() -> None:
    original = unit(zlib.compress(b"body" * 99), JAVA, sys_flag=SysFlag.COMPRESSED | 0x300, flag=3)
    message = message_of_unit(original)
    assert message.payload == b"body" * 99
    given_back = content_of(unit_of_message(message))
    assert given_back == content_of(original)._replace(body=b"body" * 99, sys_flag=0)


def test_a_batch_of_sent_units_has_messages_with_the_block() -> None:
    batch = batch_of_units(SentRecordFormat(), [unit(b"1", JAVA), unit(b"2", JAVA)])
    assert batch.format == "rocketmq.record"
    assert [unit_of_message(message).data for message in batch.messages] == [each.data for each in batch.units or ()]


@pytest.mark.parametrize("damaged", [Unit(b"", 1, 5), Unit(b"x" * 200, 1, 5), unit(b"no zlib", sys_flag=SysFlag.COMPRESSED)])
def test_a_unit_that_cannot_be_read_becomes_a_message_with_a_defect(damaged: Unit) -> None:
    message = message_of_unit(damaged)
    assert message.as_dict() == RecordFormat().decode(damaged, [()])[0].as_dict()
    assert message.defect
    assert SentRecordFormat().decode(damaged, [(4,)])[0].position == (4,)


@given(st.binary(max_size=300), st.integers(0, 3))
def test_damaged_units_never_raise(data: bytes, count: int) -> None:
    damaged = Unit(data, count, None)
    assert message_of_unit(damaged).defect
    assert len(SentRecordFormat().decode(damaged, [()] * count)) == count


# --- changed on the way ---------------------------------------------------------------------------------------------------

EDITS: dict[str, Callable[[Message], Message]] = {
    "payload": lambda message: message.replace(payload=b"another"),
    "no payload": lambda message: message.replace(payload=None),
    "property": lambda message: message.replace(properties=(*message.properties, ("added", "1"))),
    "removed": lambda message: message.replace(properties=message.properties[:-1]),
    "order": lambda message: message.replace(properties=message.properties[::-1]),
    "msg_type": lambda message: message.replace(msg_type="other"),
    "key": lambda message: message.replace(key="other"),
    "binary key": lambda message: message.replace(key=message.key.encode() if isinstance(message.key, str) else None),
    "keys": lambda message: message.replace(keys=()),
    "joined keys": lambda message: message.replace(keys=("k1 k2",)),
    "ordering_key": lambda message: message.replace(ordering_key=b"x"),
    "attributes": lambda message: message.replace(attributes=b"x"),
    "event_time": lambda message: message.replace(event_time=5),
    "no event_time": lambda message: message.replace(event_time=None),
    "deliver_at": lambda message: message.replace(deliver_at=5),
}


@pytest.mark.parametrize("edit", EDITS)
def test_an_edited_message_has_its_own_fields_only(edit: str) -> None:
    message = EDITS[edit](sent(RETRIED, flag=5, reconsume_times=2))
    pairs = pairs_of(message)
    assert dict(pairs).keys().isdisjoint({"WAIT", "RETRY_TOPIC", "ORIGIN_MESSAGE_ID", "DELAY", BLOCK})
    assert dict(pairs)["UNIQ_KEY"] == "AC11"
    assert content_of(unit_of_message(message)).reconsume_times == 0
    assert content_of(unit_of_message(message)).body == (message.payload or b"\x00")


def test_an_edited_message_keeps_its_flag_and_its_sharding_key() -> None:
    message = sent(JAVA + b"__SHARDINGKEY\x01k1\x02", flag=5).replace(msg_type="other")
    assert content_of(unit_of_message(message)).flag == 5
    assert pairs_of(message) == [
        ("UNIQ_KEY", "AC11"),
        ("region", "eu"),
        ("TAGS", "other"),
        ("KEYS", "k1 k2"),
        ("__SHARDINGKEY", "k1"),
    ]


def test_a_copy_by_a_route_keeps_the_block() -> None:
    message = sent(RETRIED).replace(origin="c|t|0|1", hops=1, delivery_count=4, publish_time=9, position=(7, 2))
    given_back = unit_of_message(message)
    assert content_of(given_back).properties == RETRIED
    assert (given_back.position, given_back.published_ms) == ((7, 2), 9)


def test_copied_properties_on_another_message_do_not_count() -> None:
    first, second = sent(RETRIED), sent(b"TAGS\x01t\x02", b"other")
    for copied in (second.replace(properties=first.properties), second.replace(properties=(*first.properties, ("a", "1")))):
        assert dict(pairs_of(copied)).keys() <= {"TAGS", "UNIQ_KEY", "region", "a"}
    twice = first.replace(properties=first.properties[:1] * 2 + first.properties[1:])
    assert "RETRY_TOPIC" not in dict(pairs_of(twice))


parts = st.sampled_from(["1", "", "t", "b", "-1", "9" * 5000, "1" * 30, "007", "=", "YQ==", "a~1|", "\udcff", "\ud800", "\u0661"])


@given(st.lists(parts, max_size=7).map(":".join) | st.text(max_size=40), any_messages(), st.booleans())
@example(":::::t:" + "x" * (1 << 20), Message(b"x"), True)
@example(":::0:t:" + "x" * (1 << 20), Message(b"x"), True)
@example(":::0:b:" + "x" * (1 << 20), Message(b"x"), True)
@example(f":{1 << 31}::0:t:a~1|", Message(b"x"), True)
@example(f"::{-1 << 40}:0:t:a~1|", Message(b"x"), True)
@example(f":::{1 << 63}:t:a~1|", Message(b"x"), True)
@example(":::0:b:YQ", Message(b"x"), True)
@example(":::0:t:\udcff", Message(b"x"), True)
@example(":::0:t:\ud800", Message(b"x"), True)
def test_hostile_blocks_never_raise(rest: str, message: Message, fits: bool) -> None:
    """Also with the CRC that fits: anybody can compute it."""
    others = message.properties
    crc = value_crc(rest, message) if fits else "00000000"
    decode_records(unit_of_message(message.replace(properties=((BLOCK, f"1:{crc}{rest}"), *others)), QUEUE).data)


@pytest.mark.parametrize(
    "value", ["", "1", "1:", "1:00000000", "1:00000000::::t:", "2:00000000::::t:", ":" * 9, "1:" + "9" * 9999]
)
def test_blocks_that_are_none_are_ignored(value: str) -> None:
    assert pairs_of(Message(b"x", ((BLOCK, value), ("a", "1")))) == [("a", "1")]


def test_a_block_of_another_version_is_ignored() -> None:
    message = Message(b"x", msg_type="tag", event_time=5)
    value = f"2:{value_crc('::::t:', message)}::::t:"
    assert pairs_of(message.replace(properties=((BLOCK, value),))) == [("TAGS", "tag")]


def test_a_block_of_a_message_with_a_defect_is_ignored() -> None:
    damaged = sent().replace(defect="damaged")
    assert dict(pairs_of(damaged))[DEFECT] == "damaged"
    assert "WAIT" not in dict(pairs_of(damaged))


@pytest.mark.parametrize("rest", ["::::t:", ":1::0:t:", "::1:0:b:", ":::-5:b:AQI="])
def test_blocks_with_the_right_crc_count(rest: str) -> None:
    message = Message(b"x", (("a", "1"),), event_time=5)
    value = f"1:{value_crc(rest, message)}{rest}"
    assert pairs_of(message.replace(properties=((BLOCK, value), ("a", "1")))) == []


def value_crc(rest: str, message: Message) -> str:
    """Return the CRC of a value with this rest for the message, as the module's documentation describes it."""

    def tagged(value: str | bytes | None) -> str:
        return "" if value is None else f"t{value}" if isinstance(value, str) else f"b{value.hex()}"

    texts = [rest, "" if message.payload is None else f"{zlib.crc32(message.payload):08x}"]
    texts += [tagged(value) for value in (message.key, message.ordering_key, message.msg_type, message.attributes)]
    texts += ["" if time is None else str(time) for time in (message.event_time, message.deliver_at)]
    texts += [str(len(message.keys)), *message.keys, *(text for pair in message.properties for text in pair)]
    return f"{zlib.crc32(chr(0).join(texts).encode('utf-8', 'surrogatepass')):08x}"


# --- messages of other systems' clients -----------------------------------------------------------------------------------


def test_a_message_of_another_system_has_properties_that_an_sdk_reads() -> None:
    message = Message(
        b"body", (("a", "1"), ("mqbridge.key", "x"), ("a", "2"), ("DELAY", "3"), ("", "4"), ("e", ""), ("s", "x\x01")),
        "key", b"o", ("k", "l"), "tag", b"attributes", 50, 60, 70, 3, (1, 2), "c|t|0|1", 2,
    )  # fmt: skip
    found = unit_of_message(message)
    assert content_of(found) == (0, 0, 50, 0, b"body", content_of(found).properties)
    assert pairs_of(message) == [
        ("mqbridge.x.0.a", "1"),
        ("a", "2"),
        ("mqbridge.x.1.DELAY", "3"),
        ("mqbridge.x.2.%", "4"),
        ("mqbridge.x.3.e", "%"),
        ("mqbridge.x.4.s", "x%01"),
        ("TAGS", "tag"),
        ("KEYS", "k l"),
        ("__SHARDINGKEY", "key"),
    ]


@given(any_messages())
def test_any_message_becomes_a_unit_without_properties_of_gateways(message: Message) -> None:
    given_back = content_of(unit_of_message(message))
    assert given_back.body == (message.payload or b"\x00")
    assert all(not name.startswith("mqbridge.") or name.startswith("mqbridge.x.") for name, _ in pairs_of(message))


@pytest.mark.parametrize("payload", [None, b""])
def test_an_empty_or_missing_payload_becomes_a_zero_byte(payload: bytes | None) -> None:
    assert content_of(unit_of_message(Message(payload))).body == b"\x00"


@pytest.mark.parametrize(
    ("fields", "born"),
    [
        ({"event_time": 5, "publish_time": 7}, 5),
        ({"publish_time": 7}, 7),
        ({}, 0),
        ({"event_time": 1 << 70, "publish_time": 7}, 7),
    ],
)
def test_the_born_timestamp_is_the_best_known_time(fields: dict[str, int], born: int) -> None:
    assert content_of(unit_of_message(Message(b"x", **fields))).born_timestamp == born  # type: ignore[arg-type]


def test_lone_surrogates_that_stand_for_no_byte_are_replaced() -> None:
    message = Message(b"x", (("a", "\ud800\udcb4"),), "\ud800", keys=("\udfff",), msg_type="\ud800")
    expected = "a\x01\ufffd".encode() + b"\xb4\x02" + "TAGS\x01\ufffd\x02KEYS\x01\ufffd\x02__SHARDINGKEY\x01\ufffd\x02".encode()
    assert content_of(unit_of_message(message)).properties == expected


def test_properties_that_do_not_fit_are_left_out_and_counted() -> None:
    pairs = (*((f"n{index}", "v" * 9000) for index in range(9)), ("UNIQ_KEY", "U1"), ("last", "1"))
    message = Message(b"x", pairs, keys=("k" * 500,), msg_type="tag")
    found = pairs_of(message)
    assert len(content_of(unit_of_message(message)).properties) <= MAX_PROPERTIES_BYTES
    assert [name for name, _ in found] == ["UNIQ_KEY", "TAGS", "KEYS", "n0", "n1", "n2", "last", CUT]
    assert found[-1] == (CUT, "6")
    assert pairs_of(Message(b"x", msg_type="t" * 70_000)) == [(CUT, "1")]


def test_a_message_with_a_defect_shows_its_raw_payload() -> None:
    message = message_of_unit(unit(b"no zlib", JAVA, sys_flag=SysFlag.COMPRESSED))
    found = content_of(unit_of_message(message, QUEUE))
    assert found.body == message.payload
    pairs = dict(decode_properties(found.properties))
    assert pairs["mqbridge.raw"] == "rocketmq.record.v1"
    assert pairs[DEFECT] == message.defect
    assert (pairs["TAGS"], pairs["KEYS"], pairs["UNIQ_KEY"]) == ("paid", "k1 k2", "AC11")
    found = content_of(unit_of_message(Message(None, defect="\x01" * 5000)))
    assert decode_properties(found.properties) == [(DEFECT, " " * 1000)]


# --- unique ids -----------------------------------------------------------------------------------------------------------


def test_a_message_without_a_unique_id_gets_one_from_its_position() -> None:
    message = Message(b"x", (("a", "1"),), position=(5,))
    elsewhere = Partition("other name of the cluster", QUEUE.topic, QUEUE.name, 0)
    ids = [
        find(content_of(unit_of_message(each, partition)).properties, "UNIQ_KEY")
        for each, partition in (
            (message, QUEUE),
            (message.replace(delivery_count=3), elsewhere),
            (message.replace(position=(6,)), QUEUE),
            (message.replace(position=(5, 0)), QUEUE),
            (message, Partition("backing", QUEUE.topic, "broker-a:4", 3)),
            (message, Partition("backing", "other", QUEUE.name, 3)),
        )
    ]
    assert ids[0] == ids[1]
    assert len(set(ids)) == 5
    assert all(each is not None and len(each) == 32 and bytes.fromhex(each) for each in ids)
    assert find(content_of(unit_of_message(message)).properties, "UNIQ_KEY") is None


def test_a_unique_id_that_is_there_stays() -> None:
    assert content_of(unit_of_message(sent().replace(position=(5,)), QUEUE)).properties == JAVA
    assert (
        content_of(unit_of_message(Message(b"x", (("UNIQ_KEY", "U"),), position=(5,)), QUEUE)).properties == b"UNIQ_KEY\x01U\x02"
    )


def test_a_unique_id_is_added_behind_what_an_sdk_sent() -> None:
    properties = content_of(unit_of_message(sent(b"a\x01\x02UNIQ_KEY\x01\x02").replace(position=(5,)), QUEUE)).properties
    assert properties.startswith(b"a\x01\x02UNIQ_KEY\x01\x02UNIQ_KEY\x01")
    assert with_unique_id(b"a\x011", QUEUE, (5,)).startswith(b"a\x011\x02UNIQ_KEY\x01")


@pytest.mark.parametrize(
    "properties", [b"a\x01" + b"v" * (MAX_BYTES - 3) + b"\x02", b"a\x01" + b"v" * (MAX_BYTES - 40) + b"\x02"]
)
def test_no_unique_id_is_added_where_there_is_no_room(properties: bytes) -> None:
    assert with_unique_id(properties, QUEUE, (5,)) == properties


def test_no_unique_id_is_made_without_a_position() -> None:
    assert with_unique_id(b"", QUEUE, ()) == b""


def through_log(messages: Sequence[Message]) -> list[Message]:
    return decode_row(encode_row([encode_record(message, message.origin) for message in messages]), len(messages), 0)


def test_the_largest_property_strings_pass_the_log() -> None:
    for block in (b"a\x01" + b"v" * (MAX_BYTES - 3) + b"\x02", b"a\x01" + b"~" * (MAX_BYTES - 3) + b"\x02"):
        [message] = through_log([sent(block)])
        assert content_of(unit_of_message(message)).properties == block
