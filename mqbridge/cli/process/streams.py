"""Standard input, output and error of the process, whatever the caller made of them: closed, full, of another encoding.

A closed descriptor is opened, so that no file or socket gets its number: uvloop ends the process if one has. It stays unusable,
so that reading standard input or writing standard output is an error with a reason instead of a silent loss.

What cannot be written to standard output ends the command, with one exception: if the reader of a pipe has left, as in
`mqbridge peek orders | head -1`, the rest is discarded, and the exit code tells of the command's own result. What cannot be
written to standard error is discarded and counted: no log line stops the gateway, or delays it for long.
"""

import errno
import io
import os
import select
import sys
import time
from typing import TextIO

STDIN, STDOUT, STDERR = 0, 1, 2
STDERR_PATIENCE_S = 5.0
"""How long a write waits for a reader of standard error that does not read. Then lines are discarded until it reads again."""
PIPE_WRITE_BYTES = 4096
"""A pipe that is ready accepts this many bytes without waiting (POSIX calls it PIPE_BUF)."""


class OutputFailed(Exception):
    """Standard output cannot be written; the text is the reason."""


class _Descriptor(io.RawIOBase):
    """A descriptor of the process that this class does not close."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def fileno(self) -> int:
        """Return the number of the descriptor."""
        return self._descriptor

    def isatty(self) -> bool:
        """Return True for a terminal."""
        return os.isatty(self._descriptor)

    def writable(self) -> bool:
        """Return True."""
        return True


class OutputDescriptor(_Descriptor):
    """Standard output."""

    def __init__(self, descriptor: int) -> None:
        super().__init__(descriptor)
        self.has_reader = True
        """False once the reader of a pipe has left."""
        self._has_failed = False

    def write(self, data: "bytes | memoryview") -> int:  # type: ignore[override]
        """Write some of the data; discard it once the reader has left. Raises OutputFailed once; later data is discarded."""
        while self.has_reader and not self._has_failed:
            try:
                return os.write(self._descriptor, data)
            except BlockingIOError:  # another process that shares the descriptor has made it non-blocking
                select.select((), (self._descriptor,), ())
            except OSError as error:
                if error.errno == errno.EPIPE:
                    self.has_reader = False
                else:
                    self._has_failed = True
                    raise OutputFailed(error.strerror) from error
        return len(data)


class ErrorDescriptor(_Descriptor):
    """Standard error."""

    def __init__(self, descriptor: int) -> None:
        super().__init__(descriptor)
        self.lost_writes = 0
        """How many writes were discarded since the last successful one."""
        self.reason = ""
        """Why they were discarded."""

    def write(self, data: "bytes | memoryview") -> int:  # type: ignore[override]
        """Write some of the data; discard all of it if this fails, or if the reader of a pipe does not read for too long."""
        try:
            # After a loss only a write that is possible at once is tried.
            if self._wait(0 if self.lost_writes else STDERR_PATIENCE_S):
                written = os.write(self._descriptor, data[:PIPE_WRITE_BYTES])
                self.lost_writes = 0
                return written
            self.reason = "its reader does not read"
        except (OSError, ValueError) as error:
            self.reason = getattr(error, "strerror", None) or str(error)
        self.lost_writes += 1
        return len(data)

    def _wait(self, patience_s: float) -> bool:
        """Wait until a write does not block, for up to `patience_s`; return False if it still does."""
        until = time.monotonic() + patience_s
        while True:
            if select.select((), (self._descriptor,), (), max(0.0, until - time.monotonic()))[1]:
                return True
            if time.monotonic() >= until:
                return False


def prepare() -> None:
    """Make the three standard streams usable. Call it before anything is opened."""
    for descriptor, mode in ((STDIN, os.O_WRONLY), (STDOUT, os.O_RDONLY), (STDERR, os.O_WRONLY)):
        try:
            os.fstat(descriptor)
        except OSError:  # the lowest free number: those below are open by now
            os.open(os.devnull, mode)
    if sys.stdin is None:
        sys.stdin = open(STDIN, closefd=False)  # noqa: SIM115 - it stays open
    sys.stdout = _text(OutputDescriptor(STDOUT), sys.stdout)
    sys.stderr = _text(ErrorDescriptor(STDERR), sys.stderr)


def _text(descriptor: _Descriptor, replaced: TextIO | None) -> TextIO:
    """Return a text stream with the encoding of the one that it replaces; other characters become numeric escapes."""
    return io.TextIOWrapper(
        io.BufferedWriter(descriptor),
        encoding="utf-8" if replaced is None else replaced.encoding,
        errors="backslashreplace",
        line_buffering=descriptor.isatty() or isinstance(descriptor, ErrorDescriptor),
        write_through=replaced is not None and getattr(replaced, "write_through", False),
    )


def has_reader() -> bool:
    """Return False if the reader of standard output has left, so that there is no use in reading more messages for it."""
    raw = getattr(getattr(sys.stdout, "buffer", None), "raw", None)
    return not isinstance(raw, OutputDescriptor) or raw.has_reader


def lost_error_lines() -> tuple[int, str]:
    """Return how many writes to standard error were lost up to now, and why; 0 if the last one was successful."""
    raw = getattr(getattr(sys.stderr, "buffer", None), "raw", None)
    return (raw.lost_writes, raw.reason) if isinstance(raw, ErrorDescriptor) else (0, "")
