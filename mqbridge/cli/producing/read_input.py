"""Reads input records, as bytes: whole files, or the records between delimiters in files and standard input.

A thread reads standard input, and the program does not wait for it at its end: a read from a terminal may never return.
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
"""Size of one read. The records of each read are sent at once, so `tail -f` flows."""
MAX_RECORD_BYTES = 64 << 20
"""No system takes a larger message."""
STDIN = Path("-")

Read = Callable[[], bytes]


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
    """Yield the records between delimiters; the last one needs none behind it. Raises ConfigError if a record is too large."""
    for path in files or [STDIN]:
        rest = b""
        async for data in _chunks(path):
            *complete, rest = (rest + data).split(delimiter)
            if complete:
                yield complete
            if len(rest) > MAX_RECORD_BYTES:
                raise ConfigError(f"a record of {path} is larger than {MAX_RECORD_BYTES} bytes", hint="Divide it with -D")
        if rest:
            yield [rest]


async def _chunks(path: Path) -> AsyncIterator[bytes]:
    """Yield the bytes of a file as they are read. Raises ConfigError for a file that cannot be read."""
    if path == STDIN:
        read = _stdin()
        while data := await _in_thread(read):
            yield data
        return
    try:
        with path.open("rb") as file:
            while data := await asyncio.to_thread(file.read, READ_BYTES):
                yield data
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}", hint="Check the path and its permissions") from error


def _stdin() -> Read:
    """Return a function that reads the bytes that are available.

    It reads from the descriptor directly: the lock of a buffer would stay held after the program is interrupted.
    """
    try:
        descriptor = sys.stdin.buffer.fileno()
    except (OSError, io.UnsupportedOperation):
        return lambda: sys.stdin.buffer.read(READ_BYTES)
    return lambda: os.read(descriptor, READ_BYTES)


async def _in_thread(read: Read) -> bytes:
    loop = asyncio.get_running_loop()
    done: asyncio.Future[bytes] = loop.create_future()

    def settle(data: bytes, error: OSError | None) -> None:
        if not done.done():
            done.set_result(data) if error is None else done.set_exception(error)

    def run() -> None:
        data, failed = b"", None
        try:
            data = read()
        except OSError as error:
            failed = error
        with contextlib.suppress(RuntimeError):  # the loop is closed: nothing awaits the data
            loop.call_soon_threadsafe(settle, data, failed)

    threading.Thread(target=run, name="mqbridge-stdin", daemon=True).start()
    return await done
