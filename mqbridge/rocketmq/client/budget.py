"""Memory budget of a consumer: the bytes that all its queues together may hold, and how they share it.

A queue holds the bytes of its responses until they are taken, or, with `holds_budget`, released. A pull is charged when it is
sent: it requests as many messages as fit the queue's part, judged by the size of earlier messages. A larger response is counted
at once, and nothing is lent until everything fits again.

Each queue has an equal share of the limit. A fourth of the share is its reserved part: a pull that fits there, beside what the
queue holds, never waits for another queue. So a queue that is consumed keeps going, whatever others hold. The rest is lent, first
come first served:

- a queue borrows up to its share, to pull ahead while responses wait to be taken;
- a queue that holds nothing borrows for a single message larger than its share, up to half of the limit. The first in the line
  keeps its place until there is room, so it is served once the others take what they hold;
- as borrowers may not take anything for long, others overtake the first meanwhile, with a fourth of the limit at most: beside
  that and all parts, half of the limit is left.

A pull held by the broker keeps its charge for up to 20 s, so it requests no more than a part. If one message exceeds that,
because queues are many or messages large, idle queues pull without being held, one after the other.

When queues are added, the parts shrink and what others hold is counted anew. New queues get their parts all the same: at most a
fourth of the limit beyond it, until that is taken.
"""

import asyncio
from collections import deque

FIRST_MESSAGE_BYTES = 8 << 10
"""Assumed size of a message before the first: 32 of them are a broker's default limit of a response, 256 KiB."""
WAITING_MESSAGES = 32
"""Limit of messages in a held pull: more are seldom there when the first arrives."""
PULL_PART = 4
"""The part of a queue is a fourth of its share, so that it can pull ahead while responses wait to be taken."""
PASSING_PART = 4
"""A fourth of the limit is for queues that overtake the first in the line."""


class Account:
    """The account of one queue: bytes that it holds and has requested, and its average message size; 0 while unknown."""

    __slots__ = ("asked", "borrowed", "held", "message", "passed_by", "waiter")

    def __init__(self) -> None:
        self.held = self.asked = self.message = 0
        self.borrowed = 0
        """The bytes of both beyond its part."""
        self.passed_by = False
        """It borrowed them while another queue was the first in the line."""
        self.waiter: Waiter | None = None
        """Its pending reservation."""


class Charge:
    """The reservation of a pull: `size` bytes, for at most `messages`. `may_wait`: the broker may hold it."""

    __slots__ = ("account", "may_wait", "messages", "size")

    def __init__(self, account: Account, size: int = 0, messages: int = 0, *, may_wait: bool = False) -> None:
        self.account, self.size, self.messages, self.may_wait = account, size, messages, may_wait


class Waiter:
    """A queue that waits for a reservation; `idle`: it was read to its end."""

    __slots__ = ("account", "charge", "idle", "in_line")

    def __init__(self, account: Account, *, idle: bool) -> None:
        self.account, self.idle, self.in_line = account, idle, False
        self.charge: asyncio.Future[Charge] = asyncio.get_running_loop().create_future()


class Budget:
    """The budget of one consumer."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._queues = 0
        self._share, self._part = max_bytes, max_bytes // PULL_PART
        self.held = 0
        """Bytes received and not yet released."""
        self.expected = 0
        """Bytes reserved by pulls in flight."""
        self._borrowed = self._passing = 0
        """Bytes of both beyond the parts; and those of them borrowed by overtaking."""
        self._message = FIRST_MESSAGE_BYTES
        """Average size of recent messages of all queues."""
        self._line: deque[Waiter] = deque()
        self._used: set[Account] = set()
        """Accounts that hold or have requested something."""

    @property
    def queues(self) -> int:
        """The number of queues that share. A change resizes all parts: more is borrowed, or a waiting queue fits its part."""
        return self._queues

    @queues.setter
    def queues(self, number: int) -> None:
        self._queues = number
        self._share = self._max_bytes // max(1, number)
        self._part = self._share // PULL_PART
        for account in list(self._used):
            self._note(account)
        for waiter in [*self._line, *(account.waiter for account in self._used if account.waiter is not None)]:
            self._serve(waiter)
        self._lend()

    async def reserve(self, account: Account, *, idle: bool) -> Charge:
        """Wait until this queue may pull; `idle`: it was read to its end. End the charge by `settle` or `answered`."""
        if not self._line:  # nobody waits: grant without a future what `_serve` would grant
            charge = self._charge(account, idle=idle)
            uses, part = account.held + account.asked + charge.size, self._part
            free = self._max_bytes - part * self._queues - self._borrowed + account.borrowed
            if uses <= part or ((not account.held or uses <= self._share) and uses - part <= free):
                self._give(account, charge, passes_by=False)
                return charge
        waiter = account.waiter = Waiter(account, idle=idle)
        self._serve(waiter)
        try:
            return await waiter.charge
        except asyncio.CancelledError:
            if waiter.charge.cancelled():
                self._lend()  # those behind it may need less
            else:
                self.settle(waiter.charge.result())  # granted in the same step of the loop
            raise

    def settle(self, charge: Charge) -> None:
        """End the charge of a pull without records; no effect after `answered`."""
        if size := charge.size:
            charge.size = 0
            self.expected -= size
            charge.account.asked -= size
            self._note(charge.account)
            self._lend()

    def answered(self, account: Account, charge: Charge, size: int, messages: int) -> None:
        """Replace the charge by the bytes that the pull returned."""
        average, expected = size // max(1, messages), self._message
        account.message = max(average, (account.message + 3 * average) // 4, 1)
        self._message = max(average, (expected + 3 * average) // 4, 1)
        account.held += size
        self.held += size
        self.expected -= charge.size
        account.asked -= charge.size
        charge.size = 0
        self._note(account)
        if self._message < expected:
            for waiter in [one for one in self._line if not one.account.message]:
                self._serve(waiter)
        self._lend()

    def taken(self, account: Account, size: int) -> None:
        """The queue no longer holds these bytes."""
        account.held -= size
        self.held -= size
        self._note(account)
        if account.waiter is not None:
            self._serve(account.waiter)
        self._lend()

    def _charge(self, account: Account, *, idle: bool) -> Charge:
        part, message = self._part, account.message or self._message
        messages = max(1, part // message)
        if idle:
            messages = min(messages, WAITING_MESSAGES)
        size = min(messages * message, self._max_bytes // 2)  # so that it fits beside those that overtake
        return Charge(account, size, messages, may_wait=message <= part)

    def _serve(self, waiter: Waiter) -> None:
        """Grant from its own part, or put it in the line; a queue that holds its share waits until something is taken."""
        if waiter.charge.done():
            return
        account, charge = waiter.account, self._charge(waiter.account, idle=waiter.idle)
        uses = account.held + account.asked + charge.size
        if uses <= self._part:
            self._give(account, charge, passes_by=False)
            waiter.charge.set_result(charge)
        elif not waiter.in_line and (not account.held or uses <= self._share):
            waiter.in_line = True
            self._line.append(waiter)
            self._lend()

    def _lend(self) -> None:
        """Grant to the line in order; others overtake the first as long as its room is kept."""
        if not self._line:
            return
        part, most_passing = self._part, self._max_bytes // PASSING_PART
        left = self._max_bytes - part * self._queues - self._borrowed
        kept: list[Waiter] = []
        while self._line:
            waiter = self._line.popleft()
            if waiter.charge.done():
                continue
            account, charge = waiter.account, self._charge(waiter.account, idle=waiter.idle)
            needs = account.held + account.asked + charge.size - part
            if needs <= 0 or (needs - account.borrowed <= left and (not kept or self._passing + needs <= most_passing)):
                left -= max(0, needs) - account.borrowed
                self._give(account, charge, passes_by=bool(kept))
                waiter.charge.set_result(charge)
                continue
            kept.append(waiter)
            if len(kept) > 1 and needs <= most_passing:
                break  # the next to overtake; those before it are too large for that
        self._line.extendleft(reversed(kept))

    def _give(self, account: Account, charge: Charge, *, passes_by: bool) -> None:
        account.waiter = None
        account.asked += charge.size
        self.expected += charge.size
        if passes_by != account.passed_by:
            account.passed_by = passes_by
            self._passing += account.borrowed if passes_by else -account.borrowed
        self._note(account)

    def _note(self, account: Account) -> None:
        """Update the borrowed bytes of an account."""
        used, part = account.held + account.asked, self._part
        borrowed = used - part if used > part else 0
        if more := borrowed - account.borrowed:
            account.borrowed = borrowed
            self._borrowed += more
            if account.passed_by:
                self._passing += more
        if used:
            self._used.add(account)
        else:
            self._used.discard(account)
