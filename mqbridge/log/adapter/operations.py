"""What people ask of a log's groups and topics: who is a member, moving a group, finding a time."""

import sqlite3
from collections.abc import Collection, Mapping, Sequence
from typing import Protocol

from mqbridge.adapter.operations import Member, backlog_from_offsets, newest_from_offsets
from mqbridge.adapter.topics import Bounds
from mqbridge.config.units import format_duration
from mqbridge.errors import ClusterError, Failure
from mqbridge.log.store import groups, topics
from mqbridge.log.store.database import Store, clock_ms, now_ms
from mqbridge.log.store.settings import LogSettings
from mqbridge.log.store.topics import PartitionRow
from mqbridge.message import Position
from mqbridge.retention import LATE, group_warnings, target_warnings


class Topics(Protocol):
    """The cluster that is asked."""

    async def existing(self, topic: str) -> Sequence[PartitionRow]:
        """The partitions of a topic. Raises ClusterError."""

    async def bounds(self, topic: str) -> Mapping[str, Bounds]:
        """First and next offset by partition."""

    async def committed(self, topic: str, group: str) -> Mapping[str, Position]:
        """The group's offsets."""


class LogOperations:
    """All of it is in the file."""

    backlog_unit = "messages"

    def __init__(self, store: Store, topics_: Topics) -> None:
        self._store, self._topics = store, topics_

    async def groups(self, topic: str) -> list[str]:
        """The groups that ever joined."""
        await self._topics.existing(topic)
        return await self._store.read(topics.groups, topic)

    async def backlog(self, topic: str, group: str) -> Mapping[str, int]:
        """Messages from the group's offsets to the ends."""
        return backlog_from_offsets(await self._topics.committed(topic, group), await self._topics.bounds(topic))

    async def members(self, topic: str, group: str) -> list[Member]:
        """The living members, of this process and others, with their leases."""
        await self._topics.existing(topic)
        return await self._store.read(find_members, topic, group)

    async def move(self, topic: str, group: str, positions: Mapping[str, Position]) -> None:
        """Set the group's offsets."""
        await self._topics.existing(topic)
        offsets = {name: position[0] for name, position in positions.items()}
        await self._store.write(move_group, topic, group, offsets)

    async def position_at(self, topic: str, time_ms: int) -> Mapping[str, Position]:
        """By the time of appending."""
        await self._topics.existing(topic)
        found = await self._store.read(offsets_at, topic, time_ms)
        return {name: (offset,) for name, offset in found.items()}

    async def newest(self, topic: str, count: int) -> Mapping[str, Position]:
        """So many before the end."""
        return newest_from_offsets(await self._topics.bounds(topic), count)

    async def settings(self, topic: str) -> Mapping[str, str]:
        """The limits of the log, which hold for every topic of it."""
        await self._topics.existing(topic)
        return limits(self._store.config)

    async def warnings(self, topic: str, group: str | None = None, planned: Collection[str] = ()) -> list[str]:
        """Batches older than `retention` are dropped, read or not."""
        kept_s = self._store.config.retention
        if kept_s is None:
            return []
        kept = f"retention={format_duration(kept_s)}"
        if group is None:
            return target_warnings(topic, kept, kept_s)
        late = await self.position_at(topic, now_ms() - round(kept_s * LATE * 1000))
        committed, bounds = await self._topics.committed(topic, group), await self._topics.bounds(topic)
        return group_warnings(topic, group, kept, committed, bounds, late)


def find_members(connection: sqlite3.Connection, topic: str, group: str) -> list[Member]:
    """The living members of a group with the partitions of the topic that each has leased."""
    who = f"m.grp = ?1 AND t.name = ?3 AND {groups.IS_ALIVE}"
    query = f"SELECT m.id FROM member m JOIN topic t ON t.id = m.topic WHERE {who} ORDER BY m.id"  # noqa: S608 - all of it is ours
    alive = connection.execute(query, (group, clock_ms(), topic)).fetchall()
    leases = connection.execute(
        "SELECT l.owner, p.number FROM lease l JOIN partition p ON p.id = l.partition JOIN topic t ON t.id = p.topic"
        " WHERE l.grp = ? AND t.name = ? ORDER BY p.number",
        (group, topic),
    ).fetchall()
    return [Member(one, "", tuple(str(number) for owner, number in leases if owner == one)) for (one,) in alive]


def move_group(connection: sqlite3.Connection, topic: str, group: str, offsets: Mapping[str, int]) -> None:
    """Set the group's offsets by partition name. Raises ClusterError while it has members: they would commit over it.

    A member that slept through its lease loses it here, or it would still commit when it wakes.
    """
    if present := find_members(connection, topic, group):
        names = ", ".join(member.id for member in present)
        raise ClusterError(f"group {group!r} is being consumed by {names}: stop it, then move it", Failure.FATAL)
    ids = {str(row.number): row.id for row in topics.partitions(connection, topic)}
    if unknown := offsets.keys() - ids.keys():
        raise ClusterError(f"topic {topic!r} has no partition {', '.join(sorted(unknown))}", Failure.FATAL)
    groups.drop_dead(connection, group, clock_ms())
    connection.executemany(
        "INSERT OR REPLACE INTO position VALUES (?, ?, ?)", [(group, ids[name], offset) for name, offset in offsets.items()]
    )


def offsets_at(connection: sqlite3.Connection, topic: str, time_ms: int) -> dict[str, int]:
    """By partition name the first offset that was appended at this time or later, else the next one."""
    query = "SELECT min(base) FROM batch WHERE partition = ? AND appended_ms >= ?"
    found: dict[str, int] = {}
    for row in topics.partitions(connection, topic):
        (base,) = connection.execute(query, (row.id, time_ms)).fetchone()
        found[str(row.number)] = row.next if base is None else base
    return found


def limits(config: LogSettings) -> dict[str, str]:
    """The limits that hold for every topic of the log."""
    said = config.model_dump(mode="json", include={"synchronous", "retention", "retention_bytes", "max_message_bytes"})
    return {name: "none" if value is None else str(value) for name, value in said.items()}
