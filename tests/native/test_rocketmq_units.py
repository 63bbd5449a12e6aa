"""Compiled and plain code make the same units of batches and the same records of units, or raise the same error."""

from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from mqbridge.errors import RemoteProtocolError
from mqbridge.message import Unit
from mqbridge.native import compiled
from mqbridge.rocketmq.mapping.sent_units import units_of_batch, units_of_batch_plain
from mqbridge.rocketmq.mapping.served_records import RecordPlace, encode_served, encode_served_plain
from mqbridge.rocketmq.wire.batch import encode_batch
from mqbridge.rocketmq.wire.neutral_record import encode_neutral
from mqbridge.rocketmq.wire.properties import MAX_BYTES
from mqbridge.rocketmq.wire.record import SysFlag, decode_records
from tests.example_counts import examples
from tests.strategies import Changes, changes

pytestmark = pytest.mark.skipif(compiled is None, reason="the compiled module is not installed, or is turned off")

INT32 = st.integers(-(1 << 31), (1 << 31) - 1)
INT64 = st.integers(-(1 << 63), (1 << 63) - 1)
NAMES = [b"TAGS", b"XTAGS", b"CLUSTER", b"MSG_REGION", b"TRACE_ON", b"__CRC32#", b"INNER_MULTI_QUEUE_OFFSET", b"a", b"", b"\xff"]
ENTRIES = st.builds(
    b"%b\x01%b\x02".__mod__, st.tuples(st.sampled_from(NAMES), st.sampled_from([b"x", b"y", b"", b"\xfe", b"x y"]))
)
SIZES = st.sampled_from([0, 0, 0, MAX_BYTES - 40, MAX_BYTES - 10, MAX_BYTES - 9, MAX_BYTES, MAX_BYTES + 1, 0xFFFE])
"""Sizes of property strings; 0: no filling."""


@st.composite
def property_strings(draw: st.DrawFn) -> bytes:
    """Property strings of any client: with repeated tags, without the last separator, close to a limit, or noise."""
    if not draw(st.integers(0, 9)):
        return draw(st.binary(max_size=9))
    string = b"".join(draw(st.lists(ENTRIES, max_size=5)))
    if size := draw(SIZES):
        string = b"p\x01" + b"v" * (size - len(string) - 3) + b"\x02" + string
    return draw(st.sampled_from([string, string[:-1], string + b"\x02"]))


BODIES = st.binary(max_size=20)
BATCHES = st.lists(st.tuples(INT32, BODIES, property_strings()), max_size=4).map(encode_batch)
PLACES = st.builds(
    RecordPlace,
    st.sampled_from(["", "T", "größe", "t" * 127, "t" * 128, "t" * 255]).map(str.encode),
    INT32,
    st.binary(min_size=8, max_size=8) | st.binary(min_size=20, max_size=20),
    st.integers(-(1 << 40), 1 << 62),
    st.sampled_from([b"", b"CLUSTER\x01c\x02", b"MSG_REGION\x01r\x02TRACE_ON\x01true\x02", b"p" * MAX_BYTES]),
)
TAGS = st.sampled_from(
    [frozenset[str](), frozenset({"x"}), frozenset({"y", "x y", ""}), frozenset({"\udcfe"}), frozenset({"\ud800"})]
)


def outcome(make: Callable[..., object], *arguments: object) -> object:
    """Return the result, or the error."""
    try:
        return make(*arguments)
    except RemoteProtocolError as error:
        return type(error), str(error)


@st.composite
def stored_units(draw: st.DrawFn) -> Unit:
    data = encode_neutral(
        draw(BODIES),
        draw(property_strings())[:0xFFFE],
        flag=draw(INT32),
        sys_flag=draw(st.sampled_from([0, 0, SysFlag.COMPRESSED, SysFlag.COMPRESSED | 0x300])),
        born_timestamp=draw(INT64),
        reconsume_times=draw(INT32),
    )
    return Unit(data, 1, draw(st.none() | INT64), draw(st.sampled_from([(), (7,)])))


def check_served(units: Sequence[Unit], numbers: Sequence[int], place: RecordPlace, tags: frozenset[str]) -> object:
    encoded_tags = frozenset(tag.encode("utf-8", "surrogatepass") for tag in tags)
    plain = outcome(encode_served_plain, units, numbers, place, encoded_tags)
    assert compiled is not None
    assert outcome(compiled.rocketmq_served_records, units, numbers, place, encoded_tags) == plain
    assert outcome(encode_served, units, numbers, place, tags) == plain
    return plain


@settings(max_examples=examples(400), deadline=None)
@given(BATCHES, INT64)
@example(encode_batch([(0, b"", b"p" * 0xFFFF)]), 0)
@example(encode_batch([(0, b"", b"p" * 0xFFFE)]), 0)
def test_batches_become_the_same_units(batch: bytes, born: int) -> None:
    plain = outcome(units_of_batch_plain, batch, born)
    assert outcome(units_of_batch, batch, born) == plain
    assert not isinstance(plain, list) or all(type(unit) is Unit for unit in units_of_batch(batch, born))


@settings(max_examples=examples(400), deadline=None)
@given(BATCHES, changes(b"\0\1\2\x7f\x80\xff"), INT64)
def test_damaged_batches_are_refused_alike(batch: bytes, change: Changes, born: int) -> None:
    damaged = change(batch)
    assert outcome(units_of_batch, damaged, born) == outcome(units_of_batch_plain, damaged, born)


def test_every_truncation_of_a_batch_is_refused_alike() -> None:
    batch = encode_batch([(7, b"one", b"TAGS\x01x\x02CLUSTER\x01c"), (0, b"", b""), (-1, b"three", b"k\x01v")])
    for end in range(len(batch) + 1):
        assert outcome(units_of_batch, batch[:end], 5) == outcome(units_of_batch_plain, batch[:end], 5)


@settings(max_examples=examples(400), deadline=None)
@given(st.lists(stored_units(), max_size=4), st.data(), PLACES, TAGS)
def test_units_become_the_same_records(units: list[Unit], data: st.DataObject, place: RecordPlace, tags: frozenset[str]) -> None:
    first = data.draw(st.integers(0, 1 << 61))
    holes = st.lists(st.integers(1, 3), min_size=len(units), max_size=len(units))
    numbers: Sequence[int] = range(first, first + len(units))
    if data.draw(st.booleans()):
        numbers = [first + offset for offset in accumulate(data.draw(holes))]
    served: Any = check_served(units, numbers, place, tags)
    if isinstance(served[0], bytes):
        assert len(decode_records(served[0])) == served[1]


@settings(max_examples=examples(400), deadline=None)
@given(stored_units(), changes(b"\0\1\2\x7f\x80\xff"), PLACES, TAGS)
def test_damaged_units_are_refused_alike(unit: Unit, change: Changes, place: RecordPlace, tags: frozenset[str]) -> None:
    check_served([unit._replace(data=change(unit.data))], [9], place, tags)


@settings(max_examples=examples(400), deadline=None)
@given(stored_units(), st.data(), PLACES)
def test_units_with_a_changed_byte_are_refused_alike(unit: Unit, data: st.DataObject, place: RecordPlace) -> None:
    at, value = data.draw(st.integers(0, len(unit.data) - 1)), data.draw(st.integers(0, 255))
    check_served([unit._replace(data=unit.data[:at] + bytes([value]) + unit.data[at + 1 :])], [9], place, frozenset())


def test_what_only_the_plain_code_can_serve_is_left_to_it() -> None:
    assert compiled is not None
    place = RecordPlace(b"T", 0, bytes(8), (1 << 63) - 1, b"")
    unit = Unit(encode_neutral(b"x"), 1, None)
    assert compiled.rocketmq_served_records([unit], [1], place, frozenset()) is None
    assert compiled.rocketmq_served_records([unit], [0], place._replace(store_host=bytes(9)), frozenset()) is None
    assert compiled.rocketmq_served_records([unit], [], place, frozenset()) is None
