"""The faults, one function each. A function returns when its fault is over; other faults may run at the same time."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping

from tests.chaos.faults.instances import kill, leave, roll, rolling_update, stop
from tests.chaos.faults.listeners import (
    cut_listener,
    delay_listener,
    hold_listener,
    kill_listener,
    roll_listener,
    stop_listener,
)
from tests.chaos.faults.network import cut, delay, hold, late, pause_target, slow
from tests.chaos.faults.restarts import end_without_broker, missing_broker, restart_broker, restart_during_pause
from tests.chaos.faults.servers import freeze_broker, kill_broker, kill_directory, lower_limit, no_directory
from tests.chaos.faults.topics import (
    burst,
    grow,
    move_running,
    move_stopped,
    pause_group,
    refuse_target,
    remake_topic,
    truncate,
    unload,
)
from tests.chaos.schedule import Event
from tests.chaos.world import World

Fault = Callable[[World, Event], Awaitable[None]]
FAULTS: Mapping[str, Fault] = {
    each.__name__: each
    for each in (
        kill, roll, rolling_update, stop, cut, hold, pause_target, late, slow, delay, no_directory, kill_directory, kill_broker,
        freeze_broker, restart_broker, restart_during_pause, end_without_broker, missing_broker, lower_limit, unload,
        kill_listener, roll_listener, stop_listener, cut_listener, hold_listener, delay_listener,
        grow, burst, move_running, move_stopped, pause_group, refuse_target, remake_topic, truncate,
    )
} | {"leave": leave}  # fmt: skip
