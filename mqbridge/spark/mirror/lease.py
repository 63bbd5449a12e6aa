"""A lease on a checkpoint folder, for file systems without locks of the operating system.

The holder renews the lease: it writes a file repeatedly, each time with a higher number. Another mirror that finds the file
watches it. If the file changes, the holder is alive. If it does not change for long enough, the holder has ended, and the other
mirror takes over the lease. The clocks of two machines are never compared.

A file system that can only replace files allows no stronger guarantee: if two mirrors take over within the same second, the later
one gets the lease. A holder may be unable to write for so long that another mirror takes over, for example on a suspended
machine. It notices that at its next renewal.
"""

import contextlib
import logging
import os
import socket
import threading
import time
from collections.abc import Callable
from uuid import uuid4

import orjson
from pyarrow import fs

from mqbridge.errors import ConfigError
from mqbridge.spark.shared_files import MAX_LEASE_BYTES, read_bounded
from mqbridge.wire.limits import shorten

log = logging.getLogger(__name__)

RENEW_INTERVAL_S = 10.0
"""Interval at which the holder renews its lease."""
EXPIRE_AFTER_S = 40.0
"""A mirror that waits this long without seeing a renewal assumes that the holder has ended.

Before that, several renewals in a row may fail.
"""
MAX_HOLDER_CHARS = 200
"""Errors and log lines show at most this much of the name of a holder."""
SETTLE_S = 2.0
"""Time between writing a new lease and checking that no other mirror has overwritten it."""


class Lease:
    """The lease on a checkpoint folder, from `acquire` to `release`.

    path     the lease's file in the file system
    folder   the folder's name in logs and errors
    on_lost  called in the lease's thread if another mirror takes over
    """

    def __init__(self, file_system: fs.FileSystem, path: str, folder: str, on_lost: Callable[[], None] = lambda: None) -> None:
        self._file_system, self._path = file_system, path
        self._folder, self._on_lost = folder, on_lost
        self.is_lost = False
        """Whether another mirror has taken over the lease."""
        self._id = uuid4().hex
        """Tells this lease from those of other mirrors on the same folder."""
        self._renewals = 0
        """Number of writes of the lease: each write must change the file."""
        self._released = threading.Event()
        """Set when `release` is called, which ends the renewals."""
        self._renewal_thread: threading.Thread | None = None

    def acquire(self) -> None:
        """Wait until an existing lease has expired, then write a new one.

        Raises ConfigError if another mirror renews the existing lease or writes a new one too. Raises OSError if the file
        cannot be read or written.
        """
        content = self._read()
        if content is not None:
            log.warning(
                "checkpoint folder %s has a lease of %s: waiting up to %.0f s, then taking it over unless that mirror renews it",
                self._folder,
                _holder(content),
                EXPIRE_AFTER_S,
            )
        expires_at = time.monotonic() + EXPIRE_AFTER_S
        while content is not None and time.monotonic() < expires_at:
            time.sleep(min(1.0, RENEW_INTERVAL_S / 4))
            current = self._read()
            if current is None:  # the holder has released it
                break
            # A file that is just being written proves nothing: its writer may have been killed.
            # `_read` gives such a file an empty id.
            if current["id"] != "" and current != content:
                raise self._in_use_error(current)
        self._write()
        time.sleep(SETTLE_S)
        if (current := self._read()) is None or current["id"] != self._id:
            raise self._in_use_error(current or {})
        self._renewal_thread = threading.Thread(target=self._renew_loop, name="mqbridge-lease", daemon=True)
        self._renewal_thread.start()

    def release(self) -> None:
        """Stop renewing, and delete the lease so that another mirror can acquire it at once."""
        self._released.set()
        if self._renewal_thread is not None:
            self._renewal_thread.join()
            with contextlib.suppress(OSError):  # a lease that remains expires
                if not self.is_lost and not self._is_taken_over():
                    self._file_system.delete_file(self._path)

    def _renew_loop(self) -> None:
        """Renew the lease until it is released, or until another mirror has taken over."""
        while not self._released.wait(RENEW_INTERVAL_S):
            try:
                if self._is_taken_over():
                    self.is_lost = True
                    log.error("checkpoint folder %s was taken over by another mirror: this mirror stops", self._folder)
                    self._on_lost()
                    return
                self._write()
            except OSError as error:
                log.warning(
                    "cannot renew the lease on checkpoint folder %s, retrying in %.0f s: %s",
                    self._folder,
                    RENEW_INTERVAL_S,
                    error,
                )

    def _is_taken_over(self) -> bool:
        """Return whether the file has the id of another lease. A file that is just being written has an empty id."""
        content = self._read()
        return content is not None and content.get("id") not in (self._id, "")

    def _write(self) -> None:
        self._renewals += 1
        content = {"id": self._id, "number": self._renewals, "holder": f"process {os.getpid()} on {socket.gethostname()}"}
        with self._file_system.open_output_stream(self._path) as file:
            file.write(orjson.dumps(content))

    def _read(self) -> dict[str, object] | None:
        """Return the lease in the file, with an empty id while a mirror is writing it; None without a file or a lease in it."""
        try:
            content = orjson.loads(read_bounded(self._file_system, self._path, MAX_LEASE_BYTES))
        except FileNotFoundError:
            return None
        except ValueError:  # another mirror is writing the file, or something else has written it: then it does not change
            return {"id": "", "number": 0}
        return content if isinstance(content, dict) and "id" in content else None

    def _in_use_error(self, content: dict[str, object]) -> ConfigError:
        return ConfigError(
            f"the checkpoint folder {self._folder} is in use by another mirror ({_holder(content)})",
            hint="Use a separate folder for each mirror, or stop the other mirror",
        )


def _holder(content: dict[str, object]) -> str:
    """Return the process that holds a lease with this content, for logs and errors."""
    return shorten(str(content.get("holder", "an unknown process")), MAX_HOLDER_CHARS)
