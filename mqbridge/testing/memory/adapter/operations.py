"""Operations of a memory cluster: groups, backlogs, offsets."""

from collections.abc import Collection, Mapping
from typing import Protocol

from mqbridge.adapter.operations import Member, backlog_from_offsets, newest_from_offsets
from mqbridge.adapter.topics import Bounds
from mqbridge.errors import ClusterError, Failure
from mqbridge.message import Position
from mqbridge.testing.memory.broker import Broker, Progress, StoredPartition


class QueriedCluster(Protocol):
    """The members of a memory cluster that its operations use."""

    name: str
    broker: Broker

    def existing_partitions(self, topic: str) -> list[StoredPartition]:
        """Return the partitions of a topic. Raises ClusterError if it does not exist."""

    async def bounds(self, topic: str) -> Mapping[str, Bounds]:
        """Return the first and the next offset by partition."""

    async def committed(self, topic: str, group: str) -> Mapping[str, Position]:
        """Return by partition the offset below which the group has acknowledged everything."""


class MemoryOperations:
    """Operations of a memory cluster. It stores no times, so it finds no position by time."""

    backlog_unit = "messages"

    def __init__(self, cluster: QueriedCluster) -> None:
        self._cluster = cluster

    async def groups(self, topic: str) -> list[str]:
        """Return the groups that have an offset in the topic: a partition was assigned to them, or their offsets were moved."""
        self._cluster.existing_partitions(topic)
        return sorted({group for group, read_topic, _ in self._cluster.broker.progress if read_topic == topic})

    async def backlog(self, topic: str, group: str) -> Mapping[str, int]:
        """Return the number of messages from the group's offset to the end, by partition."""
        return backlog_from_offsets(await self._cluster.committed(topic, group), await self._cluster.bounds(topic))

    async def members(self, topic: str, group: str) -> list[Member]:
        """Return the members that subscribe to the topic, with their partitions."""
        self._cluster.existing_partitions(topic)
        assignments = self._cluster.broker.assignments(group, topic)
        return [Member(name, partitions=tuple(map(str, numbers))) for name, numbers in assignments.items()]

    async def move(self, topic: str, group: str, positions: Mapping[str, Position]) -> None:
        """Set the group's offsets. Raises ClusterError while it has members, and for unknown partitions."""
        self._cluster.existing_partitions(topic)
        if self._cluster.broker.assignments(group, topic):
            raise ClusterError(
                f"group {group!r} has members in topic {topic!r}: stop them, then move the group's offsets", Failure.FATAL
            )
        if unknown := positions.keys() - (await self._cluster.bounds(topic)).keys():
            raise ClusterError(f"topic {topic!r} has no partition {', '.join(sorted(unknown))}", Failure.FATAL)
        for name, (offset,) in positions.items():
            self._cluster.broker.progress[group, topic, int(name)] = Progress(offset)

    async def delete_group(self, topic: str, group: str) -> None:
        """Forget the group's offsets in the topic. Raises ClusterError while it has members."""
        self._cluster.existing_partitions(topic)
        if self._cluster.broker.assignments(group, topic):
            raise ClusterError(f"group {group!r} has members in topic {topic!r}: stop them, then delete the group", Failure.FATAL)
        for key in [key for key in self._cluster.broker.progress if key[:2] == (group, topic)]:
            del self._cluster.broker.progress[key]

    async def position_at(self, topic: str, time_ms: int) -> Mapping[str, Position]:
        """Raise ClusterError: a memory cluster stores no times."""
        raise ClusterError(
            f"memory cluster {self._cluster.name!r} does not store the time of messages; use earliest, latest or a position",
            Failure.FATAL,
        )

    async def newest(self, topic: str, count: int) -> Mapping[str, Position]:
        """Return the position `count` messages before the end of each partition, but not before its first message."""
        return newest_from_offsets(await self._cluster.bounds(topic), count)

    async def settings(self, topic: str) -> Mapping[str, str]:
        """Return no settings: memory topics have none."""
        self._cluster.existing_partitions(topic)
        return {}

    async def warnings(self, topic: str, group: str | None = None, planned: Collection[str] = ()) -> list[str]:
        """Return no warnings, also for `planned` groups: a memory cluster deletes no messages by age or size."""
        return []
