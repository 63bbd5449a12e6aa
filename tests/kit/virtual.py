"""An event loop whose clock jumps to the next timer as soon as nothing else is to be done: hours pass in no time.

For scripted servers only: a real socket or thread would be waited for in the loop's time.
"""

import asyncio
import selectors
from typing import Any


class _Jumping(selectors.SelectSelector):
    """Waits for nothing but moves the clock on."""

    loop: "VirtualLoop"

    def select(self, timeout: float | None = None) -> list[Any]:
        """What is ready now."""
        ready = super().select(0)
        if not ready:
            assert timeout is not None, "nothing will ever happen: no timer is set, and everybody waits"
            self.loop.now += timeout
        return ready


class VirtualLoop(asyncio.SelectorEventLoop):
    """`now` is its time."""

    def __init__(self) -> None:
        self.now = 0.0
        selector = _Jumping()
        selector.loop = self
        super().__init__(selector)

    def time(self) -> float:
        """Seconds since it was made."""
        return self.now
