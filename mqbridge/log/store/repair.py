"""Repairs what the batches of a log tell: its indexes, the bounds of partitions, and rows of groups. Never deletes a batch."""

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from mqbridge.errors import ClusterError, Failure
from mqbridge.log.store import jumps, topics
from mqbridge.log.store.check import SQLITE_STEPS, WRONG_TYPES
from mqbridge.log.store.connection import (
    WRONG_VALUES,
    Connection,
    cluster_error,
    open_connection,
    transaction,
    wrong_value_error,
)
from mqbridge.log.store.extents import rebuilt_extent, scan_extents, write_extents
from mqbridge.log.store.file_guard import MARK_SUFFIX, beside, real_path, refuse_unsafe
from mqbridge.log.store.mark import Mark
from mqbridge.log.store.opening import check_version, refuse_foreign_wal
from mqbridge.log.store.positions import scan_positions, write_positions
from mqbridge.log.store.reading_source import ReportProgress, is_unreadable
from mqbridge.log.store.schema import TABLES, partition_id

LOCK_WAIT_S = 1.0
"""How long to wait for a process that is opening the log, and for locks of SQLite."""


def repair(path: Path, report: ReportProgress) -> list[str]:
    """Repair the log, and return what was done. Raises ClusterError, also if another process has the log open."""
    path = real_path(path)
    if not path.is_file():
        raise ClusterError(f"there is no log {path}; name the database file itself", Failure.FATAL)
    mark = Mark.open(beside(path, MARK_SUFFIX), LOCK_WAIT_S)
    try:
        if not mark.is_alone:
            raise ClusterError(f"another process has the log {path} open: stop it first, then repair the log", Failure.FATAL)
        refuse_unsafe(path)
        refuse_foreign_wal(path)
        try:
            with _connection(path, report) as connection:
                check_version(path, connection)
                jobs: tuple[Callable[[Connection], list[str]], ...] = (_repair_indexes, _repair_bounds, _repair_groups)
                return [line for job in jobs for line in _run(connection, job)]
        except sqlite3.IntegrityError as error:
            raise ClusterError(
                f"the log {path} cannot be repaired: several batches have the same offset; {_EXPORT}", Failure.FATAL
            ) from error
        except (sqlite3.Error, UnicodeDecodeError) as error:
            if not isinstance(error, sqlite3.Error) or is_unreadable(error):
                raise ClusterError(f"the log {path} cannot be repaired: {error}; {_EXPORT}", Failure.FATAL) from error
            raise cluster_error(error, path) from error
        except WRONG_VALUES as error:
            raise wrong_value_error(path, error) from error
    finally:
        mark.close()


_EXPORT = "keep what is intact by `mqbridge log export`"


@contextmanager
def _connection(path: Path, report: ReportProgress) -> Iterator[Connection]:
    connection = open_connection(path, "full", LOCK_WAIT_S)

    def on_steps() -> int:
        report("rebuilding the indexes and the bounds of partitions")
        return 0

    connection.set_progress_handler(on_steps, SQLITE_STEPS)
    try:
        yield connection
    finally:
        connection.close()


def _run(connection: Connection, job: Callable[[Connection], list[str]]) -> list[str]:
    """Run one part of the repair as a transaction."""
    try:
        return transaction(connection, lambda: job(connection), LOCK_WAIT_S)
    finally:
        connection.end_job()


def _repair_indexes(connection: Connection) -> list[str]:
    names = {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'index'")}
    done = []
    for statement in TABLES:
        words = statement.split()
        if "INDEX" in words[1:3] and (name := words[words.index("INDEX") + 1]) not in names:
            connection.execute(statement)
            done.append(f"made the missing index {name}")
    connection.execute("REINDEX")
    return [*done, "rebuilt all indexes from their tables"]


def _repair_bounds(connection: Connection) -> list[str]:
    """Rewrite damaged and missing rows of partitions, and sizes that are not those of the batches."""
    stored = scan_extents(connection)
    rows = connection.execute("SELECT partition, sum(bytes) FROM batch GROUP BY partition")
    sizes = {id_: int(size) for id_, size in rows}  # a sum of damaged values may have another type
    done = []
    for topic in topics.scan_topics(connection)[0]:
        for number in range(topic.partitions):
            id_ = partition_id(topic.id, number)
            extent, size = stored.get(id_), sizes.get(id_, 0)
            if extent is not None and extent.bytes == size:
                continue
            is_rebuilt = extent is None
            extent = rebuilt_extent(connection, id_) if extent is None else extent._replace(bytes=size)
            write_extents(connection, [(id_, extent)])
            what = f"the bounds ({extent.first} to {extent.next})" if is_rebuilt else f"the size ({size} bytes)"
            done.append(f"wrote {what} of partition {number} of topic {topic.name!r} from its batches")
    return done


def _repair_groups(connection: Connection) -> list[str]:
    """Drop damaged rows of positions, jumps, leases and members."""
    done = []
    positions, damaged = scan_positions(connection)
    if damaged:
        connection.execute("DELETE FROM position")  # a damaged key may not be found, so that its row cannot be deleted alone
        for group, partition, offset in positions:
            write_positions(connection, group, [(partition, offset)])
        done.append(f"dropped {damaged} damaged committed offsets: their groups read from the oldest message again")
    done += _drop_damaged_jumps(connection)
    for table, condition in WRONG_TYPES.items():
        dropped = connection.execute(f"DELETE FROM {table} WHERE {condition}").rowcount  # noqa: S608
        if dropped:
            done.append(f"dropped {dropped} damaged rows of the table `{table}`: members register again")
    return done


def _drop_damaged_jumps(connection: Connection) -> list[str]:
    intact, damaged = jumps.scan(connection)
    if not damaged:
        return []
    connection.execute("DELETE FROM jump")
    jumps.write_jumps(connection, ((id_, jump) for id_, found in intact.items() for jump in found))
    return [f"dropped {damaged} damaged rows of offsets that were left out: these offsets count as lost messages"]
