"""Indexes of target partitions stay while brokers join and grow, whatever steps of a growth are seen."""

from hypothesis import given
from hypothesis import strategies as st

from mqbridge.adapter.target_order import TargetOrder
from tests.adapter.test_known_brokers import names


def test_a_broker_that_joins_comes_last() -> None:
    order = TargetOrder(names(a=2, c=2))
    order.grow(names(a=2, b=2, c=2))
    assert order.names == ["broker-a:0", "broker-c:0", "broker-a:1", "broker-c:1", "broker-b:0", "broker-b:1"]
    order.grow(names(a=3, b=3, c=3))
    assert order.names[6:] == ["broker-a:2", "broker-b:2", "broker-c:2"]


def test_brokers_that_are_not_named_begin_last() -> None:
    assert TargetOrder(names(a=2, b=2, c=1), last=["broker-a"]).names[-2:] == ["broker-a:0", "broker-a:1"]


def test_a_partition_waits_for_those_of_equal_brokers_that_are_sorted_before_it() -> None:
    order = TargetOrder(names(a=1, b=1))
    order.grow(names(a=4, b=1))
    assert order.names == ["broker-a:0", "broker-b:0", "broker-a:1"]
    order.grow(names(a=4, b=2))
    assert order.names[3:] == ["broker-b:1", "broker-a:2"]
    order.reopen(names(a=4, b=2))
    assert order.names[5:] == ["broker-a:3"], "a route that is opened again uses all"


def test_a_broker_with_another_number_of_partitions_grows_by_itself() -> None:
    order = TargetOrder(names(a=3, b=1))
    order.grow(names(a=5, b=1))
    assert order.names[4:] == ["broker-a:3", "broker-a:4"]


def test_a_partition_that_is_removed_is_left_out_when_a_route_is_opened_again() -> None:
    order = TargetOrder(names(a=2, b=2))
    order.grow(names(a=1, b=2))
    assert len(order.names) == 4, "it may return"
    order.reopen(names(a=1, b=2))
    assert order.names == ["broker-a:0", "broker-b:0", "broker-b:1"]


LEVELS = st.lists(st.integers(0, 3), max_size=4)


@given(st.integers(1, 3), LEVELS, st.lists(st.sampled_from("abc"), max_size=12))
def test_brokers_that_grow_alike_have_the_same_order_whatever_steps_are_seen(
    first: int, more: list[int], seen: list[str]
) -> None:
    counts = dict.fromkeys("abc", first)
    at_once, stepwise = TargetOrder(names(**counts)), TargetOrder(names(**counts))
    for level in more:
        goal = max(counts.values()) + level
        for letter in [*seen, *"cab"]:
            before = list(stepwise.names)
            counts[letter] = min(goal, counts[letter] + 1) if letter in seen else goal
            stepwise.grow(names(**counts))
            assert stepwise.names[: len(before)] == before
        counts = dict.fromkeys("abc", goal)
        stepwise.grow(names(**counts))
        at_once.grow(names(**counts))
        assert stepwise.names == at_once.names == TargetOrder(names(**counts)).names
