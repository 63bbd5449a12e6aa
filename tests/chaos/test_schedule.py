"""Schedules are the same for the same seed, and every fault in them has a function."""

from __future__ import annotations

from tests.chaos.faults import FAULTS
from tests.chaos.schedule import DIRECTIONS, KINDS, draw


def test_the_seed_determines_the_schedule() -> None:
    assert draw(1, 60, DIRECTIONS) == draw(1, 60, DIRECTIONS)
    assert draw(1, 60, DIRECTIONS).events != draw(2, 60, DIRECTIONS).events


def test_every_kind_of_fault_is_drawn_and_has_a_function() -> None:
    drawn = {event.kind.name for seed in range(20) for event in draw(seed, 60, DIRECTIONS).events}
    assert drawn == {kind.name for kind in KINDS} == FAULTS.keys()


def test_a_run_ends_with_both_instances_or_with_one() -> None:
    assert {draw(seed, 60, DIRECTIONS).last for seed in range(20)} == {("a", "b"), ("a",), ("b",)}


def test_only_the_selected_faults_are_drawn() -> None:
    assert {event.kind.name for event in draw(1, 200, DIRECTIONS, ("cut", "roll")).events} == {"cut", "roll"}


def test_faults_that_do_not_apply_to_a_direction_are_not_drawn() -> None:
    events = [event for seed in range(20) for event in draw(seed, 60, ("tubemq-rocketmq",)).events]
    assert not {event.kind.name for event in events} & {"unload", "move_running"}
    assert {word for event in events for word in event.where} <= {"a", "b", "tubemq", "rocketmq", "tubemq-rocketmq"}
