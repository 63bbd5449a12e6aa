"""One gateway per state file: two would overwrite each other's positions without a word.

The lock is the operating system's, on a file of its own beside the state file: it ends with the process, however that ends. (Not
on the state file: closing any descriptor of a file gives up the locks that SQLite holds on it in the same process.)
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

_TAKEN = {errno.EWOULDBLOCK, errno.EACCES}


class StateLock:
    """Held from when it is made until `release`. Raises ConfigError when somebody else has it, OSError."""

    def __init__(self, state: Path) -> None:
        real = Path(os.path.realpath(state))  # by whatever symbolic links it is called, be they a loop
        path = real.with_name(real.name + ".lock")
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            holder = os.pread(self._fd, 1000, 0).decode(errors="replace").strip()
            os.close(self._fd)
            if error.errno in _TAKEN:
                raise ConfigError(
                    f"the state file {state} is in use by another gateway{f' ({holder})' if holder else ''}",
                    path="state",
                    hint="Give each gateway a state file of its own, or stop the other one",
                ) from error
            log.warning("%s cannot be locked: nobody notices if two gateways use this state file: %s", path, error)
            self._fd = -1
            return
        with contextlib.suppress(OSError):  # for people only: a full disk does not keep anybody from locking
            os.ftruncate(self._fd, 0)
            os.pwrite(self._fd, f"process {os.getpid()} on {socket.gethostname()}\n".encode(), 0)

    def release(self) -> None:
        """Let others have it."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
