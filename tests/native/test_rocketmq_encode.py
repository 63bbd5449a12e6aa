"""RocketMQ's compiled encoder returns the same requests, byte for byte, and the same failures as the plain code."""

import itertools
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mqbridge.message import Message
from mqbridge.native import compiled
from mqbridge.rocketmq.client.consumer.pulled_records import PulledRecords
from mqbridge.rocketmq.mapping.limits import BROKER_BYTES, MAX_PROPERTIES_BYTES, Limits
from mqbridge.rocketmq.mapping.request import IDS_PER_RESERVATION, EncodedRequest, ReserveIds, encode, encode_plain
from mqbridge.rocketmq.mapping.stored import decode_plain, decode_pulls
from mqbridge.rocketmq.wire.bodies.queue import Queue
from mqbridge.rocketmq.wire.properties import SYSTEM_NAMES
from mqbridge.rocketmq.wire.record import Record, encode_record
from tests.example_counts import examples
from tests.strategies import any_messages, rocketmq_natives, values

pytestmark = pytest.mark.skipif(compiled is None, reason="the compiled module is not installed, or is turned off")

NOW = 1_800_000_000_000
PREFIX = "c|größe|b:0|"
LEVELS = (1000, 5000, 10_000, 7000)


def id_reservation(start: str, first: int = 0) -> tuple[ReserveIds, list[int]]:
    """Return a function that reserves blocks of ids, and the list of the counts that it is called with."""
    blocks, counts = itertools.count(), list[int]()

    def reserve(count: int) -> tuple[str, int]:
        counts.append(count)
        return f"{start}{next(blocks):08X}", first

    return reserve, counts


def fields(requests: Sequence[EncodedRequest]) -> list[tuple[object, ...]]:
    return [tuple(getattr(request, name) for name in EncodedRequest.__slots__) for request in requests]


def check_encode(
    messages: Sequence[Message],
    origin: str | None = None,
    limits: Limits | None = None,
    *,
    plain: Sequence[Message] | None = None,
    start: str | None = "A" * 24,
    first: int = 0,
) -> None:
    limits = limits or Limits()
    (reserve, counts), (reserve_plain, counts_plain) = id_reservation(start or "", first), id_reservation(start or "", first)
    requests, failures = encode(messages, origin, limits, NOW, reserve if start else None)
    expected, refused = encode_plain(plain or messages, origin, limits, NOW, reserve_plain if start else None)
    assert fields(requests) == fields(expected)
    assert [(one.index, one.failure_kind, one.reason) for one in failures] == [
        (one.index, one.failure_kind, one.reason) for one in refused
    ]
    assert counts == counts_plain


limits = st.builds(
    Limits,
    max_bytes=st.sampled_from([1, 60, 200, 400, 1 << 20]),
    max_messages=st.sampled_from([1, 2, 1000]),
    max_message_bytes=st.sampled_from([0, 30, 100, 200, 4 << 20]),
    max_delay_ms=st.sampled_from([0, 1000, 1 << 61]),
    levels=st.sampled_from([(), LEVELS]),
)
prefixes = st.sampled_from([None, PREFIX])
times = st.none() | st.integers(-(1 << 63), (1 << 63) - 1) | st.integers(NOW - 5, NOW + 12_000) | st.integers(-1, 1)


@st.composite
def messages_to_send(draw: st.DrawFn) -> Message:
    """Any message, also with the fields that an earlier gateway sets."""
    message = draw(any_messages())
    message.position = draw(st.sampled_from([(), (0,), (7, 3), (1 << 62, 2, 1)]))
    message.deliver_at = draw(times)
    message.event_time = draw(times)
    message.publish_time, message.delivery_count = draw(times), draw(st.integers(0, 3))
    if draw(st.booleans()):
        message.origin, message.hops = draw(values), draw(st.sampled_from([1, 2, 9, (1 << 63) - 1]))
    if draw(st.integers(0, 9)) == 0:
        message.defect = draw(values)
    extra = draw(
        st.lists(
            st.sampled_from(
                [
                    ("mqbridge.rocketmq.flag", "5"), ("mqbridge.rocketmq.flag", "05"), ("mqbridge.rocketmq.flag", str(1 << 31)),
                    ("mqbridge.rocketmq.flag", "9" * 30), ("mqbridge.rocketmq.sharded", "1"), ("UNIQ_KEY", "mine"), ("a", "1"),
                ]
            ),
            max_size=3,
        )
    )  # fmt: skip
    message.properties += tuple(extra)
    return message


@settings(max_examples=examples(500), deadline=None)
@given(st.lists(messages_to_send(), max_size=5), prefixes, limits, st.sampled_from([None, "ID", "A" * 24]))
def test_messages_of_all_kinds_are_encoded_alike(
    messages: list[Message], origin: str | None, limits: Limits, start: str | None
) -> None:
    check_encode(messages, origin, limits, start=start)


@settings(max_examples=examples(500))
@given(st.lists(rocketmq_natives(), min_size=1, max_size=5), prefixes, st.data())
def test_decoded_messages_and_parts_of_them_are_encoded_alike(
    records: list[Record], origin: str | None, data: st.DataObject
) -> None:
    pulls = [PulledRecords(Queue("T", "b", 0), encode_record(record), -1, 10) for record in records]
    native, plain = decode_pulls(pulls), decode_plain(pulls)
    check_encode(native, origin, plain=plain)
    indexes = data.draw(st.lists(st.integers(0, len(plain) - 1), min_size=1, max_size=5))
    check_encode(native.part(indexes), origin, plain=[plain[index] for index in indexes])  # type: ignore[attr-defined]
    mixed = [plain[index] if data.draw(st.booleans()) else native[index] for index in indexes]
    check_encode(mixed, origin, plain=[plain[index] for index in indexes])


@pytest.mark.parametrize(
    "name", sorted(SYSTEM_NAMES | {"__RMQ.TRANSIENT.x", "mqbridge.x.", "mqbridge.u.a", "mqbridge.v", "x", "T"})
)
def test_every_reserved_property_is_encoded_alike(name: str) -> None:
    for properties in (((name, "v"),), ((name, "v"), ("a", "1"), (name, "w")), ((name, "v"), (name, ""))):
        check_encode([Message(b"x", properties)])
        check_encode([Message(b"x", properties, deliver_at=NOW + 5)])


@pytest.mark.parametrize("keys", [(), ("a",), ("a", "b"), ("a b",), ("",), ("", ""), ("", "a"), ("a", ""), ("\x01",), (" ",)])
@pytest.mark.parametrize("key", [None, "a", "", "x", "\x02", b"a", b"\xff"])
@pytest.mark.parametrize("properties", [(), (("mqbridge.rocketmq.sharded", "1"),)])
def test_keys_are_encoded_alike(keys: tuple[str, ...], key: str | bytes | None, properties: tuple[tuple[str, str], ...]) -> None:
    check_encode([Message(b"x", properties, key=key, keys=keys)], PREFIX)


@pytest.mark.parametrize("count", [23, 24, 25, 26, 300])
def test_repeated_names_among_many_properties_are_encoded_alike(count: int) -> None:
    names = [f"name {number % 20}" for number in range(count)]
    oddities = ["", "\x01", "x\x02", "v"]
    check_encode([Message(b"x", tuple((name, oddities[at % 4]) for at, name in enumerate(names)))])
    check_encode([Message(b"x", tuple((name, str(at)) for at, name in enumerate(names)), deliver_at=NOW + 1)])


@pytest.mark.parametrize(
    "length", [MAX_PROPERTIES_BYTES - 20, *range(MAX_PROPERTIES_BYTES - 18, MAX_PROPERTIES_BYTES - 14), 1 << 16]
)
@pytest.mark.parametrize("deliver_at", [None, NOW + 5])
def test_the_limit_of_property_bytes_is_the_same(length: int, deliver_at: int | None) -> None:
    assert BROKER_BYTES == 1024
    messages = [Message(b"x", (("n", "v" * length),), deliver_at=deliver_at), Message(b"y")]
    check_encode(messages)
    check_encode(messages, start=None)


@pytest.mark.parametrize("size", range(50, 130, 3))
def test_the_limits_of_messages_and_requests_are_the_same(size: int) -> None:
    messages = [Message(b"x" * 40), Message(b"y" * size), Message(b"z"), Message(b"x" * 100), Message(b"x" * 101)]
    for limits in (Limits(max_message_bytes=100), Limits(max_bytes=2 * size), Limits(max_messages=2)):
        check_encode(messages, PREFIX, limits)
        check_encode(messages, PREFIX, limits, start=None)


@pytest.mark.parametrize("wait", [0, 1, 999, 1000, 1001, 5000, 5001, 7000, 7001, 9999, 10_000, 10_001])
@pytest.mark.parametrize("levels", [(), LEVELS])
def test_delays_are_encoded_alike(wait: int, levels: tuple[int, ...]) -> None:
    check_encode([Message(b"x", (("z", "1"), ("a", "2")), deliver_at=NOW + wait)], None, Limits(max_delay_ms=9999, levels=levels))


@pytest.mark.parametrize(
    "count", [IDS_PER_RESERVATION - 1, IDS_PER_RESERVATION, IDS_PER_RESERVATION + 1, 2 * IDS_PER_RESERVATION + 1]
)
def test_ids_are_reserved_in_the_same_blocks(count: int) -> None:
    messages = [Message(b"x", (("UNIQ_KEY", "mine"),) if number % 7 == 0 else ()) for number in range(count + count // 6)]
    check_encode(messages, first=0xFF80)


def test_no_id_is_reserved_where_none_is_needed() -> None:
    check_encode([Message(b"x", (("UNIQ_KEY", "mine"),)), Message(b"x", defect="torn")])


def test_messages_with_unsupported_values_are_encoded_by_the_plain_code() -> None:
    for odd in (Message(b"x", (("a", "\ud800"),)), Message(b"x", deliver_at=1 << 64), Message(b"x", position=(1, 2, 3, 4))):
        check_encode([Message(b"y"), odd, Message(b"z")], PREFIX)


def test_an_error_of_the_id_reservation_is_raised() -> None:
    def fail(count: int) -> tuple[str, int]:
        raise LookupError(f"no {count} ids")

    with pytest.raises(LookupError, match="no 256 ids"):
        encode([Message(b"x")], None, Limits(), NOW, fail)
