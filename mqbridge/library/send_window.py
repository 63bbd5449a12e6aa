"""Limits the bytes that a producer has in flight: `send` calls wait in FIFO order when the limit is reached."""

import asyncio
from collections import deque

from mqbridge.errors import ClusterError, MqbridgeError

MAX_PENDING_BYTES = 64 << 20
"""Default limit of the bytes in flight (option `max_pending_bytes` of the clients); messages that wait do not count."""


class SendWindow:
    """The unfinished messages of one producer: those in flight, and those that wait until they fit into `max_bytes`.

    A message larger than `max_bytes` is admitted when nothing else is in flight. Messages have consecutive numbers.
    """

    def __init__(self, max_bytes: int = MAX_PENDING_BYTES) -> None:
        self.max_bytes = max_bytes
        self.bytes_in_flight = 0
        """Total size of the messages in flight: they are admitted, and `leave` was not called for them yet."""
        self._pending: set[int] = set()
        """Numbers of all unfinished messages."""
        self._next = 0
        """Number of the next message."""
        self._oldest = 0
        """Every message with a lower number is finished."""
        self._waiters: deque[tuple[asyncio.Future[None], int]] = deque()
        """The `enter` calls that wait, oldest first: the future of each, and the size of its message."""
        self._waiters_of: dict[object, dict[asyncio.Future[None], None]] = {}
        """The futures of the `enter` calls that wait, by stream, oldest first."""
        self._resuming = 0
        """Number of admitted calls whose coroutine has not resumed yet: a new call must not overtake them."""
        self._drains: deque[tuple[int, asyncio.Future[None]]] = deque()
        """Each `drain` call: the number of the first message that it does not wait for, and its future."""
        self._error: ClusterError | None = None
        """The error given to `abort`."""

    async def enter(self, size: int, stream: object = None) -> int:
        """Wait in FIFO order until `size` fits; return the number to pass to `leave`. Raises the error given to `abort`.

        `stream` is any value by which `fail_waiting` chooses calls.
        """
        if self._error is not None:
            raise self._error
        number = self._next
        self._next += 1
        self._pending.add(number)
        if not self._waiters and not self._resuming and self._fits(size):
            self.bytes_in_flight += size
            return number
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.append((waiter, size))
        self._waiters_of.setdefault(stream, {})[waiter] = None
        self._admit()  # if all earlier waiters are cancelled by now, this call may fit at once
        try:
            await waiter
        except BaseException:
            was_admitted = waiter.done() and not waiter.cancelled() and waiter.exception() is None
            if was_admitted:  # and cancelled before it resumed
                self._resuming -= 1
                self.leave(number, size)
            else:
                self.leave(number, 0)  # it waited, and occupies no bytes
            raise
        finally:
            self._forget_waiter(waiter, stream)
        self._resuming -= 1
        return number

    def leave(self, number: int, size: int) -> None:
        """Release the bytes of a message that is stored, failed or cancelled; admit waiting calls and wake `drain` calls."""
        self.bytes_in_flight -= size
        self._pending.discard(number)
        self._admit()
        while self._drains and self._is_drained(self._drains[0][0]):
            waiter = self._drains.popleft()[1]
            if not waiter.done():
                waiter.set_result(None)

    async def drain(self) -> None:
        """Wait until every message entered so far is stored, failed or cancelled."""
        if self._pending:
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._drains.append((self._next, waiter))
            await waiter

    def abort(self, error: ClusterError) -> None:
        """Raise this error in waiting and later `enter` calls; messages in flight are not affected."""
        self._error = error
        self.fail_waiting(error)

    def fail_waiting(self, error: MqbridgeError, stream: object = None) -> None:
        """Raise this error in the `enter` calls of this stream that wait; None: in all calls that wait.

        Many messages of a stream often fail at once, so only the first such call may take long.
        """
        for each in [stream] if stream is not None else list(self._waiters_of):
            for waiter in self._waiters_of.pop(each, ()):
                if not waiter.done():
                    waiter.set_exception(error)

    def _forget_waiter(self, waiter: "asyncio.Future[None]", stream: object) -> None:
        waiters = self._waiters_of.get(stream)
        if waiters is not None:
            waiters.pop(waiter, None)
            if not waiters:
                del self._waiters_of[stream]

    def _is_drained(self, before: int) -> bool:
        """Return True if all messages with numbers below `before` are finished."""
        while self._oldest < before and self._oldest not in self._pending:
            self._oldest += 1
        return self._oldest >= before

    def _fits(self, size: int) -> bool:
        return not self.bytes_in_flight or self.bytes_in_flight + size <= self.max_bytes

    def _admit(self) -> None:
        """Admit waiting calls, oldest first, while their messages fit; remove cancelled ones."""
        while self._waiters:
            waiter, size = self._waiters[0]
            if not waiter.done():
                if not self._fits(size):
                    return
                self.bytes_in_flight += size
                self._resuming += 1
                waiter.set_result(None)
            self._waiters.popleft()
