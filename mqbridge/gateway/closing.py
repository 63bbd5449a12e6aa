"""One deadline for everything that closes, also where an adapter hangs and has never heard of it."""

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any

from mqbridge.adapter.deadlines import deadline_of
from mqbridge.net.tasks import collect_error, spawn

log = logging.getLogger(__name__)

GRACE_S = 0.5
"""What obeys the deadline needs a moment after it to end; what does not end by then is left behind."""
LEAST_S = 0.1
"""For what begins to close when the deadline is over already: enough to let go, not enough to wait for anybody."""


def no_deadline() -> float | None:
    """Where nobody gave one."""
    return None


async def close_by(deadline: float | None, what: str, *closing: Coroutine[Any, Any, Any]) -> None:
    """Run these side by side. What hangs beyond the deadline is cancelled, named, and not waited for any longer.

    Raises what the first of the others raised.
    """
    last = deadline_of(deadline) + GRACE_S
    tasks = [spawn(one, what, quiet=True) for one in closing]
    await settle_by(last, what, *tasks)
    for task in tasks:
        if task.done() and not task.cancelled():
            task.result()


async def cancel_by(deadline: float | None, what: str, *tasks: "asyncio.Task[Any] | None") -> None:
    """Cancel tasks and wait until they are gone; those that are still there soon after the deadline are left behind."""
    live = [task for task in tasks if task is not None and not task.done()]
    for task in live:
        task.cancel()
    await settle_by(deadline_of(deadline) + GRACE_S, what, *live)
    for task in live:
        if task.done():
            collect_error(task)  # whoever wants to know asks the task


async def settle_by(last: float, what: str, *tasks: "asyncio.Task[Any]") -> None:
    """Wait for tasks until this loop time, then cancel those that are left; raises nothing of theirs."""
    if not tasks:
        return
    left = max(LEAST_S, last - asyncio.get_running_loop().time())
    try:
        _, late = await asyncio.wait(tasks, timeout=left)
    except asyncio.CancelledError:
        for task in tasks:
            task.cancel()
        raise
    for task in late:
        task.cancel()
    if late:
        log.error("%s did not end by the deadline and is left behind", what)
        await asyncio.wait(late, timeout=LEAST_S)  # an adapter may swallow that, too
