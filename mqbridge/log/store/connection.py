"""Connections to the file of a log: their settings, the end of each job, and the meaning of SQLite's errors.

Every setting on which a promise of the log rests is set here, since SQLite's defaults depend on how it was built.
"""

import contextlib
import logging
import os
import sqlite3
import struct
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from mqbridge.errors import ClusterError, Failure

log = logging.getLogger(__name__)

T = TypeVar("T")

MAX_REPORTED = 1000
"""Number of different damages that a connection logs."""

PAGE_BYTES = 8 << 10
"""Page size of a new file. A commit writes three pages or more to the WAL, however small the message: with pages of 16 KiB it
needs 14 us more. With SQLite's default of 4 KiB, rows of hundreds of kilobytes need a fifth more time."""
CHECKPOINT_PAGES = 2000
"""Pages of the WAL after which a commit moves them into the file, as far as no reader needs them: 16 MB."""
WAL_KEPT_BYTES = 32 << 20
"""Size to which a larger WAL is cut when it is started anew. The rest stays allocated, so that small commits need no room."""

LOCK_WAIT_S = 0.05
"""Busy timeout of SQLite itself. It waits longer and longer between attempts, so that a busy writer starves another one;
`begin_write` tries again evenly instead."""
LOCK_POLL_S = 0.002
"""Pause between attempts to get the write lock."""

_SETTINGS = {
    "secure_delete": "OFF",  # Debian's SQLite overwrites what it deletes: trimming would write as many bytes as it frees
    "wal_autocheckpoint": CHECKPOINT_PAGES,
    "journal_size_limit": WAL_KEPT_BYTES,
    "mmap_size": 0,  # a file that is truncated under a memory map kills the process
    "temp_store": "MEMORY",  # no temporary files, which need room on another disk
    "cell_size_check": "ON",  # damaged pages are noticed when they are read
    "trusted_schema": "OFF",
}
_CHECK = "run `mqbridge log check` for what is damaged; restore a backup, or keep what is intact by `mqbridge log export`"
_PERMISSION = "let this user write the file and its folder"
_BUSY = "another process is writing for too long; is one of them stopped, or suspended?"
_FATAL_HINTS = {
    sqlite3.SQLITE_CORRUPT: _CHECK,
    sqlite3.SQLITE_NOTADB: "point `path` at a file of the log",
    sqlite3.SQLITE_READONLY: _PERMISSION,
    sqlite3.SQLITE_PERM: _PERMISSION,
    sqlite3.SQLITE_AUTH: _PERMISSION,
}
_RETRY_HINTS = {
    sqlite3.SQLITE_BUSY: _BUSY,
    sqlite3.SQLITE_LOCKED: _BUSY,
    sqlite3.SQLITE_FULL: "free space on the disk",
    sqlite3.SQLITE_IOERR: "check the disk",
    sqlite3.SQLITE_CANTOPEN: "check that the folder exists and can be written",
    sqlite3.SQLITE_NOMEM: "free memory",
}
"""Advice for SQLite's errors, by primary error code: those that persist, and those that a retry may cure."""
_READ_ONLY_DISK = "its file system is read-only now: check the disk, and mount it for writing"
SQLITE_IOERR_SHORT_READ = 522


class Connection(sqlite3.Connection):
    """A connection of a log. `waited_s` is the time for which the running transaction waited for its lock."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.waited_s = 0.0
        self._reported: set[str] = set()
        self._cursors: list[sqlite3.Cursor] = []

    def execute(self, *args: Any) -> sqlite3.Cursor:
        """Run a statement; its cursor is closed by `end_job`."""
        cursor = super().execute(*args)
        self._cursors.append(cursor)
        return cursor

    def report(self, problem: str) -> None:
        """Log damage of the file; the same only once."""
        if problem not in self._reported and len(self._reported) < MAX_REPORTED:
            self._reported.add(problem)
            log.error("the embedded log's file is damaged: %s", problem)

    def end_job(self) -> None:
        """Close all cursors and end an open transaction.

        An unfinished SELECT keeps its snapshot: other reads would see an old state for ever, and the WAL could not be reused.
        An exception that is kept somewhere keeps the cursors of the frames in its traceback.
        """
        self.close_cursors()
        if self.in_transaction:
            self.rollback()

    def close_cursors(self) -> None:
        """Close all cursors: no query is unfinished then."""
        for cursor in self._cursors:
            cursor.close()
        self._cursors.clear()


def cluster_error(error: sqlite3.Error, path: Path) -> ClusterError:
    """Make a ClusterError from SQLite's error: RETRY if `_RETRY_HINTS` has its code, else FATAL."""
    code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF
    hint = _RETRY_HINTS.get(code) or _FATAL_HINTS.get(code) or f"this may be a bug of mqbridge, or damage: {_CHECK}"
    if code == sqlite3.SQLITE_READONLY and is_read_only_disk(path):
        hint = _READ_ONLY_DISK
    return ClusterError(f"the log {path}: {error}; {hint}", Failure.RETRY if code in _RETRY_HINTS else Failure.FATAL)


WRONG_VALUES = (TypeError, ValueError, OverflowError, struct.error)
"""Raised for damaged values that have another type, or are out of range."""


def wrong_value_error(path: Path, error: Exception) -> ClusterError:
    """Make a ClusterError from an exception of WRONG_VALUES."""
    return ClusterError(
        f"the log {path}: a value is not one that a log has: {error!r}; {_CHECK}",
        Failure.FATAL,
    )


def is_read_only_disk(path: Path) -> bool:
    """Return True if the file system is mounted read-only."""
    with contextlib.suppress(OSError):
        return bool(os.statvfs(path).f_flag & os.ST_RDONLY)
    return False


def is_damage(error: sqlite3.Error) -> bool:
    """Return True if the error is about the bytes of the file, not about the disk or a lock."""
    code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR)
    return code & 0xFF in {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_ERROR} or code == SQLITE_IOERR_SHORT_READ


def open_connection(path: Path, synchronous: str, busy_timeout_s: float, *, is_new: bool = False) -> Connection:
    """Open a connection in autocommit mode. `is_new`: the file is created. Raises sqlite3.Error.

    `synchronous` is the value of SQLite's pragma; `busy_timeout_s` is the time to wait for another connection's lock.
    """
    connection = _connect(path, "mode=rwc" if is_new else "mode=rw")
    try:
        if is_new:
            connection.execute(f"PRAGMA page_size={PAGE_BYTES}")
            connection.execute("PRAGMA auto_vacuum=INCREMENTAL")
        deadline = time.monotonic() + busy_timeout_s
        # Turning on WAL mode begins as a read, and SQLite's busy timeout does not apply when that becomes a write.
        retry_while_busy(lambda: connection.execute("PRAGMA journal_mode=WAL").fetchall(), deadline)
        connection.execute(f"PRAGMA synchronous={synchronous}")
        retry_while_busy(lambda: connection.execute("SELECT count(*) FROM sqlite_master").fetchall(), deadline)
        connection.end_job()
    except BaseException:
        connection.close()
        raise
    return connection


def open_read_only(path: Path) -> Connection:
    """Open a connection that can only read: the file, or its file system, cannot be written. Raises ClusterError, sqlite3.Error.

    Without the `-shm` file, which SQLite would have to make, only a log without unwritten messages in its WAL can be read.
    """
    wal, shm = path.with_name(path.name + "-wal"), path.with_name(path.name + "-shm")
    is_complete = not wal.exists() or not wal.stat().st_size
    if not is_complete and not shm.exists():
        raise ClusterError(
            f"the log {path} cannot be written here, and its newest messages are still in {wal.name}; copy its folder to a disk"
            " that can be written, and open it there",
            Failure.FATAL,
        )
    return open_immutable(path) if is_complete else _connect(path, "mode=ro")


def open_immutable(path: Path) -> Connection:
    """Open a connection that reads the database file without locks, and without the WAL. Raises sqlite3.Error."""
    return _connect(path, "mode=ro&immutable=1")


def _connect(path: Path, parameters: str) -> Connection:
    """Open a connection in autocommit mode with these parameters of SQLite's URI, and apply the settings."""
    # One thread at a time uses a connection, but its executor may open and close it in different threads.
    connection = sqlite3.connect(
        f"{path.absolute().as_uri()}?{parameters}",
        timeout=LOCK_WAIT_S,
        isolation_level=None,
        check_same_thread=False,
        factory=Connection,
        uri=True,
    )
    try:
        _apply_settings(connection)
    except BaseException:
        connection.close()
        raise
    return connection


def _apply_settings(connection: sqlite3.Connection) -> None:
    for name, value in _SETTINGS.items():
        connection.execute(f"PRAGMA {name}={value}").fetchall()


def retry_while_busy(action: Callable[[], T], deadline: float) -> T:
    """Run an action until another connection's lock does not refuse it, or the deadline (of time.monotonic) has passed."""
    while True:
        try:
            return action()
        except sqlite3.OperationalError as error:
            if getattr(error, "sqlite_errorcode", 0) & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() >= deadline:
                raise
            time.sleep(LOCK_POLL_S)


def transaction(connection: Connection, job: Callable[[], T], timeout_s: float) -> T:
    """Run a job in a transaction that locks the file for writing from its beginning; roll back if it fails. Raises sqlite3.Error.

    `timeout_s` limits the wait for the lock.
    """
    began = time.monotonic()
    retry_while_busy(partial(connection.execute, "BEGIN IMMEDIATE"), began + timeout_s)
    connection.waited_s = time.monotonic() - began
    try:
        result = job()
        connection.close_cursors()  # COMMIT moves the WAL into the file, as far as no query needs it
        connection.execute("COMMIT")
    except BaseException:
        # SQLite rolls back by itself after some errors, such as a full disk.
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise
    return result
