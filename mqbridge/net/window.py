"""How many requests, and how many bytes of them, may be on the way at once; those who find it full are woken in turn."""

from collections import deque
from collections.abc import Callable


class SendWindow:
    """Counts requests and their bytes."""

    __slots__ = ("_bytes", "_max_bytes", "_max_sends", "_sends", "_waiting")

    def __init__(self, max_sends: int, max_bytes: int) -> None:
        self._max_sends, self._max_bytes = max_sends, max_bytes
        self._sends = self._bytes = 0
        self._waiting: deque[Callable[[], None]] = deque()

    @property
    def sends(self) -> int:
        """Requests without an answer."""
        return self._sends

    def take(self, size: int, wake: Callable[[], None]) -> bool:
        """Reserve a request of `size` bytes; when there is no room `wake` is called as soon as there may be."""
        if self._sends and (self._sends >= self._max_sends or self._bytes + size > self._max_bytes):
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
        for _ in range(len(self._waiting)):
            if self._sends >= self._max_sends:
                return
            self._waiting.popleft()()
