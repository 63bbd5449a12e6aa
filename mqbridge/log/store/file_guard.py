"""Guards the files of a log: refuses what SQLite cannot use safely, and notices what changed under an open log.

SQLite keeps the files open, so it goes on reading and writing a file that was deleted, moved or replaced: what it acknowledges
then is gone after the next start. It finds the WAL by the name of the database file: a file with two names has two WALs, of which
each process sees only one.
"""

import os
import stat
from pathlib import Path
from typing import NamedTuple

from mqbridge.errors import ClusterError, Failure

WAL_SUFFIX, SHM_SUFFIX, MARK_SUFFIX = "-wal", "-shm", "-mark"
"""Suffixes of the files beside the database file; the first two are SQLite's."""
MOUNT_TABLE = Path("/proc/self/mountinfo")

Identity = tuple[int, int]
"""Device and inode of a file."""


def real_path(path: Path) -> Path:
    """Return the absolute path with symbolic links resolved, as SQLite does: the WAL lies beside the file itself."""
    return Path(os.path.realpath(path))


def beside(path: Path, suffix: str) -> Path:
    """Return the path of the file with this suffix beside the database file."""
    return path.with_name(path.name + suffix)


def refuse_unsafe(path: Path) -> None:
    """Raise ClusterError (FATAL) if SQLite cannot use this file safely; a file that does not exist is safe."""
    try:
        status = path.stat()
    except FileNotFoundError:
        return
    if not stat.S_ISREG(status.st_mode):
        raise ClusterError(f"the log {path} is not a regular file; point `path` at another file", Failure.FATAL)
    if (problem := _second_name(path, status)) is not None:
        raise ClusterError(f"the log {path} cannot be used safely: {problem}", Failure.FATAL)
    if not status.st_size:
        raise ClusterError(
            f"the log {path} is empty: something has truncated it, since a log never is; restore it from a backup, or remove"
            " it to start an empty log",
            Failure.FATAL,
        )


def _second_name(path: Path, status: os.stat_result) -> str | None:
    """Return the text of the problem if the file may be reached by another name; None if not."""
    if status.st_nlink > 1:
        return (
            f"it has {status.st_nlink} names (hard links), and each name would have a write-ahead log of its own; remove all"
            " names but one"
        )
    if str(path) in mount_points():
        return (
            "the file itself is a mount point (such as `-v FILE:FILE` of a container), so its write-ahead log does not lie beside"
            " the original; mount its folder instead"
        )
    return None


def mount_points() -> frozenset[str]:
    """Return the mount points that this process sees; none if the system does not tell them."""
    try:
        lines = MOUNT_TABLE.read_bytes().splitlines()
    except OSError:
        return frozenset()
    fields = (line.split(b" ") for line in lines)
    return frozenset(_unescape(each[4]) for each in fields if len(each) > 4)


def _unescape(field: bytes) -> str:
    r"""Decode a path of the mount table, in which space, tab, newline and backslash are written as \ooo."""
    for byte in b" \t\n\\":
        field = field.replace(b"\\%03o" % byte, bytes([byte]))
    return os.fsdecode(field)


class FileSizes(NamedTuple):
    """Bytes of the database file and of its WAL."""

    database: int
    wal: int


class FileGuard:
    """Notices that the files under an open log are not those that were opened. Used by several threads; it has no other state."""

    def __init__(self, path: Path) -> None:
        """`path` is resolved by `real_path`, and a connection to it is open."""
        self._path = path
        paths = (path, *(beside(path, suffix) for suffix in (WAL_SUFFIX, SHM_SUFFIX, MARK_SUFFIX)))
        try:
            self._opened = [(str(each), _identity(each.stat())) for each in paths]
        except FileNotFoundError as error:
            raise self._error(str(error.filename), "was deleted or moved") from error

    def check(self) -> FileSizes:
        """Raise ClusterError (FATAL) if one of the files was deleted, moved or replaced, or has a second name.

        Returns the sizes of the files. Called by commits and polls.
        """
        database, wal, *_ = [self._check(*each) for each in self._opened]
        return FileSizes(database, wal)

    def _check(self, path: str, identity: Identity) -> int:
        """Return the size of the file. Raises ClusterError as `check`."""
        try:
            status = os.stat(path)  # noqa: PTH116 - a Path takes twice as long
        except FileNotFoundError:
            raise self._error(path, "was deleted or moved") from None
        except OSError as error:
            raise self._error(path, f"cannot be reached any more ({error.strerror})") from error
        if (status.st_dev, status.st_ino) != identity:
            raise self._error(path, "was replaced by another file")
        if status.st_nlink > 1:
            raise self._error(path, "was given a second name (a hard link)")
        return status.st_size

    def _error(self, path: str, problem: str) -> ClusterError:
        return ClusterError(
            f"the log {self._path} has stopped: {Path(path).name} {problem} while it was open, so nothing more can be stored"
            " safely; stop every process that has the log open, put the file back, and start again",
            Failure.FATAL,
        )


def _identity(status: os.stat_result) -> Identity:
    return status.st_dev, status.st_ino
