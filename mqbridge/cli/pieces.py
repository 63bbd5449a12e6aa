"""Where messages to produce come from: standard input and files, whole or in pieces, as bytes.

Standard input is read by a thread that the program does not wait for at its end: a read from a terminal may never return.
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
"""One read of lines: what has arrived by then goes out at once, so `tail -f` flows."""
MAX_PIECE_BYTES = 64 << 20
"""A larger piece is not one message in any of the systems."""
STDIN = Path("-")

Read = Callable[[], bytes]


async def whole(files: Sequence[Path]) -> AsyncIterator[list[bytes]]:
    """Each file as one piece; `-` is standard input. Raises ConfigError for one that is too large."""
    for path in files:
        pieces: list[bytes] = []
        size = 0
        async for data in _chunks(path):
            pieces.append(data)
            size += len(data)
            if size > MAX_PIECE_BYTES:
                raise ConfigError(f"{path} is larger than {MAX_PIECE_BYTES} bytes", hint="Send its lines with -l")
        yield [b"".join(pieces)]


async def divided(files: Sequence[Path], delimiter: bytes) -> AsyncIterator[list[bytes]]:
    """What stands between delimiters; the last piece needs none behind it. Raises ConfigError for one that is too large."""
    for path in files or [STDIN]:
        left = b""
        async for data in _chunks(path):
            *full, left = (left + data).split(delimiter)
            if full:
                yield full
            if len(left) > MAX_PIECE_BYTES:
                raise ConfigError(f"a piece of {path} is larger than {MAX_PIECE_BYTES} bytes", hint="Divide it with -D")
        if left:
            yield [left]


async def _chunks(path: Path) -> AsyncIterator[bytes]:
    """Raises ConfigError for a file that cannot be read."""
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
        raise ConfigError(f"{path} cannot be read: {error.strerror}", hint="Check the path and its rights") from error


def _stdin() -> Read:
    """Reads what is there; straight from the descriptor, as a lock of a buffer would outlive an interrupted program."""
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
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
            loop.call_soon_threadsafe(settle, data, failed)

    threading.Thread(target=run, name="mqbridge-stdin", daemon=True).start()
    return await done
