"""Opens the file of a log: creates or upgrades it, and finds out whether acknowledged messages are missing.

Only the process that opens the log first, while no other has it open, does more than connect: see `mark`. A new file is made
under another name and then renamed, so a log is never half made, and an empty file is one that something has truncated.

A file that misses acknowledged messages, or that was restored from a backup, opens as a new generation: offsets that messages had
are not given again, so that a reader which keeps its position elsewhere finds a gap, and not other messages.
"""

import contextlib
import logging
import os
import sqlite3
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from mqbridge.errors import ClusterError, Failure, Unreachable
from mqbridge.log.store import file_guard, topics, upgrade
from mqbridge.log.store.clocks import AgeClock, first_reading
from mqbridge.log.store.connection import (
    WRONG_VALUES,
    Connection,
    cluster_error,
    is_damage,
    open_connection,
    open_immutable,
    open_read_only,
    transaction,
    wrong_value_error,
)
from mqbridge.log.store.extents import NO_MESSAGES, Extent, write_extents
from mqbridge.log.store.file_guard import MARK_SUFFIX, WAL_SUFFIX, FileGuard
from mqbridge.log.store.jumps import RESTORED_JUMP, Jump, unused_offset, write_jumps
from mqbridge.log.store.jumps import scan as scan_jumps
from mqbridge.log.store.mark import UNMARKED, Mark, Marked, missing_mark_error
from mqbridge.log.store.positions import scan_positions, write_positions
from mqbridge.log.store.schema import (
    JUMP_RESTORED,
    SCHEMA_VERSION,
    Meta,
    create_tables,
    read_meta,
    version_of,
    write_meta,
)
from mqbridge.log.store.settings import LogSettings

log = logging.getLogger(__name__)

_ROLLBACK_MODE, _MODE_AT = b"\x01\x01", 18
"""Bytes of a file's header that say that SQLite writes it without a WAL, and their offset."""


class LogFile(NamedTuple):
    """An open log. A log that can only be read has no mark and no guard."""

    path: Path
    connection: Connection
    clock: AgeClock
    mark: Mark | None
    guard: FileGuard | None

    def close(self) -> None:
        """Close the connection, then the mark: as long as it is locked, the log is open."""
        self.connection.close()
        if self.mark is not None:
            self.mark.close()


def open_log(config: LogSettings) -> LogFile:
    """Open the log of these settings, or create it. Raises ClusterError."""
    path = file_guard.real_path(config.path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise Unreachable(f"the log {path} cannot be opened: {error}; check that the folder exists and can be written") from error
    with _cluster_errors(path):
        if path.exists() and not (os.access(path, os.W_OK) and os.access(path.parent, os.W_OK)):
            return _open_read_only(path)
        mark = Mark.open(file_guard.beside(path, MARK_SUFFIX), config.busy_timeout)
        connection: Connection | None = None
        try:
            file_guard.refuse_unsafe(path)
            is_new = not path.exists()
            if is_new:
                _create(path, mark, config)
            else:
                _refuse_foreign(path)
            if mark.is_alone:
                refuse_foreign_wal(path)
            connection = open_connection(path, config.synchronous, config.busy_timeout)
            meta = _prepare(path, connection, mark, config, is_new=is_new)
            guard = FileGuard(path)
            if mark.is_alone:
                mark.share()
        except BaseException:
            if connection is not None:
                connection.close()
            mark.close()
            raise
    return LogFile(path, connection, AgeClock(meta.reading), mark, guard)


@contextlib.contextmanager
def _cluster_errors(path: Path) -> Iterator[None]:
    """Raise SQLite's errors, those of the operating system, and those about values of wrong types as ClusterError."""
    try:
        yield
    except sqlite3.Error as error:
        raise cluster_error(error, path) from error
    except UnicodeDecodeError as error:  # a text of SQLite quotes the damaged schema
        raise ClusterError(
            f"the log {path} is damaged: its schema cannot be read; restore a backup, or keep what is intact by `mqbridge log"
            " export`",
            Failure.FATAL,
        ) from error
    except OSError as error:
        raise Unreachable(f"the log {path} cannot be opened: {error}") from error
    except WRONG_VALUES as error:
        raise wrong_value_error(path, error) from error


def _open_read_only(path: Path) -> LogFile:
    connection = open_read_only(path)
    try:
        check_version(path, connection)
        meta = read_meta(connection)
        log.info("the log %s can only be read here: it, its folder or its file system cannot be written", path)
    except BaseException:
        connection.close()
        raise
    return LogFile(path, connection, AgeClock(first_reading() if meta is None else meta.reading), None, None)


def refuse_foreign_wal(path: Path) -> None:
    """Raise ClusterError (FATAL) if a WAL lies beside a backup: it is another file's, and SQLite would move its pages here.

    A backup, and no log, is in SQLite's rollback mode (`backup`). Its row of `meta` cannot tell: once a log that was restored has
    been opened, the main file says that it is a backup until the WAL with the new row is moved into it. This process is alone, so
    no connection of it loses its locks when the file is closed here.
    """
    wal = file_guard.beside(path, WAL_SUFFIX)
    if not wal.exists() or not wal.stat().st_size:
        return
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        mode = os.pread(fd, len(_ROLLBACK_MODE), _MODE_AT)
    finally:
        os.close(fd)
    if mode == _ROLLBACK_MODE:
        raise ClusterError(
            f"the log {path} is a backup, but {wal.name} beside it belongs to the file that was there before; move {wal.name} and"
            f" {path.name}{file_guard.SHM_SUFFIX} away, and open the log again",
            Failure.FATAL,
        )


def _create(path: Path, mark: Mark, config: LogSettings) -> None:
    """Create the file with its tables under another name, and rename it when it is on the disk."""
    if not mark.is_alone:
        raise ClusterError(f"the log {path} is missing, but another process has it open: it was deleted or moved", Failure.FATAL)
    if not mark.is_empty:
        raise missing_mark_error(path, mark.path)
    new = path.with_name(f"{path.name}-new")
    for suffix in ("", "-journal", file_guard.WAL_SUFFIX, file_guard.SHM_SUFFIX):  # of a process that was killed here
        file_guard.beside(new, suffix).unlink(missing_ok=True)
    connection = open_connection(new, config.synchronous, config.busy_timeout, is_new=True)
    try:
        transaction(connection, lambda: create_tables(connection, new_meta()), config.busy_timeout)
    finally:
        connection.close()
    sync(new)
    new.rename(path)
    sync(path.parent)


def new_meta() -> Meta:
    """Return the row of `meta` of a new log."""
    return Meta(os.urandom(16), 1, None, first_reading())


def sync(path: Path) -> None:
    """Write a file, or the names in a folder, to the disk. No connection may have it open: closing it here ends its locks."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _refuse_foreign(path: Path) -> None:
    """Raise ClusterError (FATAL) if the file is a database of another program, before anything in it is changed."""
    connection = open_immutable(path)
    has_wal = _size(file_guard.beside(path, WAL_SUFFIX)) > 0
    try:
        if has_wal and not connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]:
            return  # its tables are still in the WAL, as in a log of an earlier version that was killed; `_prepare` looks again
        _check_owner(path, connection)
    except sqlite3.DatabaseError as error:
        # A failure in the midst of a checkpoint: only with its WAL, the file makes sense. `_prepare` looks again.
        if not is_damage(error) or not has_wal:
            raise
    finally:
        connection.close()


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _check_owner(path: Path, connection: Connection) -> int:
    """Return the schema version of a log's file. Raises ClusterError (FATAL) if the file belongs to another program."""
    version = version_of(connection)
    if version is None:
        raise ClusterError(f"the file {path} is a database of another program; point `path` at a file of the log", Failure.FATAL)
    return version


def check_version(path: Path, connection: Connection) -> None:
    """Raise ClusterError (FATAL) unless the file is a log of this version."""
    version = _check_owner(path, connection)
    if version != SCHEMA_VERSION:
        raise ClusterError(
            f"the log {path} has schema version {version}, this mqbridge reads {SCHEMA_VERSION}; "
            + ("close it in all processes, and open it for writing once" if version < SCHEMA_VERSION else "use a later version"),
            Failure.FATAL,
        )


def _prepare(path: Path, connection: Connection, mark: Mark, config: LogSettings, *, is_new: bool) -> Meta:
    """Upgrade the file, compare it with the mark if this process is alone, and return its `meta`."""
    if mark.is_alone and version_of(connection) in upgrade.OLD_VERSIONS:
        upgrade.upgrade(path, connection, config.busy_timeout, new_meta())
        mark.rewrite((read_meta(connection) or new_meta()).file_id, {})  # the earlier versions had no mark
    check_version(path, connection)
    meta = read_meta(connection)
    if mark.is_alone:
        if is_new and meta is not None:
            mark.rewrite(meta.file_id, {})
        meta, tails = transaction(connection, lambda: _open_generation(path, connection, mark, meta), config.busy_timeout)
        # After the commit: after a kill in between, the mark is older than the file, which claims no loss.
        mark.rewrite(meta.file_id, tails)
        return meta
    return new_meta() if meta is None else meta


def _open_generation(path: Path, connection: Connection, mark: Mark, meta: Meta | None) -> tuple[Meta, dict[int, Marked]]:
    """Begin a new generation if messages are missing, or the file was restored; return `meta` and the contents of the mark.

    The caller commits.
    """
    if meta is None:
        connection.report("its table `meta` is damaged, so it is not known whether the file is complete")
        meta = new_meta()
        write_meta(connection, meta)
    known = mark.read(meta.file_id)
    extents = topics.all_extents(connection)
    # A new log that was killed before its mark was written has an empty one.
    if known is None and meta.backup_ms is None and (mark.was_missing or not mark.is_empty):
        log.warning("the log %s has no mark of its own: it is not known whether acknowledged messages are missing", path)
    is_restored = meta.backup_ms is not None
    new_jumps = _new_jumps(extents, known or {}, is_restored=is_restored)
    if new_jumps or is_restored:
        meta = meta._replace(generation=meta.generation + 1, backup_ms=None)
        _report(path, meta.generation, extents, known, new_jumps)
        changed = {id_: extents.get(id_, NO_MESSAGES)._replace(next=found[-1].next) for id_, found in new_jumps.items()}
        write_jumps(connection, ((id_, jump) for id_, found in new_jumps.items() for jump in found))
        write_extents(connection, changed.items())
        _move_groups_at_the_end(connection, new_jumps)
        extents |= changed
        write_meta(connection, meta)
    jumps, _ = scan_jumps(connection)
    return meta, {id_: Marked(extent.next, jumps.get(id_, ())) for id_, extent in extents.items() if extent.next}


def _new_jumps(extents: Mapping[int, Extent], known: Mapping[int, Marked], *, is_restored: bool) -> dict[int, list[Jump]]:
    """Return the offsets to leave out, by partition id: those of lost messages, and behind them all that may have been given.

    Partitions of deleted topics have lost nothing.

    A restored file leaves out offsets in any case: its mark may be older than the log that was lost, as on a standby to which
    both were copied.
    """
    jumps: dict[int, list[Jump]] = {}
    for id_ in {**extents, **known}:
        extent, marked = extents.get(id_, NO_MESSAGES), known.get(id_, UNMARKED)
        if extent.is_deleted:
            continue
        tail = extent.next
        found = marked.missing_behind(tail)
        if is_restored:
            reached = max(tail, marked.next)
            found.append(Jump(reached, unused_offset(reached), JUMP_RESTORED))
        if found:
            jumps[id_] = found
    return jumps


def _report(
    path: Path,
    generation: int,
    extents: Mapping[int, Extent],
    known: Mapping[int, Marked] | None,
    jumps: Mapping[int, list[Jump]],
) -> None:
    """Log which messages are missing, as far as the mark tells it."""
    lost = [jump.next - jump.first for found in jumps.values() for jump in found if not jump.is_restored]
    is_current = known is not None and all(known.get(id_, UNMARKED).next >= extent.next for id_, extent in extents.items())
    if lost:
        log.error(
            "the log %s misses its newest %s acknowledged messages, in %d partitions: its WAL was lost or damaged, or an older"
            " copy of the file was put in its place; they are gaps, and their offsets are not given again (generation %d)",
            path,
            sum(lost) if sum(lost) < RESTORED_JUMP else "(an unknown number of)",  # offsets that were left out before
            len(lost),
            generation,
        )
    elif not is_current:
        log.warning(
            "the log %s was restored from a backup, and no mark tells what was appended after it: these messages are missing, and"
            " their offsets are not given again (generation %d)",
            path,
            generation,
        )
    else:
        log.info(
            "the log %s was restored from a backup, and misses nothing that its mark knows of (generation %d)", path, generation
        )


def _move_groups_at_the_end(connection: Connection, jumps: Mapping[int, list[Jump]]) -> None:
    """Move groups that have read everything behind the jumps of a restore."""
    for group, partition, offset in scan_positions(connection)[0]:
        behind = offset
        for jump in jumps.get(partition, ()):
            if jump.is_restored and behind == jump.first:
                behind = jump.next
        if behind != offset:
            write_positions(connection, group, [(partition, behind)])
