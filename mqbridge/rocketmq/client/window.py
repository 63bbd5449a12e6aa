"""How much may be on the way to the brokers at once; those who find it full are woken in turn."""

from collections import deque
from collections.abc import Callable

MAX_SENDS_IN_FLIGHT = 1000
"""Of one client. A broker queues 10000 sends of all its producers, and drops those that waited for 200 ms."""
MAX_BYTES_IN_FLIGHT = 64 << 20
"""Of one client; a broker on a fast network has far less on the way to its log."""


class SendWindow:
    """Counts requests and their bytes."""

    __slots__ = ("_bytes", "_max_bytes", "_max_sends", "_sends", "_waiting")

    def __init__(self, max_sends: int = MAX_SENDS_IN_FLIGHT, max_bytes: int = MAX_BYTES_IN_FLIGHT) -> None:
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

    def give(self, size: int) -> None:
        """A request that is answered or given up."""
        self._sends -= 1
        self._bytes -= size
        for _ in range(len(self._waiting)):
            if self._sends >= self._max_sends:
                return
            self._waiting.popleft()()
