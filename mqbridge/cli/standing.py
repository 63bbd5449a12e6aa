"""How far a group is in each partition of a topic, and who of it holds which."""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mqbridge.adapter.cluster import Cluster
from mqbridge.adapter.operations import Member, Operations
from mqbridge.adapter.topics import Bounds
from mqbridge.cli.reach import operations_of
from mqbridge.errors import ClusterError
from mqbridge.message import Position, format_position


@dataclass(frozen=True, slots=True)
class Standing:
    """One partition. `committed` is None where the group never was, `lag` where the system does not count it."""

    partition: str
    bounds: Bounds | None
    committed: Position | None = None
    lag: int | None = None
    member: str | None = None

    @property
    def held(self) -> int | None:
        """How many messages the partition has; None where positions do not count them."""
        return None if self.bounds is None else distance(self.bounds.first, self.bounds.next)

    @property
    def at_end(self) -> bool | None:
        """Whether the group has nothing before it; None where that is not known."""
        if self.committed is None or self.bounds is None:
            return None
        return self.committed >= self.bounds.next or self.lag == 0

    def as_dict(self) -> dict[str, Any]:
        """The group's side, for JSON."""
        return {
            "partition": self.partition,
            "committed": text_of(self.committed),
            "next": None if self.bounds is None else text_of(self.bounds.next),
            "lag": self.lag,
            "at_end": self.at_end,
        }


def distance(begin: Position, end: Position) -> int | None:
    """Messages between two positions; None where positions do not count messages (ledgers, packs)."""
    return end[0] - begin[0] if len(begin) == len(end) == 1 else None


def text_of(position: Position | None) -> str | None:
    """A position as text."""
    return None if position is None else format_position(position)


def lag_text(one: Standing) -> str:
    """The lag for a table: `?` where nothing is known, `behind` where only that is."""
    if one.committed is None:
        return ""
    if one.lag is not None:
        return f"{one.lag:,}"
    return {None: "?", True: "0", False: "behind"}[one.at_end]


def total(numbers: Iterable[int | None]) -> int | None:
    """Their sum; None when one of them is not known."""
    known = list(numbers)
    return None if None in known else sum(number for number in known if number is not None)


async def standing(
    cluster: Cluster, topic: str, group: str, names: Sequence[str], bounds: Mapping[str, Bounds]
) -> tuple[list[Standing], list[Member]]:
    """Each of these partitions, and the group's members. Raises ClusterError."""
    operations = operations_of(cluster)
    committed, lags, members = await asyncio.gather(
        cluster.committed(topic, group), operations.backlog(topic, group), _members(operations, topic, group)
    )
    holder = {name: member.id for member in members for name in member.partitions or ()}
    found = [Standing(name, bounds.get(name), committed.get(name), lags.get(name), holder.get(name)) for name in names]
    return found, members


async def _members(operations: Operations, topic: str, group: str) -> list[Member]:
    """Positions are worth showing even where nobody says who is there (a cluster may forbid it)."""
    try:
        return await operations.members(topic, group)
    except ClusterError:
        return []
