"""Makes a file under another name and renames it when it is complete and on the disk."""

import contextlib
import errno
import os
import shutil
import sqlite3
from collections.abc import Iterator
from pathlib import Path

from mqbridge.errors import ClusterError, ConfigError, Failure
from mqbridge.log.store.connection import cluster_error
from mqbridge.log.store.file_guard import MARK_SUFFIX, SHM_SUFFIX, WAL_SUFFIX, beside
from mqbridge.log.store.opening import sync


def check_destination(source: Path, destination: Path, *, is_forced: bool) -> None:
    """Raise ConfigError unless a file may be made at `destination`, or replaced if `is_forced`.

    A file that may be open as a log, and one that belongs to the source, is never replaced.
    """
    if not destination.parent.is_dir():
        raise ConfigError(f"the folder {destination.parent} does not exist", hint="Create it first")
    if destination.is_dir():
        raise ConfigError(f"{destination} is a folder", hint="Name the file to write")
    for suffix in ("", WAL_SUFFIX, SHM_SUFFIX, MARK_SUFFIX):
        belongs = beside(source, suffix)
        if belongs == destination or (destination.exists() and belongs.exists() and destination.samefile(belongs)):
            raise ConfigError(f"{destination} belongs to the log {source} itself", hint="Name another file")
    if not destination.exists():
        return
    if not is_forced:
        raise ConfigError(f"{destination} exists", hint="Name a new file, or replace this one by --force")
    for suffix in (WAL_SUFFIX, SHM_SUFFIX):
        if beside(destination, suffix).exists():
            raise ConfigError(
                f"{destination} is a log that is open, or was not closed: {destination.name}{suffix} lies beside it",
                hint="Name another file",
            )


@contextlib.contextmanager
def new_file(destination: Path, needed: int) -> Iterator[Path]:
    """Make a file of about `needed` bytes: yields the temporary path to write, which the caller closes, and renames the file.

    If anything fails, the temporary files are removed. Raises ClusterError if the disk has too little room, now or later.
    """
    temporary = destination.with_name(f"{destination.name}-{os.getpid()}-new")
    free = free_bytes(destination.parent)
    if free < needed:
        raise _full_error(destination, needed, free)
    try:
        yield temporary
        sync(temporary)
        temporary.replace(destination)
        sync(destination.parent)
    except (sqlite3.Error, OSError) as error:
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF
        if code == sqlite3.SQLITE_FULL or (isinstance(error, OSError) and error.errno in {errno.ENOSPC, errno.EDQUOT}):
            raise _full_error(destination, needed, free) from error
        if isinstance(error, sqlite3.Error):
            raise cluster_error(error, destination) from error
        raise ClusterError(f"{destination} cannot be written: {error}", Failure.FATAL) from error
    finally:
        for leftover in destination.parent.glob(f"{temporary.name}*"):
            leftover.unlink()


def free_bytes(folder: Path) -> int:
    """Return the free space of the disk on which the folder lies."""
    return shutil.disk_usage(folder).free


def _full_error(destination: Path, needed: int, free: int) -> ClusterError:
    return ClusterError(
        f"the disk of {destination} has too little room: {needed} bytes are needed, {free} were free at the beginning; free"
        " space, or name a file on another disk"
    )
