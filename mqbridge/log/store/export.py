"""Writes a new log with everything that is intact in another one, however damaged it is.

The pages of the log are copied first, as they are at one moment. Its rows are then found in the copy without SQLite, so that
neither a damaged index nor a damaged page above them hides any. Ids of topics, partitions and rows stay the same, so batches are
written as they were read, and lost messages are gaps. The new file opens as a new generation, as a backup does.
"""

import shutil
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from mqbridge.errors import ClusterError, ConfigError, Failure
from mqbridge.log.store.backup import finish
from mqbridge.log.store.connection import open_connection
from mqbridge.log.store.file_guard import MARK_SUFFIX, WAL_SUFFIX, beside, real_path
from mqbridge.log.store.mark import Marked
from mqbridge.log.store.new_file import check_destination, new_file
from mqbridge.log.store.new_log import ExportedPartition, NewLog
from mqbridge.log.store.opening import new_meta
from mqbridge.log.store.pages import PageFile
from mqbridge.log.store.reading_source import ReportProgress, read_mark
from mqbridge.log.store.salvage import SmallTables, read_batches, read_small_tables
from mqbridge.log.store.schema import APPLICATION_ID, SCHEMA_VERSION, create_tables
from mqbridge.log.store.snapshot import open_pages, snapshot
from mqbridge.log.store.upgrade import OLD_VERSIONS


@dataclass
class ExportSummary:
    """What was exported. `notes` are sentences about everything that is not as it was in the source."""

    partitions: list[ExportedPartition]
    positions: int
    damaged: int
    """Number of damaged batches that were found; the pages of others may be gone."""
    notes: list[str]

    @property
    def messages(self) -> int:
        """Number of exported messages."""
        return sum(each.messages for each in self.partitions)

    @property
    def missing(self) -> int:
        """Number of offsets whose messages are missing."""
        return sum(end - begin for each in self.partitions for begin, end in each.missing)


def export(source: Path, destination: Path, only: Collection[str], report: ReportProgress, *, is_forced: bool) -> ExportSummary:
    """Write the intact messages of `source` to the new log `destination`; of the topics in `only`, or of all if it is empty.

    `is_forced`: an earlier file there is replaced. Raises ConfigError, ClusterError.
    """
    source, destination = real_path(source), real_path(destination)
    if not source.is_file():
        raise ClusterError(f"there is no log {source}; name the database file itself", Failure.FATAL)
    check_destination(source, destination, is_forced=is_forced)
    wal = beside(source, WAL_SUFFIX)
    size = source.stat().st_size + (wal.stat().st_size if wal.exists() else 0)
    with new_file(destination, 2 * size) as temporary:
        notes: list[str] = []
        copy = temporary.with_name(f"{temporary.name}-pages")
        _copy_mark(source, copy)
        snapshot(source, copy, notes, report)
        with open_pages(copy) as file:
            free = file.free_pages()
            tables = read_small_tables(file, free, report)
            _check_version(source, file.versions(), tables)
            _check_topics(source, tables, only)
            marked = read_mark(copy, tables.meta.file_id) if tables.meta is not None else None
            return _write(file, free, tables, temporary, only, marked or {}, notes, report)


def _copy_mark(source: Path, copy: Path) -> None:
    """Copy the mark before the pages are copied: otherwise messages that are appended in between would seem to be missing."""
    mark = beside(source, MARK_SUFFIX)
    if mark.is_file():
        shutil.copyfile(mark, beside(copy, MARK_SUFFIX))


def _check_version(source: Path, versions: tuple[int, int] | None, tables: SmallTables) -> None:
    """Raise ClusterError (FATAL) for a file of another version, or of another program."""
    version, application = versions or (SCHEMA_VERSION, APPLICATION_ID)
    if application != APPLICATION_ID and version in OLD_VERSIONS:
        raise ClusterError(
            f"the log {source} has schema version {version}, or is being upgraded from it: open it once with this version, such"
            f" as by `mqbridge topics --at log://{source}`",
            Failure.FATAL,
        )
    if application == APPLICATION_ID and version > SCHEMA_VERSION:
        raise ClusterError(f"the log {source} has schema version {version}: use a later version of mqbridge", Failure.FATAL)
    if tables.meta is None and not tables.topics and application != APPLICATION_ID:
        raise ClusterError(f"the file {source} is a database of another program; name a file of the log", Failure.FATAL)


def _check_topics(source: Path, tables: SmallTables, only: Collection[str]) -> None:
    """Raise ConfigError for a name that no intact row of a topic has."""
    names = {topic.name for topic in tables.topics.values()}
    if unknown := sorted(set(only) - names):
        known = ", ".join(sorted(names)) or "none"
        raise ConfigError(f"the log {source} has no topic {', '.join(unknown)}", hint=f"Its topics with intact rows: {known}")


def _write(
    file: PageFile,
    free: frozenset[int],
    tables: SmallTables,
    path: Path,
    only: Collection[str],
    marked: dict[int, Marked],
    notes: list[str],
    report: ReportProgress,
) -> ExportSummary:
    if tables.meta is None:
        notes.append("the id of the log is damaged: the new file is another log, to which a mark of the old one does not belong")
    if tables.damaged:
        notes.append(f"{tables.damaged} rows of topics, partitions or positions are damaged")
    connection = open_connection(path, "off", 0.0, is_new=True)  # it is synced when it is complete
    try:
        connection.execute(
            "PRAGMA journal_mode=MEMORY"
        ).fetchall()  # an incomplete file is removed, so no crash is recovered from
        connection.execute("BEGIN")
        # A part of a log is another log: a mark of the whole one would tell that the other topics are missing.
        create_tables(connection, new_meta() if only or tables.meta is None else tables.meta)
        connection.execute("COMMIT")
        new_log = NewLog(connection, tables, only)
        new_log.write_batches(read_batches(file, free, report))
        partitions = new_log.write_tables(marked, notes)
        finish(connection)
    finally:
        connection.close()
    return ExportSummary(partitions, new_log.positions, new_log.damaged, notes)
