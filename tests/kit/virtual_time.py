"""An event loop whose clock stands still, and jumps to the next timer when there is nothing else to do.

Minutes of a conversation pass at once, and the same conversation goes the same way each time.
"""

import asyncio
import selectors

TICK_S = 1e-9
"""Beyond the time of the timer, so that rounding does not leave it in the future."""


class _Jump(selectors.DefaultSelector):
    """A selector that never waits: the clock skips the time that it would have waited."""

    skipped = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            raise RuntimeError("what is waited for will never happen")
        self.skipped += timeout + TICK_S if timeout > 0 else 0.0
        return super().select(0)


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """For conversations without sockets: nothing may happen from outside while it jumps."""

    def __init__(self) -> None:
        self._jump = _Jump()
        super().__init__(self._jump)

    def time(self) -> float:
        return self._jump.skipped
