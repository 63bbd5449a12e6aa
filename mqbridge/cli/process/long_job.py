"""Runs a blocking job in a thread: prints how far it is every few seconds, and ends it when the command is interrupted."""

import asyncio
from collections.abc import Callable
from typing import TypeVar

from mqbridge.cli.output.console import print_note

T = TypeVar("T")

NOTE_S = 5.0
"""Pause between two notes."""


class JobCancelled(Exception):
    """Ends a job whose command was interrupted."""


async def run_job(job: Callable[[Callable[[str], None]], T]) -> T:
    """Run the job, and return its result. The job calls its argument often, with what it is doing."""
    doing = ""
    is_cancelled = False

    def report(text: str) -> None:
        nonlocal doing
        doing = text
        if is_cancelled:
            raise JobCancelled

    future = asyncio.get_running_loop().run_in_executor(None, job, report)
    try:
        while not (await asyncio.wait([future], timeout=NOTE_S))[0]:
            if doing:
                print_note(doing)
    except asyncio.CancelledError:
        is_cancelled = True
        await asyncio.wait([future])  # it removes what it has begun to write
        future.exception()
        raise
    return future.result()
