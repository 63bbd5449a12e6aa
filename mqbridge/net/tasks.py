"""The only module that creates tasks. Tasks have names and are referenced until they end; an error that ends one is logged."""

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any

log = logging.getLogger(__name__)

_running: set[asyncio.Task[Any]] = set()
"""Keeps a reference to each running task: asyncio itself keeps only weak ones, so a task could be garbage-collected."""


def spawn(coroutine: Coroutine[Any, Any, Any], name: str, *, log_errors: bool = True) -> asyncio.Task[Any]:
    """Start a task. An exception that ends it is logged with its traceback; with `log_errors=False`, the caller handles it."""
    task = asyncio.get_running_loop().create_task(coroutine, name=name)
    _running.add(task)
    task.add_done_callback(_on_done if log_errors else _running.discard)
    return task


def _on_done(task: asyncio.Task[Any]) -> None:
    """Forget the task, and log the error that ended it."""
    _running.discard(task)
    if not task.cancelled() and (error := task.exception()) is not None:
        log.error("background task %s ended with error %s: %s", task.get_name(), type(error).__name__, error, exc_info=error)


def mark_error_retrieved(task: asyncio.Task[Any]) -> None:
    """Mark the error of a task as retrieved. Otherwise asyncio logs it if all callers that awaited the task were cancelled."""
    if not task.cancelled():
        task.exception()


async def cancel(*tasks: "asyncio.Task[Any] | None") -> None:
    """Cancel tasks and wait until they have ended; None and finished tasks are skipped, exceptions are not raised."""
    live = [task for task in tasks if task is not None and not task.done()]
    for task in live:
        task.cancel()
    await asyncio.gather(*live, return_exceptions=True)


def is_cancelled() -> bool:
    """Return True if the running task itself is being cancelled, not only what it waits for."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
