"""How many bytes the queues of a consumer may hold, all together, and how that is shared.

A queue holds what its answers brought until somebody takes it, or, where a stream lends, gives it back. A pull is charged for
what it may bring from the moment in which it is asked: it asks for so many messages as fit its part, by the size of those that
came before. An answer that brings more is counted at once, and no pull goes out until all fits again.

Each queue has an equal share of the limit, and holds no more than that as long as one message is not larger: so a queue that
nobody reads takes nothing from the others. A pull that waits at the broker keeps its charge for 20 s, so it asks for little.
Where one message is too much for that, because queues are many or messages large, idle queues are asked without waiting, in turn.
"""

import asyncio
from collections import deque

FIRST_MESSAGE_BYTES = 8 << 10
"""What a message is expected to have before there was one: 32 of them are the most that a broker gives by default, 256 KiB."""
WAITING_MESSAGES = 32
"""The most that a pull which waits for messages asks for: more are seldom there when the first has come."""
PULL_PART = 4
"""Of a queue's share: the fourth for one pull, so that answers are asked for while others wait to be taken."""


class Account:
    """One queue's part of the books: bytes that it holds, and how large its messages are; 0 while nobody knows."""

    __slots__ = ("held", "message")

    def __init__(self) -> None:
        self.held = self.message = 0


class Charge:
    """What a pull may bring: `size` bytes of the budget, for at most `messages`. `may_wait`: at the broker, if none is there."""

    __slots__ = ("may_wait", "messages", "size")

    def __init__(self, size: int, messages: int, *, may_wait: bool) -> None:
        self.size, self.messages, self.may_wait = size, messages, may_wait


class Budget:
    """The books of one consumer. `queues` is how many share."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self.queues = 0
        self.held = 0
        """Bytes received and not yet given back."""
        self.expected = 0
        """Bytes that are being asked for."""
        self._message = FIRST_MESSAGE_BYTES
        """How large messages are that came last, of whichever queue."""
        self._waiting: deque[tuple[Account, bool, asyncio.Future[Charge]]] = deque()

    async def reserve(self, account: Account, *, idle: bool) -> Charge:
        """Wait, in turn, until this queue may ask; `idle` when nothing is there to be read. Ends by `settle` or `answered`."""
        waiter: asyncio.Future[Charge] = asyncio.get_running_loop().create_future()
        self._waiting.append((account, idle, waiter))
        self._grant()
        try:
            return await waiter
        except asyncio.CancelledError:
            if waiter.cancelled():
                self._grant()  # those behind it may need less
            else:
                self.settle(waiter.result())  # granted in the same step of the loop
            raise

    def settle(self, charge: Charge) -> None:
        """The pull brought nothing, or was given up; nothing happens when it was answered."""
        self.expected -= charge.size
        charge.size = 0
        self._grant()

    def answered(self, account: Account, charge: Charge, size: int, messages: int) -> None:
        """The pull brought this."""
        average = size // max(1, messages)
        account.message, self._message = (max(average, (one + 3 * average) // 4, 1) for one in (account.message, self._message))
        account.held += size
        self.held += size
        self.settle(charge)

    def taken(self, account: Account, size: int) -> None:
        """Bytes that the queue holds no longer."""
        account.held -= size
        self.held -= size
        self._grant()

    def _charge(self, account: Account, *, idle: bool) -> Charge:
        share = self._max_bytes // max(1, self.queues)
        part, message = share // PULL_PART, account.message or self._message
        messages = max(1, part // message)
        if idle:
            messages = min(messages, WAITING_MESSAGES)
        size = min(messages * message, self._max_bytes // 2)  # so that it fits beside those that wait
        return Charge(size, messages, may_wait=message <= part)

    def _grant(self) -> None:
        """Let those who wait ask, in turn, as far as there is room; who would go beyond its share lets the others go first."""
        for _ in range(len(self._waiting)):
            account, idle, waiter = entry = self._waiting.popleft()
            if waiter.done():
                continue
            charge = self._charge(account, idle=idle)
            if account.held and account.held + charge.size > self._max_bytes // max(1, self.queues):
                self._waiting.append(entry)
                continue
            if self.held + self.expected + charge.size > self._max_bytes:
                self._waiting.appendleft(entry)
                return
            self.expected += charge.size
            waiter.set_result(charge)
