"""Operations on a log for commands and pages: list groups and members, move a group, find offsets by time."""

from collections.abc import Collection, Mapping, Sequence
from typing import Protocol

from mqbridge.adapter.operations import Member
from mqbridge.adapter.tools.retention import LATE_FRACTION, group_warnings, target_warnings
from mqbridge.adapter.topics import Bounds
from mqbridge.config.units import format_duration
from mqbridge.errors import ClusterError, Failure
from mqbridge.log.store import groups, jumps, topics
from mqbridge.log.store.clocks import clock_ms, now_ms
from mqbridge.log.store.connection import Connection
from mqbridge.log.store.database import Store
from mqbridge.log.store.groups import Observer
from mqbridge.log.store.names import check_name
from mqbridge.log.store.positions import write_positions
from mqbridge.log.store.read import check_offset
from mqbridge.log.store.schema import partition_id
from mqbridge.log.store.settings import LogSettings
from mqbridge.log.store.topics import PartitionRow
from mqbridge.message import Position


class LogQueries(Protocol):
    """The methods of a log cluster that its operations call."""

    async def existing_partitions(self, topic: str) -> Sequence[PartitionRow]:
        """Return the partitions of a topic. Raises ClusterError if it does not exist."""

    async def bounds(self, topic: str) -> Mapping[str, Bounds]:
        """Return the first, next and last offset of each partition."""

    async def committed(self, topic: str, group: str) -> Mapping[str, Position]:
        """Return the group's committed offsets."""


class LogOperations:
    """Operations of a log. All results are read from its file, so they include the members and messages of other processes."""

    backlog_unit = "messages"

    def __init__(self, store: Store, cluster: LogQueries) -> None:
        self._store, self._cluster = store, cluster

    async def groups(self, topic: str) -> list[str]:
        """Return the groups that have a committed offset in the topic: joining commits the start offset of each partition."""
        await self._cluster.existing_partitions(topic)
        return await self._store.read(topics.groups, topic)

    async def backlog(self, topic: str, group: str) -> Mapping[str, int]:
        """Return the number of messages between the group's offset and the end of each partition."""
        committed = await self._cluster.committed(topic, group)
        rows = {str(row.number): row for row in await self._cluster.existing_partitions(topic)}
        return {
            name: jumps.messages_between(rows[name].jumps, max(offset, rows[name].first), rows[name].next)
            for name, (offset,) in committed.items()
        }

    async def members(self, topic: str, group: str) -> list[Member]:
        """Return the members that have not expired, of this process and of others, with their partitions."""
        await self._cluster.existing_partitions(topic)
        return await self._store.read(find_members, self._store.observer, topic, group)

    async def move(self, topic: str, group: str, positions: Mapping[str, Position]) -> None:
        """Set the group's committed offsets. Raises ClusterError while the group has members."""
        await self._cluster.existing_partitions(topic)
        check_name("group", group)
        offsets = {name: position[0] for name, position in positions.items()}
        for offset in offsets.values():
            check_offset(offset)
        await self._store.write(move_group, self._store.observer, topic, group, offsets)

    async def delete_group(self, topic: str, group: str) -> None:
        """Forget the group's committed offsets in the topic. Raises ClusterError while the group has members that read it."""
        await self._cluster.existing_partitions(topic)
        check_name("group", group)
        await self._store.write(delete_group, self._store.observer, topic, group)

    async def position_at(self, topic: str, time_ms: int) -> Mapping[str, Position]:
        """Return the first offset appended at this time or later, by partition."""
        await self._cluster.existing_partitions(topic)
        offsets = await self._store.read(offsets_at, topic, time_ms)
        return {name: (offset,) for name, offset in offsets.items()}

    async def newest(self, topic: str, count: int) -> Mapping[str, Position]:
        """Return the offset `count` messages before the end of each partition, or its first offset if it has fewer messages."""
        rows = await self._cluster.existing_partitions(topic)
        return {str(row.number): (jumps.newest(row.jumps, row.first, row.next, count),) for row in rows}

    async def settings(self, topic: str) -> Mapping[str, str]:
        """Return those settings of the log that users of a topic need; they apply to all its topics."""
        await self._cluster.existing_partitions(topic)
        return _shown_settings(self._store.config)

    async def warnings(self, topic: str, group: str | None = None, planned: Collection[str] = ()) -> list[str]:
        """Warn about `retention`, which drops old batches, read or not.

        With a `group`, the warning concerns messages that it has not read; without, messages that are written to the topic.
        `planned` (groups that are created with the topic) is not used.
        """
        retention_s = self._store.config.retention
        if retention_s is None:
            return []
        setting = f"retention={format_duration(retention_s)}"
        if group is None:
            return target_warnings(topic, setting, retention_s)
        # LATE_FRACTION is one half.
        half_age_positions = await self.position_at(topic, now_ms() - round(retention_s * LATE_FRACTION * 1000))
        committed, bounds = await self._cluster.committed(topic, group), await self._cluster.bounds(topic)
        return group_warnings(topic, group, setting, committed, bounds, half_age_positions)


def find_members(connection: Connection, observer: Observer, topic: str, group: str) -> list[Member]:
    """Return the living members of a group that read the topic, each with its leased partitions of it."""
    row = topics.find_topic(connection, topic)
    if row is None:
        return []
    living = groups.living_members(connection, observer, row.id, group)
    begin = partition_id(row.id, 0)
    leases = connection.execute(
        "SELECT owner, partition FROM lease WHERE grp = ? AND partition >= ? AND partition < ? ORDER BY partition",
        (group, begin, begin + row.partitions),
    ).fetchall()
    return [Member(id_, "", tuple(str(partition - begin) for owner, partition in leases if owner == id_)) for id_ in living]


def move_group(connection: Connection, observer: Observer, topic: str, group: str, offsets: Mapping[str, int]) -> None:
    """Set the group's offsets by partition name. Raises ClusterError while it has members, whose commits would replace them.

    Expired members lose their leases here. Otherwise a member whose process was suspended could still commit when it resumes.
    """
    _refuse_members(connection, observer, topic, group, "move the group's offsets")
    rows = {str(row.number): row for row in topics.partitions(connection, topic)}
    if unknown := offsets.keys() - rows.keys():
        raise ClusterError(f"topic {topic!r} has no partition {', '.join(sorted(unknown))}", Failure.FATAL)
    groups.drop_expired(connection, group, observer, clock_ms())
    write_positions(connection, group, [(rows[name].id, offset) for name, offset in offsets.items()])


def delete_group(connection: Connection, observer: Observer, topic: str, group: str) -> None:
    """Delete what the log has of a group in this topic. Raises ClusterError while it has members that read the topic."""
    _refuse_members(connection, observer, topic, group, "delete the group")
    row = topics.find_topic(connection, topic)
    if row is not None:
        groups.forget(connection, group, row.id)


def _refuse_members(connection: Connection, observer: Observer, topic: str, group: str, action: str) -> None:
    """Raise ClusterError (FATAL) while the group has members that read the topic; `action` is what the user can do then."""
    if members := find_members(connection, observer, topic, group):
        names = ", ".join(member.id for member in members)
        raise ClusterError(
            f"group {group!r} has members ({names}): stop them, then {action}; a member that was killed in another container, or"
            " before this machine was restarted, counts until its lease has passed",
            Failure.FATAL,
        )


def offsets_at(connection: Connection, topic: str, time_ms: int) -> dict[str, int]:
    """Return the first offset appended at this time or later, by partition name; the next offset if there is none.

    If offsets before it were left out, it is the first of these: a group that has read everything before them may be there.
    """
    query = "SELECT min(base) FROM batch WHERE partition = ? AND appended_ms >= ?"
    offsets: dict[str, int] = {}
    for row in topics.partitions(connection, topic):
        (base,) = connection.execute(query, (row.id, time_ms)).fetchone()
        offsets[str(row.number)] = jumps.before_jumps(row.jumps, row.next if base is None else base)
    return offsets


def _shown_settings(config: LogSettings) -> dict[str, str]:
    """Return the settings of durability, retention and message size, as text."""
    fields = config.model_dump(
        mode="json", include={"synchronous", "retention", "retention_bytes", "max_bytes", "max_message_bytes"}
    )
    return {name: "none" if value is None else str(value) for name, value in fields.items()}
