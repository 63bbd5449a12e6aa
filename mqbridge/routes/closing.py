"""Closes clusters, targets and routes by a deadline, even if an adapter hangs or ignores the deadline."""

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any

from mqbridge.adapter.tools.deadlines import resolve_deadline
from mqbridge.net.tasks import mark_error_retrieved, spawn

log = logging.getLogger(__name__)

GRACE_S = 0.5
"""Additional time after the deadline for tasks that obey it; tasks that still run after that are abandoned."""
MIN_CLOSE_S = 0.1
"""Minimum time for closing, even after the deadline: enough to release resources, not enough to wait for a peer."""


def no_deadline() -> float | None:
    """Return None: the caller sets no deadline. The default value of `close_deadline` parameters, which are functions."""
    return None


async def close_by_deadline(deadline: float | None, label: str, *closing: Coroutine[Any, Any, Any]) -> None:
    """Run these coroutines concurrently; those that still run GRACE_S after the deadline are logged, cancelled and abandoned.

    `deadline` is a loop time; None: CLOSE_S (30 s) from now. `label` names the coroutines in the log. Raises the exception of the
    first coroutine that failed, in the order of the arguments.
    """
    latest = resolve_deadline(deadline) + GRACE_S
    tasks = [spawn(coroutine, label, log_errors=False) for coroutine in closing]
    await wait_by_deadline(latest, label, *tasks)
    for task in tasks:
        if task.done() and not task.cancelled():
            task.result()


async def cancel_by_deadline(deadline: float | None, label: str, *tasks: "asyncio.Task[Any] | None") -> None:
    """Cancel tasks and wait until they have ended; tasks that still run GRACE_S after the deadline are logged and abandoned."""
    live = [task for task in tasks if task is not None and not task.done()]
    for task in live:
        task.cancel()
    await wait_by_deadline(resolve_deadline(deadline) + GRACE_S, label, *live)
    for task in live:
        if task.done():
            mark_error_retrieved(task)  # otherwise asyncio logs it; a caller that needs the error reads it from the task


async def wait_by_deadline(latest: float, label: str, *tasks: "asyncio.Task[Any]") -> None:
    """Wait for tasks until the loop time `latest`, but at least MIN_CLOSE_S; then cancel and log those that still run.

    Raises none of their exceptions. If the caller is cancelled while it waits, all tasks are cancelled at once.
    """
    if not tasks:
        return
    timeout = max(MIN_CLOSE_S, latest - asyncio.get_running_loop().time())
    try:
        _, late = await asyncio.wait(tasks, timeout=timeout)
    except asyncio.CancelledError:
        for task in tasks:
            task.cancel()
        raise
    for task in late:
        task.cancel()
    if late:
        log.error("%s did not finish by the shutdown deadline and is abandoned", label)
        await asyncio.wait(late, timeout=MIN_CLOSE_S)  # for their cleanup; an adapter may ignore the cancellation
