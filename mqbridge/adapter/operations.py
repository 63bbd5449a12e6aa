"""Requests that people make to a cluster: groups, lag, members, positions, settings."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from mqbridge.adapter.topics import Bounds
from mqbridge.message import Position


@dataclass(frozen=True, slots=True)
class Member:
    """A consumer of a group: its name in the group, its address, and the partitions that it holds.

    `address` is empty and `partitions` None if the system does not tell.
    """

    id: str
    address: str = ""
    partitions: tuple[str, ...] | None = None


class Operations(Protocol):
    """Requests about a cluster's groups and topics. Raise ClusterError (FATAL if the cluster does not support it)."""

    backlog_unit: str
    """The unit of `backlog`."""

    async def groups(self, topic: str) -> list[str]:
        """Return the groups that consume the topic."""

    async def backlog(self, topic: str, group: str) -> Mapping[str, int]:
        """Return the group's backlog by partition name, in `backlog_unit`, as far as the system can tell."""

    async def members(self, topic: str, group: str) -> list[Member]:
        """Return the current consumers of this group; empty if there are none, or if the group does not exist."""

    async def move(self, topic: str, group: str, positions: Mapping[str, Position]) -> None:
        """Move a group to these positions, by partition name, backward or forward.

        A missing group is created. Other partitions keep their position. A system that stores positions of whole entries takes
        the beginning of the entry. Raises ClusterError (FATAL) while members consume: they would overwrite or miss the move.
        """

    async def position_at(self, topic: str, time_ms: int) -> Mapping[str, Position]:
        """Return, by partition name, the position of the first message stored at this time or later, else the next position."""

    async def newest(self, topic: str, count: int) -> Mapping[str, Position]:
        """Return, by partition name, a position near the end with at least `count` messages after it, or the first position.

        There may be fewer messages after it if the system cannot count back.
        """

    async def settings(self, topic: str) -> Mapping[str, str]:
        """Return the topic's settings in the system's own words, for people; empty if there are none."""

    async def warnings(self, topic: str, group: str | None = None, planned: Collection[str] = ()) -> list[str]:
        """Return what deletes messages of the topic before they are consumed: one sentence each, which ends with a remedy.

        With a `group` the topic is a source: what deletes messages that this group has not read yet. Without, it is a target:
        what deletes messages that are written there; the topic may not exist yet, and `planned` are the groups that are created
        with it. Changes nothing. A sentence stays the same as long as nothing changes: it is logged when it is new.
        """


@runtime_checkable
class GroupMaker(Protocol):
    """Operations of a system whose topics keep messages for their groups, and may delete them if there is no group.

    Only for such a system may a target's `create` name subscriptions.
    """

    async def create_group(self, topic: str, group: str) -> None:
        """Create the group, at the first message, in each partition where it is missing; do not move it elsewhere."""

    def check_create_group(self) -> None:
        """Raise what `create_group` would raise for any topic with this configuration. Raises ClusterError (FATAL)."""


@runtime_checkable
class Deduplicating(Protocol):
    """Operations of a system that can deduplicate the sends of one `OutboundSpec.sender`, if the topic's settings enable it."""

    async def deduplicates(self, topic: str) -> bool:
        """Return True if deduplication is enabled for the existing topic. Raises ClusterError."""

    async def deduplicate(self, topic: str) -> None:
        """Enable deduplication for the existing topic. Raises ClusterError."""


def dense_backlog(committed: Mapping[str, Position], bounds: Mapping[str, Bounds]) -> dict[str, int]:
    """`Operations.backlog` for a system whose positions are offsets that count messages.

    Messages that retention dropped before the group read them do not count.
    """
    return {
        name: max(0, bounds[name].next[0] - max(position[0], bounds[name].first[0]))
        for name, position in committed.items()
        if name in bounds
    }


def dense_newest(bounds: Mapping[str, Bounds], count: int) -> dict[str, Position]:
    """`Operations.newest` for a system whose positions are offsets that count messages."""
    return {name: (max(one.first[0], one.next[0] - count),) for name, one in bounds.items()}
