"""The RocketMQ mapping: from records to messages, and from messages to send requests."""

import gc

import pytest
from hypothesis import given

from mqbridge.errors import Failure
from mqbridge.message import Message
from mqbridge.rocketmq.mapping import table as fields
from mqbridge.rocketmq.mapping.limits import BROKER_BYTES, MAX_PROPERTIES_BYTES, Limits
from mqbridge.rocketmq.mapping.request import EncodedRequest, encode
from mqbridge.rocketmq.wire.batch import decode_batch
from mqbridge.rocketmq.wire.properties import MAX_BYTES, SYSTEM_NAMES, Name
from mqbridge.rocketmq.wire.properties import decode as decode_properties
from mqbridge.rocketmq.wire.record import Record, SysFlag, encode_record
from tests.rocketmq.records import decode
from tests.strategies import any_messages, comparable_fields, property_string

pytestmark = pytest.mark.usefixtures("both_ways")

NOW = 1_800_000_000_000
PREFIX = "c|t|b:0|"


def record(*pairs: tuple[str, str], body: bytes = b"body", **fields: int) -> Record:
    return Record("T", body, property_string(list(pairs)), **fields)  # type: ignore[arg-type]


def encode_all(*messages: Message, origin: str | None = None, limits: Limits | None = None) -> list[EncodedRequest]:
    requests, failures = encode(messages, origin, limits or Limits(), NOW)
    assert failures == []
    return requests


def pairs_of(message: Message, origin: str | None = None) -> list[tuple[str, str]]:
    """Return the stored properties of a message that is encoded as a batch of one."""
    [outgoing] = encode_all(message, origin=origin)
    assert (outgoing.is_batch, outgoing.properties) == (True, b"")
    [(_, _, string)] = decode_batch(outgoing.body)
    return decode_properties(string)


def round_trip(message: Message) -> Message:
    [outgoing] = encode_all(message)
    [(flag, body, string)] = decode_batch(outgoing.body)
    return decode([Record("T", body, string, flag=flag)])[0]


# --- from records to messages -------------------------------------------------------------------------------------------


def test_a_record_of_a_java_producer_becomes_a_message() -> None:
    [message] = decode(
        [
            record(
                ("a", "1"), ("UNIQ_KEY", "U1"), ("TAGS", "t"), ("KEYS", "k1 k2"), ("CLUSTER", "c"), ("WAIT", "true"), ("b", "ü"),
                queue_offset=7, born_timestamp=100, store_timestamp=200, reconsume_times=2, flag=5,
            )
        ]
    )  # fmt: skip
    assert message.properties == (("a", "1"), ("UNIQ_KEY", "U1"), ("b", "ü"), ("mqbridge.rocketmq.flag", "5"))
    assert (message.msg_type, message.key, message.keys) == ("t", "k1", ("k1", "k2"))
    assert (message.event_time, message.publish_time, message.delivery_count, message.position) == (100, 200, 2, (7,))
    assert (message.origin, message.hops, message.attributes, message.deliver_at) == (None, 0, None, None)


@pytest.mark.parametrize("name", sorted(fields.IGNORED_NAMES))
def test_properties_that_brokers_add_are_dropped(name: str) -> None:
    [message] = decode([record(("a", "1"), (name, "3"))])
    assert message.properties == (("a", "1"),)
    assert name not in dict(pairs_of(message))


@pytest.mark.parametrize("name", sorted(fields.KEPT_NAMES - fields.WRITTEN_NAMES - {"__RMQ.TRANSIENT.*"}))
def test_properties_that_must_not_act_on_a_copy_are_escaped(name: str) -> None:
    [message] = decode([record((name, "x"))])
    assert message.properties == ((name, "x"),)
    written = pairs_of(message)
    assert name not in dict(written)
    assert round_trip(message).properties == ((name, "x"),)


JAVA_5_ALLOWS = (
    "CHECK_IMMUNITY_TIME_IN_SECONDS", "INNER_BASE", "INNER_MULTI_DISPATCH", "INNER_NUM", "PROPERTY_FORWARD_QUEUE_ID", "REDIRECT",
    "TRACE_CONTEXT", "TRANSACTION_CHECK_TIMES", "__RMQ.TRANSIENT.x", "__transactionId__",
)  # fmt: skip
"""The system properties that `Message.putUserProperty` of the Java client 5.3.3 accepts, except __SHARDINGKEY."""


@pytest.mark.parametrize("name", JAVA_5_ALLOWS)
def test_properties_that_applications_may_set_reach_the_copy_without_effect(name: str) -> None:
    [message] = decode([record(("a", "1"), (name, "value of the user"), ("b", "2"))])
    assert message.properties == (("a", "1"), (name, "value of the user"), ("b", "2"))
    assert name not in dict(pairs_of(message))
    assert round_trip(message).properties == message.properties


def test_properties_that_are_not_utf8_are_kept_byte_for_byte() -> None:
    """The producer wrote GBK. Bytes of the text are lone surrogates in Python, and the same bytes in the copy."""
    raw = b"ci\xb4\xf3\x01\xb4\xf3\x02TAGS\x01t\xff\x02KEYS\x01k\xff j\x02"
    first, second = decode([Record("T", b"x", raw), record(("a", "1"))])
    assert (first.defect, second.defect) == (None, None)
    assert first.properties == (("ci\udcb4\udcf3", "\udcb4\udcf3"),)
    assert (first.msg_type, first.keys, first.key) == ("t\udcff", ("k\udcff", "j"), "k\udcff")
    requests, failures = encode([first, second], None, Limits(), NOW)
    assert failures == []
    assert b"ci\xb4\xf3\x01\xb4\xf3\x02" in requests[0].body
    assert b"KEYS\x01k\xff j\x02" in requests[0].body


def test_a_damaged_record_becomes_a_message_with_a_defect() -> None:
    damaged = Record("T", b"x", sys_flag=SysFlag.COMPRESSED | 0x400)
    first, second = decode([damaged, record(("a", "1"))])
    assert first.defect is not None
    assert first.properties == (("mqbridge.raw", "rocketmq.record.v1"),)
    assert first.payload == encode_record(damaged), "the whole record, as the broker stores it"
    assert second.defect is None
    requests, failures = encode([second, first, second], None, Limits(), NOW)
    assert [list(outgoing.indexes) for outgoing in requests] == [[0], [2]]
    assert [(failure.index, failure.failure_kind) for failure in failures] == [(1, Failure.REFUSED)]


def test_a_damaged_record_with_readable_properties_has_copies_of_them() -> None:
    damaged = Record("T", b"x", b"KEYS\x01k1 k2\x02TAGS\x01t\x02a\x011\x02mqbridge.origin\x01c|t|0|1\x02", sys_flag=1 | 0x400)
    [message] = decode([damaged])
    assert "unknown codec" in str(message.defect)
    assert message.payload == encode_record(damaged)
    assert (message.key, message.keys, message.msg_type) == ("k1", ("k1", "k2"), "t")
    assert message.properties == (("a", "1"), ("mqbridge.raw", "rocketmq.record.v1"))
    assert message.origin is None, "a looped message that nobody can read must not be dropped as a copy"


def test_a_unique_key_added_by_the_broker_is_dropped() -> None:
    [outgoing] = encode_all(Message(b"x", (("a", "1"),)))
    [(_, body, string)] = decode_batch(outgoing.body)
    [message] = decode([Record("T", body, string + b"UNIQ_KEY\x01made\x02")])
    assert message.properties == (("a", "1"),)
    [message] = decode([record(("UNIQ_KEY", "own"), ("UNIQ_KEY", "of the batch"))])
    assert message.properties == (("UNIQ_KEY", "own"),)


@pytest.mark.parametrize("time", ["9223372036854775808", "1" * 5000, "-1", "1.5", "\u0661"])
def test_an_invalid_delivery_time_is_dropped(time: str) -> None:
    [message] = decode([record(("TIMER_DELIVER_MS", time), ("a", "1"))])
    assert (message.deliver_at, message.properties) == (None, (("a", "1"),))
    [message] = decode([record(("TIMER_DELIVER_MS", "9223372036854775807"))])
    assert message.deliver_at == (1 << 63) - 1


@pytest.mark.parametrize("pair", [("mqbridge.order", "1,+0"), ("mqbridge.order", "\u0660"), ("mqbridge.x.\u0660.c", "2")])
def test_reserved_properties_with_invalid_numbers_stay_user_properties(pair: tuple[str, str]) -> None:
    [message] = decode([record(("b", "1"), ("a", "2"), pair)])
    assert message.properties == (("b", "1"), ("a", "2"), pair)


# --- from messages to send requests -------------------------------------------------------------------------------------


def test_fields_of_a_message_become_properties() -> None:
    message = Message(
        b"x", (("a", "1"),), key="k", keys=("i", "j"), msg_type="t", event_time=5, attributes=b"a=1", position=(3, 1)
    )
    assert pairs_of(message, PREFIX) == [
        ("a", "1"),
        ("TAGS", "t"),
        ("KEYS", "i j"),
        ("__SHARDINGKEY", "k"),
        ("mqbridge.attributes", "a=1"),
        ("mqbridge.event_time", "5"),
        ("mqbridge.origin", "c|t|b:0|3:1"),
    ]
    [outgoing] = encode_all(message)
    assert outgoing.born == 5
    assert pairs_of(Message(b"x")) == [("mqbridge.v", "1")]


@pytest.mark.parametrize(
    ("pairs", "written"),
    [
        ((("a", "1"), ("a", "2")), [("mqbridge.x.0.a", "1"), ("a", "2")]),
        ((("", ""),), [("mqbridge.x.0.%", "%")]),
        ((("a\x01", "\x02%"),), [("mqbridge.x.0.a%01", "%02%25")]),
        ((("TAGS", "t"), ("DELAY", "3")), [("mqbridge.x.0.TAGS", "t"), ("mqbridge.x.1.DELAY", "3")]),
        ((("mqbridge.key", "k"),), [("mqbridge.u.mqbridge.key", "k")]),
        ((("mqbridge.x.0.a", "k"),), [("mqbridge.x.0.mqbridge.x.0.a", "k")]),
    ],
)
def test_pairs_that_the_property_string_cannot_store_are_escaped(
    pairs: tuple[tuple[str, str], ...], written: list[tuple[str, str]]
) -> None:
    message = Message(b"x", pairs)
    assert pairs_of(message) == [*written, ("mqbridge.v", "1")]
    assert round_trip(message).properties == pairs


@pytest.mark.parametrize("payload", [None, b"", b"\x00"])
def test_missing_and_empty_payloads_are_distinguished(payload: bytes | None) -> None:
    [outgoing] = encode_all(Message(payload))
    [(_, body, string)] = decode_batch(outgoing.body)
    assert body == b"\x00"
    assert decode([Record("T", body, string)])[0].payload == payload
    # If the body is no longer the placeholder, it is the payload.
    assert decode([Record("T", b"changed", string)])[0].payload == b"changed"


@pytest.mark.parametrize("keys", [("a",), ("a", "b"), ("a b",), ("",), ("", ""), ("a", ""), ("\x01",)])
@pytest.mark.parametrize("key", [None, "a", "", "x", b"a"])
def test_any_combination_of_keys_and_key_is_restored(keys: tuple[str, ...], key: str | bytes | None) -> None:
    message = round_trip(Message(b"x", keys=keys, key=key))
    assert (message.keys, message.key) == (keys, key)


def test_a_sharding_key_equal_to_an_index_key_is_restored() -> None:
    [message] = decode([record(("KEYS", "k"), ("__SHARDINGKEY", "k"))])
    assert (message.key, message.properties) == ("k", (("mqbridge.rocketmq.sharded", "1"),))
    assert pairs_of(message)[:2] == [("KEYS", "k"), ("__SHARDINGKEY", "k")]


def test_a_delayed_message_is_sent_alone_with_a_timer() -> None:
    one, late, two = encode_all(Message(b"a"), Message(b"b", (("z", "1"), ("a", "2")), deliver_at=NOW + 5), Message(b"c"))
    assert [list(outgoing.indexes) for outgoing in (one, late, two)] == [[0], [1], [2]]
    assert (late.is_batch, late.body, late.count) == (False, b"b", 1)
    pairs = decode_properties(late.properties)
    assert ("TIMER_DELIVER_MS", str(NOW + 5)) in pairs
    [message] = decode([Record("T", late.body, property_string(sorted(pairs)))])
    assert (message.deliver_at, message.properties) == (NOW + 5, (("z", "1"), ("a", "2")))
    # A message whose delivery time has passed is not delayed again.
    assert ("mqbridge.deliver_at", "5") in pairs_of(Message(b"b", deliver_at=5))


def test_a_message_beyond_a_limit_is_refused_and_the_limit_named() -> None:
    limits = Limits(max_message_bytes=100, max_delay_ms=1000)
    sent = [
        Message(b"x" * 101),
        Message(b"x", (("a", "b" * MAX_PROPERTIES_BYTES),)),
        Message(b"x", deliver_at=NOW + 1001),
        Message(b"x", (("a", "\ud800"),)),
        Message(b"fine"),
    ]
    requests, failures = encode(sent, None, limits, NOW)
    assert [list(outgoing.indexes) for outgoing in requests] == [[4]]
    assert [(failure.index, failure.failure_kind) for failure in failures] == [(index, Failure.REFUSED) for index in range(4)]
    for failure, word in zip(failures, ["takes 100 ", f"{MAX_BYTES}", "1000 ms", "Unicode"], strict=True):
        assert word in failure.reason


def test_batches_keep_the_limits_and_the_order() -> None:
    sent = [Message(bytes([n]) * 100) for n in range(50)]
    assert [outgoing.count for outgoing in encode_all(*sent, limits=Limits(max_messages=7))] == [7] * 7 + [1]
    requests = encode_all(*sent, limits=Limits(max_bytes=1000))
    assert all(len(outgoing.body) <= 1000 for outgoing in requests)
    assert [index for outgoing in requests for index in outgoing.indexes] == list(range(50))
    big = encode_all(Message(b"a"), Message(b"b" * 5000), Message(b"c"), limits=Limits(max_bytes=1000, max_message_bytes=5000))
    assert [(outgoing.count, outgoing.is_batch) for outgoing in big] == [(1, True), (1, False), (1, True)]


def test_hops_are_stored_from_the_second_gateway_on() -> None:
    first = dict(pairs_of(Message(b"x", position=(1,)), PREFIX))
    assert (first["mqbridge.origin"], "mqbridge.hops" in first) == (PREFIX + "1", False)
    second = dict(pairs_of(Message(b"x", position=(1,), origin="o", hops=1), PREFIX))
    assert second["mqbridge.hops"] == "2"
    kept = dict(pairs_of(Message(b"x", origin="o", hops=4)))
    assert (kept["mqbridge.origin"], kept["mqbridge.hops"]) == ("o", "4")


def test_the_bytes_reserved_for_the_broker_suffice() -> None:
    """The worst case is a delayed message that is sent back: add up the longest names and ids that brokers append."""
    topic, added = "t" * 127, 0
    for name in (Name.CLUSTER, Name.MSG_REGION, Name.REAL_TOPIC, Name.RETRY_TOPIC):
        added += len(name) + len(topic) + 2
    for name in (Name.UNIQ_KEY, Name.ORIGIN_MESSAGE_ID):
        added += len(name) + 56 + 2
    for name in (Name.TRACE_ON, Name.REAL_QID, Name.TIMER_OUT_MS, Name.TIMER_ENQUEUE_MS, Name.TIMER_DEQUEUE_MS):
        added += len(name) + 13 + 2
    assert added <= BROKER_BYTES


@given(message=any_messages())
def test_any_message_is_restored_completely(message: Message) -> None:
    message.deliver_at = None
    assert comparable_fields(round_trip(message)) == comparable_fields(message)


def test_encoding_leaves_no_reference_cycles() -> None:
    messages = [Message(b"x", position=(number,)) for number in range(5)]
    gc.collect()
    assert len(encode_all(*messages, origin=PREFIX, limits=Limits(max_messages=2))) == 3
    assert gc.collect() == 0


def test_every_system_property_has_a_rule() -> None:
    rows = {row.native for row in fields.SYSTEM_PROPERTIES}
    assert rows - {"__RMQ.TRANSIENT.*"} == SYSTEM_NAMES
