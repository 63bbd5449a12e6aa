"""Administrative requests to a cluster: groups, lag, members, positions, settings."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from mqbridge.adapter.topics import Bounds
from mqbridge.message import Position


@dataclass(frozen=True, slots=True)
class Member:
    """A consumer of a group: its name in the group, its address, and its assigned partitions.

    If the system does not report them, `address` is empty and `partitions` is None.
    """

    id: str
    address: str = ""
    partitions: tuple[str, ...] | None = None


class Operations(Protocol):
    """Requests about a cluster's groups and topics. Each raises ClusterError, FATAL if the cluster does not support it."""

    backlog_unit: str
    """The unit of `backlog`, such as `messages` or `entries`."""

    async def groups(self, topic: str) -> list[str]:
        """Return the groups that consume the topic."""

    async def backlog(self, topic: str, group: str) -> Mapping[str, int]:
        """Return the group's backlog by partition name, in `backlog_unit`; partitions with an unknown backlog are left out."""

    async def members(self, topic: str, group: str) -> list[Member]:
        """Return the current consumers of this group; empty if it has none or does not exist."""

    async def move(self, topic: str, group: str, positions: Mapping[str, Position]) -> None:
        """Move a group to these positions, by partition name, backward or forward.

        A missing group is created. Partitions that are not named keep their position. A system that stores only positions of
        whole entries moves to the beginning of the entry. Raises ClusterError (FATAL) while members consume: they would
        overwrite the new positions, or continue from their own.
        """

    async def position_at(self, topic: str, time_ms: int) -> Mapping[str, Position]:
        """Return the position of the first message stored at this time (ms since the epoch) or later, by partition name.

        For a partition without such a message, this is the position of its next message.
        """

    async def newest(self, topic: str, count: int) -> Mapping[str, Position]:
        """Return, by partition name, a position that is followed by about `count` messages, the newest ones.

        It is the first position if the partition has fewer messages. More than `count` messages may follow if an entry contains
        several, and fewer on a system that cannot count backward exactly.
        """

    async def settings(self, topic: str) -> Mapping[str, str]:
        """Return the topic's settings by the system's own names, for display; empty if there are none."""

    async def warnings(self, topic: str, group: str | None = None, planned: Collection[str] = ()) -> list[str]:
        """Return warnings about retention that deletes messages of the topic before they are consumed.

        With a `group`, the topic is a source, and the warnings concern messages that this group has not read. Without, it is a
        target, and they concern messages that are written to it; the topic may not exist yet, and `planned` are the groups that
        are created with it. Each warning is one sentence that ends with a remedy. Its text must not change while its cause stays
        the same: the gateway logs each new text once. Changes nothing in the cluster.
        """


@runtime_checkable
class GroupMaker(Protocol):
    """Operations of a system that keeps messages for existing groups, and may delete them if a topic has no group.

    A target's option `create` may name subscriptions only if its system has these operations.
    """

    async def create_group(self, topic: str, group: str) -> None:
        """Create the group at the first message of each partition where it is missing; where it exists, do not move it."""

    def check_create_group(self) -> None:
        """Raise ClusterError (FATAL) if `create_group` would fail for every topic with this configuration."""


@runtime_checkable
class GroupRemover(Protocol):
    """Operations of a system that can forget a group."""

    async def delete_group(self, topic: str, group: str) -> None:
        """Delete what the cluster keeps of the group in this topic; do nothing if there is nothing.

        Raises ClusterError, FATAL while the group has members.
        """


@runtime_checkable
class ReadPermitter(Protocol):
    """Operations of a system in which a topic has a permission that may forbid everybody to read it."""

    async def permit_reading(self, topic: str) -> list[str]:
        """Permit reading wherever it is forbidden; return the brokers at which it was. Raises ClusterError."""


@runtime_checkable
class ReportsUnprotected(Protocol):
    """Operations of a system that may delete messages of a topic before anybody has read them, whatever their age."""

    async def why_unprotected(self, topic: str, planned: Collection[str] = ()) -> str | None:
        """Return why messages that are written to the topic are deleted before anybody has read them, and a remedy.

        None if they are kept, or if the client cannot know it; `Operations.warnings` then says so. The topic may not exist yet;
        `planned` are groups that will exist. The text does not change while its cause stays the same. Raises ClusterError, FATAL
        if this client may not read it.
        """


@runtime_checkable
class Deduplicating(Protocol):
    """Operations of a system that can store repeated sends of a named producer once, if deduplication is on for the topic.

    The producer's name is `OutboundSpec.sender`.
    """

    async def deduplicates(self, topic: str) -> bool:
        """Return True if deduplication is enabled for the existing topic. Raises ClusterError."""

    async def deduplicate(self, topic: str) -> None:
        """Enable deduplication for the existing topic. Raises ClusterError."""


def backlog_from_offsets(committed: Mapping[str, Position], bounds: Mapping[str, Bounds]) -> dict[str, int]:
    """Implement `Operations.backlog` for a system whose positions are offsets that count messages.

    Messages that retention deleted before the group read them are not counted.
    """
    return {
        name: max(0, bounds[name].count_between(max(position, bounds[name].first), bounds[name].next) or 0)
        for name, position in committed.items()
        if name in bounds
    }


def newest_from_offsets(bounds: Mapping[str, Bounds], count: int) -> dict[str, Position]:
    """Implement `Operations.newest` for a system whose positions are offsets that count messages."""
    return {name: (max(limits.first[0], limits.next[0] - count),) for name, limits in bounds.items()}
