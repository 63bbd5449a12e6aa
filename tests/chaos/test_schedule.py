"""Schedules are the same for the same seed, and every fault in them has a function."""

from __future__ import annotations

from tests.chaos import soak
from tests.chaos.faults import FAULTS
from tests.chaos.layout import IDENTITY, KEY, MODULO, Layout
from tests.chaos.schedule import (
    AT_LISTENERS,
    DIRECTIONS,
    FULL,
    KINDS,
    LISTENER_DIRECTIONS,
    ROCKETMQ_LISTENER_DIRECTIONS,
    SLOW,
    draw,
    ends,
)

AT_EITHER_LISTENER = (*LISTENER_DIRECTIONS, *ROCKETMQ_LISTENER_DIRECTIONS)


def test_the_seed_determines_the_schedule() -> None:
    assert draw(1, 60, DIRECTIONS) == draw(1, 60, DIRECTIONS)
    assert draw(1, 60, DIRECTIONS).events != draw(2, 60, DIRECTIONS).events


def test_every_kind_of_fault_is_drawn_and_has_a_function() -> None:
    directions = (DIRECTIONS, LISTENER_DIRECTIONS)
    drawn = {event.kind.name for seed in range(20) for each in directions for event in draw(seed, 60, each).events}
    assert drawn == {kind.name for kind in KINDS} == FAULTS.keys()


def test_a_run_ends_with_both_instances_or_with_one() -> None:
    assert {draw(seed, 60, DIRECTIONS).last for seed in range(40)} == {("a", "b"), ("a",), ("b",)}


def test_only_the_selected_faults_are_drawn() -> None:
    assert {event.kind.name for event in draw(1, 200, DIRECTIONS, ("cut", "roll")).events} == {"cut", "roll"}


def test_faults_that_do_not_apply_to_a_direction_are_not_drawn() -> None:
    events = [event for seed in range(20) for event in draw(seed, 60, ("tubemq-rocketmq",)).events]
    assert not {event.kind.name for event in events} & {"unload", "move_running"}
    assert {word for event in events for word in event.where} <= {
        "a",
        "b",
        "tubemq",
        "rocketmq",
        "tubemq-rocketmq",
        "stays",
        "rolls",
        "is_killed",
    }


def test_all_nine_directions_are_used_with_both_loads() -> None:
    loads = [draw(seed, 60, DIRECTIONS).loads for seed in range(5)]
    assert all(len(each) == 9 for each in loads)
    assert {load.kind for each in loads for load in each.values()} == {FULL, SLOW}


def test_a_third_of_the_directions_has_the_full_load_unless_another_one_is_wanted() -> None:
    for directions, least in ((("tubemq-pulsar",), 1), (DIRECTIONS, 3)):
        kinds = [[load.kind for load in draw(seed, 45, directions).loads.values()] for seed in range(20)]
        assert min(each.count(FULL) for each in kinds) >= least
    assert {load.kind for load in draw(1, 45, DIRECTIONS, load=SLOW).loads.values()} == {SLOW}


def test_every_rule_is_drawn_and_topics_at_one_broker_only_without_identity() -> None:
    layouts = {layout for seed in range(20) for layout in draw(seed, 60, DIRECTIONS).layouts.values()}
    assert layouts == {Layout(IDENTITY), *(Layout(by, each) for by in (MODULO, KEY) for each in (True, False))}


def test_no_topic_grows_whose_keys_would_move() -> None:
    schedules = [draw(seed, 200, DIRECTIONS, ("grow",)) for seed in range(10)]
    grown = {schedule.layouts[event.where[0]].by for schedule in schedules for event in schedule.events}
    assert grown == {IDENTITY, MODULO}


def test_a_slow_load_has_registered_groups_without_messages_and_idle_partitions() -> None:
    loads = [load for seed in range(20) for load in draw(seed, 60, ("tubemq-pulsar",), load=SLOW).loads.values()]
    assert {load.kind for load in loads} == {SLOW}
    assert any(load.first_s and not load.backlog for load in loads)
    assert any(load.idle_s for load in loads)
    assert any(load.rate for load in loads)


def test_a_broker_restarts_in_order_only_if_its_end_of_the_direction_is_paused_apart() -> None:
    paused = {event.where[0] for seed in range(20) for event in draw(seed, 60, DIRECTIONS, ("restart_during_pause",)).events}
    assert paused == set(DIRECTIONS) - {"pulsar-pulsar", "rocketmq-rocketmq"}


def test_an_hour_of_soak_restarts_the_broker_every_five_minutes_and_pauses_the_target_every_three() -> None:
    events = soak.schedule(60, (soak.DIRECTION,)).events
    counts = {name: sum(event.kind.name == name for event in events) for name in ("restart_broker", "pause_target", "roll")}
    assert counts == {"restart_broker": 12, "pause_target": 20, "roll": 15}
    pauses = [event.at for event in events if event.kind.name == "pause_target"]
    restarts = [event.at for event in events if event.kind.name == "restart_broker"]
    assert any(begin < at < begin + soak.PAUSE_S for begin in pauses for at in restarts)


def test_listeners_have_faults_of_their_own() -> None:
    events = [event for seed in range(20) for event in draw(seed, 60, AT_EITHER_LISTENER).events]
    names = {event.kind.name for event in events}
    assert names >= {"kill_listener", "roll_listener", "stop_listener", "cut_listener", "hold_listener", "delay_listener"}
    assert {event.where[0] for event in events if event.kind.where == "listener"} == AT_LISTENERS


def test_partitions_of_listeners_have_no_gaps() -> None:
    layouts = [layout for seed in range(20) for layout in draw(seed, 60, AT_EITHER_LISTENER).layouts.values()]
    assert not any(layout.at_one_broker for layout in layouts)


def test_operators_do_not_change_the_topics_of_listeners() -> None:
    events = [event for seed in range(20) for event in draw(seed, 60, AT_EITHER_LISTENER).events]
    assert not {event.kind.name for event in events} & {"grow", "refuse_target", "move_stopped"}
    changing = {event.where[0] for event in events if event.kind.name in ("remake_topic", "truncate", "move_running")}
    assert changing
    assert not {ends(direction)[0] for direction in changing} & AT_LISTENERS
