"""The tables of the log, how a connection to them is opened, and what SQLite's errors mean.

A row of `batch` is what one append left: whole or absent. Its blob is the last column, so that what reads only the others does
not touch the blob's pages. `partition.next` outlives its batches: offsets never start over.
"""

import sqlite3
import time
from pathlib import Path

from mqbridge.errors import ClusterError, Failure, Unreachable

SCHEMA_VERSION = 2

_MEMBER = """
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
    + _MEMBER
)
_UPGRADES = {
    1: "DROP TABLE member;" + _MEMBER,  # its leases ended by wall time; whoever is a member says so again within seconds
}
"""By the version that a file has, what makes it the next one."""

PAGE_BYTES = 16 << 10
"""Rows are hundreds of kilobytes: pages of 16 KiB were measured to append and read them a fifth faster than SQLite's own 4 KiB,
and larger pages no faster. The WAL is folded into the file every 1000 pages, which is SQLite's own rule."""

BUSY_POLL_S = 0.01
"""Between two attempts at a lock that another connection has."""

_FATAL = {
    sqlite3.SQLITE_CORRUPT: "restore the file, or move it away to start an empty log",
    sqlite3.SQLITE_NOTADB: "point `path` at a file of the log",
    sqlite3.SQLITE_READONLY: "let this user write the file and its folder",
    sqlite3.SQLITE_PERM: "let this user write the file and its folder",
    sqlite3.SQLITE_AUTH: "let this user write the file and its folder",
}
_RETRY = {
    sqlite3.SQLITE_BUSY: "another process is writing for too long",
    sqlite3.SQLITE_LOCKED: "another process is writing for too long",
    sqlite3.SQLITE_FULL: "free space on the disk",
    sqlite3.SQLITE_IOERR: "check the disk",
    sqlite3.SQLITE_CANTOPEN: "check that the folder is there and can be written",
    sqlite3.SQLITE_NOMEM: "free memory",
}


def cluster_error(error: sqlite3.Error, path: Path) -> ClusterError:
    """What SQLite's error means to the gateway; one that nobody foresaw is fatal, as retrying a bug helps nobody."""
    code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF
    hint = _RETRY.get(code) or _FATAL.get(code, "this is a bug of mqbridge, or the file was changed by something else")
    return ClusterError(f"the log {path}: {error}; {hint}", Failure.RETRY if code in _RETRY else Failure.FATAL)


def open_connection(path: Path, synchronous: str, busy_timeout_s: float) -> sqlite3.Connection:
    """A connection in autocommit mode; makes file and tables where there are none. Raises ClusterError."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        # Each connection is used by one thread, but closed and opened from wherever its executor runs.
        connection = sqlite3.connect(path, timeout=busy_timeout_s, isolation_level=None, check_same_thread=False)
    except (OSError, sqlite3.Error) as error:
        raise Unreachable(
            f"the log {path} cannot be opened: {error}; check that the folder is there and can be written"
        ) from error
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
    """Have the file in WAL mode; it stays so.

    SQLite makes the change in a transaction that begins as a read, and its busy timeout does not hold where such a one becomes a
    write: of connections that open a new file at the same moment some are refused at once (with SQLite 3.40, in one of ten rounds
    of six threads).
    """
    end = time.monotonic() + busy_timeout_s
    while True:
        try:
            connection.execute("PRAGMA journal_mode=WAL")
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() >= end:
                raise
            time.sleep(BUSY_POLL_S)
        else:
            return


def _ensure_tables(connection: sqlite3.Connection, path: Path) -> None:
    if _version(connection) < SCHEMA_VERSION:
        # Two processes may come here at once; the second finds the tables made when it gets the lock.
        connection.execute("BEGIN IMMEDIATE")
        if (version := _version(connection)) < SCHEMA_VERSION:
            for script in [_TABLES] if version == 0 else [_UPGRADES[old] for old in range(version, SCHEMA_VERSION)]:
                for statement in script.split(";"):
                    connection.execute(statement)
            connection.execute(f"PRAGMA user_version={SCHEMA_VERSION}")
        connection.execute("COMMIT")
    if (version := _version(connection)) != SCHEMA_VERSION:
        raise ClusterError(
            f"the log {path} has schema version {version}, this mqbridge reads {SCHEMA_VERSION}; use the mqbridge that wrote it",
            Failure.FATAL,
        )


def _version(connection: sqlite3.Connection) -> int:
    return int(connection.execute("PRAGMA user_version").fetchone()[0])
