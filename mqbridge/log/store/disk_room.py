"""Keeps a part of the disk free, so that a full disk can be read, committed to and trimmed, and ends by itself.

SQLite needs room for what takes none in the end: a commit is written to the WAL first, and moved into the file later.
"""

import os
import time
from pathlib import Path

from mqbridge.errors import ClusterError
from mqbridge.log.store.settings import LogSettings

CHECK_S = 0.1
"""Maximum time for which a measurement of the disk counts: other programs may fill it."""
WRITES_PER_BYTE = 2
"""An appended byte is written to the WAL and to the file, and needs some room in pages besides."""
CHECKED_PART = 4
"""A measurement counts until a fourth of the room that it found may be used."""


class DiskRoom:
    """The room for appends on the disk of a log. `wal_bytes` is the size of its WAL, as of the last commit."""

    def __init__(self, settings: LogSettings) -> None:
        self.wal_bytes = 0
        self._settings = settings
        self._checked_at = float("-inf")
        self._unchecked_bytes = 0
        """Bytes that may be appended before the disk is measured again."""

    def check(self, path: Path, size: int) -> None:
        """Raise ClusterError (RETRY) if there is no room for `size` bytes of messages.

        Besides the reserve, as much stays free as the WAL has: what is in it can always be moved into the file.
        """
        now = time.monotonic()
        if size <= self._unchecked_bytes and now - self._checked_at < CHECK_S:
            self._unchecked_bytes -= size
            return
        disk = os.statvfs(path.parent)
        free, kept = disk.f_bavail * disk.f_frsize, self._settings.reserve + self.wal_bytes
        self._checked_at, self._unchecked_bytes = now, max(0, free - kept) // WRITES_PER_BYTE // CHECKED_PART
        if free < kept + WRITES_PER_BYTE * size:
            raise ClusterError(
                f"the disk of the log {path} is full: {free} bytes are free, and {kept} of them are kept for reading, committing"
                f" and deleting (`reserve`, and the size of the WAL), but {WRITES_PER_BYTE * size} are needed; free space, or set"
                " `retention_bytes`"
            )
