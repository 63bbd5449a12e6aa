"""Schedules: the settings and the random faults of a run. The same seed, directions and seconds give the same schedule."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

DIRECTIONS = ("tubemq-pulsar", "pulsar-tubemq", "rocketmq-pulsar", "pulsar-rocketmq", "tubemq-rocketmq")
WITHOUT_SERVERS = "log-log"
"""Direction between two topics of the embedded log: it needs no Java, and has only faults of instances."""
INSTANCES = ("a", "b")
FIRST_S = 6.0
"""Time of the first fault: by then the instances have joined their groups and read the backlog."""
PAUSE_S = 3.0
"""Mean time between the starts of two faults. Faults may overlap."""


class Kind(NamedTuple):
    """A kind of fault: its name (a function of `faults`), relative frequency, kind of target, and ranges of duration and size."""

    name: str
    weight: int
    where: str
    lasts: tuple[float, float] = (0, 0)
    amount: tuple[float, float] = (0, 0)
    allows_stale: bool = False
    """True if stale messages may be stored after the fault (rule 3 of `judge`)."""
    leaves_no_lease: bool = False
    """True if every member that leaves unregisters, so that no lease must expire before others take over."""


KINDS = (
    # instances
    Kind("kill", 3, "instance", (0.5, 6)),
    Kind("roll", 3, "instance", (0, 3), leaves_no_lease=True),
    Kind("leave", 3, "instance", (8, 15), leaves_no_lease=True),
    Kind("rolling_update", 3, "both", (0.2, 4), leaves_no_lease=True),
    Kind("stop", 3, "instance", (3, 40), allows_stale=True),
    # the network of an instance
    Kind("cut", 4, "network"),
    Kind("hold", 2, "link", (3, 40), allows_stale=True),
    Kind("late", 4, "link", (11, 25), allows_stale=True),
    Kind("slow", 2, "link", (8, 20), (15_000, 80_000), allows_stale=True, leaves_no_lease=True),
    Kind("delay", 2, "link", (5, 20), (0.05, 1.5), allows_stale=True, leaves_no_lease=True),
    # servers
    Kind("no_directory", 3, "directory", (8, 30)),
    Kind("kill_directory", 1, "directory", (1, 10)),
    Kind("freeze_broker", 2, "system", (2, 15), allows_stale=True),
    Kind("kill_broker", 1, "system", (0, 3)),
    # topics and groups
    Kind("unload", 4, "unloads", leaves_no_lease=True),
    Kind("grow", 2, "direction", leaves_no_lease=True),
    Kind("burst", 3, "direction", (0, 0), (500, 4000), leaves_no_lease=True),
    Kind("move_running", 3, "moves", (0, 0), (50, 2000), leaves_no_lease=True),
    Kind("move_stopped", 1, "direction", (0, 0), (50, 2000), leaves_no_lease=True),
)
MOVES = ("pulsar", "rocketmq")
"""Systems whose groups can be moved while their members run."""


@dataclass(frozen=True, slots=True)
class Event:
    """A fault at a certain time."""

    at: float
    kind: Kind
    where: tuple[str, ...]
    """Names of the instance, system or direction, depending on the kind; for a link those of the instance and the system."""
    lasts: float
    amount: float

    def __str__(self) -> str:
        lasts = f" for {self.lasts:.1f} s" if self.kind.lasts[1] else ""
        amount = f", {self.amount:.3g}" if self.kind.amount[1] else ""
        return f"{self.at:6.1f} s  {self.kind.name} {' '.join(self.where)}{lasts}{amount}"


@dataclass(frozen=True, slots=True)
class Schedule:
    """Settings and faults of a run."""

    seed: int
    seconds: float
    directions: tuple[str, ...]
    second_instance: bool
    """True if both instances start at the beginning."""
    in_flight_bytes: dict[str, str]
    """The option `delivery.in_flight_bytes`, by instance."""
    shutdown_s: int
    orderly: bool
    backlog: int
    """Messages in each partition before the first instance starts."""
    per_second: int
    """Rate of the producer of each direction."""
    rate: int | None
    """The option `rate` of each route of each instance. If it is below the producers' rate, all queues fill up."""
    events: tuple[Event, ...]
    last: tuple[str, ...]
    """The instances that run at the end. With both, a partition that one instance lost and got back is tested too."""

    @property
    def allows_stale(self) -> bool:
        """True if stale messages may be stored."""
        return any(event.kind.allows_stale for event in self.events)

    @property
    def leaves_no_lease(self) -> bool:
        """True if no lease and no rate limit can delay messages after the last fault."""
        return self.rate is None and all(event.kind.leaves_no_lease for event in self.events)


def draw(seed: int, seconds: float, directions: Sequence[str], only: Sequence[str] = ()) -> Schedule:
    """Draw the schedule of a seed. `only` are the names of the kinds of faults to use; if it is empty, all are used."""
    rng = random.Random(f"{seed} {' '.join(directions)} {' '.join(only)}")
    targets = {where: _possible_targets(where, directions) for where in {kind.where for kind in KINDS}}
    kinds = [kind for kind in KINDS if targets[kind.where] and (not only or kind.name in only)]
    settings = {name: rng.choice(("64KiB", "1MiB", "32MiB")) for name in INSTANCES}
    second, orderly, shutdown_s = rng.random() < 0.7, rng.random() < 0.5, rng.choice((5, 30))
    backlog, per_second = rng.choice((0, 1500, 5000)), rng.choice((200, 400, 800))
    rate = rng.choice((None, None, 1000))
    events = []
    at = FIRST_S
    while at < seconds:
        kind = rng.choices(kinds, [kind.weight for kind in kinds])[0]
        where = rng.choice(targets[kind.where])
        events.append(Event(at, kind, where, _skewed_to_short(rng, *kind.lasts), rng.uniform(*kind.amount)))
        at += rng.expovariate(1 / PAUSE_S)
    last = rng.choice((INSTANCES, INSTANCES, *((name,) for name in INSTANCES)))
    return Schedule(
        seed, seconds, tuple(directions), second, settings, shutdown_s, orderly, backlog, per_second, rate, tuple(events), last
    )


def _skewed_to_short(rng: random.Random, least: float, most: float) -> float:
    return least + (most - least) * rng.random() ** 2


def _possible_targets(what: str, directions: Sequence[str]) -> list[tuple[str, ...]]:
    """Return the possible targets (`Event.where`) of faults with this kind of target."""
    systems = sorted({system for direction in directions for system in direction.split("-")} - {"log"})
    match what:
        case "instance":
            return [(name,) for name in INSTANCES]
        case "both":
            return [("a", "b"), ("b", "a")]
        case "network":
            return [("a",), ("b",), ("a", "b")] if systems else []
        case "link":
            return [(name, system) for name in INSTANCES for system in systems]
        case "system":
            return [(system,) for system in systems]
        case "directory":
            return [(system,) for system in systems if system in ("tubemq", "rocketmq")]
        case "unloads":
            return [
                (direction, end) for direction in directions for end in ("source", "target") if _end(direction, end) == "pulsar"
            ]
        case "moves":
            return [(direction,) for direction in directions if _end(direction, "source") in MOVES]
        case _:
            return [(direction,) for direction in directions]


def _end(direction: str, end: str) -> str:
    source, target = direction.split("-")
    return source if end == "source" else target
