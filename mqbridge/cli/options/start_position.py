"""Start positions as people write them: an end of the topic, a position, or a time.

earliest, latest     the ends; also: beginning, first and end, last
12, 12:3             a position in one partition
now-15m, now+1h30m   a time before or after now
2026-11-21T14:00     a time in this machine's zone, or with Z or +02:00 in that zone
@1763733600000       ms since the epoch
"""

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from mqbridge.adapter.cluster import Cluster
from mqbridge.adapter.inbound import Start
from mqbridge.adapter.topics import Bounds, Topic
from mqbridge.cli.options.cluster_options import operations_of
from mqbridge.errors import ClusterError, ConfigError, Failure
from mqbridge.message import Position, format_position, parse_position

START_POSITION_HELP = "earliest, latest, a position such as 12 or 12:3, or a time: now-15m, 2026-11-21T14:00, @MS"
_ENDS = {
    "earliest": Start.EARLIEST,
    "beginning": Start.EARLIEST,
    "first": Start.EARLIEST,
    "latest": Start.LATEST,
    "end": Start.LATEST,
    "last": Start.LATEST,
}


@dataclass(frozen=True, slots=True)
class Timestamp:
    """A time, ms since the epoch."""

    ms: int


StartPosition = Start | Position | Timestamp
"""An end of the topic, a position in one partition, or a time."""


def parse_start_position(text: str, option: str) -> StartPosition:
    """Parse the value of `option`, whose name is part of the error. Raises ConfigError."""
    if text.lower() in _ENDS:
        return _ENDS[text.lower()]
    try:
        return parse_position(text)
    except ValueError:
        pass
    try:
        return Timestamp(parse_timestamp(text))
    except ValueError as error:
        raise ConfigError(f"{option} {text!r} is neither a position nor a time", hint=f"Use {START_POSITION_HELP}") from error


def parse_timestamp(text: str) -> int:
    """Return the time in ms since the epoch of `now-15m`, `2026-11-21T14:00` or `@1763733600000`. Raises ValueError."""
    if text.startswith("@"):
        return int(text[1:])
    if text.startswith("now"):
        from mqbridge.config.units import parse_duration

        offset = text.removeprefix("now")
        offset_s = parse_duration(offset[1:]) if offset else 0.0
        if offset and offset[0] not in "+-":
            raise ValueError(f"{text!r} is neither now-TIME nor now+TIME")
        return time.time_ns() // 1_000_000 + int(offset_s * 1000) * (-1 if offset.startswith("-") else 1)
    return int(datetime.fromisoformat(text).timestamp() * 1000)


def format_timestamp(ms: int) -> str:
    """Format a time in ms since the epoch for people, in UTC."""
    try:
        return datetime.fromtimestamp(ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S.") + f"{ms % 1000:03}Z"
    except (ValueError, OverflowError, OSError):
        return f"@{ms}"  # a producer may stamp any number


def select_partitions(topic: Topic, names_or_indexes: Iterable[str]) -> tuple[str, ...]:
    """Return the names of these partitions, in the order of the topic; all if none is given. Raises ConfigError."""
    indexes = {name: str(index) for index, name in enumerate(topic.partitions)}
    requested = set(names_or_indexes)
    if unknown := requested - indexes.keys() - set(indexes.values()):
        raise ConfigError(
            f"{topic.name!r} has no partition {', '.join(sorted(unknown))}", hint=f"It has {', '.join(topic.partitions)}"
        )
    return tuple(name for name, index in indexes.items() if not requested or name in requested or index in requested)


async def resolve_positions(
    cluster: Cluster, topic: str, names: Sequence[str], start: StartPosition, bounds: Mapping[str, Bounds]
) -> dict[str, Position]:
    """Return the position that `start` means in each of these partitions; none for a partition that ends before a given time.

    Raises ConfigError for a position that does not exist or is given for several partitions, and ClusterError if the system
    does not report the bounds or cannot search by time.
    """
    if isinstance(start, Timestamp):
        return await _at_time(cluster, topic, names, start)
    if not isinstance(start, Start):
        return {_only_partition(names, start): _within_bounds(start, names[0], bounds)}
    if missing := set(names) - bounds.keys():
        verb = "begins" if start is Start.EARLIEST else "ends"
        raise ClusterError(
            f"cluster {cluster.name!r} does not report where {topic}/{min(missing)} {verb}; give its admin_url", Failure.FATAL
        )
    return {name: bounds[name].first if start is Start.EARLIEST else bounds[name].next for name in names}


async def _at_time(cluster: Cluster, topic: str, names: Sequence[str], at: Timestamp) -> dict[str, Position]:
    """Return the first position at this time or later, of the partitions for which the cluster finds one."""
    positions = await operations_of(cluster).position_at(topic, at.ms)
    return {name: positions[name] for name in names if name in positions}


def _only_partition(names: Sequence[str], position: Position) -> str:
    """Return the only name. Raises ConfigError if there are several: the position belongs to one partition."""
    if len(names) != 1:
        raise ConfigError(f"the position {format_position(position)} needs one partition", hint="Name it with -p")
    return names[0]


def _within_bounds(position: Position, name: str, bounds: Mapping[str, Bounds]) -> Position:
    """Append zeros until the position is as long as the system's positions; check that it is in the partition or at its end.

    If the bounds are not known, return the position unchanged.
    """
    if name not in bounds:
        return position
    first, end = bounds[name].first, bounds[name].next
    padded = (*position, *(0 for _ in first[len(position) :]))
    if len(padded) != len(first) or not first <= padded <= end:
        raise ConfigError(
            f"partition {name} has no position {format_position(position)}",
            hint=f"It holds {format_position(first)} up to {format_position(end)}",
        )
    return padded
