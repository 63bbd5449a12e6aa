"""A soak run: slow traffic for an hour, while servers and instances restart at fixed times, as in operation.

`make soak MINUTES=60`. The producer sends a few messages per second, in turn to the partitions of one TubeMQ topic, so
most partitions have nothing to read for most of the time. Every few minutes the source's Broker restarts in order, the target
pauses, or one of the two instances is rolled. Some restarts of the Broker happen while the target pauses.
"""

from __future__ import annotations

from collections.abc import Sequence

from tests.chaos.layout import Layout
from tests.chaos.schedule import HEARTBEATS_S, INSTANCES, KINDS, SLOW, Event, Load, Schedule, ends

DIRECTION = "tubemq-pulsar"
PER_SECOND = 4
RESTART_AT_S, RESTART_EVERY_S, AWAY_S = 122.0, 300.0, 2.0
PAUSE_AT_S, PAUSE_EVERY_S, PAUSE_S = 60.0, 180.0, 10.0
"""The second restart of the Broker, and every third one after it, begins 2 s after the target has paused."""
ROLL_AT_S, ROLL_EVERY_S = 210.0, 240.0


def schedule(minutes: float, directions: Sequence[str]) -> Schedule:
    """Return the schedule of a soak run; it does not depend on a seed."""
    seconds = minutes * 60
    kinds = {kind.name: kind for kind in KINDS}
    events = [
        Event(at, kinds["roll"], (INSTANCES[turn % 2],), 0, 0) for turn, at in enumerate(_times(ROLL_AT_S, ROLL_EVERY_S, seconds))
    ]
    for source in {ends(direction)[0] for direction in directions} - {"log"}:
        events += [
            Event(at, kinds["restart_broker"], (source,), AWAY_S, 0) for at in _times(RESTART_AT_S, RESTART_EVERY_S, seconds)
        ]
    for direction in directions:
        events += [
            Event(at, kinds["pause_target"], (direction,), PAUSE_S, 0) for at in _times(PAUSE_AT_S, PAUSE_EVERY_S, seconds)
        ]
    return Schedule(
        seed=0,
        seconds=seconds,
        loads=dict.fromkeys(directions, Load(SLOW, PER_SECOND, backlog=0, rate=None, first_s=20.0)),
        instances=INSTANCES,
        second_instance=True,
        in_flight_bytes=dict.fromkeys(INSTANCES, "32MiB"),
        shutdown_s=30,
        orderly=True,
        heartbeat_s=HEARTBEATS_S[-1],
        events=tuple(sorted(events, key=lambda event: event.at)),
        last=INSTANCES,
        layouts=dict.fromkeys(directions, Layout()),
    )


def _times(first: float, every: float, end: float) -> list[float]:
    return [first + every * number for number in range(max(0, int((end - first) // every) + 1))]
