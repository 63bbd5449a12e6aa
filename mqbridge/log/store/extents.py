"""Extents: the bounds and the size of each partition. A row that is damaged is rebuilt from what else the file tells."""

import sqlite3
import struct
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from mqbridge.adapter.formats import MAX_UNIT_MESSAGES
from mqbridge.log.store.connection import Connection
from mqbridge.log.store.jumps import jumps_of
from mqbridge.log.store.positions import scan_positions
from mqbridge.log.store.schema import BatchStamp, batch_crc, extent_crc, split_partition_id

MAX_DAMAGED_OFFSETS = 1 << 32
"""Distance from the last intact batch up to which offsets of damaged rows, and of groups, are believed."""
_SELECT_ALL = "SELECT id, first, next, bytes, crc FROM partition"
_SELECT_ONE = f"{_SELECT_ALL} WHERE id = ?"
_SELECT_BATCH = (
    "SELECT partition, base, count, appended_ms, age_ms, format, sender, sequence, crc, records FROM batch WHERE rowid = ?"
)
_REPLACE = "INSERT OR REPLACE INTO partition VALUES (?, ?, ?, ?, ?)"
_DAMAGED = (struct.error, TypeError, AttributeError)
"""Raised by the checksum of values that have the wrong type."""


class Extent(NamedTuple):
    """The values of a row of `partition`, without id and checksum: offsets of the oldest and the next message, and the size."""

    first: int
    next: int
    bytes: int

    @property
    def is_deleted(self) -> bool:
        """True if the topic was deleted: any negative size says so (see `schema.DELETED_BYTES`)."""
        return self.bytes < 0


NO_MESSAGES = Extent(0, 0, 0)


def scan_extents(connection: Connection, first_id: int = 0, end_id: int = 1 << 62) -> dict[int, Extent | None]:
    """Return the extents in the rows of the partitions with ids from `first_id` to before `end_id`; None if a row is damaged."""
    return dict(_checked_rows(connection.execute(f"{_SELECT_ALL} WHERE id >= ? AND id < ?", (first_id, end_id))))


def newest_partitions(connection: Connection) -> Iterator[int]:
    """Yield the ids of the partitions whose rows are intact, the highest first."""
    return (id_ for id_, extent in _checked_rows(connection.execute(f"{_SELECT_ALL} ORDER BY id DESC")) if extent is not None)


def _checked_rows(rows: Iterable[Sequence[int]]) -> Iterator[tuple[int, Extent | None]]:
    return ((id_, _checked(id_, values, crc)) for id_, *values, crc in rows)


def extent_of(connection: Connection, id_: int) -> Extent:
    """Return the extent of a partition, rebuilt from its batches if its row is damaged."""
    for _, first, tail, size, crc in connection.execute(_SELECT_ONE, (id_,)):
        if (extent := _checked(id_, (first, tail, size), crc)) is not None:
            return extent
    return rebuilt_extent(connection, id_)


def _checked(id_: int, extent: Sequence[int], crc: object) -> Extent | None:
    """Return the extent in a row if its checksum is right, else None."""
    try:
        return Extent(*extent) if extent_crc(id_, *extent) == crc else None
    except _DAMAGED:
        return None


def rebuilt_extent(connection: Connection, id_: int) -> Extent:
    """Return the extent of a partition by its batches, its jumps and the positions of its groups. The next write stores it."""
    topic_id, number = split_partition_id(id_)
    connection.report(
        f"the bounds of partition {number} of the topic with id {topic_id} are not known, so they are those of its messages"
    )
    (size,) = connection.execute("SELECT sum(bytes) FROM batch WHERE partition = ?", (id_,)).fetchone()
    first, end = _reach_of_batches(connection, id_)
    known = max([end, *(jump.next for jump in jumps_of(connection, id_))])
    # A group may have been moved anywhere, but has read at most what there was.
    reached = [offset for _, partition, offset in scan_positions(connection)[0] if partition == id_]
    tail = max([known, *(offset for offset in reached if offset < known + MAX_DAMAGED_OFFSETS)])
    return Extent(tail if first is None else first, tail, int(size or 0))


def _reach_of_batches(connection: Connection, id_: int) -> tuple[int | None, int]:
    """Return the offset of the first message of a partition, and that behind the last one: None and 0 if there is no batch.

    The last intact batch tells the end. Offsets of damaged ones behind it are left out: a new batch cannot have the offset of a
    row that exists. Values of damaged rows may be anything.
    """
    (first,) = connection.execute("SELECT min(base) FROM batch WHERE partition = ? AND base >= 0", (id_,)).fetchone()
    if not isinstance(first, int):
        return None, 0
    end, damaged = first, list[tuple[int, object]]()
    query = "SELECT rowid, base, count FROM batch WHERE partition = ? AND base >= 0 ORDER BY base DESC"
    for rowid, base, count in connection.execute(query, (id_,)):
        if _is_intact_batch(connection, rowid, id_, base):
            end = base + count
            break
        if isinstance(base, int):
            damaged.append((base, count))
    for base, count in reversed(damaged):
        if end <= base < end + MAX_DAMAGED_OFFSETS:
            end = base + (count if isinstance(count, int) and 0 < count <= MAX_UNIT_MESSAGES else 1)
    return first, end


def _is_intact_batch(connection: Connection, rowid: int, id_: int, base: int) -> bool:
    """Return True if the row to which the index leads for this partition and offset is intact, and has them."""
    try:
        (row,) = connection.execute(_SELECT_BATCH, (rowid,))
        stored_id, stored_base, count, *stamp, crc, records = row
        is_intact = batch_crc(stored_id, stored_base, count, BatchStamp(*stamp), records) == crc
        return bool(0 < count <= MAX_UNIT_MESSAGES and is_intact and (stored_id, stored_base) == (id_, base))
    except (sqlite3.DatabaseError, *_DAMAGED):
        return False


def write_extents(connection: Connection, extents: Iterable[tuple[int, Extent]]) -> None:
    """Write rows of partitions, by id, inside a transaction."""
    connection.executemany(_REPLACE, [(id_, *extent, extent_crc(id_, *extent)) for id_, extent in extents])
