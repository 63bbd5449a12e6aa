"""Retention: drops old batches by age and by size.

Whole batches (rows of the table `batch`) are dropped, oldest first, read or not. A reader that is slower than the retention gets
a GapError. The newest batch of a partition always stays: after a restart, the origins of its messages tell how far a route has
copied. SQLite reuses freed pages; the file itself does not shrink.
"""

import sqlite3

ROWS_PER_PASS = 256
"""Maximum number of rows dropped in one transaction, so that appends wait for it for milliseconds only."""

Limits = tuple[int | None, int | None, int]
"""Maximum bytes of a partition, time (ms since the epoch) before which a batch is too old, maximum number of rows to drop."""


def trim(connection: sqlite3.Connection, max_bytes: int | None, before_ms: int | None) -> int:
    """Drop rows appended before `before_ms`, and the oldest rows of each partition until it has at most `max_bytes`.

    None means no limit.
    Returns the number of dropped rows. If it is ROWS_PER_PASS, the maximum, a further call may drop more. The caller commits.
    """
    dropped = 0
    for partition, size in connection.execute("SELECT id, bytes FROM partition WHERE bytes > 0").fetchall():
        if dropped >= ROWS_PER_PASS:
            break
        dropped += _trim_partition(connection, partition, size, (max_bytes, before_ms, ROWS_PER_PASS - dropped))
    return dropped


def _trim_partition(connection: sqlite3.Connection, partition: int, size: int, limits: Limits) -> int:
    """Drop the oldest rows of a partition of `size` bytes; return the number of dropped rows."""
    max_bytes, before_ms, max_rows = limits
    rows = connection.execute(
        "SELECT base, count, bytes, appended_ms FROM batch WHERE partition = ?1"
        " AND base < (SELECT max(base) FROM batch WHERE partition = ?1) ORDER BY base LIMIT ?2",
        (partition, max_rows),
    )
    count = first = 0
    remaining_bytes = size
    for base, messages, row_bytes, appended_ms in rows.fetchall():
        is_too_old = before_ms is not None and appended_ms < before_ms
        is_too_large = max_bytes is not None and remaining_bytes > max_bytes
        if not (is_too_old or is_too_large):
            break
        count += 1
        first = base + messages
        remaining_bytes -= row_bytes
    if count:
        connection.execute("DELETE FROM batch WHERE partition = ? AND base < ?", (partition, first))
        connection.execute("UPDATE partition SET first = ?, bytes = ? WHERE id = ?", (first, remaining_bytes, partition))
    return count
