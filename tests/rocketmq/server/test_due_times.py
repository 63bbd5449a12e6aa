"""When delayed messages are due."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqbridge.rocketmq.server.due_times import due_ms_of
from mqbridge.rocketmq.server.refusals import CodedRefusal
from mqbridge.rocketmq.wire.codes import Status
from mqbridge.rocketmq.wire.delay_levels import LEVELS_S, MAX_LEVEL, MAX_TIMER_MS
from mqbridge.rocketmq.wire.properties import Name, join

NOW = 1_700_000_000_000
SECONDS, MILLISECONDS, AT = Name.TIMER_DELAY_SEC, Name.TIMER_DELAY_MS, Name.TIMER_DELIVER_MS


def due(**properties: object) -> int | None:
    return due_ms_of(join([(name, str(value)) for name, value in properties.items()]).encode(), NOW)


@given(st.integers(-(10**18) + 1, 10**18 - 1))
def test_a_level_is_a_delay(level: int) -> None:
    expected = None if level <= 0 else NOW + 1000 * LEVELS_S[min(level, MAX_LEVEL) - 1]
    assert due(DELAY=level) == expected


@given(st.integers(-(10**18) + 1, 10**18 - 1), st.sampled_from([SECONDS, MILLISECONDS, AT]))
def test_a_time_is_due_then_at_once_or_refused(value: int, name: str) -> None:
    at = {SECONDS: NOW + 1000 * value, MILLISECONDS: NOW + value, AT: value}[name]
    if at - NOW > MAX_TIMER_MS:
        with pytest.raises(CodedRefusal) as refused:
            due(**{name: value})
        assert refused.value.code == Status.MESSAGE_ILLEGAL
    else:
        assert due(**{name: value}) == (at if at > NOW else None)


@given(st.integers(1, 18), st.sampled_from([SECONDS, MILLISECONDS, AT]))
def test_a_level_counts_more_than_a_time(level: int, name: str) -> None:
    assert due(**{name: NOW + 5, "DELAY": level}) == NOW + 1000 * LEVELS_S[level - 1]
    assert due(DELAY=0, TIMER_DELAY_MS=5) == NOW + 5, "the level 0 is none"


def test_a_delay_counts_more_than_a_time() -> None:
    assert due(TIMER_DELAY_SEC=2, TIMER_DELAY_MS=5, TIMER_DELIVER_MS=NOW + 1) == NOW + 2000
    assert due(TIMER_DELAY_MS=5, TIMER_DELIVER_MS=NOW + 1) == NOW + 5


def test_the_edges_of_time() -> None:
    assert due(TIMER_DELIVER_MS=NOW) is None
    assert due(TIMER_DELIVER_MS=NOW + 1) == NOW + 1
    assert due(TIMER_DELAY_MS=MAX_TIMER_MS) == NOW + MAX_TIMER_MS
    with pytest.raises(CodedRefusal, match="at most 259200 s"):
        due(TIMER_DELAY_MS=MAX_TIMER_MS + 1)


@pytest.mark.parametrize("text", ["", "x", "1.5", "１", "--1", "1" * 19, "0x1", "-", "1_000", "+1"])
@pytest.mark.parametrize("name", [Name.DELAY, SECONDS, MILLISECONDS, AT])
def test_what_is_no_number_is_refused(text: str, name: str) -> None:
    properties = f"{name}\x01{text}\x02".encode()
    if not text:
        assert due_ms_of(properties, NOW) is None, "clients ignore an entry without a value"
        return
    with pytest.raises(CodedRefusal, match=name) as refused:
        due_ms_of(properties, NOW)
    assert refused.value.code == Status.MESSAGE_ILLEGAL


def test_other_properties_do_not_delay() -> None:
    assert due_ms_of(b"", NOW) is None
    assert due(KEYS="DELAY", MY_DELAY=3) is None
    assert due(DELAY=" 3 ") == NOW + 10_000


@given(st.binary(max_size=60))
def test_any_bytes_are_due_or_refused(properties: bytes) -> None:
    try:
        found = due_ms_of(properties, NOW)
    except CodedRefusal:
        return
    assert found is None or found > NOW
