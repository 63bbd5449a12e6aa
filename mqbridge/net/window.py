"""Send window: limits the requests in flight and their bytes; waiters are woken in the order of their calls.

The first waiter precedes new callers until there is room for it: otherwise small requests would block a large one forever.
`give`, called for each response, wakes the next waiter. While nothing is in flight, any caller gets room, so a waiter that fails
blocks no other.
"""

from collections import deque
from collections.abc import Callable


class SendWindow:
    """Limits the number of requests in flight, and their bytes."""

    __slots__ = ("_bytes", "_max_bytes", "_max_sends", "_sends", "_waiting", "_woken")

    def __init__(self, max_sends: int, max_bytes: int) -> None:
        self._max_sends, self._max_bytes = max_sends, max_bytes
        self._sends = self._bytes = 0
        self._waiting: deque[Callable[[], None]] = deque()
        self._woken: Callable[[], None] | None = None
        """The waiter that is being woken now."""

    @property
    def sends(self) -> int:
        """Number of requests in flight."""
        return self._sends

    def take(self, size: int, wake: Callable[[], None]) -> bool:
        """Reserve room for a request of `size` bytes; if there is none, return False, and call `wake` once there may be room."""
        must_queue = self._waiting and wake != self._woken
        if self._sends and (must_queue or self._sends >= self._max_sends or self._bytes + size > self._max_bytes):
            if wake not in self._waiting:
                self._waiting.append(wake)
            return False
        self._sends += 1
        self._bytes += size
        return True

    def give(self, size: int, sends: int = 1) -> None:
        """Free the room of `sends` requests that were answered or abandoned, and of their `size` bytes; wake waiters."""
        self._sends -= sends
        self._bytes -= size
        woken = self._woken  # not None if the waiter that is being woken called this method, to abandon a request
        try:
            while self._waiting and self._sends < self._max_sends:
                before = self._sends
                self._woken = wake = self._waiting.popleft()
                wake()
                if self._sends <= before and self._waiting and self._waiting[-1] == wake:  # it got no room: it stays first
                    self._waiting.rotate(1)
                    break
        finally:
            self._woken = woken
