"""Send window: limits the requests in flight and their bytes; waiters are woken first come first served.

A waiter goes before newcomers, and stays first until there is room: else a large request would wait forever behind small ones.
Each response, by `give`, wakes the next waiter. While nothing is in flight no caller has to wait, so a waiter that fails blocks
no other.
"""

from collections import deque
from collections.abc import Callable


class SendWindow:
    """Limits the requests in flight, and their bytes."""

    __slots__ = ("_bytes", "_max_bytes", "_max_sends", "_sends", "_waiting", "_woken")

    def __init__(self, max_sends: int, max_bytes: int) -> None:
        self._max_sends, self._max_bytes = max_sends, max_bytes
        self._sends = self._bytes = 0
        self._waiting: deque[Callable[[], None]] = deque()
        self._woken: Callable[[], None] | None = None
        """The waiter that is being woken now."""

    @property
    def sends(self) -> int:
        """Requests in flight."""
        return self._sends

    def take(self, size: int, wake: Callable[[], None]) -> bool:
        """Reserve a request of `size` bytes; if there is no room, `wake` is called as soon as there may be."""
        passes_by = self._waiting and wake != self._woken
        if self._sends and (passes_by or self._sends >= self._max_sends or self._bytes + size > self._max_bytes):
            if wake not in self._waiting:
                self._waiting.append(wake)
            return False
        self._sends += 1
        self._bytes += size
        return True

    def give(self, size: int, sends: int = 1) -> None:
        """Free requests that were answered or given up, and their bytes."""
        self._sends -= sends
        self._bytes -= size
        woken = self._woken  # set if the waiter that is being woken gives a request up
        try:
            while self._waiting and self._sends < self._max_sends:
                before = self._sends
                self._woken = head = self._waiting.popleft()
                head()
                if self._sends <= before and self._waiting and self._waiting[-1] == head:
                    self._waiting.rotate(1)
                    break
        finally:
            self._woken = woken
