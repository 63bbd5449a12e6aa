"""Reads secrets from environment variables, files and commands. Errors never contain a secret."""

import asyncio
import contextlib
import os
import signal
import sys
from pathlib import Path

MAX_BYTES = 64 << 10
"""Maximum size of a secret; a larger file or output is an error."""
COMMAND_TIMEOUT_S = 20.0
"""Maximum run time of a command, which may ask a server over the network."""
KILL_TIMEOUT_S = 1.0
"""Maximum wait for a program after it has been killed."""


class Unreadable(Exception):
    """A source could not be read; the text is the reason, without the source's content."""


def read_variable(name: str) -> str:
    """Read an environment variable and remove white space at both ends. Raises Unreadable."""
    return _decode_secret(os.fsencode(os.environ.get(name, "")), "the variable is not set, or empty")


def read_file(path: str) -> str:
    """Read a file and remove white space at both ends. Raises Unreadable."""
    try:
        with Path(path).expanduser().open("rb") as file:
            return _decode_secret(file.read(MAX_BYTES + 1), "the file is empty")
    except OSError as error:
        raise Unreadable(error.strerror or str(error)) from None
    except (RuntimeError, ValueError) as error:  # `~` of an unknown user, or a path with a NUL byte
        raise Unreadable(str(error)) from None


async def run_command(argv: tuple[str, ...]) -> str:
    """Run a program and return its output without white space at both ends. A run that takes longer than COMMAND_TIMEOUT_S fails.

    Raises Unreadable; its text has neither the program's arguments nor its error output, because both may be secret.
    """
    loop = asyncio.get_running_loop()
    try:
        # Not `create_subprocess_exec`, which does not return the transport that `_kill` closes.
        transport, protocol = await loop.subprocess_exec(
            lambda: asyncio.subprocess.SubprocessStreamProtocol(MAX_BYTES, loop),
            *argv,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
            start_new_session=True,  # makes a process group, so that programs started by this one can be killed too
        )
    except OSError as error:
        raise Unreadable(error.strerror or str(error)) from None
    process = asyncio.subprocess.Process(transport, protocol, loop)
    try:
        async with asyncio.timeout(COMMAND_TIMEOUT_S):
            assert process.stdout is not None  # noqa: S101 - requested above
            raw = await _read_all(process.stdout)
            status = await process.wait() if len(raw) <= MAX_BYTES else 0  # do not wait for a program with endless output
    except TimeoutError:
        raise Unreadable(f"the command that prints the secret did not end within {COMMAND_TIMEOUT_S:g} s") from None
    finally:
        await _kill(process, transport)
    if status:
        raise Unreadable(f"the command ended with status {status}; run it by hand to see why")
    return _decode_secret(raw, "the command printed nothing")


async def _kill(process: asyncio.subprocess.Process, transport: asyncio.SubprocessTransport) -> None:
    """Kill the program with its children (on Windows without them) if it has not ended, and close our end of its output.

    If the program has ended, its children are not killed. A child may then keep the output open, and asyncio would treat the
    command as running until the child ends, so our end is closed.
    """
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            process.kill() if sys.platform == "win32" else os.killpg(process.pid, signal.SIGKILL)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(KILL_TIMEOUT_S):
                await process.wait()
    transport.close()


async def _read_all(stream: asyncio.StreamReader) -> bytes:
    """Read to the end of the stream, or until more than MAX_BYTES were read."""
    raw = b""
    while len(raw) <= MAX_BYTES and (chunk := await stream.read(MAX_BYTES)):
        raw += chunk
    return raw


def _decode_secret(raw: bytes, empty_reason: str) -> str:
    """Return the text without white space at both ends. Raises Unreadable; `empty_reason` is its text if nothing is left."""
    if len(raw) > MAX_BYTES:
        raise Unreadable(f"the secret is larger than {MAX_BYTES >> 10} KiB")
    try:
        text = raw.decode().strip()
    except UnicodeDecodeError:
        raise Unreadable("the secret is not UTF-8 text") from None
    if not text:
        raise Unreadable(empty_reason)
    return text
