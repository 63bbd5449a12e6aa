"""Reads input records as bytes: whole files, or the records between delimiters in files and standard input.

A daemon thread reads standard input. The program does not wait for this thread at its end, because a read from a terminal may
never return.
"""

import asyncio
import contextlib
import io
import os
import sys
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path

from mqbridge.errors import ConfigError

READ_BYTES = 256 << 10
"""Maximum size of one read. The records of each read are sent at once, so that the lines of `tail -f` are not delayed."""
MAX_RECORD_BYTES = 64 << 20
"""Maximum size of a record; no system accepts a larger message."""
STDIN = Path("-")

ReadFunction = Callable[[], bytes]
"""Returns the next bytes of the input; empty at its end."""


async def whole_files(files: Sequence[Path]) -> AsyncIterator[list[bytes]]:
    """Yield each file as one record; `-` is standard input. Raises ConfigError for a file that is too large."""
    for path in files:
        chunks: list[bytes] = []
        size = 0
        async for data in _chunks(path):
            chunks.append(data)
            size += len(data)
            if size > MAX_RECORD_BYTES:
                raise ConfigError(f"{path} is larger than {MAX_RECORD_BYTES} bytes", hint="Send its lines with -l")
        yield [b"".join(chunks)]


async def split_records(files: Sequence[Path], delimiter: bytes) -> AsyncIterator[list[bytes]]:
    """Yield the records between delimiters, those that one read completes together; without files, read standard input.

    The last record of a file needs no delimiter. Raises ConfigError if a record is too large.
    """
    for path in files or [STDIN]:
        remaining = b""
        async for data in _chunks(path):
            *complete, remaining = (remaining + data).split(delimiter)
            if complete:
                yield complete
            if len(remaining) > MAX_RECORD_BYTES:
                raise ConfigError(
                    f"a record of {path} is larger than {MAX_RECORD_BYTES} bytes", hint="Set the text between records with -D"
                )
        if remaining:
            yield [remaining]


async def _chunks(path: Path) -> AsyncIterator[bytes]:
    """Yield the bytes of a file as they are read. Raises ConfigError for a file that cannot be read."""
    try:
        if path == STDIN:
            read = _stdin_reader()
            while data := await _in_thread(read):
                yield data
            return
        with path.open("rb") as file:
            while data := await asyncio.to_thread(file.read, READ_BYTES):
                yield data
    except OSError as error:
        name = "standard input" if path == STDIN else path
        raise ConfigError(f"{name} cannot be read: {error.strerror}", hint="Check the path and its permissions") from error


def _stdin_reader() -> ReadFunction:
    """Return a function that reads the available bytes of standard input.

    It reads from the descriptor directly: a thread that reads from the buffer would still hold the buffer's lock when the
    interrupted program ends.
    """
    try:
        descriptor = sys.stdin.buffer.fileno()
    except (OSError, io.UnsupportedOperation):  # a program has replaced sys.stdin, as tests do
        return lambda: sys.stdin.buffer.read(READ_BYTES)
    return lambda: os.read(descriptor, READ_BYTES)


async def _in_thread(read: ReadFunction) -> bytes:
    """Call `read` in a daemon thread and return its result. Raises its OSError."""
    loop = asyncio.get_running_loop()
    result: asyncio.Future[bytes] = loop.create_future()

    def set_result(data: bytes, error: OSError | None) -> None:
        if not result.done():
            result.set_result(data) if error is None else result.set_exception(error)

    def run() -> None:
        data, failure = b"", None
        try:
            data = read()
        except OSError as error:
            failure = error
        with contextlib.suppress(RuntimeError):  # the loop is already closed: nothing awaits the data
            loop.call_soon_threadsafe(set_result, data, failure)

    threading.Thread(target=run, name="mqbridge-stdin", daemon=True).start()
    return await result
