"""Where in a topic a person means: its ends, a position, or a time.

earliest, latest     the ends (beginning and end say the same)
12, 12:3             a position, of one partition
now-15m, now+1h30m   so long ago, or ahead
2026-11-21T14:00     in the zone of this machine; with Z or +02:00 in that one
@1763733600000       ms since the epoch
"""

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from mqbridge.adapter.cluster import Cluster
from mqbridge.adapter.inbound import Start
from mqbridge.adapter.topics import Bounds, Topic
from mqbridge.cli.reach import operations_of
from mqbridge.config.units import parse_duration
from mqbridge.errors import ClusterError, ConfigError, Failure
from mqbridge.message import Position, format_position, parse_position

HELP = "earliest, latest, a position such as 12 or 12:3, or a time: now-15m, 2026-11-21T14:00, @MS"
_ENDS = {
    "earliest": Start.EARLIEST,
    "beginning": Start.EARLIEST,
    "first": Start.EARLIEST,
    "latest": Start.LATEST,
    "end": Start.LATEST,
    "last": Start.LATEST,
}


@dataclass(frozen=True, slots=True)
class Moment:
    """A time, ms since the epoch."""

    ms: int


Place = Start | Position | Moment


def parse_place(text: str, option: str) -> Place:
    """Read one. Raises ConfigError."""
    if text.lower() in _ENDS:
        return _ENDS[text.lower()]
    try:
        return parse_position(text)
    except ValueError:
        pass
    try:
        return Moment(parse_moment(text))
    except ValueError as error:
        raise ConfigError(f"{option} {text!r} is no place", hint=f"Use {HELP}") from error


def parse_moment(text: str) -> int:
    """The time, ms since the epoch, of `now-15m`, `2026-11-21T14:00` or `@1763733600000`. Raises ValueError."""
    if text.startswith("@"):
        return int(text[1:])
    if text.startswith("now"):
        rest = text[3:]
        ago = parse_duration(rest[1:]) if rest else 0.0
        if rest and rest[0] not in "+-":
            raise ValueError(f"{text!r} is neither now-TIME nor now+TIME")
        return time.time_ns() // 1_000_000 + int(ago * 1000) * (-1 if rest[:1] == "-" else 1)
    return int(datetime.fromisoformat(text).timestamp() * 1000)


def format_moment(ms: int) -> str:
    """A time as people read it, in UTC."""
    try:
        return datetime.fromtimestamp(ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S.") + f"{ms % 1000:03}Z"
    except (ValueError, OverflowError, OSError):
        return f"@{ms}"  # a producer may stamp anything


def pick(topic: Topic, wanted: Iterable[str]) -> tuple[str, ...]:
    """The names of the partitions that are named or numbered, all if none is. Raises ConfigError."""
    known = {name: str(index) for index, name in enumerate(topic.partitions)}
    asked = set(wanted)
    if unknown := asked - known.keys() - set(known.values()):
        raise ConfigError(
            f"{topic.name!r} has no partition {', '.join(sorted(unknown))}", hint=f"It has {', '.join(topic.partitions)}"
        )
    return tuple(name for name, index in known.items() if not asked or name in asked or index in asked)


async def find(
    cluster: Cluster, topic: str, names: Sequence[str], place: Place, bounds: Mapping[str, Bounds]
) -> dict[str, Position]:
    """The place in each of these partitions. Raises ConfigError, and ClusterError where the system cannot tell."""
    if isinstance(place, Moment):
        return await _at_time(cluster, topic, names, place)
    if not isinstance(place, Start):
        return {_the_one(names, place): _inside(place, names[0], bounds)}
    if missing := set(names) - bounds.keys():
        where = "begins" if place is Start.EARLIEST else "ends"
        raise ClusterError(
            f"cluster {cluster.name!r} does not say where {topic}/{min(missing)} {where}: give its admin_url", Failure.FATAL
        )
    return {name: bounds[name].first if place is Start.EARLIEST else bounds[name].next for name in names}


async def _at_time(cluster: Cluster, topic: str, names: Sequence[str], place: Moment) -> dict[str, Position]:
    found = await operations_of(cluster).position_at(topic, place.ms)
    return {name: found[name] for name in names if name in found}


def _the_one(names: Sequence[str], position: Position) -> str:
    if len(names) != 1:
        raise ConfigError(f"the position {format_position(position)} is of one partition", hint="Name it with -p")
    return names[0]


def _inside(position: Position, name: str, bounds: Mapping[str, Bounds]) -> Position:
    """The position with as many parts as the system's have, checked against the bounds where they are known."""
    if name not in bounds:
        return position
    first, end = bounds[name].first, bounds[name].next
    whole = (*position, *(0 for _ in first[len(position) :]))
    if len(whole) != len(first) or not first <= whole <= end:
        raise ConfigError(
            f"partition {name} has no position {format_position(position)}",
            hint=f"It holds {format_position(first)} up to {format_position(end)}",
        )
    return whole
