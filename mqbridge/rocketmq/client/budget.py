"""How many bytes of answers may wait to be taken, all queues of a consumer together, and how that is shared.

A queue asks for more while it holds less than its share and all together hold less than the limit. What an answer will bring is
known only when it is there, so a queue that has messages to come counts with the size of its last answer while it asks; one that
has been read to its end waits in a long poll and counts with nothing. So the limit can be exceeded by what ends those polls.
"""

import asyncio
from collections import deque

FIRST_ANSWER_BYTES = 256 << 10
"""What an answer is expected to bring before there was one: the broker's default limit."""


class Account:
    """One queue's part of the books: bytes that wait, bytes of the last answer."""

    __slots__ = ("answer", "held")

    def __init__(self) -> None:
        self.held = 0
        self.answer = FIRST_ANSWER_BYTES


class Budget:
    """The books of one consumer. `queues` is how many share."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self.queues = 0
        self.held = 0
        """Bytes received and not yet taken."""
        self.expected = 0
        """Bytes that are being asked for."""
        self._waiting: deque[tuple[Account, asyncio.Future[None]]] = deque()

    async def reserve(self, account: Account, *, idle: bool) -> int:
        """Wait until `account` may ask; `idle` when nothing is there to be read. What it returns goes back by `settle`."""
        while self.held + self.expected >= self._max_bytes or self._satisfied(account):
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append((account, waiter))
            try:
                await waiter
            except asyncio.CancelledError:
                if not waiter.cancelled():
                    self._wake()  # the turn was ours; another may use it
                raise
        reserved = 0 if idle else account.answer
        self.expected += reserved
        return reserved

    def settle(self, reserved: int) -> None:
        """What was reserved has been answered, or given up."""
        self.expected -= reserved
        self._wake()

    def received(self, account: Account, size: int) -> None:
        """Bytes that wait from now on."""
        account.answer = size
        account.held += size
        self.held += size

    def taken(self, account: Account, size: int) -> None:
        """Bytes that wait no longer."""
        account.held -= size
        self.held -= size
        self._wake()

    def _satisfied(self, account: Account) -> bool:
        return account.held > self._max_bytes // max(1, self.queues)

    def _wake(self) -> None:
        """Let those who wait look again, in turn, as far as there is room."""
        room = self._max_bytes - self.held - self.expected
        for _ in range(len(self._waiting)):
            if room <= 0:
                return
            account, waiter = self._waiting.popleft()
            if waiter.done():
                continue
            if self._satisfied(account):
                self._waiting.append((account, waiter))
                continue
            room -= account.answer
            waiter.set_result(None)
