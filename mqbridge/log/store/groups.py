"""Groups: members, leases of partitions, and committed offsets. The caller of each function holds a write transaction.

Heartbeats renew a member's rows. Only a living member has leases, and only the owner of a lease can commit. So a process that
was suspended for longer than its lease can neither commit nor keep a partition, whatever it assumes.
Partitions are assigned round robin to the members in the order of their ids. Every member computes the same assignment, so no
coordinator is needed.
"""

import sqlite3
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from mqbridge.adapter.inbound import Start
from mqbridge.log.store import topics as topic_rows
from mqbridge.log.store.database import clock_ms
from mqbridge.log.store.topics import PartitionRow

IS_ALIVE = "renewed_ms <= ?2 AND renewed_ms + lease_ms >= ?2"
"""SQL condition: the member is alive at the time ?2, a time of `clock_ms`, which starts again when the machine starts. ?2 is
read inside the write transaction, so a row with a later `renewed_ms` was written before the machine restarted."""


class Membership(NamedTuple):
    """One member of a group, as it identifies itself."""

    group: str
    id: str
    topics: tuple[str, ...]
    start_of: Callable[[str, str], Start]
    """Function that gets topic and partition, and returns where the group starts if it has no position in the partition."""
    lease_ms: int
    """Time after the last heartbeat at which the member expires."""


@dataclass(slots=True)
class AssignmentChange:
    """Result of a heartbeat: newly assigned partitions with their start offsets, and ids of partitions that the member lost."""

    assigned: list[tuple[PartitionRow, int]] = field(default_factory=list)
    revoked: set[int] = field(default_factory=set)
    notifies_others: bool = False
    """True if other members may get partitions now; the caller lets those in its own process send a heartbeat at once."""


def heartbeat(connection: sqlite3.Connection, member: Membership, acknowledged: Mapping[int, int | None]) -> AssignmentChange:
    """Renew this member, drop expired members, lease newly assigned partitions and release those assigned to other members.

    `acknowledged` maps the id of each partition that the member reads to its acknowledged offset, None if nothing is
    acknowledged yet. Leases of partitions that it no longer reads, whose release has failed, are released too. The time is read
    inside the transaction: a time from before the wait for its lock would be earlier than the renewals of other members during
    the wait, and these members would count as expired.
    """
    change, time_ms = AssignmentChange(), clock_ms()
    rows = {topic: topic_rows.partitions(connection, topic) for topic in member.topics}
    topic_ids = _topic_ids(connection, member.topics)
    if _renew_membership(connection, member, topic_ids.values(), time_ms):
        change.notifies_others = True
    owners = dict(connection.execute("SELECT partition, owner FROM lease WHERE grp = ?", (member.group,)))
    assigned = _assigned_partitions(connection, member, rows, topic_ids)
    change.revoked = {partition for partition in acknowledged if owners.get(partition) != member.id or partition not in assigned}
    released = [
        partition
        for partition, owner in owners.items()
        if owner == member.id and (partition not in assigned or partition not in acknowledged)
    ]
    commit(
        connection, member, {partition: offset for partition in released if (offset := acknowledged.get(partition)) is not None}
    )
    for partition in released:
        connection.execute("DELETE FROM lease WHERE grp = ? AND partition = ?", (member.group, partition))
        del owners[partition]
        change.notifies_others = True
    read_before = {topic for topic, topic_id in topic_ids.items() if _has_position(connection, member.group, topic_id)}
    for partition, row in assigned.items():
        if partition not in owners:
            connection.execute("INSERT INTO lease VALUES (?, ?, ?)", (member.group, partition, member.id))
            change.assigned.append((row, _start_offset(connection, member, row, is_new=row.topic in read_before)))
    return change


def _topic_ids(connection: sqlite3.Connection, names: Iterable[str]) -> dict[str, int]:
    """Return the row ids of the existing topics, by name."""
    ids = {}
    for name in names:
        row = connection.execute("SELECT id FROM topic WHERE name = ?", (name,)).fetchone()
        if row is not None:
            ids[name] = row[0]
    return ids


def _renew_membership(connection: sqlite3.Connection, member: Membership, topic_ids: Iterable[int], time_ms: int) -> bool:
    """Write this member's heartbeat for these topics and drop expired members; return True if the set of members changed."""
    before = set(connection.execute("SELECT topic, id FROM member WHERE grp = ?", (member.group,)))
    connection.executemany(
        "INSERT OR REPLACE INTO member VALUES (?, ?, ?, ?, ?)",
        [(member.group, topic, member.id, time_ms, member.lease_ms) for topic in topic_ids],
    )
    drop_expired(connection, member.group, time_ms)
    return before != set(connection.execute("SELECT topic, id FROM member WHERE grp = ?", (member.group,)))


def drop_expired(connection: sqlite3.Connection, group: str, time_ms: int) -> None:
    """Delete memberships that are expired at `time_ms` (of `clock_ms`), and leases without a member."""
    connection.execute(f"DELETE FROM member WHERE grp = ?1 AND NOT ({IS_ALIVE})", (group, time_ms))  # noqa: S608 - constant
    connection.execute("DELETE FROM lease WHERE grp = ?1 AND owner NOT IN (SELECT id FROM member WHERE grp = ?1)", (group,))


def _assigned_partitions(
    connection: sqlite3.Connection, member: Membership, rows: Mapping[str, list[PartitionRow]], topic_ids: Mapping[str, int]
) -> dict[int, PartitionRow]:
    """Return this member's partitions, by id.

    The round robin of each topic starts with another member, so that topics with few partitions spread over all members.
    """
    assigned = {}
    for topic, topic_id in topic_ids.items():
        query = "SELECT id FROM member WHERE grp = ? AND topic = ? ORDER BY id"
        member_ids = [id_ for (id_,) in connection.execute(query, (member.group, topic_id))]
        index = member_ids.index(member.id)
        assigned.update({row.id: row for row in rows[topic] if (row.number + topic_id) % len(member_ids) == index})
    return assigned


def _has_position(connection: sqlite3.Connection, group: str, topic_id: int) -> bool:
    """Return True if the group has a committed offset in any partition of the topic."""
    query = (
        "SELECT EXISTS (SELECT 1 FROM position JOIN partition ON partition.id = position.partition WHERE grp = ? AND topic = ?)"
    )
    (exists,) = connection.execute(query, (group, topic_id)).fetchone()
    return bool(exists)


def _start_offset(connection: sqlite3.Connection, member: Membership, row: PartitionRow, *, is_new: bool) -> int:
    """Return the group's committed offset. If there is none, commit a start offset: the next owner then continues there.

    `is_new` means that the partition was added to a topic which the group already reads; it starts at its first offset.
    """
    committed = connection.execute("SELECT next FROM position WHERE grp = ? AND partition = ?", (member.group, row.id)).fetchone()
    if committed is not None:
        return int(committed[0])
    start = Start.EARLIEST if is_new else member.start_of(row.topic, str(row.number))
    begin = row.next if start is Start.LATEST else row.first
    connection.execute("INSERT INTO position VALUES (?, ?, ?)", (member.group, row.id, begin))
    return begin


def commit(connection: sqlite3.Connection, member: Membership, offsets: Mapping[int, int]) -> None:
    """Set the group's offsets by partition id, but only of partitions whose lease this member has."""
    connection.executemany(
        "INSERT OR REPLACE INTO position SELECT ?1, ?2, ?3"
        " WHERE EXISTS (SELECT 1 FROM lease WHERE grp = ?1 AND partition = ?2 AND owner = ?4)",
        [(member.group, partition, offset, member.id) for partition, offset in offsets.items()],
    )


def release(connection: sqlite3.Connection, member: Membership, offsets: Mapping[int, int | None]) -> None:
    """Commit the acknowledged offsets of these partitions and end their leases."""
    commit(connection, member, {partition: offset for partition, offset in offsets.items() if offset is not None})
    connection.executemany(
        "DELETE FROM lease WHERE grp = ? AND partition = ? AND owner = ?",
        [(member.group, partition, member.id) for partition in offsets],
    )


def leave(connection: sqlite3.Connection, member: Membership, offsets: Mapping[int, int | None]) -> None:
    """Release all partitions and end the membership."""
    release(connection, member, offsets)
    connection.execute("DELETE FROM lease WHERE grp = ? AND owner = ?", (member.group, member.id))
    connection.execute("DELETE FROM member WHERE grp = ? AND id = ?", (member.group, member.id))
