"""Copies the pages of a log, damaged or not, as they are at one moment."""

import contextlib
import os
import shutil
import sqlite3
from collections.abc import Iterator
from pathlib import Path

from mqbridge.errors import ClusterError, Failure
from mqbridge.log.store.connection import Connection
from mqbridge.log.store.file_guard import WAL_SUFFIX, beside
from mqbridge.log.store.pages import PAGE_SIZES, PageFile, page_bytes_of
from mqbridge.log.store.reading_source import ReportProgress, is_unreadable, open_source

STEP_PAGES = 512
SAMPLED_PAGES = 200
"""Pages that are looked at to find out the page size of a file whose header is damaged."""


def snapshot(source: Path, destination: Path, notes: list[str], report: ReportProgress) -> None:
    """Copy the pages of a log into a new file; `notes` gets a sentence if the messages in the WAL are missing."""
    with open_source(source) as connection:
        try:
            _copy_pages(connection, destination, report)
        except sqlite3.DatabaseError as error:
            if not is_unreadable(error):
                raise
        else:
            return
    # SQLite cannot use the file at all, so it is of no process that works with it: closing it here ends no locks.
    wal = beside(source, WAL_SUFFIX)
    if wal.exists() and wal.stat().st_size:
        notes.append(f"the header of the file is damaged, so the newest messages, which are still in {wal.name}, are missing")
    shutil.copyfile(source, destination)


def _copy_pages(source: Connection, destination: Path, report: ReportProgress) -> None:
    source.execute("PRAGMA writable_schema=ON")  # a file that was truncated, or has a damaged schema, can be copied, too
    source.execute("BEGIN")
    source.execute("PRAGMA user_version").fetchall()  # begins the snapshot without reading the schema
    copy = sqlite3.connect(destination, isolation_level=None, check_same_thread=False)
    try:
        copy.execute("PRAGMA journal_mode=OFF").fetchall()
        copy.execute("PRAGMA synchronous=OFF")
        source.backup(
            copy,
            pages=STEP_PAGES,
            progress=lambda _, remaining, total: report(f"copied {total - remaining:,} of {total:,} pages"),
        )
    finally:
        copy.close()


@contextlib.contextmanager
def open_pages(path: Path) -> Iterator[PageFile]:
    """Open the pages of a copy as a context. Raises ClusterError if nothing in it looks like a log."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        size = page_bytes_of(fd) or _guessed_page_bytes(fd)
        if size is None:
            raise ClusterError("nothing in the file looks like a log: its pages are those of another program", Failure.FATAL)
        yield PageFile(fd, size)
    finally:
        os.close(fd)


def _guessed_page_bytes(fd: int) -> int | None:
    """Return the page size with which the first pages contain the most rows; None if they contain none."""
    found: dict[int, int] = {}
    for size in PAGE_SIZES:
        file = PageFile(fd, size)
        numbers = range(2, min(file.count, SAMPLED_PAGES) + 1)
        found[size] = sum(file.values(cell) is not None for number in numbers for cell in file.cells(number))
    best = max(PAGE_SIZES, key=lambda size: found[size])
    return best if found[best] else None
