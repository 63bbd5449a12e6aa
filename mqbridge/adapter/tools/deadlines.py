"""Deadlines for closing, as event loop times."""

import asyncio

CLOSE_S = 30.0
"""Seconds allowed for closing if the caller gives no deadline."""


def seconds_until(deadline: float | None) -> float:
    """Return the seconds until the deadline, never negative; CLOSE_S if it is None."""
    return CLOSE_S if deadline is None else max(0.0, deadline - asyncio.get_running_loop().time())


def resolve_deadline(deadline: float | None) -> float:
    """Return the deadline as an event loop time, not before now; CLOSE_S from now if it is None."""
    return asyncio.get_running_loop().time() + seconds_until(deadline)
