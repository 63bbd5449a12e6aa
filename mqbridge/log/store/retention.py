"""Dropping old batches.

By age and by size, whole batches from the oldest on, read or not: a reader that was slower than the retention gets a GapError,
never silence. The newest batch of a partition always stays, as its origin stamp is what a restart goes by.
Freed pages are used again; the file itself does not shrink.
"""

import sqlite3

ROWS_PER_PASS = 256
"""Most rows dropped in one transaction, so that appends wait for milliseconds and not for a whole clean-up."""

Limits = tuple[int | None, int | None, int]
"""Most bytes of a partition, the time before which a batch is too old, most rows to drop."""


def trim(connection: sqlite3.Connection, max_bytes: int | None, before_ms: int | None) -> int:
    """Drop what is too old or too much, at most ROWS_PER_PASS rows; how many were dropped."""
    dropped = 0
    for partition, size in connection.execute("SELECT id, bytes FROM partition WHERE bytes > 0").fetchall():
        if dropped >= ROWS_PER_PASS:
            break
        dropped += _trim_partition(connection, partition, size, (max_bytes, before_ms, ROWS_PER_PASS - dropped))
    return dropped


def _trim_partition(connection: sqlite3.Connection, partition: int, size: int, limits: Limits) -> int:
    max_bytes, before_ms, limit = limits
    rows = connection.execute(
        "SELECT base, count, bytes, appended_ms FROM batch WHERE partition = ?1"
        " AND base < (SELECT max(base) FROM batch WHERE partition = ?1) ORDER BY base LIMIT ?2",
        (partition, limit),
    )
    count, first, left = 0, 0, size
    for base, messages, bytes_, appended_ms in rows.fetchall():
        too_old = before_ms is not None and appended_ms < before_ms
        too_much = max_bytes is not None and left > max_bytes
        if not (too_old or too_much):
            break
        count, first, left = count + 1, base + messages, left - bytes_
    if count:
        connection.execute("DELETE FROM batch WHERE partition = ? AND base < ?", (partition, first))
        connection.execute("UPDATE partition SET first = ?, bytes = ? WHERE id = ?", (first, left, partition))
    return count
