"""Ends a run with `--until-idle`: when the sources confirm that everything is read, or when they cannot be asked any more."""

import asyncio
from collections.abc import Callable, Sequence

from mqbridge.gateway.unread import SourceState, find_source_state
from mqbridge.routes.route import Route

IDLE_CHECK_S = 0.1
"""Pause between two checks whether all routes are idle; these checks send no requests."""
SOURCE_CHECK_S = 1.0
"""Minimum pause between two checks of the sources, while nothing arrives."""
UNKNOWN_PATIENCE_S = 20.0
"""How long the state of a source may be unknown before the run ends: longer than MAX_PAUSE_S, the pause between two attempts to
reach it, so a source that is back is noticed before."""


class IdleWatch:
    """Watches the routes that `routes` returns; None while they are being replaced."""

    def __init__(self, routes: Callable[[], Sequence[Route] | None], until_idle_s: float) -> None:
        self.unread: dict[Route, dict[str, str]] = {}
        """Why it is unknown whether partitions have unread messages, by route and partition; empty unless `run` ended so."""
        self._routes, self._until_idle_s = routes, until_idle_s
        self._loop = asyncio.get_running_loop()
        self._unknown_since: float | None = None
        """Loop time since which the state of a source has been unknown; None while all are known."""

    async def run(self) -> None:
        """Return when no message has arrived for `until_idle_s`, and the sources have confirmed that all messages are read.

        Also returns, with reasons in `unread`, if no message has arrived for this long, and the state of a source has been
        unknown for UNKNOWN_PATIENCE_S.
        """
        while True:
            await asyncio.sleep(IDLE_CHECK_S)
            routes = self._routes()
            if routes is None or not self._are_quiet(routes):
                self._unknown_since = None
            elif await self._is_over(routes):
                return
            else:
                await asyncio.sleep(SOURCE_CHECK_S)

    def _are_quiet(self, routes: Sequence[Route]) -> bool:
        now = self._loop.time()
        return all(route.quiet_for(now) >= self._until_idle_s for route in routes)

    async def _is_over(self, routes: Sequence[Route]) -> bool:
        """Check the sources of all routes that have not stopped."""
        began_at = self._loop.time()
        running = [route for route in routes if route.error is None]
        states: Sequence[SourceState] = await asyncio.gather(*map(find_source_state, running))
        unknown = {route: state.unknown for route, state in zip(running, states, strict=True) if state.unknown}
        now = self._loop.time()
        if not self._are_quiet(routes):
            return False
        if not unknown:
            self._unknown_since = None
            return all(state.is_read for state in states) and all(route.idle_for(now) >= self._until_idle_s for route in routes)
        self._unknown_since = began_at if self._unknown_since is None else self._unknown_since
        if now - self._unknown_since < UNKNOWN_PATIENCE_S:
            return False
        self.unread = unknown
        return True
