"""SQL for topics and partitions: list, describe, create and grow them, read offsets and groups.

Rows are checked against their checksums. A damaged row of a partition is rebuilt from its batches. A damaged row of a topic makes
this topic unknown, which is an error and not the same as a topic that does not exist.
"""

import struct
from collections.abc import Callable, Sequence
from typing import NamedTuple

from mqbridge.errors import ClusterError, Failure, TopicChanged
from mqbridge.log.store import jumps
from mqbridge.log.store.connection import Connection
from mqbridge.log.store.extents import Extent, newest_partitions, rebuilt_extent, scan_extents, write_extents
from mqbridge.log.store.jumps import Jump
from mqbridge.log.store.positions import positions_of, scan_positions
from mqbridge.log.store.schema import (
    DELETED_BYTES,
    JUMP_RESTORED,
    deleted_bytes,
    partition_id,
    read_meta,
    split_partition_id,
    text_crc,
)


class PartitionRow(NamedTuple):
    """A partition of a topic, as stored in the file.

    id       by which other tables refer to the partition
    topic    name of the topic
    number   number of the partition in its topic, from 0
    extent   its offsets and its size
    jumps    the offsets that have no message, in ascending order
    """

    id: int
    topic: str
    number: int
    extent: Extent
    jumps: Sequence[Jump]

    @property
    def first(self) -> int:
        """Offset of the oldest message that the log still has."""
        return self.extent.first

    @property
    def next(self) -> int:
        """Offset of the next message: the tail."""
        return self.extent.next


class TopicRow(NamedTuple):
    """A topic, with its number of partitions."""

    id: int
    name: str
    partitions: int


def names(connection: Connection) -> list[str]:
    """Return all topic names, sorted. Raises ClusterError if the row of one is damaged."""
    return sorted(row.name for row in all_topics(connection))


def all_topics(connection: Connection) -> list[TopicRow]:
    """Return all topics, without using the index of names. Raises ClusterError if the row of one is damaged."""
    topics, damaged = scan_topics(connection)
    if damaged:
        raise _damaged_topics(damaged)
    return topics


def scan_topics(connection: Connection) -> tuple[list[TopicRow], list[int]]:
    """Return the topics whose rows are intact, and the ids of the others."""
    intact: list[TopicRow] = []
    damaged: list[int] = []
    for id_, name, count, crc in connection.execute("SELECT id, name, partitions, crc FROM topic NOT INDEXED"):
        row = TopicRow(id_, name, count)
        if _is_intact(row, crc):
            intact.append(row)
        else:
            damaged.append(id_)
    return intact, damaged


def find_topic(connection: Connection, name: str) -> TopicRow | None:
    """Return a topic, or None if it does not exist. Raises ClusterError if its row may be a damaged one."""
    found = connection.execute("SELECT id, name, partitions, crc FROM topic WHERE name = ?", (name,)).fetchone()
    if found is not None:
        row = TopicRow(*found[:3])
        if row.name == name and _is_intact(row, found[3]):
            return row
    # The index may be damaged, too: only the table can tell that there is no such topic.
    intact, damaged = scan_topics(connection)
    for row in intact:
        if row.name == name:
            return row
    if damaged:
        raise _damaged_topics(damaged)
    return None


def _is_intact(row: TopicRow, crc: object) -> bool:
    try:
        return text_crc(row.name, row.id, row.partitions) == crc
    except (struct.error, TypeError, AttributeError):  # values of the wrong type
        return False


def _damaged_topics(ids: Sequence[int]) -> ClusterError:
    numbers = ", ".join(map(str, ids))
    return ClusterError(
        f"the log's table of topics is damaged (row {numbers}), so it is not known which topics there are besides the intact"
        " ones; restore a backup, or keep what is intact by `mqbridge log export`",
        Failure.FATAL,
    )


def partitions(connection: Connection, topic: str) -> list[PartitionRow]:
    """Return the partitions of a topic in the order of their numbers; none if the topic does not exist."""
    row = find_topic(connection, topic)
    return [] if row is None else partitions_of(connection, row)


def partitions_of(connection: Connection, topic: TopicRow) -> list[PartitionRow]:
    """Return the partitions of a topic in the order of their numbers."""
    return _partition_rows(connection, topic, range(topic.partitions))


def partition(connection: Connection, topic: str, number: int) -> PartitionRow | None:
    """Return one partition of a topic; None if the topic or the partition does not exist."""
    row = find_topic(connection, topic)
    if row is None or not 0 <= number < row.partitions:
        return None
    return _partition_rows(connection, row, range(number, number + 1))[0]


def _partition_rows(connection: Connection, topic: TopicRow, numbers: range) -> list[PartitionRow]:
    """Return the partitions of a topic with these consecutive numbers."""
    begin, end = partition_id(topic.id, numbers.start), partition_id(topic.id, numbers.stop)
    found = scan_extents(connection, begin, end)
    jumped, _ = jumps.scan(connection, begin, end)
    rows = []
    for number in numbers:
        id_ = partition_id(topic.id, number)
        extent = found.get(id_)
        if extent is None:
            extent = rebuilt_extent(connection, id_)
        rows.append(PartitionRow(id_, topic.name, number, extent, jumped.get(id_, ())))
    return rows


def all_extents(connection: Connection) -> dict[int, Extent]:
    """Return the extents of all partitions by id: those of all known topics, and those with an intact row of their own.

    A partition has no known topic if its topic's row is damaged, or if the topic was lost with the WAL.
    """
    found = {id_: extent for id_, extent in scan_extents(connection).items() if extent is not None}
    for topic in scan_topics(connection)[0]:
        for number in range(topic.partitions):
            id_ = partition_id(topic.id, number)
            if id_ not in found:
                found[id_] = rebuilt_extent(connection, id_)
    return found


def create(topic: str, count: int) -> Callable[[Connection], None]:
    """Return a job for `Store.write` that creates the topic, or adds partitions until it has `count`."""

    def run(connection: Connection) -> None:
        row = find_topic(connection, topic)
        if row is None:
            row = TopicRow(_unused_topic_id(connection), topic, 0)
            connection.execute("INSERT INTO topic VALUES (?, ?, 0, 0)", (row.id, topic))
        if count > row.partitions:
            added = range(row.partitions, count)
            _create_partitions(connection, topic, [partition_id(row.id, number) for number in added])
            crc = text_crc(topic, row.id, count)
            connection.execute("UPDATE topic SET partitions = ?, crc = ? WHERE id = ?", (count, crc, row.id))

    return run


def _unused_topic_id(connection: Connection) -> int:
    """Return an id that no topic has, or had before it was lost with the WAL: the mark knows the partitions of such a topic."""
    (newest,) = connection.execute("SELECT max(id) FROM topic").fetchone()
    partition = next(newest_partitions(connection), 0)
    return max(newest or 0, split_partition_id(partition)[0]) + 1


def _create_partitions(connection: Connection, topic: str, ids: Sequence[int]) -> None:
    """Write the rows of new partitions. A row that exists is that of a partition whose creation was lost with the WAL: it stays.

    In a later generation, partitions of the same names may have been lost, and a topic of this name may have been deleted. So the
    offsets that such partitions had are left out: positions that are kept elsewhere would skip messages of the new ones.
    """
    rows = connection.execute("SELECT id FROM partition WHERE id BETWEEN ? AND ?", (ids[0], ids[-1]))
    existing = {id_ for (id_,) in rows}
    new = [id_ for id_ in ids if id_ not in existing]
    meta = read_meta(connection)
    is_first = meta is not None and meta.generation == 1 and not _was_deleted(connection, topic)
    offset = 0 if is_first else jumps.unused_offset(0)
    write_extents(connection, ((id_, Extent(0, offset, 0)) for id_ in new))
    if offset:
        jumps.write_jumps(connection, ((id_, Jump(0, offset, JUMP_RESTORED)) for id_ in new))


def _was_deleted(connection: Connection, topic: str) -> bool:
    """Return True if a topic of this name may have been deleted."""
    query = "SELECT 1 FROM partition WHERE bytes IN (?, ?) LIMIT 1"
    return connection.execute(query, (DELETED_BYTES, deleted_bytes(topic))).fetchone() is not None


def check_not_deleted(connection: Connection, ids: Sequence[int]) -> None:
    """Raise TopicChanged if the topic with these partitions was deleted."""
    extents = scan_extents(connection, ids[0], ids[-1] + 1).values()
    if any(extent is not None and extent.is_deleted for extent in extents):
        raise TopicChanged("the topic was deleted: create it again, and open it")


def groups(connection: Connection, topic: str) -> list[str]:
    """Return the groups that have a committed offset in the topic, sorted."""
    ids = {row.id for row in partitions(connection, topic)}
    return sorted({group for group, partition, _ in scan_positions(connection)[0] if partition in ids})


def committed(connection: Connection, topic: str, group: str) -> dict[int, int]:
    """Return the group's committed offset by partition number, without those whose rows are damaged."""
    row = find_topic(connection, topic)
    offsets = {} if row is None else positions_of(connection, group, row.id)
    return {split_partition_id(id_)[1]: offset for id_, offset in offsets.items()}
