"""What people ask of a cluster: groups, lag, members, positions, settings."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from mqbridge.adapter.topics import Bounds
from mqbridge.message import Position


@dataclass(frozen=True, slots=True)
class Member:
    """Who consumes as part of a group: its name there, its address, and the partitions that it holds.

    `address` is empty and `partitions` None where the system does not tell.
    """

    id: str
    address: str = ""
    partitions: tuple[str, ...] | None = None


class Operations(Protocol):
    """What people ask of a cluster's groups and topics. Raises ClusterError (FATAL where the cluster cannot do it)."""

    backlog_unit: str
    """What `backlog` counts."""

    async def groups(self, topic: str) -> list[str]:
        """The groups that consume the topic."""

    async def backlog(self, topic: str, group: str) -> Mapping[str, int]:
        """How much the group has before it by partition name, in `backlog_unit`; where the system can tell."""

    async def members(self, topic: str, group: str) -> list[Member]:
        """Who consumes the topic as this group now; empty when nobody does, or the group is not there."""

    async def move(self, topic: str, group: str, positions: Mapping[str, Position]) -> None:
        """Let a group go on at these positions, by partition name, back or forth.

        A group that is not there is made. Other partitions stay where they are. A system that keeps positions of whole entries
        takes the beginning of the entry. Raises ClusterError (FATAL) while members consume: they would write over it, or miss it.
        """

    async def position_at(self, topic: str, time_ms: int) -> Mapping[str, Position]:
        """The first message stored at this time or later by partition name, else the next one."""

    async def newest(self, topic: str, count: int) -> Mapping[str, Position]:
        """A position by partition name with at least `count` messages behind it, near the end, or the first position.

        There may be fewer behind it where the system cannot count back.
        """

    async def settings(self, topic: str) -> Mapping[str, str]:
        """How the topic is set up, in the system's own words, for people; empty where there is nothing to say."""

    async def warnings(self, topic: str, group: str | None = None, planned: Collection[str] = ()) -> list[str]:
        """What deletes messages of the topic before they are consumed: a sentence each, which ends with what to do about it.

        With a `group`, of a source: what threatens messages that this group has still to read. Without, of a target: what
        threatens messages that are written there; the topic may be missing yet, and `planned` are the groups that are made with
        it. Only looks. A sentence stays the same as long as nothing changes: it is logged when it is new.
        """


@runtime_checkable
class GroupMaker(Protocol):
    """Operations of a system in which a topic keeps messages for the groups that it has, and may delete them without any.

    Only there a target's `create` may name subscriptions.
    """

    async def create_group(self, topic: str, group: str) -> None:
        """Make the group, at the first message, in each partition where it is missing; elsewhere it stays where it is."""

    def check_create_group(self) -> None:
        """Raise what `create_group` would raise for any topic, as the cluster is configured. Raises ClusterError (FATAL)."""


@runtime_checkable
class Deduplicating(Protocol):
    """Operations of a system that can drop what one `OutboundSpec.sender` sends twice, where a topic is set up so."""

    async def deduplicates(self, topic: str) -> bool:
        """Whether the existing topic is set up so. Raises ClusterError."""

    async def deduplicate(self, topic: str) -> None:
        """Set the existing topic up so. Raises ClusterError."""


def dense_backlog(committed: Mapping[str, Position], bounds: Mapping[str, Bounds]) -> dict[str, int]:
    """`Operations.backlog` of a system whose positions are offsets that count messages.

    What retention has dropped before the group read it is not before it any more.
    """
    return {
        name: max(0, bounds[name].next[0] - max(position[0], bounds[name].first[0]))
        for name, position in committed.items()
        if name in bounds
    }


def dense_newest(bounds: Mapping[str, Bounds], count: int) -> dict[str, Position]:
    """`Operations.newest` of such a system."""
    return {name: (max(one.first[0], one.next[0] - count),) for name, one in bounds.items()}
