"""Allows only one gateway per state file: two would silently overwrite each other's positions.

The lock is an operating system lock (flock), so it ends with the process, also after a crash. It is on a separate file beside the
state file, because closing a descriptor of the state file would drop the locks that SQLite holds on it in the same process.
"""

import contextlib
import errno
import fcntl
import logging
import os
import socket
from pathlib import Path

from mqbridge.errors import ConfigError

log = logging.getLogger(__name__)

_LOCKED_ERRNOS = {errno.EWOULDBLOCK, errno.EACCES}
"""Errors of `flock` if another process holds the lock; any other error means that the file cannot be locked at all."""


class StateLock:
    """The lock of one state file, held from construction until `release`.

    Raises ConfigError if another process holds it, and OSError if the lock file cannot be opened. If the file system does not
    support locks, a warning is logged, and the gateway runs without the lock.
    """

    def __init__(self, state: Path) -> None:
        # Resolved, so that all symbolic links to one file share a lock; unlike Path.resolve, realpath accepts a loop of links.
        resolved = Path(os.path.realpath(state))
        path = resolved.with_name(resolved.name + ".lock")
        # The descriptor; -1 without a lock.
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            holder = os.pread(self._fd, 1000, 0).decode(errors="replace").strip()
            os.close(self._fd)
            if error.errno in _LOCKED_ERRNOS:
                raise ConfigError(
                    f"the state file {state} is in use by another gateway{f' ({holder})' if holder else ''}",
                    path="state",
                    hint="Give each gateway a state file of its own, or stop the other one",
                ) from error
            log.warning(
                "lock file %s cannot be locked, so a second gateway with the same state file would not be detected: %s",
                path,
                error,
            )
            self._fd = -1
            return
        with contextlib.suppress(OSError):  # the text is only for the error above: locking must work on a full disk too
            os.ftruncate(self._fd, 0)
            os.pwrite(self._fd, f"process {os.getpid()} on {socket.gethostname()}\n".encode(), 0)

    def release(self) -> None:
        """Release the lock."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
