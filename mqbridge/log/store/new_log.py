"""Writes the intact rows of a damaged log into a new file, and tells what is missing."""

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field

from mqbridge.log.store.connection import Connection
from mqbridge.log.store.extents import Extent, write_extents
from mqbridge.log.store.jumps import write_jumps
from mqbridge.log.store.mark import UNMARKED, Marked
from mqbridge.log.store.offset_ranges import OffsetRange, OffsetRanges, without_jumps
from mqbridge.log.store.positions import write_positions
from mqbridge.log.store.salvage import BatchRow, SmallTables
from mqbridge.log.store.schema import partition_id, split_partition_id, text_crc
from mqbridge.log.store.topics import TopicRow

_INSERT = (
    "INSERT OR IGNORE INTO batch"
    " (rowid, partition, base, count, bytes, appended_ms, age_ms, format, sender, sequence, crc, records)"
    " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
)
TRANSACTION_BYTES = 16 << 20
"""Bytes of batches that one transaction writes."""


@dataclass
class ExportedPartition:
    """What was exported of a partition. `missing` are the offsets from `first` to before `next` whose messages are not intact."""

    topic: str
    partition: int
    first: int
    next: int
    messages: int
    bytes: int
    missing: list[OffsetRange]


@dataclass
class _Written:
    """The batches of a partition that were written."""

    offsets: OffsetRanges = field(default_factory=OffsetRanges)
    messages: int = 0
    bytes: int = 0


class NewLog:
    """The new file of an export, with empty tables at first.

    `only` are the names of the topics to export; if it is empty, all are, also those whose rows are damaged.
    """

    def __init__(self, connection: Connection, tables: SmallTables, only: Collection[str]) -> None:
        self._connection, self._tables = connection, tables
        self._cursor = connection.cursor()
        """Inserts batches: cursors of `Connection.execute` would stay open until the end of each transaction."""
        self._deleted = {id_: extent for id_, extent in tables.extents.items() if extent.is_deleted}
        """The bounds of partitions of deleted topics, of which damaged pages may still show rows."""
        self._topics = {
            id_: topic
            for id_, topic in tables.topics.items()
            if (not only or topic.name in only) and partition_id(id_, 0) not in self._deleted
        }
        self._takes_unknown = not only
        self._written: dict[int, _Written] = {}
        """What was written, by partition id."""
        self.damaged = 0
        """Number of batches that are damaged."""
        self.positions = 0
        """Number of committed offsets that were written."""

    def write_batches(self, rows: Iterator[BatchRow | None]) -> None:
        """Write the batches of the exported topics; None is a damaged one."""
        size = 0
        self._connection.execute("BEGIN")
        for row in rows:
            if row is None:
                self.damaged += 1
            elif self._is_exported(row):
                size += self._write(row)
            if size > TRANSACTION_BYTES:
                self._connection.execute("COMMIT")
                self._connection.end_job()
                self._connection.execute("BEGIN")
                size = 0
        self._connection.execute("COMMIT")

    def _is_exported(self, row: BatchRow) -> bool:
        """Return False for batches of other topics, and for those that the retention has dropped."""
        extent = self._tables.extents.get(row.partition)
        return self._has_topic(row.partition) and (extent is None or row.base >= extent.first)

    def _has_topic(self, partition: int) -> bool:
        if partition in self._deleted:
            return False
        topic_id, _ = split_partition_id(partition)
        return topic_id in self._topics or (self._takes_unknown and topic_id not in self._tables.topics)

    def _write(self, row: BatchRow) -> int:
        """Write a batch unless it is there; return its size."""
        size = len(row.records)
        values = (row.rowid, row.partition, row.base, row.messages, size, *row.stamp, row.crc, row.records)
        is_new = self._cursor.execute(_INSERT, values).rowcount
        if not is_new:  # it is there already, or another batch has its row id, which no checksum covers
            is_new = self._cursor.execute(_INSERT, (None, *values[1:])).rowcount
        if not is_new:
            return 0
        written = self._written.setdefault(row.partition, _Written())
        written.offsets.add(row.base, row.base + row.messages)
        written.messages += row.messages
        written.bytes += size
        return size

    def write_tables(self, marked: dict[int, Marked], notes: list[str]) -> list[ExportedPartition]:
        """Write topics, partitions and positions, after all batches. `marked` is what the mark knows, by partition id."""
        positions = {key: offset for key, offset in self._tables.positions.items() if self._has_topic(key[1])}
        reached: dict[int, int] = {}
        for (_, id_), offset in positions.items():
            reached[id_] = max(offset, reached.get(id_, 0))
        exported = []
        self._connection.execute("BEGIN")
        for topic in self._all_topics(positions, notes):
            crc = text_crc(topic.name, topic.id, topic.partitions)
            self._connection.execute("INSERT INTO topic VALUES (?, ?, ?, ?)", (*topic, crc))
            for number in range(topic.partitions):
                id_ = partition_id(topic.id, number)
                extent, written = self._extent(id_, reached.get(id_, 0)), self._written.get(id_, _Written())
                write_extents(self._connection, [(id_, extent)])
                known = marked.get(id_, UNMARKED)
                missing = written.offsets.missing(extent.first, max(extent.next, known.next))
                found = self._tables.jumps.get(id_, [])
                write_jumps(self._connection, ((id_, jump) for jump in found))
                missing = without_jumps(missing, [*found, *known.jumps])
                exported.append(
                    ExportedPartition(topic.name, number, extent.first, extent.next, written.messages, written.bytes, missing)
                )
        if self._takes_unknown:  # it is the same log: no topic may get these ids
            write_extents(self._connection, self._deleted.items())
        for (group, partition), offset in positions.items():
            write_positions(self._connection, group, [(partition, offset)])
        self._connection.execute("COMMIT")
        self.positions = len(positions)
        return exported

    def _all_topics(self, positions: Collection[tuple[str, int]], notes: list[str]) -> list[TopicRow]:
        """Return the topics to write, with as many partitions as any rows tell; unknown ones are named by their ids."""
        counts: dict[int, int] = {}
        bounded = {*self._tables.extents, *self._tables.jumps} - self._deleted.keys()
        for id_ in {*self._written, *bounded, *(partition for _, partition in positions)}:
            topic_id, number = split_partition_id(id_)
            # A partition that was lost with the WAL has bounds, and nothing else.
            if id_ not in bounded or topic_id in self._topics or id_ in self._written:
                counts[topic_id] = max(counts.get(topic_id, 0), number + 1)
        names = {topic.name for topic in self._topics.values()}
        found = []
        for topic_id in sorted({*self._topics, *counts}):
            topic = self._topics.get(topic_id)
            if topic is None:
                topic = TopicRow(topic_id, _unused_name(f"topic-{topic_id}", names), 0)
                notes.append(f"the name of the topic with id {topic_id} is lost: it is called {topic.name} now")
            found.append(topic._replace(partitions=max(topic.partitions, counts.get(topic_id, 0))))
        return found

    def _extent(self, id_: int, reached: int) -> Extent:
        """Return the extent of a partition: of the source, or by its batches, its jumps, and what its groups have `reached`."""
        stored, written = self._tables.extents.get(id_), self._written.get(id_, _Written())
        ranges = written.offsets.sorted()
        end = ranges[-1].end if ranges else 0
        if stored is not None:
            return stored._replace(next=max(stored.next, end), bytes=written.bytes)
        tail = max([end, reached, *(jump.next for jump in self._tables.jumps.get(id_, []))])
        return Extent(ranges[0].begin if ranges else tail, tail, written.bytes)


def _unused_name(name: str, names: set[str]) -> str:
    while name in names:
        name += "-"
    return name
