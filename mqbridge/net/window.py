"""Window of requests: limits the requests in flight and their bytes.

Waiters are woken in the order of their calls. The first waiter precedes new callers until there is room for it: otherwise small
requests would block a large one forever. `release`, called for each response, wakes the next waiter. While nothing is in flight,
any caller gets room, so a waiter that fails does not block the others.
"""

from collections import deque
from collections.abc import Callable


class RequestWindow:
    """Limits the number of requests in flight, and their bytes."""

    __slots__ = ("_bytes", "_max_bytes", "_max_sends", "_sends", "_waiters", "_woken")

    def __init__(self, max_sends: int, max_bytes: int) -> None:
        self._max_sends, self._max_bytes = max_sends, max_bytes
        self._sends = self._bytes = 0
        """Number of requests in flight, and their bytes together."""
        self._waiters: deque[Callable[[], None]] = deque()
        """The `wake` callbacks of callers that got no room, the first caller first."""
        self._woken: Callable[[], None] | None = None
        """The callback that `release` is running, None if none is; its call of `reserve` precedes all waiters."""

    @property
    def sends(self) -> int:
        """Number of requests in flight."""
        return self._sends

    def reserve(self, size: int, wake: Callable[[], None]) -> bool:
        """Reserve room for a request of `size` bytes; if there is none, return False, and call `wake` once there may be room.

        `wake` has reserved nothing, so it must call `reserve` again, with the same `wake`.
        """
        must_queue = self._waiters and wake != self._woken  # others wait already, and it is not this caller's turn
        if self._sends and (must_queue or self._sends >= self._max_sends or self._bytes + size > self._max_bytes):
            if wake not in self._waiters:
                self._waiters.append(wake)
            return False
        self._sends += 1
        self._bytes += size
        return True

    def release(self, size: int, sends: int = 1) -> None:
        """Free the room of `sends` answered or abandoned requests, which have `size` bytes together, and wake waiters."""
        self._sends -= sends
        self._bytes -= size
        previous_woken = self._woken  # not None if a running `wake` called this method, to abandon a request
        try:
            while self._waiters and self._sends < self._max_sends:
                sends_before = self._sends
                self._woken = wake = self._waiters.popleft()
                wake()
                if self._sends <= sends_before and self._waiters and self._waiters[-1] == wake:
                    self._waiters.rotate(1)  # `wake` got no room and queued again: it returns to the front
                    break
        finally:
            self._woken = previous_woken
