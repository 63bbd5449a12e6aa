"""Units decode to the messages of a lane, and are encoded to requests that store them as they are."""

import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqbridge.errors import Failure
from mqbridge.message import Unit
from mqbridge.rocketmq.client.consumer.pulled_records import PulledRecords
from mqbridge.rocketmq.mapping.limits import MAX_PROPERTIES_BYTES, Limits
from mqbridge.rocketmq.mapping.stored import decode_pulls
from mqbridge.rocketmq.mapping.unit_format import FORMATS, units_of
from mqbridge.rocketmq.mapping.unit_request import delayed_properties, encode_units
from mqbridge.rocketmq.wire import properties
from mqbridge.rocketmq.wire.batch import OVERHEAD_BYTES, decode_batch
from mqbridge.rocketmq.wire.bodies.queue import Queue
from mqbridge.rocketmq.wire.neutral_record import encode_neutral
from mqbridge.rocketmq.wire.record import Record, SysFlag, encode_record
from tests.rocketmq.wire.test_neutral_record import BLOCKS, LOCATIONS

QUEUE = Queue("T", "broker-a", 0)
(FORMAT,) = FORMATS
NOW = 1_700_000_000_000


def unit(body: bytes = b"x", block: bytes = b"", **fields: int) -> Unit:
    return Unit(encode_neutral(body, block, **{"born_timestamp": NOW, **fields}), 1, NOW)


@given(LOCATIONS, st.binary(min_size=1), BLOCKS, st.integers(0, 9), st.integers(0, 1 << 40), st.booleans())
def test_a_unit_decodes_to_the_message_that_a_lane_delivers(
    location: dict[str, int], body: bytes, block: bytes, flag: int, born: int, compressed: bool
) -> None:
    location["queue_offset"] %= 1 << 62
    location["store_timestamp"] = max(1, location["store_timestamp"] % (1 << 42))
    stored_body, sys_flag = (zlib.compress(body), SysFlag.COMPRESSED) if compressed else (body, 0)
    record = Record(body=stored_body, properties=block, flag=flag, born_timestamp=born, sys_flag=sys_flag, **location)  # type: ignore[arg-type]
    offset = record.queue_offset
    pulled = PulledRecords(QUEUE, encode_record(record), offset, offset + 1)
    (found,) = units_of([pulled])
    assert found.position == (offset,)
    (expected,) = decode_pulls([pulled])
    (decoded,) = FORMAT.decode(found, [(offset,)])
    assert decoded.as_dict() == expected.as_dict()


def test_units_of_filtered_pulls_are_those_of_their_messages() -> None:
    tags = ["x", "y", "x"]
    bodies = [
        encode_record(Record("T", b"b", properties.encode([("TAGS", tag)]), queue_offset=at)) for at, tag in enumerate(tags)
    ]
    pulled = PulledRecords(QUEUE, b"".join(bodies), 0, 3, frozenset({"x"}))
    assert [found.position for found in units_of([pulled])] == [(0,), (2,)]
    assert pulled.count == 2


@pytest.mark.parametrize(
    "block",
    [
        b"TAGS\x01x\x02TAGS\x01\x02",
        b"TAGS\x01\x02TAGS\x01x\x02",
        b"TAGS\x01x\x02TAGS\x01y\x02",
        b"TAGS\x01y\x02TAGS\x01x",
        b"XTAGS\x01x\x02",
        b"TAGS\x01x\x02XTAGS\x01y\x02",
    ],
)
def test_a_filter_selects_the_same_records_as_units_and_as_messages(block: bytes) -> None:
    """A batch counts its messages by the filter of the lane, and its units must be as many."""
    pulled = PulledRecords(QUEUE, encode_record(Record("T", b"b", block, queue_offset=7)), 7, 8, frozenset({"x"}))
    assert len(units_of([pulled])) == len(pulled.records) == len(decode_pulls([pulled])) == pulled.count


@given(st.binary(max_size=300) | st.just(unit().data[:-1]), st.integers(0, 4))
def test_a_damaged_unit_has_as_many_defects_as_messages(data: bytes, count: int) -> None:
    damaged = Unit(data, count, None)
    messages = FORMAT.decode(damaged, [(index,) for index in range(count)])
    assert [message.position for message in messages] == [(index,) for index in range(count)]
    assert all(message.defect and message.payload == data for message in messages)


def test_a_unit_with_a_damaged_body_has_a_defect() -> None:
    (message,) = FORMAT.decode(unit(b"no zlib", sys_flag=SysFlag.COMPRESSED), [(1,)])
    assert message.defect is not None
    assert message.payload == unit(b"no zlib", sys_flag=SysFlag.COMPRESSED).data


def test_records_with_the_same_header_share_a_batch() -> None:
    units = [
        unit(b"1"),
        unit(b"2", b"DELAY\x013\x02", flag=7),
        unit(b"3", born_timestamp=NOW + 1),
        unit(b"4", born_timestamp=NOW + 1, reconsume_times=2),
        unit(zlib.compress(b"5"), sys_flag=SysFlag.COMPRESSED),
        unit(zlib.compress(b"6"), sys_flag=SysFlag.COMPRESSED),
    ]
    requests, failures = encode_units(units, Limits(), NOW)
    assert failures == []
    assert all(request.is_batch and not request.properties for request in requests)
    described = [(request.indexes, request.born - NOW, request.sys_flag, request.reconsume_times) for request in requests]
    assert described == [
        (range(3), 0, 0, 0),
        (range(3, 4), 1, 0, 2),
        (range(4, 6), 0, SysFlag.COMPRESSED, 0),
    ]
    assert decode_batch(requests[0].body) == [(0, b"1", b""), (7, b"2", b"DELAY\x013\x02"), (0, b"3", b"")]


def test_records_that_were_born_one_after_the_other_do_not_become_a_request_each() -> None:
    """The header of a batch has one born timestamp: that of the first message, as in a batch of messages."""
    units = [unit(bytes(200), born_timestamp=NOW + index) for index in range(2000)]
    requests, failures = encode_units(units, Limits(), NOW + 5000)
    assert failures == []
    assert len(requests) <= 4
    assert [request.born for request in requests] == [NOW + request.indexes[0] for request in requests]


def test_a_batch_keeps_within_its_limits() -> None:
    requests, _ = encode_units([unit()] * 10, Limits(max_messages=4), NOW)
    assert [request.count for request in requests] == [4, 4, 2]
    size = OVERHEAD_BYTES + 1
    requests, _ = encode_units([unit()] * 10, Limits(max_bytes=3 * size), NOW)
    assert [len(request.body) for request in requests] == [3 * size, 3 * size, 3 * size, size]


def test_a_record_that_fits_only_without_framing_is_sent_alone_and_without_effects() -> None:
    block = properties.encode([("a", "1"), ("DELAY", "3"), ("TRAN_MSG", "true"), ("KEYS", "k")])
    ((alone,), failures) = encode_units([unit(bytes(1024), block, flag=3)], Limits(max_message_bytes=1024), NOW)
    assert failures == []
    assert (alone.is_batch, alone.body, alone.flag) == (False, bytes(1024), 3)
    assert properties.decode(alone.properties) == [("a", "1"), ("KEYS", "k")]


@pytest.mark.parametrize(
    ("refused", "reason"),
    [
        (unit(bytes(2000)), "2000 bytes"),
        (unit(b""), "no body"),
        (unit(b"x", b"a\x01" + b"v" * MAX_PROPERTIES_BYTES + b"\x02"), "bytes of properties"),
        (unit(bytes(1000), b"a\x01\xff\x02"), "UTF-8"),
        (Unit(unit().data[:-1] + b"!", 1, None), "could not be read"),
        (Unit(b"", 1, None), "could not be read"),
        (Unit(bytes(100), 1, None), "could not be read"),
    ],
)
def test_a_unit_that_no_broker_stores_is_refused(refused: Unit, reason: str) -> None:
    requests, failures = encode_units([unit(), refused, unit()], Limits(max_message_bytes=1000), NOW)
    assert [(failure.index, failure.failure_kind) for failure in failures] == [(1, Failure.REFUSED)]
    assert reason in failures[0].reason
    assert [request.indexes for request in requests] == [range(1), range(2, 3)]


LEVELS_MS = (1000, 5000, 10_000)
OWN = properties.encode([("a", "1"), ("TRAN_MSG", "true"), ("POP_CK", "1 2"), ("INNER_NUM", "2"), ("KEYS", "k"), ("a", "2")])
KEPT = [("a", "1"), ("KEYS", "k"), ("a", "2")]


@pytest.mark.parametrize(
    ("entries", "timers", "levels"),
    [
        ([], [("TIMER_DELIVER_MS", str(NOW + 4000))], [("DELAY", "2")]),
        ([("DELAY", "7")], [("DELAY", "7")], [("DELAY", "7")]),
        ([("DELAY", "0")], [("DELAY", "0"), ("TIMER_DELIVER_MS", str(NOW + 4000))], [("DELAY", "0"), ("DELAY", "2")]),
        ([("TIMER_DELAY_SEC", "9")], [("TIMER_DELAY_SEC", "9")], [("TIMER_DELAY_SEC", "9"), ("DELAY", "2")]),
        ([("TIMER_DELAY_MS", "9")], [("TIMER_DELAY_MS", "9")], [("TIMER_DELAY_MS", "9"), ("DELAY", "2")]),
        ([("TIMER_DELIVER_MS", "9")], [("TIMER_DELIVER_MS", "9")], [("TIMER_DELIVER_MS", "9"), ("DELAY", "2")]),
        ([("TIMER_DELAY_MS", "9"), ("DELAY", "3")],) + ([("TIMER_DELAY_MS", "9"), ("DELAY", "3")],) * 2,
    ],
)
def test_delayed_records_are_sent_alone_with_a_delay_on_which_the_broker_acts(
    entries: list[tuple[str, str]], timers: list[tuple[str, str]], levels: list[tuple[str, str]]
) -> None:
    delayed = unit(b"x", properties.encode(entries) + OWN, flag=3, reconsume_times=2, sys_flag=SysFlag.COMPRESSED)
    for limits, expected in ((Limits(), timers), (Limits(levels=LEVELS_MS), levels)):
        requests, failures = encode_units([delayed, delayed], limits, NOW, NOW + 4000)
        assert failures == []
        assert [request.indexes for request in requests] == [range(1), range(1, 2)]
        for request in requests:
            assert (request.is_batch, request.delayed, request.body, request.flag) == (False, True, b"x", 3)
            assert (request.born, request.reconsume_times, request.sys_flag) == (NOW, 2, SysFlag.COMPRESSED)
            added = [pair for pair in expected if pair not in entries]
            assert properties.decode(request.properties) == [*entries, *KEPT, *added]


def test_a_record_without_a_last_separator_gets_its_delay() -> None:
    assert delayed_properties(b"a\x011", Limits(), NOW + 1, NOW) == b"a\x011\x02TIMER_DELIVER_MS\x01%d\x02" % (NOW + 1)
    assert delayed_properties(b"", Limits(), NOW + 1, NOW) == b"TIMER_DELIVER_MS\x01%d\x02" % (NOW + 1)


@pytest.mark.parametrize("deliver_at", [NOW, NOW - 1, 0])
def test_records_whose_time_is_over_are_not_delayed(deliver_at: int) -> None:
    units = [unit(b"1", b"DELAY\x013\x02"), unit(b"2")]
    (request,), failures = encode_units(units, Limits(), NOW, deliver_at)
    assert failures == []
    assert request.is_batch
    assert not request.delayed


@pytest.mark.parametrize(
    ("refused", "deliver_at", "reason"),
    [
        (unit(b"x"), NOW + 3_700_000, "at most"),
        (unit(bytes(2000)), NOW + 1, "2000 bytes"),
        (unit(b"x", b"a\x01\xff\x02"), NOW + 1, "UTF-8"),
        (unit(b"x", b"a\x01" + b"v" * (MAX_PROPERTIES_BYTES - 3) + b"\x02"), NOW + 1, "bytes of properties"),
    ],
)
def test_a_delayed_unit_that_no_broker_stores_is_refused(refused: Unit, deliver_at: int, reason: str) -> None:
    limits = Limits(max_message_bytes=1000, max_delay_ms=3_600_000)
    requests, failures = encode_units([refused], limits, NOW, deliver_at)
    assert requests == []
    assert [(failure.index, failure.failure_kind) for failure in failures] == [(0, Failure.REFUSED)]
    assert reason in failures[0].reason
