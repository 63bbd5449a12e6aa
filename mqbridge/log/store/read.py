"""Reading rows: what is at an offset, and what is missing there.

Rows of a partition lie end to end, so the row that holds an offset is the last one that begins at or before it. Every row's CRC
and place is checked before it leaves here.
"""

import sqlite3

from mqbridge.errors import GapError
from mqbridge.log.wire.records import checksum

Row = tuple[int, int, bytes]
"""Base offset, count, records."""

ROW_BYTES = 160
"""What a row takes in memory beside its records: a tuple, two numbers and the head of the bytes."""


def held_bytes(rows: list[Row]) -> int:
    """What rows take in memory."""
    return sum(len(records) for _, _, records in rows) + ROW_BYTES * len(rows)


def read(connection: sqlite3.Connection, partition: int, offset: int, max_bytes: int, max_messages: int) -> tuple[list[Row], int]:
    """Whole rows from the one that holds `offset` on, at least one if there is any, and the partition's next offset.

    Raises GapError when the offset was dropped, is beyond the end, or its row is damaged.
    """
    connection.execute("BEGIN")
    try:
        first, tail = connection.execute("SELECT first, next FROM partition WHERE id = ?", (partition,)).fetchone()
        if offset < first:
            raise GapError(
                f"offsets {offset} to {first - 1} were dropped by the log's retention before they were read; seek to {first}",
                (first,),
            )
        if offset > tail:
            raise GapError(
                f"offset {offset} is beyond the end of the partition, {tail}: the file was replaced or restored; seek to go on"
            )
        return ([] if offset == tail else _rows(connection, partition, offset, max_bytes, max_messages)), tail
    finally:
        connection.execute("COMMIT")


def _rows(connection: sqlite3.Connection, partition: int, offset: int, max_bytes: int, max_messages: int) -> list[Row]:
    found = connection.execute(
        "SELECT base, count, bytes, crc, records FROM batch WHERE partition = ?1 AND base >="
        " (SELECT max(base) FROM batch WHERE partition = ?1 AND base <= ?2) ORDER BY base",
        (partition, offset),
    )
    rows: list[Row] = []
    after = offset
    for base, count, size, crc, records in found:
        max_bytes -= size + ROW_BYTES
        max_messages -= count
        if rows and (max_bytes < 0 or max_messages < 0):
            break
        if not base <= after < base + count or checksum(base, count, records) != crc:
            break  # what is whole is handed out; the next read begins here and says it
        rows.append((base, count, records))
        after = base + count
    if not rows:
        problem = f"the batch that holds offset {offset} is damaged (CRC32C) or missing; seek past it to go on"
        raise GapError(problem, (_after(connection, partition, offset),))
    return rows


def _after(connection: sqlite3.Connection, partition: int, offset: int) -> int:
    """Where the next row begins, or the partition ends."""
    (tail,) = connection.execute("SELECT next FROM partition WHERE id = ?", (partition,)).fetchone()
    (base,) = connection.execute("SELECT min(base) FROM batch WHERE partition = ? AND base > ?", (partition, offset)).fetchone()
    return int(tail if base is None else min(base, tail))
