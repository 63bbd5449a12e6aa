"""A group's position and lag in each partition of a topic, and its members."""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mqbridge.adapter.cluster import Cluster
from mqbridge.adapter.operations import Member, Operations
from mqbridge.adapter.topics import Bounds
from mqbridge.cli.options.cluster_options import operations_of
from mqbridge.errors import ClusterError
from mqbridge.message import Position, format_position


@dataclass(frozen=True, slots=True)
class PartitionLag:
    """The bounds of a partition, and the group's state there; without a group, only the bounds.

    `bounds` is None if the system does not report them, `committed` if the group has no committed position, `lag` if the system
    does not count it, and `member` if the partition is assigned to no known member.
    """

    partition: str
    bounds: Bounds | None
    committed: Position | None = None
    lag: int | None = None
    member: str | None = None

    @property
    def message_count(self) -> int | None:
        """Number of messages in the partition; None if positions do not count messages."""
        return None if self.bounds is None else self.bounds.message_count

    @property
    def at_end(self) -> bool | None:
        """True if the group has read everything; None if its position or the bounds are unknown."""
        if self.committed is None or self.bounds is None:
            return None
        return self.committed >= self.bounds.next or self.lag == 0

    def as_dict(self) -> dict[str, Any]:
        """Return the group's state for JSON."""
        return {
            "partition": self.partition,
            "committed": position_text(self.committed),
            "next": None if self.bounds is None else position_text(self.bounds.next),
            "lag": self.lag,
            "at_end": self.at_end,
        }


def position_text(position: Position | None) -> str | None:
    """Format a position; None stays None."""
    return None if position is None else format_position(position)


def format_lag(lag: PartitionLag) -> str:
    """Format the lag for a table: `behind` if only that is known, `?` if nothing is, empty without a committed position."""
    if lag.committed is None:
        return ""
    if lag.lag is not None:
        return f"{lag.lag:,}"
    return {None: "?", True: "0", False: "behind"}[lag.at_end]


def sum_or_none(numbers: Iterable[int | None]) -> int | None:
    """Return the sum; None if one of the numbers is None (unknown)."""
    values = list(numbers)
    return None if None in values else sum(number for number in values if number is not None)


async def fetch_lag(
    cluster: Cluster, topic: str, group: str, names: Sequence[str], bounds: Mapping[str, Bounds]
) -> tuple[list[PartitionLag], list[Member]]:
    """Return the lag of each partition in `names`, and the group's members; `bounds` is by partition. Raises ClusterError."""
    operations = operations_of(cluster)
    committed, lags, members = await asyncio.gather(
        cluster.committed(topic, group), operations.backlog(topic, group), _members(operations, topic, group)
    )
    member_ids = {name: member.id for member in members for name in member.partitions or ()}
    lag = [PartitionLag(name, bounds.get(name), committed.get(name), lags.get(name), member_ids.get(name)) for name in names]
    return lag, members


async def _members(operations: Operations, topic: str, group: str) -> list[Member]:
    """Return the members; none if the request fails, so that the positions are shown anyway."""
    try:
        return await operations.members(topic, group)
    except ClusterError:
        return []
