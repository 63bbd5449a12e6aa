"""An event loop with virtual time: when nothing else is ready, the clock jumps to the next timer.

So a scripted conversation of minutes takes no time, and always runs in the same way.
"""

import asyncio
import selectors

TICK_S = 1e-9
"""The clock jumps this far beyond the timer, because rounding could leave the timer in the future."""


class _Jump(selectors.DefaultSelector):
    """A selector that never waits: the clock skips the time that it would have waited."""

    skipped = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            raise RuntimeError("all tasks wait, but no timer is set, so nothing will ever happen")
        self.skipped += timeout + TICK_S if timeout > 0 else 0.0
        return super().select(0)


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """Event loop for tests without sockets, because events from outside cannot arrive during a jump."""

    def __init__(self) -> None:
        self._jump = _Jump()
        super().__init__(self._jump)

    def time(self) -> float:
        return self._jump.skipped
