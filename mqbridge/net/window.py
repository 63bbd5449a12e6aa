"""How many requests, and how many bytes of them, may be on the way at once; those who find it full are woken in turn.

Who waits has its turn before newcomers, and keeps it until there is room: a large request would wait for ever behind small ones.
Each answer, by `give`, moves the line; while nothing is on the way nobody has to wait, so one whose turn fails stops no other.
"""

from collections import deque
from collections.abc import Callable


class SendWindow:
    """Counts requests and their bytes."""

    __slots__ = ("_bytes", "_max_bytes", "_max_sends", "_sends", "_waiting", "_woken")

    def __init__(self, max_sends: int, max_bytes: int) -> None:
        self._max_sends, self._max_bytes = max_sends, max_bytes
        self._sends = self._bytes = 0
        self._waiting: deque[Callable[[], None]] = deque()
        self._woken: Callable[[], None] | None = None
        """Whose turn it is just now."""

    @property
    def sends(self) -> int:
        """Requests without an answer."""
        return self._sends

    def take(self, size: int, wake: Callable[[], None]) -> bool:
        """Reserve a request of `size` bytes; when there is no room `wake` is called as soon as there may be."""
        passes_by = self._waiting and wake != self._woken
        if self._sends and (passes_by or self._sends >= self._max_sends or self._bytes + size > self._max_bytes):
            if wake not in self._waiting:
                self._waiting.append(wake)
            return False
        self._sends += 1
        self._bytes += size
        return True

    def give(self, size: int, sends: int = 1) -> None:
        """Requests that are answered or given up, and the bytes of all of them."""
        self._sends -= sends
        self._bytes -= size
        woken = self._woken  # by whom we are called, where a request is given up in its turn
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
