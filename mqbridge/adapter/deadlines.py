"""Deadlines for closing, as event loop times."""

import asyncio

CLOSE_S = 30.0
"""Time for closing if the caller gives no deadline."""


def seconds_until(deadline: float | None) -> float:
    """Return the seconds until the deadline; never negative."""
    return CLOSE_S if deadline is None else max(0.0, deadline - asyncio.get_running_loop().time())


def deadline_of(deadline: float | None) -> float:
    """Return the deadline as an event loop time, not before now; the default if None."""
    return asyncio.get_running_loop().time() + seconds_until(deadline)
