"""Reads every batch of a log in short transactions, whatever is damaged.

Rows are read in the order of their ids from the table itself. Where SQLite reports damage, the range of ids is halved until
only the rows that cannot be read are left out. For each row, the index is asked whether it leads to it: reading messages uses it.
"""

import sqlite3
import struct
from collections.abc import Iterator
from typing import NamedTuple

from mqbridge.adapter.formats import MAX_UNIT_MESSAGES
from mqbridge.errors import RemoteProtocolError
from mqbridge.log.store.connection import Connection, is_damage
from mqbridge.log.store.schema import BatchStamp, batch_crc
from mqbridge.log.wire.records import decode_row

CHUNK_ROWS, CHUNK_BYTES = 1000, 8 << 20
"""Maximum rows and bytes that one transaction reads: the WAL cannot be reused while it is open."""


class ScannedBatch(NamedTuple):
    """A row of `batch`. `problem` is why its messages are not intact; `is_hidden`: the index does not lead to it."""

    partition: int
    base: int
    messages: int
    bytes: int
    problem: str | None
    is_hidden: bool


def last_row(connection: Connection) -> int:
    """Return the highest row id, 0 if there is no batch. Raises sqlite3.DatabaseError if neither table nor index tell it."""
    try:
        (last,) = connection.execute("SELECT max(rowid) FROM batch NOT INDEXED").fetchone()
    except sqlite3.DatabaseError as error:
        if not is_damage(error):
            raise
        (last,) = connection.execute("SELECT max(rowid) FROM batch INDEXED BY batch_base").fetchone()
    return last or 0


def scan_batches(connection: Connection, last: int, *, uses_index: bool) -> Iterator[ScannedBatch | int]:
    """Yield all batches up to this row id; for rows that SQLite cannot read, the number of their ids.

    The caller may use the connection in between: no transaction is open.
    """
    ranges = [(1, last)] if last else []
    while ranges:
        first, end = ranges.pop()
        batches, done, has_failed = _read_chunk(connection, first, end, uses_index=uses_index)
        yield from batches
        if has_failed and done == end - 1:
            yield 1
        elif has_failed:
            middle = (done + 1 + end) // 2
            ranges += [(middle + 1, end), (done + 1, middle)] if middle < end else [(done + 1, end)]
        elif done < end:
            ranges.append((done + 1, end))


def _read_chunk(connection: Connection, first: int, end: int, *, uses_index: bool) -> tuple[list[ScannedBatch], int, bool]:
    """Read rows from the range in one transaction: return them, the last row id that is done, and whether the next one failed."""
    batches: list[ScannedBatch] = []
    done, size = first - 1, 0
    connection.execute("BEGIN")
    try:
        query = (
            "SELECT rowid, partition, base, count, bytes, appended_ms, age_ms, format, sender, sequence, crc, records"
            " FROM batch NOT INDEXED WHERE rowid BETWEEN ? AND ? ORDER BY rowid LIMIT ?"
        )
        for rowid, *values in connection.execute(query, (first, end, CHUNK_ROWS)):
            batches.append(_checked(connection, rowid, values, uses_index=uses_index))
            done = rowid
            size += batches[-1].bytes
            if size >= CHUNK_BYTES:
                return batches, done, False
    except sqlite3.DatabaseError as error:
        if not is_damage(error):
            raise
        return batches, done, True
    finally:
        connection.end_job()
    return batches, done if len(batches) == CHUNK_ROWS else end, False


def _checked(connection: Connection, rowid: int, values: list[object], *, uses_index: bool) -> ScannedBatch:
    partition, base, count, size, *stamp, crc, records = values
    try:
        problem = _problem(partition, base, count, size, BatchStamp(*stamp), crc, records)  # type: ignore[arg-type]  # see below
    except (struct.error, TypeError, AttributeError):  # the damage changed the type of a value
        problem = "it has values of the wrong type"
    if not (isinstance(partition, int) and isinstance(base, int) and isinstance(count, int)):
        partition = base = count = 0
    is_hidden = problem is None and uses_index and not _is_indexed(connection, partition, base, rowid)
    return ScannedBatch(partition, base, count, len(records) if isinstance(records, bytes) else 0, problem, is_hidden)


def _problem(partition: int, base: int, count: int, size: int, stamp: BatchStamp, crc: int, records: bytes) -> str | None:
    """Return why the messages of a row are not intact; None if they are. Raises an exception for values of the wrong type."""
    if batch_crc(partition, base, count, stamp, records) != crc:
        return "its checksum (CRC32C) is wrong"
    if not 0 < count <= MAX_UNIT_MESSAGES:
        return f"a batch has 1 to {MAX_UNIT_MESSAGES} messages, and it says that it has {count} messages"
    if size != len(records):
        return f"its size is {len(records)} bytes, not {size}"
    if stamp.format is None:
        try:
            decode_row(records, count, base)
        except RemoteProtocolError as error:
            return str(error)
    return None


def _is_indexed(connection: Connection, partition: int, base: int, rowid: int) -> bool:
    query = "SELECT rowid FROM batch INDEXED BY batch_base WHERE partition = ? AND base = ?"
    try:
        found = connection.execute(query, (partition, base)).fetchone()
    except sqlite3.DatabaseError as error:
        if not is_damage(error):
            raise
        return False
    return bool(found == (rowid,))
