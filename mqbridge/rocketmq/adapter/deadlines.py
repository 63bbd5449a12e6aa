"""Closes a client within a deadline."""

import asyncio
import logging
from collections.abc import Coroutine

from mqbridge.adapter.deadlines import seconds_until

log = logging.getLogger(__name__)


async def by_deadline(closing: Coroutine[None, None, None], deadline: float | None, name: str) -> None:
    """Run `closing`; at the deadline cancel it and log a warning with this name."""
    try:
        async with asyncio.timeout(seconds_until(deadline)):
            await closing
    except TimeoutError:
        log.warning("%s was closed before every pending request had a response: the deadline has passed", name)
