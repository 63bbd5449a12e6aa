"""What happens when: drawn from a seed, the same for the same seed, directions and seconds."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

DIRECTIONS = ("tubemq-pulsar", "pulsar-tubemq", "rocketmq-pulsar", "pulsar-rocketmq", "tubemq-rocketmq")
WITHOUT_SERVERS = "log-log"
"""Between two topics of the embedded log: faults of instances only, and no Java."""
INSTANCES = ("a", "b")
FIRST_S = 6.0
"""When the first fault may come: the instances have joined, and work at the backlog."""
PAUSE_S = 3.0
"""Between two faults, on average; they overlap."""


class Kind(NamedTuple):
    """A fault: its name (a function of `faults`), its frequency, its target, and the ranges of its duration and size."""

    name: str
    weight: int
    where: str
    lasts: tuple[float, float] = (0, 0)
    amount: tuple[float, float] = (0, 0)
    holds_bytes: bool = False
    """Something may be stored late for it (see `judge`, 3)."""
    no_leases: bool = False
    """Nobody vanishes without a word: nothing has to wait until somebody's lease is over."""


KINDS = (
    # instances
    Kind("kill", 3, "instance", (0.5, 6)),
    Kind("roll", 3, "instance", (0, 3), no_leases=True),
    Kind("leave", 3, "instance", (8, 15), no_leases=True),
    Kind("rolling_update", 3, "both", (0.2, 4), no_leases=True),
    Kind("stop", 3, "instance", (3, 40), holds_bytes=True),
    # the network of an instance
    Kind("cut", 4, "network"),
    Kind("hold", 2, "link", (3, 40), holds_bytes=True),
    Kind("late", 4, "link", (11, 25), holds_bytes=True),
    Kind("slow", 2, "link", (8, 20), (15_000, 80_000), holds_bytes=True, no_leases=True),
    Kind("delay", 2, "link", (5, 20), (0.05, 1.5), holds_bytes=True, no_leases=True),
    # servers
    Kind("no_directory", 3, "directory", (8, 30)),
    Kind("kill_directory", 1, "directory", (1, 10)),
    Kind("freeze_broker", 2, "system", (2, 15), holds_bytes=True),
    Kind("kill_broker", 1, "system", (0, 3)),
    # topics and groups
    Kind("unload", 4, "unloads", no_leases=True),
    Kind("grow", 2, "direction", no_leases=True),
    Kind("burst", 3, "direction", (0, 0), (500, 4000), no_leases=True),
    Kind("move_running", 3, "moves", (0, 0), (50, 2000), no_leases=True),
    Kind("move_stopped", 1, "direction", (0, 0), (50, 2000), no_leases=True),
)
MOVES = ("pulsar", "rocketmq")
"""Systems whose groups an operator can move while they run."""


@dataclass(frozen=True, slots=True)
class Event:
    """A fault at a time."""

    at: float
    kind: Kind
    where: tuple[str, ...]
    """Instance, system or direction, as the kind says; of a link: instance and system."""
    lasts: float
    amount: float

    def __str__(self) -> str:
        lasts = f" for {self.lasts:.1f} s" if self.kind.lasts[1] else ""
        amount = f", {self.amount:.3g}" if self.kind.amount[1] else ""
        return f"{self.at:6.1f} s  {self.kind.name} {' '.join(self.where)}{lasts}{amount}"


@dataclass(frozen=True, slots=True)
class Schedule:
    """A run: how it begins, and its faults."""

    seed: int
    seconds: float
    directions: tuple[str, ...]
    second_instance: bool
    """Whether both instances are there from the beginning."""
    in_flight_bytes: dict[str, str]
    """By instance."""
    shutdown_s: int
    orderly: bool
    backlog: int
    """Messages in each partition before the first instance starts."""
    per_second: int
    """Of each direction."""
    rate: int | None
    """Limit of messages per second of each route of each instance; below the producers' rate, all queues fill up."""
    events: tuple[Event, ...]
    last: tuple[str, ...]
    """The instances that run at the end: a partition that one of them lost and got back may be stuck there."""

    @property
    def holds_bytes(self) -> bool:
        """Whether something may be stored late."""
        return any(event.kind.holds_bytes for event in self.events)

    @property
    def no_leases(self) -> bool:
        """Whether nobody vanished without a word, and nothing but that could keep messages waiting."""
        return self.rate is None and all(event.kind.no_leases for event in self.events)


def draw(seed: int, seconds: float, directions: Sequence[str], only: Sequence[str] = ()) -> Schedule:
    """The run of a seed. `only` are the kinds of faults to draw from; all if there are none."""
    chance = random.Random(f"{seed} {' '.join(directions)} {' '.join(only)}")
    places = {what: _places(what, directions) for what in {kind.where for kind in KINDS}}
    kinds = [kind for kind in KINDS if places[kind.where] and (not only or kind.name in only)]
    settings = {name: chance.choice(("64KiB", "1MiB", "32MiB")) for name in INSTANCES}
    second, orderly, shutdown_s = chance.random() < 0.7, chance.random() < 0.5, chance.choice((5, 30))
    backlog, per_second = chance.choice((0, 1500, 5000)), chance.choice((200, 400, 800))
    rate = chance.choice((None, None, 1000))
    events = []
    at = FIRST_S
    while at < seconds:
        kind = chance.choices(kinds, [kind.weight for kind in kinds])[0]
        where = chance.choice(places[kind.where])
        events.append(Event(at, kind, where, _mostly_short(chance, *kind.lasts), chance.uniform(*kind.amount)))
        at += chance.expovariate(1 / PAUSE_S)
    last = chance.choice((INSTANCES, INSTANCES, *((name,) for name in INSTANCES)))
    return Schedule(
        seed, seconds, tuple(directions), second, settings, shutdown_s, orderly, backlog, per_second, rate, tuple(events), last
    )


def _mostly_short(chance: random.Random, least: float, most: float) -> float:
    return least + (most - least) * chance.random() ** 2


def _places(what: str, directions: Sequence[str]) -> list[tuple[str, ...]]:
    """Where a kind of fault can strike."""
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
