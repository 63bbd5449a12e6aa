"""Reads rows of the table `batch` from an offset on, and reports gaps.

The base offset of a row is the offset of its first message. The rows of a partition are contiguous except for jumps, so the row
that contains an offset is the last one with a base offset at or below it. Each row is checked against its checksum, which covers
its identity: its partition, offsets and times.

Damage is a property of a row. The valid rows before it are returned first; a read that begins at it raises GapError, which names
the next valid row.
"""

import sqlite3
import struct
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from mqbridge.adapter.formats import MAX_UNIT_MESSAGES
from mqbridge.errors import ClusterError, Failure, GapError, TopicChanged
from mqbridge.log.store.connection import Connection, is_damage
from mqbridge.log.store.extents import Extent, extent_of
from mqbridge.log.store.jumps import Jump, jumps_of
from mqbridge.log.store.schema import JUMP_LOST, BatchStamp, batch_crc

Row = tuple[int, int, bytes]
"""Base offset, number of messages, encoded records."""

ROW_OVERHEAD_BYTES = 160
"""Memory of a row besides its records: a tuple, two integers and the header of the bytes object."""
SKIPPED_ROWS = 1000
"""Maximum number of damaged rows that one gap covers: each is read once to find the next valid one."""
MAX_OFFSET = (1 << 63) - 1


_SELECT_ROWS = (
    "SELECT base, count, bytes, appended_ms, age_ms, format, sender, sequence, crc, records FROM batch"
    " WHERE partition = ?1 AND base >= (SELECT max(base) FROM batch WHERE partition = ?1 AND base <= ?2) ORDER BY base"
)
"""Selects the rows of a partition from the one that contains an offset on."""


class Rows(NamedTuple):
    """Rows of a partition, all of one format, contiguous.

    rows         the rows, at most
    offset       offset of the first message to take from them
    tail         the offset after the last message of the partition
    format       the format of the units, each of which is one row; None: rows of our own records
    appended_ms  when each unit was appended, ms since the epoch; empty for our own records
    """

    rows: list[Row]
    offset: int
    tail: int
    format: str | None = None
    appended_ms: Sequence[int] = ()


def held_bytes(rows: list[Row]) -> int:
    """Return the memory that these rows use."""
    return sum(len(records) for _, _, records in rows) + ROW_OVERHEAD_BYTES * len(rows)


def read(connection: Connection, partition: int, offset: int, max_bytes: int, max_messages: int) -> Rows:
    """Return whole rows, from the one that contains `offset` on, or from behind the jump that begins there.

    They end before the first row of another format. The limits do not apply to the first row, so that a large row can be read.

    Raises TopicChanged if the topic was deleted, and GapError if the offset was dropped by the retention, is beyond the end, or
    lies in a damaged or missing row. The gateway adds the name of the partition when it logs the error.
    """
    connection.execute("BEGIN")  # all queries see the file in the same state
    extent = extent_of(connection, partition)
    if extent.is_deleted:
        raise TopicChanged("the topic was deleted, and its messages with it")
    tail = extent.next
    _check_extent(extent, offset)
    while offset < tail:
        found = _read_valid_rows(connection, partition, offset, tail, max_bytes, max_messages)
        if found.rows:
            return found
        offset = _behind_jump(connection, partition, extent, offset)
    return Rows([], tail, tail)


def _check_extent(extent: Extent, offset: int) -> None:
    """Raise GapError if the retention has dropped the offset, or if it is beyond the end."""
    first, tail, _ = extent
    if offset < first:
        raise GapError(
            f"offsets {offset} to {first - 1} were dropped by the log's retention before they were read; seek to {first}",
            resume=(first,),
        )
    if offset > tail:
        raise GapError(
            f"offset {offset} is beyond the end of the partition ({tail}): the file was replaced or restored; seek to"
            f" an offset up to {tail} to continue"
        )


def _behind_jump(connection: Connection, partition: int, extent: Extent, offset: int) -> int:
    """Return the offset behind the jump that begins here, if a restore made it; no valid row has this offset.

    Raises GapError otherwise: messages are lost.
    """
    jumps = jumps_of(connection, partition)
    jump = next((each for each in jumps if each.first <= offset < each.next), None)
    if jump is None:
        raise _gap_at(connection, partition, extent, offset, jumps)
    if jump.is_restored and offset == jump.first:
        return jump.next
    why = (
        "were acknowledged and are lost with the log's WAL"
        if jump.kind == JUMP_LOST
        else "may have been given after the backup that was restored, or in a deleted topic of this name, and are lost"
    )
    raise GapError(f"offsets {offset} to {jump.next - 1} {why}; seek to {jump.next}", resume=(jump.next,))


def _read_valid_rows(connection: Connection, partition: int, offset: int, tail: int, max_bytes: int, max_messages: int) -> Rows:
    """Return rows from the one with `offset` on, up to the limits, another format, or the first row that is not valid."""
    rows: list[Row] = []
    unit_format: str | None = None
    appended: list[int] = []
    for is_single in (False, True):
        expected = rows[-1][0] + rows[-1][1] if rows else offset  # the next row has to contain this offset
        try:
            for base, count, records, stamp in _valid_rows(connection, partition, expected, is_single=is_single):
                max_bytes -= len(records) + ROW_OVERHEAD_BYTES
                max_messages -= count
                is_next = base <= expected < base + count
                if not is_next or (rows and (max_bytes < 0 or max_messages < 0 or stamp.format != unit_format)):
                    break
                rows.append((base, count, records))
                if (unit_format := stamp.format) is not None:
                    appended.append(stamp.appended_ms)
                expected = base + count
        except sqlite3.DatabaseError as error:
            # Python steps to the next row before it returns one, so an error may also hide the valid row before it.
            if not is_damage(error):
                raise
        else:
            break
    return Rows(rows, offset, tail, unit_format, appended)


def _valid_rows(
    connection: Connection, partition: int, offset: int, *, is_single: bool
) -> Iterator[tuple[int, int, bytes, BatchStamp]]:
    """Yield rows, from the one that contains the offset to before the first damaged one; with `is_single`, one by one."""
    query = f"{_SELECT_ROWS} LIMIT 1" if is_single else _SELECT_ROWS
    while True:
        cursor = connection.execute(query, (partition, offset))
        yielded = False
        for base, count, size, *values, crc, records in cursor:
            stamp = BatchStamp(*values)
            try:
                is_valid = 0 < count <= MAX_UNIT_MESSAGES and size == len(records)
                is_valid = is_valid and batch_crc(partition, base, count, stamp, records) == crc
            except (struct.error, TypeError, AttributeError):  # the damage changed the type of a value
                is_valid = False
            if not is_valid:
                return
            yield base, count, records, stamp
            yielded, offset = True, base + count
        if not (is_single and yielded):
            return


def _gap_at(connection: Connection, partition: int, extent: Extent, offset: int, jumps: Sequence[Jump]) -> GapError:
    """Return the error for an offset that neither a valid row nor one of the jumps contains."""
    resume = _next_valid_offset(connection, partition, extent, offset)
    resume = min([resume, *(jump.first for jump in jumps if jump.first > offset)])
    lost = f"the batch that contains offset {offset} is damaged (CRC32C) or missing"
    if resume > offset + 1:
        lost = f"offsets {offset} to {resume - 1} are lost: their batches are damaged (CRC32C) or missing"
    return GapError(f"{lost}; seek past it to continue, to {resume}", resume=(resume,))


def _next_valid_offset(connection: Connection, partition: int, extent: Extent, offset: int) -> int:
    """Return the base offset of the first valid row after the offset; the partition's tail if there is none.

    At most SKIPPED_ROWS rows are tried: the gap then ends at a row that may be damaged, too.
    """
    tail = extent.next
    try:
        for _ in range(SKIPPED_ROWS):
            query = "SELECT min(base) FROM batch WHERE partition = ? AND base > ?"
            (base,) = connection.execute(query, (partition, offset)).fetchone()
            if base is None or base >= tail:
                return tail
            if _read_valid_rows(connection, partition, base, tail, 0, 0).rows:
                return int(base)
            offset = base
    except sqlite3.DatabaseError as error:
        if not is_damage(error):
            raise
        raise ClusterError(
            f"the index of the log's batches is damaged, so the messages from offset {offset} on cannot be found: {error}; run"
            " `mqbridge log check --repair` while no process has the log open",
            Failure.FATAL,
        ) from error
    return offset


def check_offset(offset: int) -> None:
    """Raise ClusterError if no message can have this offset."""
    if not 0 <= offset <= MAX_OFFSET:
        raise ClusterError(f"the log has no offset {offset}; offsets go from 0 to {MAX_OFFSET}", Failure.FATAL)
