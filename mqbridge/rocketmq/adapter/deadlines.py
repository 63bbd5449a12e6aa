"""Closing within a deadline."""

import asyncio
import logging
from collections.abc import Coroutine

from mqbridge.adapter.deadlines import seconds_until

log = logging.getLogger(__name__)


async def by_deadline(closing: Coroutine[None, None, None], deadline: float | None, what: str) -> None:
    """Close it; what is not done by the deadline is cut short, and logged."""
    try:
        async with asyncio.timeout(seconds_until(deadline)):
            await closing
    except TimeoutError:
        log.warning("%s was closed without waiting for every answer: the deadline has passed", what)
