"""Groups: who is a member, who owns which partition, and how far the group has read. All of it inside one write transaction each.

A member lives as long as its heartbeats renew its rows; a lease belongs to a living member, and only its owner can commit. So a
process that slept through its lease can neither commit nor keep a partition, whatever it believes.
Partitions are dealt out in turn to the members in the order of their ids: all members compute the same, and nobody is asked.
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
"""Whether a member lives, at a time of `clock_ms` that is taken when nobody can renew any more before this is judged. What was
renewed later than that was renewed before the machine was started."""


class Membership(NamedTuple):
    """One member of a group."""

    group: str
    id: str
    topics: tuple[str, ...]
    start_of: Callable[[str, str], Start]
    """By topic and partition, where a group begins that has no position on the topic."""
    lease_ms: int


@dataclass(slots=True)
class Balance:
    """What a heartbeat brought: partitions won, with the offset to begin at, and ids of those that are ours no more."""

    won: list[tuple[PartitionRow, int]] = field(default_factory=list)
    lost: set[int] = field(default_factory=set)
    changed: bool = False
    """Somebody else may now get something: they should look."""


def heartbeat(connection: sqlite3.Connection, me: Membership, held: Mapping[int, int | None]) -> Balance:
    """Renew this member, drop dead ones, take and give back partitions. `held` maps what we hold to its acknowledged offset.

    The time is that of the transaction: who renewed while we waited for it would look like a member of the future, and so dead.
    """
    balance, now_ms = Balance(), clock_ms()
    rows = {topic: topic_rows.partitions(connection, topic) for topic in me.topics}
    topic_ids = _topic_ids(connection, me.topics)
    if _renew(connection, me, topic_ids.values(), now_ms):
        balance.changed = True
    owner_of = dict(connection.execute("SELECT partition, owner FROM lease WHERE grp = ?", (me.group,)))
    due = _due(connection, me, rows, topic_ids)
    balance.lost = {partition for partition in held if owner_of.get(partition) != me.id or partition not in due}
    given_back = [
        partition for partition, owner in owner_of.items() if owner == me.id and (partition not in due or partition not in held)
    ]
    commit(connection, me, {partition: offset for partition in given_back if (offset := held.get(partition)) is not None})
    for partition in given_back:
        connection.execute("DELETE FROM lease WHERE grp = ? AND partition = ?", (me.group, partition))
        del owner_of[partition]
        balance.changed = True
    read = {topic for topic, topic_id in topic_ids.items() if _has_position(connection, me.group, topic_id)}
    for partition, row in due.items():
        if partition not in owner_of:
            connection.execute("INSERT INTO lease VALUES (?, ?, ?)", (me.group, partition, me.id))
            balance.won.append((row, _begin(connection, me, row, is_new=row.topic in read)))
    return balance


def _topic_ids(connection: sqlite3.Connection, names: Iterable[str]) -> dict[str, int]:
    ids = {}
    for name in names:
        row = connection.execute("SELECT id FROM topic WHERE name = ?", (name,)).fetchone()
        if row is not None:
            ids[name] = row[0]
    return ids


def _renew(connection: sqlite3.Connection, me: Membership, topic_ids: Iterable[int], now_ms: int) -> bool:
    """Whether the membership changed by it."""
    before = set(connection.execute("SELECT topic, id FROM member WHERE grp = ?", (me.group,)))
    connection.executemany(
        "INSERT OR REPLACE INTO member VALUES (?, ?, ?, ?, ?)",
        [(me.group, topic, me.id, now_ms, me.lease_ms) for topic in topic_ids],
    )
    drop_dead(connection, me.group, now_ms)
    return before != set(connection.execute("SELECT topic, id FROM member WHERE grp = ?", (me.group,)))


def drop_dead(connection: sqlite3.Connection, group: str, now_ms: int) -> None:
    """End the memberships that nobody renewed, and the leases of who is no member."""
    connection.execute(f"DELETE FROM member WHERE grp = ?1 AND NOT ({IS_ALIVE})", (group, now_ms))  # noqa: S608 - ours
    connection.execute("DELETE FROM lease WHERE grp = ?1 AND owner NOT IN (SELECT id FROM member WHERE grp = ?1)", (group,))


def _due(
    connection: sqlite3.Connection, me: Membership, rows: Mapping[str, list[PartitionRow]], topic_ids: Mapping[str, int]
) -> dict[int, PartitionRow]:
    """The partitions that are this member's by the dealing rule. Topics begin at different members, so that small ones spread."""
    due = {}
    for topic, topic_id in topic_ids.items():
        query = "SELECT id FROM member WHERE grp = ? AND topic = ? ORDER BY id"
        members = [member for (member,) in connection.execute(query, (me.group, topic_id))]
        mine = members.index(me.id)
        due.update({row.id: row for row in rows[topic] if (row.number + topic_id) % len(members) == mine})
    return due


def _has_position(connection: sqlite3.Connection, group: str, topic_id: int) -> bool:
    query = (
        "SELECT EXISTS (SELECT 1 FROM position JOIN partition ON partition.id = position.partition WHERE grp = ? AND topic = ?)"
    )
    (found,) = connection.execute(query, (group, topic_id)).fetchone()
    return bool(found)


def _begin(connection: sqlite3.Connection, me: Membership, row: PartitionRow, *, is_new: bool) -> int:
    """Where the group goes on. A start is committed at once: what comes after it is never skipped, whoever reads on.

    A partition that is new in a topic which the group reads begins at its beginning.
    """
    found = connection.execute("SELECT next FROM position WHERE grp = ? AND partition = ?", (me.group, row.id)).fetchone()
    if found is not None:
        return int(found[0])
    start = Start.EARLIEST if is_new else me.start_of(row.topic, str(row.number))
    begin = row.next if start is Start.LATEST else row.first
    connection.execute("INSERT INTO position VALUES (?, ?, ?)", (me.group, row.id, begin))
    return begin


def commit(connection: sqlite3.Connection, me: Membership, offsets: Mapping[int, int]) -> None:
    """Set the group's position by partition id; those leased to somebody else are left alone."""
    connection.executemany(
        "INSERT OR REPLACE INTO position SELECT ?1, ?2, ?3"
        " WHERE EXISTS (SELECT 1 FROM lease WHERE grp = ?1 AND partition = ?2 AND owner = ?4)",
        [(me.group, partition, offset, me.id) for partition, offset in offsets.items()],
    )


def give_back(connection: sqlite3.Connection, me: Membership, offsets: Mapping[int, int | None]) -> None:
    """Commit what is acknowledged and end the leases of these partitions."""
    commit(connection, me, {partition: offset for partition, offset in offsets.items() if offset is not None})
    connection.executemany(
        "DELETE FROM lease WHERE grp = ? AND partition = ? AND owner = ?", [(me.group, partition, me.id) for partition in offsets]
    )


def leave(connection: sqlite3.Connection, me: Membership, offsets: Mapping[int, int | None]) -> None:
    """Give everything back and end the membership."""
    give_back(connection, me, offsets)
    connection.execute("DELETE FROM lease WHERE grp = ? AND owner = ?", (me.group, me.id))
    connection.execute("DELETE FROM member WHERE grp = ? AND id = ?", (me.group, me.id))
