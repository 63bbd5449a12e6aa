"""Limits the time of closing a client."""

import asyncio
import logging
from collections.abc import Coroutine

from mqbridge.adapter.tools.deadlines import seconds_until

log = logging.getLogger(__name__)


async def close_by_deadline(closing: Coroutine[None, None, None], deadline: float | None, name: str) -> None:
    """Run `closing`, the call that closes the client `name`; at the deadline (loop time), cancel it and log a warning.

    None as the deadline means 30 s from now (`mqbridge.adapter.tools.deadlines.CLOSE_S`).
    """
    try:
        async with asyncio.timeout(seconds_until(deadline)):
            await closing
    except TimeoutError:
        log.warning(
            "%s: closing reached its deadline, so connections were closed without the responses to the last requests", name
        )
