"""Schedules: the settings and the random faults of a run. The same seed and options give the same schedule."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import permutations, product
from typing import NamedTuple

from tests.chaos.layout import IDENTITY, KEY, MODULO, Layout

SERVERS = ("tubemq", "pulsar", "rocketmq")
DIRECTIONS = tuple(f"{source}-{target}" for source, target in product(SERVERS, SERVERS))
_BETWEEN_SYSTEMS = tuple(f"{source}-{target}" for source, target in product((*SERVERS, "log"), (*SERVERS, "log")))
LISTENERS = ("rocketmq_listener", "log_listener", "log_own_listener")
"""Clusters behind a listener, whose topics the official client for Pulsar uses through it."""
ROCKETMQ_LISTENERS = ("rocketmq_rmqlistener", "log_rmqlistener")
"""The same with the official client for RocketMQ."""
LISTENER_DIRECTIONS = (
    "rocketmq_listener-log",
    "log_listener-rocketmq",
    "log_listener-log",
    "rocketmq_listener-rocketmq_listener",
    "log-rocketmq_listener",
    "log-log_listener",
    "rocketmq-log_listener",
    "rocketmq-log_own_listener",
)
"""Directions that begin or end with a listener for Pulsar clients."""
ROCKETMQ_LISTENER_DIRECTIONS = (
    "rocketmq_rmqlistener-log",
    "log_rmqlistener-rocketmq",
    "log_rmqlistener-log",
    "log-rocketmq_rmqlistener",
    "rocketmq-log_rmqlistener",
    "log-log_rmqlistener",
)
"""The same for RocketMQ clients."""
AT_LISTENERS = frozenset({*LISTENERS, *ROCKETMQ_LISTENERS})
KNOWN_DIRECTIONS = (*_BETWEEN_SYSTEMS, *LISTENER_DIRECTIONS, *ROCKETMQ_LISTENER_DIRECTIONS)
"""The directions of DIRECTIONS, those from and to the embedded log, and those of listeners."""
WITHOUT_SERVERS = "log-log"
"""Direction between two topics of the embedded log: it needs no Java, and has only faults of instances."""
TARGET_CLUSTERS = {"tubemq": "tubemq_target"}
"""Systems whose targets are in a cluster of their own, by system.

A TubeMQ Broker that is killed loses acknowledged messages. For a source this is wanted; from a target the copies would be lost.
"""
INSTANCES = ("a", "b")
FIRST_S = 6.0
"""Time of the first fault: by then the instances have joined their groups and read the backlog."""
PAUSES_S = (2.0, 5.0)
"""Mean times between the starts of two faults, one of which is drawn. Faults may overlap."""
FULL, SLOW = "full", "slow"
LOADS = (FULL, SLOW)
MAX_PER_SECOND = 4000
"""Limit for the sum of all producers, for two cores that also run the servers."""
IDLE_SHARE = 0.7
"""Share of the run for which an idle partition gets no messages."""


def ends(direction: str) -> tuple[str, str]:
    """Return the names of the source cluster and the target cluster of a direction."""
    source, target = direction.split("-")
    return source, TARGET_CLUSTERS.get(target, target)


def clusters(directions: Sequence[str]) -> list[str]:
    """Return the names of all clusters of these directions."""
    return sorted({cluster for direction in directions for cluster in ends(direction)})


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
    Kind("pause_target", 4, "pausable", (5, 15), allows_stale=True),
    Kind("late", 4, "link", (11, 25), allows_stale=True),
    Kind("slow", 2, "link", (8, 20), (15_000, 80_000), allows_stale=True, leaves_no_lease=True),
    Kind("delay", 2, "link", (5, 20), (0.05, 1.5), allows_stale=True, leaves_no_lease=True),
    # servers
    Kind("no_directory", 3, "directory", (8, 30)),
    Kind("kill_directory", 1, "directory", (1, 10)),
    Kind("freeze_broker", 2, "system", (2, 15), allows_stale=True),
    Kind("kill_broker", 3, "system", (0, 3), (0, 6)),
    Kind("restart_broker", 4, "system", (0, 5)),
    Kind("restart_during_pause", 4, "pause", (0, 5), (1, 20), allows_stale=True),
    Kind("end_without_broker", 3, "end", (0, 5)),
    Kind("missing_broker", 4, "missing", (10, 35)),
    Kind("lower_limit", 2, "limit", (5, 20), (90_000, 400_000)),
    # listeners
    Kind("kill_listener", 5, "listener", (0.5, 6)),
    Kind("roll_listener", 4, "listener", (0, 3)),
    Kind("stop_listener", 3, "listener", (2, 30), allows_stale=True),
    Kind("cut_listener", 4, "listener"),
    Kind("hold_listener", 2, "listener", (2, 30), allows_stale=True),
    Kind("delay_listener", 2, "listener", (5, 15), (0.05, 0.8), allows_stale=True),
    # topics and groups
    Kind("unload", 4, "unloads", leaves_no_lease=True),
    Kind("grow", 2, "direction", leaves_no_lease=True),
    Kind("burst", 3, "direction", (0, 0), (500, 4000), leaves_no_lease=True),
    Kind("move_running", 3, "moves", (0, 0), (50, 2000), leaves_no_lease=True),
    Kind("move_stopped", 1, "direction", (0, 0), (50, 2000), leaves_no_lease=True),
    Kind("pause_group", 3, "pausable_group", (5, 25)),
    Kind("refuse_target", 4, "refusing", (5, 20), (0, 1)),
    Kind("remake_topic", 2, "deletable", (0, 12), (0, 4000)),
    Kind("truncate", 2, "truncatable", (0, 8)),
)
MOVES = ("pulsar", "rocketmq")
"""Systems whose groups can be moved while their members run."""
PAUSES_GROUPS = ("tubemq", "rocketmq")
"""Systems with a switch of administrators that lets a group, or all groups, read nothing."""
DELETES_TOPICS = ("pulsar", "rocketmq")
"""Systems whose topics can be deleted and created again at once. A TubeMQ Master takes minutes."""
TRUNCATES = ("pulsar",)
"""Systems with a call that deletes the messages of a topic that groups have not read."""
HEARTBEATS_S = (2, 13)
"""Heartbeats of TubeMQ clients, one of which is drawn: that of most tests, and the default."""


@dataclass(frozen=True, slots=True)
class Event:
    """A fault at a certain time."""

    at: float
    kind: Kind
    where: tuple[str, ...]
    """Names of the instance, cluster or direction, depending on the kind; for a link those of the instance and the cluster.

    If an instance ends meanwhile, the kind of end follows the name of the instance.
    """
    lasts: float
    amount: float

    def __str__(self) -> str:
        lasts = f" for {self.lasts:.1f} s" if self.kind.lasts[1] else ""
        amount = f", {self.amount:.3g}" if self.kind.amount[1] else ""
        return f"{self.at:6.1f} s  {self.kind.name} {' '.join(self.where)}{lasts}{amount}"


@dataclass(frozen=True, slots=True)
class Load:
    """The traffic of a direction."""

    kind: str
    """FULL, or SLOW: a few messages per second, so that most partitions have nothing to read for most of the time."""
    per_second: float
    """Rate of the producer, which sends to the partitions in turn."""
    backlog: int
    """Messages in each partition before the first instance starts."""
    rate: int | None
    """The option `rate` of the route in each instance. If it is below the producer's rate, all queues fill up."""
    first_s: float = 0.0
    """Delay of the producer. If there is no backlog, the group is registered before the first message."""
    idle_s: float = 0.0
    """Time for which the last partition gets only the backlog, while the others are busy."""

    def burst(self, amount: int) -> int:
        """Return the number of messages per partition of a burst of this amount at full load."""
        return amount if self.kind == FULL else max(1, amount // 100)

    def __str__(self) -> str:
        first = f", the first after {self.first_s:g} s" if self.first_s else ""
        idle = f", none in the last partition for {self.idle_s:g} s" if self.idle_s else ""
        return f"{self.backlog} per partition, then {self.per_second:g} per second{first}{idle}; rate: {self.rate or 'unlimited'}"


@dataclass(frozen=True, slots=True)
class Schedule:
    """Settings and faults of a run."""

    seed: int
    seconds: float
    loads: dict[str, Load]
    """The traffic, by direction."""
    instances: tuple[str, ...]
    """The instances of the run: both, or one that is not replaced, so that its state decides where a group continues."""
    second_instance: bool
    """True if all instances start at the beginning."""
    in_flight_bytes: dict[str, str]
    """The option `delivery.in_flight_bytes`, by instance."""
    shutdown_s: int
    orderly: bool
    heartbeat_s: int
    """The option `heartbeat` of TubeMQ clusters."""
    events: tuple[Event, ...]
    last: tuple[str, ...]
    """The instances that run at the end. With both, a partition that one instance lost and got back is tested too."""
    layouts: dict[str, Layout]
    """The layout of topics and partitions, by direction."""

    @property
    def directions(self) -> tuple[str, ...]:
        """The directions of the run."""
        return tuple(self.loads)

    @property
    def allows_stale(self) -> bool:
        """True if stale messages may be stored."""
        return any(event.kind.allows_stale for event in self.events)

    @property
    def leaves_no_lease(self) -> bool:
        """True if no lease, no rate limit and no slow heartbeat can delay messages after the last fault."""
        is_fast = self.heartbeat_s == HEARTBEATS_S[0] and all(load.rate is None for load in self.loads.values())
        return is_fast and all(event.kind.leaves_no_lease for event in self.events)


def draw(seed: int, seconds: float, directions: Sequence[str], only: Sequence[str] = (), load: str = "") -> Schedule:
    """Draw the schedule of a seed.

    `only` are the names of the kinds of faults to use; if it is empty, all are used. `load` is the kind of load of all
    directions; if it is empty, it is drawn for each.
    """
    rng = random.Random(f"{seed} {' '.join(directions)} {' '.join(only)} {load}")
    instances = rng.choice((INSTANCES, INSTANCES, INSTANCES[:1]))
    targets = {where: _possible_targets(where, directions, instances) for where in {kind.where for kind in KINDS}}
    kinds = [kind for kind in KINDS if targets[kind.where] and (not only or kind.name in only)]
    settings = {name: rng.choice(("64KiB", "1MiB", "32MiB")) for name in instances}
    second, orderly, shutdown_s = rng.random() < 0.7, rng.random() < 0.5, rng.choice((5, 30))
    heartbeat_s, pause_s = rng.choice(HEARTBEATS_S), rng.choice(PAUSES_S)
    loads = {
        direction: _draw_load(rng, kind, seconds, len(directions))
        for direction, kind in zip(directions, _draw_kinds(rng, load, len(directions)), strict=True)
    }
    layouts = {direction: _draw_layout(rng) for direction in directions}
    for direction in set(directions) & {
        *LISTENER_DIRECTIONS,
        *ROCKETMQ_LISTENER_DIRECTIONS,
    }:  # clients count partitions without gaps
        layouts[direction] = layouts[direction]._replace(at_one_broker=False)
    events = []
    at = FIRST_S
    while at < seconds:
        kind = rng.choices(kinds, [kind.weight for kind in kinds])[0]
        where = rng.choice(targets[kind.where])
        event = Event(at, kind, where, _skewed_to_short(rng, *kind.lasts), rng.uniform(*kind.amount))
        if kind.name != "grow" or layouts[where[0]].by != KEY:  # the target grows too, which moves keys to other partitions
            events.append(event)
        at += rng.expovariate(1 / pause_s)
    last = rng.choice((instances, instances, *((name,) for name in instances)))
    return Schedule(
        seed, seconds, loads, instances, second, settings, shutdown_s, orderly, heartbeat_s, tuple(events), last, layouts
    )


def _draw_kinds(rng: random.Random, kind: str, directions: int) -> list[str]:
    """Return the kind of load of each direction. At least one direction in three has the full load, so that much is sent."""
    if kind:
        return [kind] * directions
    kinds = [*[FULL] * -(-directions // 3), *rng.choices(LOADS, k=directions)][:directions]
    rng.shuffle(kinds)
    return kinds


def _draw_layout(rng: random.Random) -> Layout:
    by = rng.choice((IDENTITY, IDENTITY, MODULO, KEY))
    return Layout(by, at_one_broker=by != IDENTITY and rng.random() < 0.3)


def _draw_load(rng: random.Random, kind: str, seconds: float, directions: int) -> Load:
    if kind == FULL:
        per_second = min(rng.choice((200, 400, 800)), MAX_PER_SECOND // directions)
        return Load(kind, per_second, rng.choice((0, 1500, 5000)), rng.choice((None, None, 1000)))
    per_second = rng.choice((2, 4, 8))
    return Load(
        kind,
        per_second,
        rng.choice((0, 0, 5)),
        rng.choice((None, None, per_second // 2)),
        rng.choice((0.0, 12.0, 20.0)),
        rng.choice((0.0, 0.0, IDLE_SHARE * seconds)),
    )


def _skewed_to_short(rng: random.Random, least: float, most: float) -> float:
    return least + (most - least) * rng.random() ** 2


def _possible_targets(what: str, directions: Sequence[str], instances: Sequence[str]) -> list[tuple[str, ...]]:
    """Return the possible targets (`Event.where`) of faults with this kind of target."""
    servers = [cluster for cluster in clusters(directions) if not cluster.startswith("log")]
    sources = [cluster for cluster in servers if any(ends(direction)[0] == cluster for direction in directions)]
    apart = [each for each in directions if len(set(ends(each))) > 1 and not ends(each)[0].startswith("log")]
    plain = [direction for direction in directions if not AT_LISTENERS.intersection(ends(direction))]
    stays = [("a", "stays")]
    possible: dict[str, Sequence[tuple[str, ...]]] = {
        "instance": [(name,) for name in instances],
        "both": list(permutations(instances)) if len(instances) > 1 else [],
        "network": [*((name,) for name in instances), tuple(instances)] if servers else [],
        "link": [(name, cluster) for name in instances for cluster in servers],
        "system": [(cluster,) for cluster in servers],
        "directory": [(cluster,) for cluster in servers if cluster.startswith(("tubemq", "rocketmq"))],
        "limit": [(cluster,) for cluster in servers if cluster == "rocketmq"],
        "unloads": [(each, end) for each in directions for end in ("source", "target") if _cluster(each, end) == "pulsar"],
        "moves": _from(directions, MOVES),
        "pausable_group": _from(directions, PAUSES_GROUPS),
        "deletable": _from(directions, DELETES_TOPICS),
        "truncatable": _from(directions, TRUNCATES),
        "refusing": [(direction,) for direction in plain if ends(direction)[1] != "log"],
        # a pause of the log stops its producers too
        "pausable": [(direction,) for direction in directions if direction != WITHOUT_SERVERS],
        "pause": [(each, *end) for each in apart for end in [*stays, *_possible_ends(ends(each)[0], instances)]],
        "end": [(cluster, *end) for cluster in sources for end in _possible_ends(cluster, instances)],
        "missing": [(cluster, *end) for cluster in servers for end in [*stays, *_possible_ends(cluster, instances)]],
        "direction": [(direction,) for direction in plain],
        "listener": [(cluster,) for cluster in clusters(directions) if cluster in AT_LISTENERS],
    }
    return list(possible[what])


def _from(directions: Sequence[str], systems: Sequence[str]) -> list[tuple[str, ...]]:
    return [(direction,) for direction in directions if _cluster(direction, "source") in systems]


def _possible_ends(source: str, instances: Sequence[str]) -> list[tuple[str, str]]:
    """Return the ends of instances that may coincide with an orderly restart of a source's broker.

    A TubeMQ Broker that stops in order confirms the packs that are out. Only the instance that held them knows this, from its
    state, so none may end then if another one could take over.
    """
    may_end = source != "tubemq" or len(instances) == 1
    return [(name, end) for name in instances for end in ("rolls", "is_killed")] if may_end else []


def _cluster(direction: str, end: str) -> str:
    source, target = ends(direction)
    return source if end == "source" else target
