"""Deadlines of closing: times of the event loop."""

import asyncio

CLOSE_S = 30.0
"""How long closing may take where nobody gave a deadline."""


def seconds_until(deadline: float | None) -> float:
    """How long that is from now; never negative."""
    return CLOSE_S if deadline is None else max(0.0, deadline - asyncio.get_running_loop().time())


def deadline_of(deadline: float | None) -> float:
    """A time of the event loop, not before now, also where nobody gave one."""
    return asyncio.get_running_loop().time() + seconds_until(deadline)
