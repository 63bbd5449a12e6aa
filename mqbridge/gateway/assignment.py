"""A word about routes that joined their groups and have no partition yet: on TubeMQ the first one may take half a minute."""

import asyncio
import logging
from collections.abc import Callable, Iterable

from mqbridge.gateway.route import Route

log = logging.getLogger(__name__)

LOOK_EVERY_S = 1.0
TELL_AFTER_S = 5.0


async def tell_of_waiting(routes: Callable[[], Iterable[Route]]) -> None:
    """Log it once for every session that waits, until cancelled."""
    told: dict[str, int] = {}
    while True:
        await asyncio.sleep(LOOK_EVERY_S)
        now = asyncio.get_running_loop().time()
        for route in routes():
            if told.get(route.name) != route.sessions and (waited := route.unassigned_for(now)) >= TELL_AFTER_S:
                told[route.name] = route.sessions
                log.info(
                    "route %s is a member of group %s and waits for its first partition, for %.0f s now: groups of some systems "
                    "take half a minute, and other members may hold all of them",
                    route.name,
                    route.config.source.group,
                    waited,
                )
