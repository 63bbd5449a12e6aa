"""Logs routes that joined their group and have no partition yet.

A user could take the wait for a fault: on TubeMQ the first assignment may take half a minute.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable

from mqbridge.routes.route import Route

log = logging.getLogger(__name__)

CHECK_INTERVAL_S = 1.0
"""Pause between two checks of all routes."""
LOG_AFTER_S = 5.0
"""Seconds without a partition after which the wait is logged; most assignments take less."""


async def log_unassigned_routes(routes: Callable[[], Iterable[Route]]) -> None:
    """Log each membership without a partition once, until cancelled. `routes` returns the routes that exist at that moment."""
    logged: dict[str, int] = {}  # by route: which of its memberships was logged last, counted from 1
    while True:
        await asyncio.sleep(CHECK_INTERVAL_S)
        now = asyncio.get_running_loop().time()
        for route in routes():
            if logged.get(route.name) != route.memberships and (waited := route.unassigned_for(now)) >= LOG_AFTER_S:
                logged[route.name] = route.memberships
                log.info(
                    "route %s is a member of group %s and has waited %.0f s for its first partition: some systems take half "
                    "a minute; after that, check whether other members of the group hold all partitions",
                    route.name,
                    route.config.source.group,
                    waited,
                )
