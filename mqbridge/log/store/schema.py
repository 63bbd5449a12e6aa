"""Tables of the log, opening of connections, and the meaning of SQLite's errors.

    topic      topics by name
    partition  `first` and `next` are the offsets of the oldest and of the next message, `bytes` is the size of all its batches
    batch      `count` messages from offset `base` on, encoded as in `wire/records.py`; `bytes` is the size of `records`
    position   the offset at which a group (`grp`) continues in a partition
    lease      the member (`owner`) of a group that reads a partition
    member     the members of a group, each with the monotonic time of its last heartbeat and the length of its lease

The blob of `batch` is the last column, so that queries of the other columns do not read its pages. `partition.next` stays when
batches are dropped: offsets are never reused.
"""

import sqlite3
import time
from pathlib import Path

from mqbridge.errors import ClusterError, Failure, Unreachable

SCHEMA_VERSION = 2
"""Version of the tables, stored in the file as SQLite's `user_version`; 0 in a new file."""

_MEMBER_TABLE = """
CREATE TABLE member (
    grp TEXT NOT NULL, topic INTEGER NOT NULL, id TEXT NOT NULL, renewed_ms INTEGER NOT NULL, lease_ms INTEGER NOT NULL,
    PRIMARY KEY (grp, topic, id)
) WITHOUT ROWID;
"""

_TABLES = (
    """
CREATE TABLE topic (id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE);
CREATE TABLE partition (
    id INTEGER PRIMARY KEY, topic INTEGER NOT NULL REFERENCES topic, number INTEGER NOT NULL,
    first INTEGER NOT NULL DEFAULT 0, next INTEGER NOT NULL DEFAULT 0, bytes INTEGER NOT NULL DEFAULT 0, UNIQUE (topic, number)
);
CREATE TABLE batch (
    partition INTEGER NOT NULL REFERENCES partition, base INTEGER NOT NULL, count INTEGER NOT NULL, bytes INTEGER NOT NULL,
    appended_ms INTEGER NOT NULL, crc INTEGER NOT NULL, records BLOB NOT NULL
);
CREATE UNIQUE INDEX batch_place ON batch (partition, base);
CREATE TABLE position (
    grp TEXT NOT NULL, partition INTEGER NOT NULL, next INTEGER NOT NULL, PRIMARY KEY (grp, partition)
) WITHOUT ROWID;
CREATE TABLE lease (
    grp TEXT NOT NULL, partition INTEGER NOT NULL, owner TEXT NOT NULL, PRIMARY KEY (grp, partition)
) WITHOUT ROWID;
"""
    + _MEMBER_TABLE
)
_UPGRADES = {
    1: "DROP TABLE member;" + _MEMBER_TABLE,  # version 1 used wall-clock time; members register again within seconds
}
"""Scripts that upgrade a file to the next schema version, by its current version."""

PAGE_BYTES = 16 << 10
"""Page size of a new file. Rows have hundreds of kilobytes: pages of 16 KiB append and read them a fifth faster than SQLite's
default of 4 KiB, and larger pages are no faster. The WAL is moved into the file every 1000 pages, SQLite's default."""

BUSY_POLL_S = 0.01
"""Pause between attempts to get a lock that another connection holds."""

_FATAL_HINTS = {
    sqlite3.SQLITE_CORRUPT: "restore the file, or move it away to start an empty log",
    sqlite3.SQLITE_NOTADB: "point `path` at a file of the log",
    sqlite3.SQLITE_READONLY: "let this user write the file and its folder",
    sqlite3.SQLITE_PERM: "let this user write the file and its folder",
    sqlite3.SQLITE_AUTH: "let this user write the file and its folder",
}
_RETRY_HINTS = {
    sqlite3.SQLITE_BUSY: "another process is writing for too long",
    sqlite3.SQLITE_LOCKED: "another process is writing for too long",
    sqlite3.SQLITE_FULL: "free space on the disk",
    sqlite3.SQLITE_IOERR: "check the disk",
    sqlite3.SQLITE_CANTOPEN: "check that the folder exists and can be written",
    sqlite3.SQLITE_NOMEM: "free memory",
}
"""Advice for SQLite's errors, by primary error code: those that persist, and those that a retry may cure."""


def cluster_error(error: sqlite3.Error, path: Path) -> ClusterError:
    """Make a ClusterError from SQLite's error: RETRY if `_RETRY_HINTS` has its code, else FATAL."""
    code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF
    hint = _RETRY_HINTS.get(code) or _FATAL_HINTS.get(code, "this is a bug of mqbridge, or another program changed the file")
    return ClusterError(f"the log {path}: {error}; {hint}", Failure.RETRY if code in _RETRY_HINTS else Failure.FATAL)


def open_connection(path: Path, synchronous: str, busy_timeout_s: float) -> sqlite3.Connection:
    """Open a connection in autocommit mode; create the file and its tables if they are missing. Raises ClusterError.

    `synchronous` is the value of SQLite's pragma; `busy_timeout_s` is the time to wait for another connection's lock.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        # One thread at a time uses a connection, but its executor may open and close it in different threads.
        connection = sqlite3.connect(path, timeout=busy_timeout_s, isolation_level=None, check_same_thread=False)
    except (OSError, sqlite3.Error) as error:
        raise Unreachable(f"the log {path} cannot be opened: {error}; check that the folder exists and can be written") from error
    try:
        connection.execute(f"PRAGMA page_size={PAGE_BYTES}")
        _use_wal(connection, busy_timeout_s)
        connection.execute(f"PRAGMA synchronous={synchronous}")
        _ensure_tables(connection, path)
    except sqlite3.Error as error:
        connection.close()
        raise cluster_error(error, path) from error
    except ClusterError:
        connection.close()
        raise
    return connection


def _use_wal(connection: sqlite3.Connection, busy_timeout_s: float) -> None:
    """Switch the file to WAL mode, which is permanent.

    SQLite makes the change in a transaction that begins as a read. Its busy timeout does not apply when such a transaction turns
    into a write. So if several connections open a new file at the same time, some get SQLITE_BUSY at once (with SQLite 3.40, in
    one of ten rounds of six threads).
    """
    deadline = time.monotonic() + busy_timeout_s
    while True:
        try:
            connection.execute("PRAGMA journal_mode=WAL")
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() >= deadline:
                raise
            time.sleep(BUSY_POLL_S)
        else:
            return


def _ensure_tables(connection: sqlite3.Connection, path: Path) -> None:
    """Create or upgrade the tables. Raises ClusterError if a newer mqbridge wrote the file."""
    if _version(connection) < SCHEMA_VERSION:
        # Two processes may arrive here at the same time: the second gets the lock after the first has made the tables.
        connection.execute("BEGIN IMMEDIATE")
        if (version := _version(connection)) < SCHEMA_VERSION:
            for script in [_TABLES] if version == 0 else [_UPGRADES[current] for current in range(version, SCHEMA_VERSION)]:
                for statement in script.split(";"):  # not executescript, which commits first
                    connection.execute(statement)
            connection.execute(f"PRAGMA user_version={SCHEMA_VERSION}")
        connection.execute("COMMIT")
    if (version := _version(connection)) != SCHEMA_VERSION:
        raise ClusterError(
            f"the log {path} has schema version {version}, this mqbridge reads {SCHEMA_VERSION}; use the version that wrote it",
            Failure.FATAL,
        )


def _version(connection: sqlite3.Connection) -> int:
    """Return the schema version of the file; 0 if it has no tables yet."""
    return int(connection.execute("PRAGMA user_version").fetchone()[0])
