"""One deadline for everything that closes, also for an adapter that hangs or ignores deadlines."""

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any

from mqbridge.adapter.deadlines import resolve_deadline
from mqbridge.net.tasks import collect_error, spawn

log = logging.getLogger(__name__)

GRACE_S = 0.5
"""Code that obeys the deadline needs a moment after it to end; tasks that have not ended by then are abandoned."""
MIN_CLOSE_S = 0.1
"""Time for code that starts to close after the deadline: enough to release resources, not enough to wait for a peer."""


def no_deadline() -> float | None:
    """Return None: no deadline is given."""
    return None


async def close_by(deadline: float | None, what: str, *closing: Coroutine[Any, Any, Any]) -> None:
    """Run these coroutines concurrently. One that hangs beyond the deadline is logged, cancelled and abandoned.

    Raises the exception of the first of the others that failed.
    """
    last = resolve_deadline(deadline) + GRACE_S
    tasks = [spawn(one, what, quiet=True) for one in closing]
    await settle_by(last, what, *tasks)
    for task in tasks:
        if task.done() and not task.cancelled():
            task.result()


async def cancel_by(deadline: float | None, what: str, *tasks: "asyncio.Task[Any] | None") -> None:
    """Cancel tasks and wait until they have ended; tasks still running shortly after the deadline are abandoned."""
    live = [task for task in tasks if task is not None and not task.done()]
    for task in live:
        task.cancel()
    await settle_by(resolve_deadline(deadline) + GRACE_S, what, *live)
    for task in live:
        if task.done():
            collect_error(task)  # code that needs the error asks the task


async def settle_by(last: float, what: str, *tasks: "asyncio.Task[Any]") -> None:
    """Wait for tasks until this loop time, then cancel the rest; raises none of their exceptions."""
    if not tasks:
        return
    timeout = max(MIN_CLOSE_S, last - asyncio.get_running_loop().time())
    try:
        _, late = await asyncio.wait(tasks, timeout=timeout)
    except asyncio.CancelledError:
        for task in tasks:
            task.cancel()
        raise
    for task in late:
        task.cancel()
    if late:
        log.error("%s did not end by the deadline and is abandoned", what)
        await asyncio.wait(late, timeout=MIN_CLOSE_S)  # an adapter may swallow this cancellation too
