"""Opens the file of a log for commands that read all of it, while other processes may use it. The file is never changed."""

import contextlib
import os
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path

from mqbridge.errors import ClusterError, Failure, Unreachable
from mqbridge.log.store.connection import Connection, cluster_error, is_damage, open_read_only
from mqbridge.log.store.file_guard import MARK_SUFFIX, WAL_SUFFIX, beside
from mqbridge.log.store.mark import Mark, Marked

ReportProgress = Callable[[str], None]
"""Called often by a long job, with what it is doing. It may raise an exception to end the job."""

BUSY_S = 60.0
"""How long SQLite waits for a lock that other processes hold only for moments."""
_SETTINGS = ("query_only=ON", "mmap_size=0", "cell_size_check=ON", "trusted_schema=OFF", "temp_store=MEMORY")


@contextlib.contextmanager
def open_source(path: Path) -> Iterator[Connection]:
    """Open the file as a context, without creating, upgrading or checking it. Raises ClusterError, also for SQLite's errors.

    With messages in the WAL, the connection is read-only: one that may write would move them into the file when it is closed.
    Without any, it is not: a read-only one would leave an empty WAL behind.
    """
    if not path.is_file():
        raise ClusterError(f"there is no log {path}; name the database file itself", Failure.FATAL)
    try:
        connection = _connect(path)
        try:
            yield connection
        finally:
            connection.close()
    except sqlite3.Error as error:
        if getattr(error, "sqlite_errorcode", 0) & 0xFF == sqlite3.SQLITE_FULL:  # of the file to which the log is copied
            raise
        raise cluster_error(error, path) from error
    except OSError as error:
        raise Unreachable(f"the log {path} cannot be read: {error}") from error


def _connect(path: Path) -> Connection:
    if not (os.access(path, os.W_OK) and os.access(path.parent, os.W_OK)):
        return open_read_only(path)
    wal = beside(path, WAL_SUFFIX)
    mode = "ro" if wal.exists() and wal.stat().st_size else "rw"
    connection = sqlite3.connect(
        f"{path.absolute().as_uri()}?mode={mode}",
        timeout=BUSY_S,
        isolation_level=None,
        check_same_thread=False,
        factory=Connection,
        uri=True,
    )
    for setting in _SETTINGS:
        connection.execute(f"PRAGMA {setting}").fetchall()
    connection.end_job()
    return connection


def is_unreadable(error: Exception) -> bool:
    """Return True if the error is about the bytes of the file: its header, its pages, or its schema.

    A text of SQLite that quotes a damaged schema may not be UTF-8, and then Python raises UnicodeDecodeError instead.
    """
    if isinstance(error, sqlite3.Error):
        return is_damage(error) or getattr(error, "sqlite_errorcode", 0) & 0xFF == sqlite3.SQLITE_NOTADB
    return isinstance(error, UnicodeDecodeError)


def read_mark(path: Path, file_id: bytes) -> dict[int, Marked] | None:
    """Return what the mark of this log knows, by partition id; None without a mark of its own.

    Takes no lock, so it keeps nobody waiting.
    """
    try:
        fd = os.open(beside(path, MARK_SUFFIX), os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    mark = Mark(beside(path, MARK_SUFFIX), fd)
    try:
        return mark.read(file_id)
    finally:
        mark.close()
