"""Retention: drops old batches by age and by size.

Whole batches (rows of the table `batch`) are dropped, oldest first, read or not. A reader that is slower than the retention gets
a GapError. The newest batch of a partition always stays: after a restart, the origins of its messages tell how far a route has
copied.

The size is enforced by each append, in its transaction, which then uses the pages that it frees. Ages are looked at by a pass
every RETENTION_INTERVAL_S, which also drops what appends of other settings have left. A pass looks for what to drop with the
reading connection, a few partitions at a time, and drops it in short transactions, one partition each: damage in one keeps no
other from being trimmed.
"""

import time
from functools import partial
from typing import NamedTuple

from mqbridge.log.store.connection import Connection, retry_while_busy
from mqbridge.log.store.extents import Extent, extent_of, write_extents

SCANNED_PARTITIONS = 500
"""Partitions that one job of the reading thread looks at, which takes some 5 ms."""
DROPPED_ROWS, DROPPED_BYTES = 256, 32 << 20
"""Maximum rows and bytes that one transaction drops, so that appends and heartbeats wait for it for milliseconds only."""
VACUUM_PAGES = 512
"""Maximum pages that one transaction gives back to the disk."""
INCREMENTAL = 2
"""Value of SQLite's `auto_vacuum` in files that can become smaller."""
FREE_FRACTION = 4
"""The file is made smaller if more than a fourth of its pages is free: fewer will soon be used again."""


class Limits(NamedTuple):
    """Maximum bytes of a partition, and the time of the age clock before which a batch is too old; None means no limit."""

    max_bytes: int | None
    before_ms: int | None


class Dropped(NamedTuple):
    """What one transaction dropped; `is_complete` is False if more is to be dropped."""

    rows: int
    is_complete: bool


def find_expired(connection: Connection, limits: Limits, after: int) -> tuple[list[int], int | None]:
    """Return ids of partitions with expired rows, among the next SCANNED_PARTITIONS after this id, and the last id looked at.

    The last id is None at the end of the table.
    """
    rows = connection.execute(
        "SELECT id, bytes FROM partition WHERE id > ? ORDER BY id LIMIT ?", (after, SCANNED_PARTITIONS)
    ).fetchall()
    expired = []
    for id_, size in rows:
        if size < 0:  # its topic was deleted
            continue
        is_too_large = limits.max_bytes is not None and size > limits.max_bytes
        if is_too_large or _has_expired(connection, id_, limits.before_ms):
            expired.append(id_)
    return expired, rows[-1][0] if len(rows) == SCANNED_PARTITIONS else None


def _has_expired(connection: Connection, partition: int, before_ms: int | None) -> bool:
    """Return True if the oldest batch is too old."""
    if before_ms is None:
        return False
    oldest = connection.execute("SELECT age_ms FROM batch WHERE partition = ? ORDER BY base LIMIT 1", (partition,)).fetchone()
    return oldest is not None and oldest[0] < before_ms


def trim(connection: Connection, partition: int, limits: Limits) -> Dropped:
    """Drop expired rows of a partition, up to the limits of one transaction. The caller commits."""
    extent = extent_of(connection, partition)
    if extent.is_deleted:  # since `find_expired` saw it: its size must go on saying so, and `deletion` drops its rows
        return Dropped(0, is_complete=True)
    trimmed, dropped = trim_extent(connection, partition, extent, limits)
    if dropped.rows:
        write_extents(connection, [(partition, trimmed)])
    return dropped


def trim_extent(
    connection: Connection, partition: int, extent: Extent, limits: Limits, *, added: int = 0
) -> tuple[Extent, Dropped]:
    """Drop expired rows of a partition, and return its extent without them; the caller writes it.

    `added` is the size of the batches that are inserted next, which the extent has already: the oldest make room for them.
    """
    remaining, dropped_bytes, first = extent.bytes, 0, extent.first
    is_complete = True
    rows = connection.execute(
        "SELECT rowid, base, count, bytes, age_ms FROM batch WHERE partition = ?1"
        " AND base < (SELECT max(base) FROM batch WHERE partition = ?1) ORDER BY base LIMIT ?2",
        (partition, DROPPED_ROWS),
    ).fetchall()
    dropped: list[tuple[int]] = []
    for rowid, base, count, row_bytes, age_ms in rows:
        is_too_old = limits.before_ms is not None and age_ms < limits.before_ms
        is_too_large = limits.max_bytes is not None and remaining > limits.max_bytes
        if not (is_too_old or is_too_large):
            break
        if dropped and dropped_bytes >= DROPPED_BYTES + added:
            is_complete = False
            break
        dropped.append((rowid,))
        first = base + count
        remaining -= row_bytes
        dropped_bytes += row_bytes
    connection.executemany("DELETE FROM batch WHERE rowid = ?", dropped)
    trimmed = extent._replace(first=first, bytes=extent.bytes - dropped_bytes)
    return trimmed, Dropped(len(dropped), is_complete and len(dropped) < DROPPED_ROWS)


def give_back(connection: Connection, timeout_s: float, *, is_urgent: bool = False) -> int:
    """Give free pages of the file back to the disk, if there are many or if it `is_urgent`; return how many, 0 if none.

    It is a transaction of its own, and `timeout_s` limits the wait for its lock. Files of the first two versions cannot become
    smaller: they have no incremental auto-vacuum. Raises sqlite3.Error.
    """
    (free,) = connection.execute("PRAGMA freelist_count").fetchone()
    (pages,) = connection.execute("PRAGMA page_count").fetchone()
    (mode,) = connection.execute("PRAGMA auto_vacuum").fetchone()
    is_worth_it = (free and is_urgent) or free >= max(VACUUM_PAGES, pages // FREE_FRACTION)
    if mode != INCREMENTAL or not is_worth_it:
        return 0
    # `execute` would do one page only: it takes a single step of a statement without columns.
    script = f"BEGIN IMMEDIATE; PRAGMA incremental_vacuum({VACUUM_PAGES}); COMMIT"
    try:
        retry_while_busy(partial(connection.executescript, script), time.monotonic() + timeout_s)
    except BaseException:
        if connection.in_transaction:  # damage of the list of free pages leaves it open
            connection.rollback()
        raise
    return VACUUM_PAGES
