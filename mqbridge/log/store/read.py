"""Reads rows of the table `batch` from an offset on, and reports gaps.

The base offset of a row is the offset of its first message. The rows of a partition are contiguous, so the row that contains an
offset is the last one with a base offset at or below it. The CRC and the base offset of each row are checked.
"""

import sqlite3

from mqbridge.errors import GapError
from mqbridge.log.wire.records import checksum

Row = tuple[int, int, bytes]
"""Base offset, number of messages, encoded records."""

ROW_OVERHEAD_BYTES = 160
"""Memory of a row besides its records: a tuple, two integers and the header of the bytes object."""


def held_bytes(rows: list[Row]) -> int:
    """Return the memory that these rows use."""
    return sum(len(records) for _, _, records in rows) + ROW_OVERHEAD_BYTES * len(rows)


def read(connection: sqlite3.Connection, partition: int, offset: int, max_bytes: int, max_messages: int) -> tuple[list[Row], int]:
    """Return whole rows, from the one that contains `offset` on, and the partition's tail: the offset after its last message.

    The limits do not apply to the first row, so that a large row can be read.

    Raises GapError if the offset was dropped by the retention, is beyond the end, or lies in a damaged or missing row. The
    gateway adds the name of the partition when it logs the error.
    """
    connection.execute("BEGIN")  # both queries see the file in the same state
    try:
        first, tail = connection.execute("SELECT first, next FROM partition WHERE id = ?", (partition,)).fetchone()
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
        return ([] if offset == tail else _read_valid_rows(connection, partition, offset, max_bytes, max_messages)), tail
    finally:
        connection.execute("COMMIT")


def _read_valid_rows(connection: sqlite3.Connection, partition: int, offset: int, max_bytes: int, max_messages: int) -> list[Row]:
    """Return rows from the one with `offset` on, up to the limits or a damaged row. Raises GapError if there is no valid row."""
    cursor = connection.execute(
        "SELECT base, count, bytes, crc, records FROM batch WHERE partition = ?1 AND base >="
        " (SELECT max(base) FROM batch WHERE partition = ?1 AND base <= ?2) ORDER BY base",
        (partition, offset),
    )
    rows: list[Row] = []
    expected = offset  # the next row has to contain this offset
    for base, count, size, crc, records in cursor:
        max_bytes -= size + ROW_OVERHEAD_BYTES
        max_messages -= count
        if rows and (max_bytes < 0 or max_messages < 0):
            break
        if not base <= expected < base + count or checksum(base, count, records) != crc:
            break  # return the valid rows; the next read begins at this row and raises the error
        rows.append((base, count, records))
        expected = base + count
    if not rows:
        problem = f"the batch that contains offset {offset} is damaged (CRC32C) or missing; seek past it to continue"
        raise GapError(problem, resume=(_next_row_offset(connection, partition, offset),))
    return rows


def _next_row_offset(connection: sqlite3.Connection, partition: int, offset: int) -> int:
    """Return the base offset of the first row after the one with `offset`; the partition's tail if there is none."""
    (tail,) = connection.execute("SELECT next FROM partition WHERE id = ?", (partition,)).fetchone()
    (base,) = connection.execute("SELECT min(base) FROM batch WHERE partition = ? AND base > ?", (partition, offset)).fetchone()
    return int(tail if base is None else min(base, tail))
