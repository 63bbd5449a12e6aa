"""Groups: members, leases of partitions, and committed offsets. The caller of each function holds a write transaction.

Heartbeats renew a member's rows. Only a living member has leases, and only the owner of a lease can commit. So a process that
was suspended for longer than its lease can neither commit nor keep a partition, whatever it assumes.
Partitions are assigned round robin to the members in the order of their ids. Every member computes the same assignment, so no
coordinator is needed.

A member of this process's clock domain lives until its lease ends by the common clock. The clock of another domain (a container
with its own time namespace, another virtual machine, or this machine before it was restarted) cannot be compared: such a member
lives until this process has seen no new heartbeat of it for the time of its lease.
"""

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from mqbridge.adapter.inbound import Start
from mqbridge.errors import TopicChanged
from mqbridge.log.store import topics as topic_rows
from mqbridge.log.store.clocks import clock_domain, clock_ms
from mqbridge.log.store.connection import Connection
from mqbridge.log.store.positions import positions_of, scan_positions, write_positions
from mqbridge.log.store.schema import partition_id, split_partition_id
from mqbridge.log.store.topics import PartitionRow

PATIENT_FRACTION = 4
"""A member that has waited for the file's lock for a fourth of a lease lets no other member expire: they may have waited, too."""


class Membership(NamedTuple):
    """One member of a group, as it identifies itself."""

    group: str
    id: str
    topics: tuple[str, ...]
    start_of: Callable[[str, str], Start]
    """Function that gets topic and partition, and returns where the group starts if it has no position in the partition."""
    lease_ms: int
    """Time after the last heartbeat at which the member expires."""
    keeps: bool = False
    """True if the member keeps a partition that another one is to get, until it releases it."""


class MemberRow(NamedTuple):
    """The last heartbeat of a member: its number, and its time by the clock of a domain."""

    id: str
    beat: int
    domain: str
    renewed_ms: int
    lease_ms: int


class Observer:
    """What this process has seen of the members of other clock domains: since when each has had the same heartbeat."""

    def __init__(self) -> None:
        self._seen: dict[tuple[str, str], tuple[int, int]] = {}
        """The last heartbeat and the time at which it was seen first, by group and member."""

    def is_alive(self, group: str, row: MemberRow, time_ms: int) -> bool:
        """Return True if the member lives at this time of `clock_ms`; a damaged row is of no member."""
        if not all(isinstance(value, int) for value in (row.beat, row.renewed_ms, row.lease_ms)):
            return False
        if row.domain == clock_domain():
            # A later `renewed_ms` is of a domain that does not differ by name: the clock has started again.
            return row.renewed_ms <= time_ms <= row.renewed_ms + row.lease_ms
        beat, seen_ms = self._seen.get((group, row.id), (None, time_ms))
        if beat != row.beat:
            self._seen[group, row.id] = (row.beat, time_ms)
            return True
        return time_ms <= seen_ms + row.lease_ms

    def forget(self, group: str, id_: str) -> None:
        """Forget a member that has ended."""
        self._seen.pop((group, id_), None)


@dataclass(slots=True)
class AssignmentChange:
    """Result of a heartbeat: newly assigned partitions with their start offsets, and ids of partitions that the member lost."""

    assigned: list[tuple[PartitionRow, int]] = field(default_factory=list)
    revoked: set[int] = field(default_factory=set)
    kept: set[int] = field(default_factory=set)
    """Ids of partitions that another member is to get, and that this member still has."""
    notifies_others: bool = False
    """True if other members may get partitions now; the caller lets those in its own process send a heartbeat at once."""


def heartbeat(
    connection: Connection, member: Membership, observer: Observer, acknowledged: Mapping[int, int | None]
) -> AssignmentChange:
    """Renew this member, drop expired members, lease newly assigned partitions and release those assigned to other members.

    A member that `keeps` partitions does not release them here, but when their lanes end. Until then, the lease keeps others
    from reading them: the members to whom they are assigned try with each heartbeat. Raises TopicChanged if a topic is gone: a
    member that was taken for dead does not keep its topics from being deleted.

    `acknowledged` maps the id of each partition that the member reads to its acknowledged offset, None if nothing is
    acknowledged yet. Leases of partitions that it no longer reads, whose release has failed, are released too. The time is read
    inside the transaction: a time from before the wait for its lock would be earlier than the renewals of other members during
    the wait, and these members would count as expired.
    """
    change, time_ms = AssignmentChange(), clock_ms()
    found = {topic: _existing_topic(connection, member, topic) for topic in member.topics}
    if _renew_membership(connection, member, observer, [row.id for row in found.values()], time_ms):
        change.notifies_others = True
    owners = dict(connection.execute("SELECT partition, owner FROM lease WHERE grp = ?", (member.group,)))
    assigned: dict[int, PartitionRow] = {}
    for row in found.values():
        assigned.update(_assigned_partitions(connection, member, row))
    owned = {partition for partition, owner in owners.items() if owner == member.id}
    topic_ids = {row.id for row in found.values()}
    if member.keeps:
        change.kept = {each for each in owned & acknowledged.keys() - assigned.keys() if split_partition_id(each)[0] in topic_ids}
    change.revoked = acknowledged.keys() - (owned & assigned.keys()) - change.kept
    released = owned - (assigned.keys() & acknowledged.keys()) - change.kept
    commit(
        connection, member, {partition: offset for partition in released if (offset := acknowledged.get(partition)) is not None}
    )
    for partition in released:
        connection.execute("DELETE FROM lease WHERE grp = ? AND partition = ?", (member.group, partition))
        del owners[partition]
        change.notifies_others = True
    # A partition that the member still reads, although it lost the lease, is leased by its next heartbeat: commits of the old
    # lane, which are on their way, would move the group back otherwise.
    free = [row for partition, row in assigned.items() if partition not in owners and partition not in acknowledged]
    if free:
        connection.executemany("INSERT INTO lease VALUES (?, ?, ?)", [(member.group, row.id, member.id) for row in free])
        change.assigned = list(zip(free, _start_offsets(connection, member, free), strict=True))
    return change


def _existing_topic(connection: Connection, member: Membership, topic: str) -> topic_rows.TopicRow:
    row = topic_rows.find_topic(connection, topic)
    if row is None:
        raise TopicChanged(f"group {member.group!r} reads topic {topic!r}, which was deleted: create it again, or leave it out")
    return row


def _renew_membership(
    connection: Connection, member: Membership, observer: Observer, topic_ids: Iterable[int], time_ms: int
) -> bool:
    """Write this member's heartbeat for these topics and drop expired members; return True if the set of members changed."""
    before = set(connection.execute("SELECT topic, id FROM member WHERE grp = ?", (member.group,)))
    beat = time.time_ns()  # only has to differ from the last one
    connection.executemany(
        "INSERT OR REPLACE INTO member VALUES (?, ?, ?, ?, ?, ?, ?)",
        [(member.group, topic, member.id, beat, clock_domain(), time_ms, member.lease_ms) for topic in topic_ids],
    )
    if connection.waited_s * 1000 * PATIENT_FRACTION < member.lease_ms:
        drop_expired(connection, member.group, observer, time_ms)
    return before != set(connection.execute("SELECT topic, id FROM member WHERE grp = ?", (member.group,)))


def members_of(connection: Connection, group: str) -> list[MemberRow]:
    """Return the members of a group with their last heartbeats, the expired ones too."""
    query = "SELECT id, max(beat), domain, max(renewed_ms), max(lease_ms) FROM member WHERE grp = ? GROUP BY id ORDER BY id"
    return list(map(MemberRow._make, connection.execute(query, (group,))))


def living_members(connection: Connection, observer: Observer, topic_id: int, group: str) -> list[str]:
    """Return the ids of the members of a group that read the topic and live."""
    time_ms = clock_ms()
    ids = {id_ for (id_,) in connection.execute("SELECT id FROM member WHERE grp = ? AND topic = ?", (group, topic_id))}
    return [each.id for each in members_of(connection, group) if each.id in ids and observer.is_alive(group, each, time_ms)]


def forget(connection: Connection, group: str, topic_id: int) -> None:
    """Delete the positions and the leases of a group in a topic, and memberships, which have expired."""
    first, end = partition_id(topic_id, 0), partition_id(topic_id + 1, 0)
    for table in ("position", "lease"):
        connection.execute(
            f"DELETE FROM {table} WHERE grp = ? AND partition >= ? AND partition < ?",  # noqa: S608
            (group, first, end),
        )
    connection.execute("DELETE FROM member WHERE grp = ? AND topic = ?", (group, topic_id))


def drop_expired(connection: Connection, group: str, observer: Observer, time_ms: int) -> None:
    """Delete memberships that are expired at `time_ms` (of `clock_ms`), and leases without a member."""
    for row in members_of(connection, group):
        if not observer.is_alive(group, row, time_ms):
            connection.execute("DELETE FROM member WHERE grp = ? AND id = ?", (group, row.id))
            observer.forget(group, row.id)
    connection.execute("DELETE FROM lease WHERE grp = ?1 AND owner NOT IN (SELECT id FROM member WHERE grp = ?1)", (group,))


def _assigned_partitions(connection: Connection, member: Membership, topic: topic_rows.TopicRow) -> dict[int, PartitionRow]:
    """Return this member's partitions of a topic, by id.

    The round robin of each topic starts with another member, so that topics with few partitions spread over all members.
    """
    query = "SELECT id FROM member WHERE grp = ? AND topic = ? ORDER BY id"
    member_ids = [id_ for (id_,) in connection.execute(query, (member.group, topic.id))]
    index = member_ids.index(member.id)
    rows = topic_rows.partitions_of(connection, topic)
    return {row.id: row for row in rows if (row.number + topic.id) % len(member_ids) == index}


def _start_offsets(connection: Connection, member: Membership, rows: list[PartitionRow]) -> list[int]:
    """Return the group's committed offsets. Where it has none, commit a start offset: the next owner then continues there.

    A partition that was added to a topic which the group already reads starts at its first offset. So does one of which the
    committed offset may be among the damaged ones: its messages are delivered again, rather than not at all.
    """
    committed: dict[int, int] = {}
    for topic_id in {split_partition_id(row.id)[0] for row in rows}:
        committed |= positions_of(connection, member.group, topic_id)
    missing = [row for row in rows if row.id not in committed]
    if missing:
        _, damaged = scan_positions(connection)
        read_topics = {split_partition_id(id_)[0] for id_ in committed}
        for row in missing:
            is_new = split_partition_id(row.id)[0] in read_topics
            start = Start.EARLIEST if is_new or damaged else member.start_of(row.topic, str(row.number))
            committed[row.id] = row.next if start is Start.LATEST else row.first
            if damaged:
                connection.report(
                    f"{damaged} committed offsets are damaged, and group {member.group!r} has none in partition {row.number} of"
                    f" topic {row.topic!r}: it reads this partition from its oldest message"
                )
        write_positions(connection, member.group, [(row.id, committed[row.id]) for row in missing])
    return [committed[row.id] for row in rows]


def commit(connection: Connection, member: Membership, offsets: Mapping[int, int]) -> None:
    """Set the group's offsets by partition id, but only of partitions whose lease this member has."""
    query = "SELECT 1 FROM lease WHERE grp = ? AND partition = ? AND owner = ?"
    leased = [
        (partition, offset)
        for partition, offset in offsets.items()
        if connection.execute(query, (member.group, partition, member.id)).fetchone() is not None
    ]
    write_positions(connection, member.group, leased)


def release(connection: Connection, member: Membership, offsets: Mapping[int, int | None]) -> None:
    """Commit the acknowledged offsets of these partitions and end their leases."""
    commit(connection, member, {partition: offset for partition, offset in offsets.items() if offset is not None})
    connection.executemany(
        "DELETE FROM lease WHERE grp = ? AND partition = ? AND owner = ?",
        [(member.group, partition, member.id) for partition in offsets],
    )


def leave(connection: Connection, member: Membership, offsets: Mapping[int, int | None]) -> None:
    """Release all partitions and end the membership."""
    release(connection, member, offsets)
    connection.execute("DELETE FROM lease WHERE grp = ? AND owner = ?", (member.group, member.id))
    connection.execute("DELETE FROM member WHERE grp = ? AND id = ?", (member.group, member.id))
