"""Upgrades files of the first two versions of the log.

Their rows have no checksum over their identity, and other partition ids. Batches are moved from the old table into the new one in
transactions of at most STEP_BYTES, and each step frees what it has moved: the upgrade needs no second copy of the file, and one
that is interrupted goes on where it stopped. Until it ends, the file has its old version.
"""

import logging
import sqlite3
import time
from pathlib import Path

from mqbridge.errors import ClusterError, Failure
from mqbridge.log.store.connection import Connection, transaction
from mqbridge.log.store.extents import Extent, extent_of, write_extents
from mqbridge.log.store.positions import write_positions
from mqbridge.log.store.schema import (
    TABLES,
    BatchStamp,
    Meta,
    batch_crc,
    partition_id,
    set_version,
    text_crc,
    write_meta,
)
from mqbridge.log.wire.records import checksum

log = logging.getLogger(__name__)

OLD_VERSIONS = (1, 2)
STEP_BYTES = 16 << 20
"""Bytes of batches that one transaction moves."""
PROGRESS_S = 5.0
"""Pause between two log lines about the progress."""

_OLD = ("topic", "partition", "batch", "position")


def upgrade(path: Path, connection: Connection, timeout_s: float, meta: Meta) -> None:
    """Upgrade the file, which no other process has open. Raises sqlite3.Error."""
    began = logged = time.monotonic()
    transaction(connection, lambda: _prepare(connection, meta), timeout_s)
    (total,) = connection.execute("SELECT count(*) FROM old_batch").fetchone()
    if total:
        log.info("the log %s is being upgraded: %d batches", path, total)
    moved = 0
    while count := transaction(connection, lambda: _move_batches(connection), timeout_s):
        moved += count
        connection.end_job()
        if time.monotonic() - logged > PROGRESS_S:
            logged = time.monotonic()
            log.info("the log %s is being upgraded: %d of %d batches", path, moved, total)
    transaction(connection, lambda: _finish(connection), timeout_s)
    log.info(
        "the log %s was upgraded in %.1f s; from now on, earlier versions of mqbridge cannot open it",
        path,
        time.monotonic() - began,
    )


def _prepare(connection: Connection, meta: Meta) -> None:
    """Rename the old tables and make the new ones; do nothing if an earlier upgrade did."""
    names = {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    if "old_batch" in names:
        return
    for table in _OLD:
        connection.execute(f"ALTER TABLE {table} RENAME TO old_{table}")
    for table in ("lease", "member"):  # members register again within seconds
        connection.execute(f"DROP TABLE {table}")
    connection.execute("DROP INDEX IF EXISTS batch_place")  # batches are moved in the order of their rows
    for statement in TABLES:
        connection.execute(statement)
    write_meta(connection, meta)
    _move_topics(connection)


def _move_topics(connection: Connection) -> None:
    """Move topics, partitions and positions; `old_partition` gets the new ids of the partitions."""
    connection.execute("ALTER TABLE old_partition ADD COLUMN new_id INTEGER")
    for topic_id, name in connection.execute("SELECT id, name FROM old_topic").fetchall():
        rows = connection.execute(
            "SELECT id, number, first, next FROM old_partition WHERE topic = ? ORDER BY number", (topic_id,)
        ).fetchall()
        if [number for _, number, *_ in rows] != list(range(len(rows))):
            raise ClusterError(f"the log cannot be upgraded: topic {name!r} misses partitions; restore a backup", Failure.FATAL)
        connection.execute(
            "INSERT INTO topic VALUES (?, ?, ?, ?)", (topic_id, name, len(rows), text_crc(name, topic_id, len(rows)))
        )
        for id_, number, first, tail in rows:
            new_id = partition_id(topic_id, number)
            connection.execute("UPDATE old_partition SET new_id = ? WHERE id = ?", (new_id, id_))
            write_extents(connection, [(new_id, Extent(first, tail, 0))])
    positions = connection.execute(
        "SELECT grp, new_id, o.next FROM old_position o JOIN old_partition p ON p.id = o.partition"
    ).fetchall()
    for group, new_id, offset in positions:
        write_positions(connection, group, [(new_id, offset)])


def _move_batches(connection: Connection) -> int:
    """Move the oldest batches, up to STEP_BYTES; return their number. A damaged batch stays damaged, and is a gap."""
    size = count = 0
    sizes: dict[int, int] = {}
    query = (
        "SELECT b.rowid, new_id, base, count, appended_ms, crc, records"
        " FROM old_batch b JOIN old_partition p ON p.id = b.partition ORDER BY b.rowid LIMIT 1000"
    )
    for rowid, partition, base, messages, appended_ms, old_crc, records in connection.execute(query):
        stamp = BatchStamp(appended_ms, appended_ms)  # the age clock of an upgraded file starts at the wall-clock time
        crc = batch_crc(partition, base, messages, stamp, records)
        if checksum(base, messages, records) != old_crc:
            crc = ~crc
        connection.execute(
            "INSERT INTO batch VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (partition, base, messages, len(records), *stamp, crc, records),
        )
        sizes[partition] = sizes.get(partition, 0) + len(records)
        last = rowid
        count += 1
        size += len(records)
        if size >= STEP_BYTES:
            break
    if count:
        connection.execute("DELETE FROM old_batch WHERE rowid <= ?", (last,))
        extents = {id_: extent_of(connection, id_) for id_ in sizes}
        write_extents(connection, [(id_, extent._replace(bytes=extent.bytes + sizes[id_])) for id_, extent in extents.items()])
    return count


def _finish(connection: sqlite3.Connection) -> None:
    for table in _OLD:
        connection.execute(f"DROP TABLE old_{table}")
    set_version(connection)
