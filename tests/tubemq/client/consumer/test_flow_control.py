"""Flow control with the rules of the protocol's own example; time is an argument."""

import pytest

from mqbridge.errors import RemoteProtocolError
from mqbridge.tubemq.client.consumer.flow_control import MIB, FlowControl, FlowMeter, parse_rules

RULES = """[{"type":0,"rule":[{"start":"08:00","end":"17:30","dltInM":1024,"limitInM":24,"freqInMs":1000}]},
 {"type":1,"rule":[{"zeroCnt":8,"freqInMs":1000},{"zeroCnt":3,"freqInMs":300}]},
 {"type":2,"rule":[]},
 {"type":3,"rule":[{"normFreqInMs":0,"filterFreqInMs":100,"minDataFilterFreqInMs":400}]}]"""
NOON_GMT_8 = 4 * 3600.0
NIGHT_GMT_8 = 16 * 3600.0


def meter(text: str = RULES, *, filtered: bool = False) -> FlowMeter:
    control = FlowControl()
    control.apply_rules((1, text), (-2, ""))
    return FlowMeter(control, filtered=filtered)


def test_without_rules_only_gets_without_data_are_delayed() -> None:
    plain = FlowMeter(FlowControl(), filtered=True)
    assert plain.on_no_data() == 0.4
    assert plain.on_data(1 << 20, 1 << 40, 0.0, NOON_GMT_8, near_end=True) == 0.0


def test_waits_grow_with_consecutive_gets_without_data() -> None:
    flow_meter = meter()
    assert [flow_meter.on_no_data() for _ in range(9)] == [0.4, 0.4, 0.3, 0.3, 0.3, 0.3, 0.3, 1.0, 1.0]
    flow_meter.on_data(1, 0, 0.0, 0.0, near_end=False)
    assert flow_meter.on_no_data() == 0.4


@pytest.mark.parametrize(("filtered", "near_end", "wait"), [(False, True, 0.0), (True, False, 0.1), (True, True, 0.4)])
def test_waits_after_data_depend_on_filter_and_distance_to_the_end(filtered: bool, near_end: bool, wait: float) -> None:
    assert meter(filtered=filtered).on_data(1, 0, 0.0, 0.0, near_end=near_end) == wait


def test_a_reader_far_behind_is_limited_in_the_rules_time_window() -> None:
    flow_meter, lag = meter(), 1025 * MIB
    assert flow_meter.on_data(MIB, lag, 0.0, NOON_GMT_8, near_end=False) == 0.0
    assert flow_meter.on_data(MIB, lag, 1.0, NOON_GMT_8, near_end=False) == 1.0, "2 MiB are a twelfth of 24 MiB"
    assert flow_meter.on_data(MIB, lag, 6.0, NOON_GMT_8, near_end=False) == 0.0, "a new 5 s slice"
    waits = [flow_meter.on_data(MIB, lag, 6.0 + 5.0 * index, NOON_GMT_8, near_end=False) for index in range(1, 10)]
    assert waits == [0.0] * 9
    assert flow_meter.on_data(12 * MIB, lag, 59.0, NOON_GMT_8, near_end=False) == 1.0, "the minute's share is used up"
    assert flow_meter.on_data(MIB, lag, 64.0, NOON_GMT_8, near_end=False) == 0.0, "a new minute"


@pytest.mark.parametrize(("lag", "wall"), [(1024 * MIB, NOON_GMT_8), (1025 * MIB, NIGHT_GMT_8)], ids=["not behind", "at night"])
def test_readers_near_the_end_or_outside_the_time_window_are_not_limited(lag: int, wall: float) -> None:
    assert meter().on_data(100 * MIB, lag, 0.0, wall, near_end=False) == 0.0


def test_the_rules_of_a_group_take_precedence() -> None:
    control = FlowControl()
    control.apply_rules((1, RULES), (2, '[{"type":1,"rule":[{"zeroCnt":1,"freqInMs":50}]}]'))
    assert control.has_group_rules
    assert FlowMeter(control, filtered=False).on_no_data() == 0.05
    control.apply_rules((1, " "), (2, " "))
    assert control.has_group_rules, "rules with a known id are not applied again"
    control.apply_rules((1, " "), (3, " "))
    assert not control.has_group_rules
    assert control.no_data_waits[0] == (3, 0.3), "the default rules are back"
    assert (control.default_id, control.group_id) == (1, 3)


def test_invalid_group_rules_leave_the_default_rules() -> None:
    control = FlowControl()
    control.apply_rules((1, RULES), (2, "no rules"))
    assert control.data_waits is not None
    assert control.has_rules
    assert not control.has_group_rules


def test_each_kind_of_rule_falls_back_to_the_default_separately() -> None:
    """A group with its own rule for gets without data still obeys the default limits and waits."""
    control = FlowControl()
    control.apply_rules((1, RULES), (2, '[{"type":1,"rule":[{"zeroCnt":1,"freqInMs":50}]}]'))
    flow_meter = FlowMeter(control, filtered=True)
    assert flow_meter.on_no_data() == 0.05
    assert flow_meter.on_data(1, 0, 0.0, NOON_GMT_8, near_end=False) == 0.1
    behind = FlowMeter(control, filtered=False)
    assert behind.on_data(3 * MIB, 1025 * MIB, 0.0, NOON_GMT_8, near_end=False) == 1.0


def test_the_default_limit_applies_outside_the_time_window_of_the_groups_limit() -> None:
    night = '[{"type":0,"rule":[{"start":"23:00","end":"23:59","dltInM":30,"limitInM":1,"freqInMs":5000}]}]'
    control = FlowControl()
    control.apply_rules((1, RULES), (2, night))
    assert FlowMeter(control, filtered=False).on_data(3 * MIB, 1025 * MIB, 0.0, NOON_GMT_8, near_end=False) == 1.0
    late = 15.5 * 3600
    assert FlowMeter(control, filtered=False).on_data(3 * MIB, 31 * MIB, 0.0, late, near_end=False) == 5.0


def test_an_exempt_reader_is_not_delayed_but_its_bytes_count() -> None:
    flow_meter = meter(filtered=True)
    assert flow_meter.on_data(100 * MIB, 1025 * MIB, 0.0, NOON_GMT_8, near_end=False, is_exempt=True) == 0.0
    assert flow_meter.on_data(1, 1025 * MIB, 1.0, NOON_GMT_8, near_end=False) == 1.0, "bytes read while exempt count too"


def test_a_limit_of_zero_bytes_delays_every_get() -> None:
    stop = '[{"type":0,"rule":[{"start":"00:00","end":"23:59","dltInM":30,"limitInM":0,"freqInMs":100}]}]'
    assert meter(stop).on_data(0, 31 * MIB, 0.0, NOON_GMT_8, near_end=False) == 0.2, "the minimum is 200 ms"


@pytest.mark.parametrize("text", ["{", "[1]", '[{"type":0,"rule":[{"start":"x"}]}]', '[{"type":1,"rule":{}}, 3]'])
def test_invalid_rules_are_a_protocol_error(text: str) -> None:
    with pytest.raises(RemoteProtocolError):
        parse_rules(text)
