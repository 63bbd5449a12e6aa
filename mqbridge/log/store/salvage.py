"""Finds the intact rows of a log in the pages of a file: those whose checksums are right.

The number of its values tells of which table a row is; its checksum, which covers its identity, tells whether it is one. A page
that is free again may contain rows that were dropped, so free pages are left out as far as they are known; otherwise the highest
bounds of a partition are the newest, since offsets only grow.
"""

import struct
from collections.abc import Iterator
from typing import NamedTuple

from mqbridge.adapter.formats import MAX_UNIT_MESSAGES
from mqbridge.log.store.clocks import ClockReading
from mqbridge.log.store.extents import Extent
from mqbridge.log.store.jumps import Jump, is_intact
from mqbridge.log.store.pages import Cell, PageFile, Value, column_count
from mqbridge.log.store.reading_source import ReportProgress
from mqbridge.log.store.schema import BatchStamp, Meta, batch_crc, extent_crc, meta_crc, text_crc
from mqbridge.log.store.topics import TopicRow

_TOPIC, _POSITION, _PARTITION, _JUMP, _META, _BATCH = 4, 4, 5, 5, 9, 11
"""Numbers of columns. A row of `topic` or `partition` has a row id, one of `position` or `jump` has none."""
_WRONG = (struct.error, TypeError, AttributeError, UnicodeError, ValueError)
"""Raised by checksums and comparisons of values of the wrong type or number."""
REPORT_PAGES = 1000
"""Pages between two reports of the progress."""


class BatchRow(NamedTuple):
    """An intact row of `batch`."""

    rowid: int
    partition: int
    base: int
    messages: int
    stamp: BatchStamp
    crc: int
    records: bytes


class SmallTables:
    """The intact rows of all tables but `batch`."""

    def __init__(self) -> None:
        self.meta: Meta | None = None
        self.topics: dict[int, TopicRow] = {}
        self.extents: dict[int, Extent] = {}
        self.jumps: dict[int, list[Jump]] = {}
        self.positions: dict[tuple[str, int], int] = {}
        """Committed offsets by group and partition id."""
        self.damaged = 0
        """Number of rows whose checksum is wrong."""


def read_small_tables(file: PageFile, free: frozenset[int], report: ReportProgress) -> SmallTables:
    """Return the intact rows of all tables but `batch`."""
    tables = SmallTables()
    for cell, columns in _cells(file, free, report, "looked for topics and positions in"):
        values = file.values(cell) if columns in {_TOPIC, _PARTITION, _META} else None
        if values is None:
            continue
        try:
            tables.damaged += not _add(tables, cell.rowid, columns, values)
        except _WRONG:
            tables.damaged += 1
    return tables


def _add(tables: SmallTables, rowid: int | None, columns: int, values: list[Value]) -> bool:
    """Add a row; return False if its checksum is wrong. Raises an exception of _WRONG for values of other types."""
    if columns == _META:
        return _add_meta(tables, values)
    if columns == _PARTITION:
        return _add_jump(tables, values) if rowid is None else _add_extent(tables, rowid, values)
    return _add_position(tables, values) if rowid is None else _add_topic(tables, rowid, values)


def _add_meta(tables: SmallTables, values: list[Value]) -> bool:
    _, file_id, generation, backup_ms, *reading, crc = values
    meta = Meta(file_id, generation, backup_ms, ClockReading(*reading))  # type: ignore[arg-type]  # the checksum tells
    if meta_crc(meta) != crc:
        return False
    if tables.meta is None or meta.generation >= tables.meta.generation:
        tables.meta = meta
    return True


def _add_jump(tables: SmallTables, values: list[Value]) -> bool:
    partition, *fields, crc = values
    if not is_intact(partition, fields, crc):  # type: ignore[arg-type]  # as above
        return False
    found, jump = tables.jumps.setdefault(partition, []), Jump(*fields)  # type: ignore[arg-type]  # as above
    if jump not in found:
        found.append(jump)
        found.sort()
    return True


def _add_extent(tables: SmallTables, rowid: int, values: list[Value]) -> bool:
    alias, *fields, crc = values
    if alias is not None:
        return True  # a row of SQLite's schema
    extent = Extent(*fields)  # type: ignore[arg-type]  # as above
    if extent_crc(rowid, *extent) != crc:
        return False
    known = tables.extents.get(rowid)
    if known is None or (extent.next, extent.first) > (known.next, known.first):
        tables.extents[rowid] = extent
    return True


def _add_topic(tables: SmallTables, rowid: int, values: list[Value]) -> bool:
    _, name, count, crc = values
    topic = TopicRow(rowid, name, count)  # type: ignore[arg-type]  # as above
    if text_crc(topic.name, rowid, topic.partitions) != crc:
        return False
    known = tables.topics.get(rowid)
    if known is None or topic.partitions > known.partitions:
        tables.topics[rowid] = topic
    return True


def _add_position(tables: SmallTables, values: list[Value]) -> bool:
    group, partition, offset, crc = values
    if not isinstance(group, str):
        return True  # an entry of the index of senders
    if not (isinstance(partition, int) and isinstance(offset, int)):
        return False
    if text_crc(group, partition, offset) != crc:
        return False
    tables.positions[group, partition] = offset
    return True


def read_batches(file: PageFile, free: frozenset[int], report: ReportProgress) -> Iterator[BatchRow | None]:
    """Yield the intact rows of `batch` in the order of the pages; None for each damaged one."""
    for cell, columns in _cells(file, free, report, "exported the messages of"):
        if columns == _BATCH:
            yield _batch(cell.rowid, file.values(cell))


def _batch(rowid: int | None, values: list[Value] | None) -> BatchRow | None:
    if rowid is None or values is None:
        return None
    partition, base, count, size, *stamp, crc, records = values
    try:
        row = BatchRow(rowid, partition, base, count, BatchStamp(*stamp), crc, records)  # type: ignore[arg-type]  # as above
        is_intact = batch_crc(row.partition, row.base, row.messages, row.stamp, row.records) == crc
        return row if is_intact and 0 < row.messages <= MAX_UNIT_MESSAGES and size == len(row.records) else None
    except _WRONG:
        return None


def _cells(file: PageFile, free: frozenset[int], report: ReportProgress, doing: str) -> Iterator[tuple[Cell, int]]:
    """Yield everything that looks like a row, with its number of columns."""
    for number in range(1, file.count + 1):
        if number % REPORT_PAGES == 0:
            report(f"{doing} {number * file.page_bytes:,} of {file.count * file.page_bytes:,} bytes")
        if number not in free:
            for cell in file.cells(number):
                yield cell, column_count(cell)
