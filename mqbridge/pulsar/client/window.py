"""How much may be on the way to a broker over one connection, all of its producers together."""

from collections import deque
from collections.abc import Callable

MAX_SENDS_IN_FLIGHT = 500
"""Per connection. At 1000 a broker stops reading the socket, and with it the pings and acknowledgements of everybody on it."""
MAX_BYTES_IN_FLIGHT = 32 << 20
"""Per connection; what a broker on a fast network has on the way to disk is far less."""


class SendWindow:
    """How much may be on the way to the broker over one connection; producers that find it full are woken in turn."""

    __slots__ = ("_bytes", "_sends", "_waiting")

    def __init__(self) -> None:
        self._sends = self._bytes = 0
        self._waiting: deque[Callable[[], None]] = deque()

    def take(self, size: int, wake: Callable[[], None]) -> bool:
        """Reserve a SEND of `size` bytes; when there is no room `wake` is called as soon as there is."""
        if self._sends and (self._sends >= MAX_SENDS_IN_FLIGHT or self._bytes + size > MAX_BYTES_IN_FLIGHT):
            if wake not in self._waiting:
                self._waiting.append(wake)
            return False
        self._sends += 1
        self._bytes += size
        return True

    def give(self, sends: int, size: int) -> None:
        """SENDs that are answered or given up."""
        self._sends -= sends
        self._bytes -= size
        for _ in range(len(self._waiting)):
            if self._sends >= MAX_SENDS_IN_FLIGHT:
                return
            self._waiting.popleft()()
