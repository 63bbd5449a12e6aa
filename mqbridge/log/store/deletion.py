"""Deletes a topic: its name and all that groups have of it at once, then its batches in short transactions.

The rows of its partitions stay, with a negative size. They keep the id of the topic from being given to another one,
tell readers and appends that it was deleted, and tell the mark that its messages are not lost. Batches that are still there after
an error are deleted by the next pass of the retention, those after a kill when the log is opened again.

The newest batch of the whole file stays, without its contents, until there is a newer one: the ids of batches must grow, because
polls look for new batches by them (`tails`).
"""

from collections.abc import Sequence

from mqbridge.errors import ClusterError, Failure
from mqbridge.log.store import topics
from mqbridge.log.store.connection import Connection
from mqbridge.log.store.extents import Extent, extent_of, write_extents
from mqbridge.log.store.groups import Observer, living_members
from mqbridge.log.store.retention import DROPPED_BYTES, DROPPED_ROWS
from mqbridge.log.store.schema import DELETED_FORMAT, BatchStamp, batch_crc, deleted_bytes, partition_id
from mqbridge.log.store.topics import TopicRow

_NEWEST = "(SELECT max(rowid) FROM batch)"
_LEFT = f"NOT (rowid = {_NEWEST} AND format IS '{DELETED_FORMAT}')"
"""Condition of a batch that is still to be deleted."""


def begin(connection: Connection, observer: Observer, name: str) -> list[int]:
    """Delete a topic except for its batches, inside a transaction; return the ids of its partitions, none if there is no topic.

    Raises ClusterError (FATAL) while a group has members that read it.
    """
    row = topics.find_topic(connection, name)
    if row is None:
        return []
    _refuse_members(connection, observer, row)
    first, end = partition_id(row.id, 0), partition_id(row.id + 1, 0)
    extents = [(each.id, Extent(each.next, each.next, deleted_bytes(name))) for each in topics.partitions_of(connection, row)]
    for table in ("position", "lease", "jump"):
        connection.execute(f"DELETE FROM {table} WHERE partition >= ? AND partition < ?", (first, end))  # noqa: S608
    connection.execute("DELETE FROM member WHERE topic = ?", (row.id,))
    connection.execute("DELETE FROM topic WHERE id = ?", (row.id,))
    write_extents(connection, extents)
    return [id_ for id_, _ in extents]


def _refuse_members(connection: Connection, observer: Observer, topic: TopicRow) -> None:
    groups = [group for (group,) in connection.execute("SELECT DISTINCT grp FROM member WHERE topic = ?", (topic.id,))]
    reading = [group for group in groups if living_members(connection, observer, topic.id, group)]
    if reading:
        raise ClusterError(
            f"topic {topic.name!r} is read by members of {', '.join(map(repr, sorted(reading)))}: stop them, then delete the"
            " topic; a member that was killed counts until its lease has passed",
            Failure.FATAL,
        )


def find_left(connection: Connection) -> list[int]:
    """Return the ids of partitions of deleted topics that still have batches."""
    query = f"SELECT id FROM partition p WHERE bytes < 0 AND EXISTS (SELECT 1 FROM batch WHERE partition = p.id AND {_LEFT})"  # noqa: S608
    return [id_ for (id_,) in connection.execute(query)]


def delete_batches(connection: Connection, partition: int) -> bool:
    """Delete batches of a partition whose topic was deleted, up to the limits of one transaction; True if none is left.

    The caller commits.
    """
    if not extent_of(connection, partition).is_deleted:
        return True
    query = (
        f"SELECT rowid, length(records), rowid = {_NEWEST} FROM batch WHERE partition = ? AND {_LEFT} ORDER BY base"  # noqa: S608
        f" LIMIT {DROPPED_ROWS}"
    )
    found = connection.execute(query, (partition,)).fetchall()
    dropped, size = _up_to(found, DROPPED_BYTES), len(found)
    connection.executemany("DELETE FROM batch WHERE rowid = ?", [(rowid,) for rowid, _, is_newest in dropped if not is_newest])
    for rowid in [rowid for rowid, _, is_newest in dropped if is_newest]:
        _empty(connection, partition, rowid)
    return len(dropped) == size < DROPPED_ROWS


def _up_to(rows: Sequence[tuple[int, int, int]], max_bytes: int) -> Sequence[tuple[int, int, int]]:
    """Return the first rows that have `max_bytes` together, and at least one."""
    total = 0
    for index, (_, size, _) in enumerate(rows):
        total += size
        if index and total > max_bytes:
            return rows[:index]
    return rows


def _empty(connection: Connection, partition: int, rowid: int) -> None:
    """Remove the contents of a batch, which keeps its place."""
    (base,) = connection.execute("SELECT base FROM batch WHERE rowid = ?", (rowid,)).fetchone()
    stamp = BatchStamp(0, 0, DELETED_FORMAT)
    connection.execute(
        "UPDATE batch SET count = 1, bytes = 0, appended_ms = 0, age_ms = 0, format = ?, sender = NULL, sequence = NULL, crc = ?,"
        " records = ? WHERE rowid = ?",
        (DELETED_FORMAT, batch_crc(partition, base, 1, stamp, b""), b"", rowid),
    )
