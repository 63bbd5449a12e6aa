"""Copies a log while other processes use it, as it is at one moment.

SQLite copies the pages in steps. A read transaction is open for the whole copy: without it, each commit of another process would
start the copy anew. While it is open, the WAL of the log cannot be reused, so it grows by everything that is written.

The copy is one file: it is not in WAL mode, until it is opened as a log. Its row of `meta` says when it was made, so that
opening it begins a new generation.
"""

import sqlite3
import time
from pathlib import Path
from typing import NamedTuple

from mqbridge.errors import ClusterError, Failure
from mqbridge.log.store import topics
from mqbridge.log.store.clocks import now_ms
from mqbridge.log.store.connection import Connection
from mqbridge.log.store.file_guard import real_path
from mqbridge.log.store.new_file import check_destination, new_file
from mqbridge.log.store.opening import check_version, new_meta
from mqbridge.log.store.reading_source import ReportProgress, open_source
from mqbridge.log.store.schema import SCHEMA_VERSION, read_meta, version_of, write_meta

STEP_PAGES = 512
"""Pages that are copied at a time: 8 MiB."""


class BackupSummary(NamedTuple):
    """What a backup contains. `messages` is the number that the bounds of the partitions tell: no batch is read for it."""

    topics: int
    partitions: int
    messages: int
    bytes: int
    seconds: float


def backup(source: Path, destination: Path, report: ReportProgress, *, is_forced: bool) -> BackupSummary:
    """Copy the log to `destination`; `is_forced`: an earlier backup there is replaced. Raises ConfigError, ClusterError."""
    source, destination = real_path(source), real_path(destination)
    check_destination(source, destination, is_forced=is_forced)
    began = time.monotonic()
    with open_source(source) as connection:
        connection.execute("BEGIN")
        _refuse_old_version(source, connection)
        check_version(source, connection)
        (page_bytes,), (pages,) = (connection.execute(f"PRAGMA {name}").fetchone() for name in ("page_size", "page_count"))
        with new_file(destination, page_bytes * pages) as temporary:
            summary = _copy(connection, temporary, page_bytes, report)
    return summary._replace(seconds=time.monotonic() - began)


def _refuse_old_version(path: Path, connection: Connection) -> None:
    version = version_of(connection)
    if version is not None and version < SCHEMA_VERSION:
        raise ClusterError(
            f"the log {path} has schema version {version}; open it once with this version, which upgrades it to {SCHEMA_VERSION}"
            f" (`mqbridge topics --at log://{path}`), then run this again",
            Failure.FATAL,
        )


def _copy(source: Connection, path: Path, page_bytes: int, report: ReportProgress) -> BackupSummary:
    def on_step(_: int, remaining: int, total: int) -> None:
        report(f"copied {(total - remaining) * page_bytes:,} of {total * page_bytes:,} bytes")

    copy = sqlite3.connect(path, isolation_level=None, check_same_thread=False, factory=Connection)
    try:
        copy.execute("PRAGMA journal_mode=OFF").fetchall()  # an incomplete copy is removed, so nothing is ever rolled back
        copy.execute("PRAGMA synchronous=OFF")  # the finished file is synced once
        source.backup(copy, pages=STEP_PAGES, progress=on_step)
        finish(copy)
        return _summary(copy)
    finally:
        copy.close()


def finish(copy: Connection) -> None:
    """Mark the file as a backup of this moment, and make it complete without a WAL."""
    copy.end_job()
    copy.execute("PRAGMA journal_mode=DELETE").fetchall()
    copy.execute("BEGIN")
    write_meta(copy, (read_meta(copy) or new_meta())._replace(backup_ms=now_ms()))
    copy.execute("COMMIT")


def _summary(copy: Connection) -> BackupSummary:
    found, _ = topics.scan_topics(copy)
    rows = [row for topic in found for row in topics.partitions_of(copy, topic)]
    left_out = sum(max(0, jump.next - max(jump.first, row.first)) for row in rows for jump in row.jumps)
    messages = sum(row.next - row.first for row in rows) - left_out
    (page_bytes,), (pages,) = (copy.execute(f"PRAGMA {name}").fetchone() for name in ("page_size", "page_count"))
    return BackupSummary(len(found), len(rows), messages, page_bytes * pages, 0.0)
