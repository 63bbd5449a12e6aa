"""Parked messages: what is stored of them, and their levels."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqbridge.adapter.numbering import OffsetNumbering, PackedNumbering
from mqbridge.listener.parked import (
    FIRST_NUMBER,
    GROUP_LEVELS,
    LEVELS_S,
    PARKED,
    DueNumbering,
    InvalidParked,
    Parked,
    level_for,
    unwrap,
    wrap,
)
from mqbridge.message import Message, Unit

NUMBERS = st.integers(0, 1 << 62)
PARKED_FIELDS = st.builds(Parked, st.text(), st.integers(0, 1000), st.text(), NUMBERS, NUMBERS, NUMBERS, st.just(0), st.just(0))


@given(PARKED_FIELDS, st.binary(), st.integers(1, 1000), st.one_of(st.none(), st.integers(1, 1 << 50)))
def test_a_unit_comes_back_as_it_was(parked, data, count, published_ms):
    found, content = unwrap(wrap(parked, Unit(data, count, published_ms, (5,))))
    assert content == Unit(data, count, published_ms)
    assert found == parked._replace(unit=count, published=published_ms or 0)


@given(PARKED_FIELDS, st.binary(), st.lists(st.tuples(st.sampled_from(["a", PARKED]), st.text())), st.text(min_size=1))
def test_a_message_comes_back_as_it_was(parked, payload, properties, key):
    message = Message(payload, tuple(properties), key=key, deliver_at=7)
    found, content = unwrap(wrap(parked, message))
    assert found == parked
    assert content.as_dict() == message.as_dict()


@pytest.mark.parametrize(
    "message",
    [
        Message(b"x"),
        Message(b"x", ((PARKED, "no JSON"),)),
        Message(b"x", ((PARKED, "[]"),)),
        Message(b"x", ((PARKED, '["t", "0", "g", 1, 2, 3, 0, 0]'),)),
        Message(b"x", ((PARKED, '["t", 0, "g", 1, 2, true, 0, 0]'),)),
        Message(b"x", ((PARKED, f'["t", 0, "g", {10**400}, 2, 3, 0, 0]'),)),
        Message(b"x", ((PARKED, '["t", -1, "g", 1, 2, 3, 0, 0]'),)),
        Message(b"x", ((PARKED, "[" * 100_000),)),
        wrap(Parked("t", 0, "g", 1, 2, 3), Message(b"x")).replace(defect="damaged"),
    ],
)
def test_other_messages_are_refused(message):
    with pytest.raises(InvalidParked):
        unwrap(message)


@pytest.mark.parametrize(
    ("remaining_s", "level"), [(0, "1m"), (59, "1m"), (61, "1m"), (120, "2m"), (3599, "30m"), (3600, "1h"), (10**9, "2h")]
)
def test_a_message_waits_in_the_longest_level_that_is_not_too_long(remaining_s, level):
    assert level_for(remaining_s) == level


@pytest.mark.parametrize(
    ("remaining_s", "level"),
    [(-9, "1s"), (0, "1s"), (4.9, "1s"), (5, "5s"), (29, "10s"), (59, "30s"), (60, "1m"), (3599, "30m"), (10**9, "2h")],
)
def test_only_deposits_wait_in_short_levels(remaining_s, level):
    parked = Parked("t", 0, "", 10_000 + round(remaining_s * 1000), 0, 0)
    assert parked.level_at(10_000) == level
    assert parked._replace(group="g").level_at(10_000) == (level if level in GROUP_LEVELS else "1m")


@given(st.floats(60, 10_000_000))
def test_a_message_reaches_its_time_over_levels(remaining_s):
    stops = 0
    while remaining_s > LEVELS_S["1m"]:
        remaining_s -= LEVELS_S[level_for(remaining_s)]
        stops += 1
        assert remaining_s >= 0
    assert stops <= 10_000_000 / LEVELS_S["2h"] + 10


@given(st.integers(0, FIRST_NUMBER - 1))
def test_numbers_of_what_is_due_come_after_all_others(offset):
    numbering = DueNumbering(OffsetNumbering())
    number = numbering.number((offset,))
    assert FIRST_NUMBER <= number < 2 * FIRST_NUMBER
    assert numbering.position(number) == (offset,)
    assert numbering.dense


def test_a_number_that_is_too_large_is_refused():
    with pytest.raises(ValueError, match="too large"):
        DueNumbering(OffsetNumbering()).number((FIRST_NUMBER,))
    assert not DueNumbering(PackedNumbering(2)).dense
