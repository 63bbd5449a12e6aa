"""How many bytes the queues of a consumer may hold, all together, and how that is shared.

A queue holds what its answers brought until somebody takes it, or, where a stream lends, gives it back. A pull is charged for
what it may bring from the moment in which it is asked: it asks for so many messages as fit its part, by the size of those that
came before. An answer that brings more is counted at once, and nothing is lent then until all fits again.

Each queue has an equal share of the limit, and a fourth of that, its part, is its alone: a pull that fits there, beside what the
queue holds, never waits for another queue. So a queue that is read goes on, whatever others hold. The rest is lent, in turn:

- up to its share a queue borrows to have answers asked for while others wait to be taken;
- one whose single message is larger than its share borrows for that message, when it holds nothing; at most half of the limit.
  The first in the line keeps its turn until there is room, so all who take what they hold let it through;
- as those who borrowed may not take anything for long, others pass by the first meanwhile, with a fourth of the limit at most:
  beside that, and all parts, half of the limit is left.

A pull that waits at the broker keeps its charge for 20 s, so it asks for no more than a part. Where one message is too much for
that, because queues are many or messages large, idle queues are asked without waiting, in turn.

When queues come, what others hold by then is counted anew, by their smaller parts. Those that come have their own all the same:
at most a fourth of the limit beyond it, until that is taken.
"""

import asyncio
from collections import deque

FIRST_MESSAGE_BYTES = 8 << 10
"""What a message is expected to have before there was one: 32 of them are the most that a broker gives by default, 256 KiB."""
WAITING_MESSAGES = 32
"""The most that a pull which waits for messages asks for: more are seldom there when the first has come."""
PULL_PART = 4
"""Of a queue's share: the fourth for one pull, so that answers are asked for while others wait to be taken."""
PASSING_PART = 4
"""Of the limit: the fourth for those who pass by the first in the line."""


class Account:
    """One queue's part of the books: bytes that it holds and asks for, and how large its messages are; 0 while nobody knows."""

    __slots__ = ("asked", "borrowed", "held", "message", "passed_by", "waiter")

    def __init__(self) -> None:
        self.held = self.asked = self.message = 0
        self.borrowed = 0
        """What of both is beyond its part."""
        self.passed_by = False
        """It borrowed that while another was the first in the line."""
        self.waiter: Waiter | None = None
        """What asked last."""


class Charge:
    """What a pull may bring: `size` bytes of the budget, for at most `messages`. `may_wait`: at the broker, if none is there."""

    __slots__ = ("account", "may_wait", "messages", "size")

    def __init__(self, account: Account, size: int = 0, messages: int = 0, *, may_wait: bool = False) -> None:
        self.account, self.size, self.messages, self.may_wait = account, size, messages, may_wait


class Waiter:
    """A queue that wants to ask; `idle` when nothing is there to be read."""

    __slots__ = ("account", "charge", "idle", "in_line")

    def __init__(self, account: Account, *, idle: bool) -> None:
        self.account, self.idle, self.in_line = account, idle, False
        self.charge: asyncio.Future[Charge] = asyncio.get_running_loop().create_future()


class Budget:
    """The books of one consumer."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._queues = 0
        self._share, self._part = max_bytes, max_bytes // PULL_PART
        self.held = 0
        """Bytes received and not yet given back."""
        self.expected = 0
        """Bytes that are being asked for."""
        self._borrowed = self._passing = 0
        """Of both, what is beyond parts; and what of that was borrowed in passing."""
        self._message = FIRST_MESSAGE_BYTES
        """How large messages are that came last, of whichever queue."""
        self._line: deque[Waiter] = deque()
        self._used: set[Account] = set()
        """Accounts that hold or ask for something."""

    @property
    def queues(self) -> int:
        """How many share. When that changes, all have another part: more is borrowed, or somebody fits into theirs."""
        return self._queues

    @queues.setter
    def queues(self, number: int) -> None:
        self._queues = number
        self._share = self._max_bytes // max(1, number)
        self._part = self._share // PULL_PART
        for account in list(self._used):
            self._note(account)
        for waiter in [*self._line, *(account.waiter for account in self._used if account.waiter is not None)]:
            self._look_at(waiter)
        self._lend()

    async def reserve(self, account: Account, *, idle: bool) -> Charge:
        """Wait until this queue may ask; `idle` when nothing is there to be read. Ends by `settle` or `answered`."""
        if not self._line:  # nobody waits: what fits is given without a future, as `_look_at` would give it
            charge = self._charge(account, idle=idle)
            uses, part = account.held + account.asked + charge.size, self._part
            free = self._max_bytes - part * self._queues - self._borrowed + account.borrowed
            if uses <= part or ((not account.held or uses <= self._share) and uses - part <= free):
                self._give(account, charge, passes_by=False)
                return charge
        waiter = account.waiter = Waiter(account, idle=idle)
        self._look_at(waiter)
        try:
            return await waiter.charge
        except asyncio.CancelledError:
            if waiter.charge.cancelled():
                self._lend()  # those behind it may need less
            else:
                self.settle(waiter.charge.result())  # granted in the same step of the loop
            raise

    def settle(self, charge: Charge) -> None:
        """The pull brought nothing, or was given up; nothing happens when it was answered."""
        if size := charge.size:
            charge.size = 0
            self.expected -= size
            charge.account.asked -= size
            self._note(charge.account)
            self._lend()

    def answered(self, account: Account, charge: Charge, size: int, messages: int) -> None:
        """The pull brought this."""
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
                self._look_at(waiter)
        self._lend()

    def taken(self, account: Account, size: int) -> None:
        """Bytes that the queue holds no longer."""
        account.held -= size
        self.held -= size
        self._note(account)
        if account.waiter is not None:
            self._look_at(account.waiter)
        self._lend()

    def _charge(self, account: Account, *, idle: bool) -> Charge:
        part, message = self._part, account.message or self._message
        messages = max(1, part // message)
        if idle:
            messages = min(messages, WAITING_MESSAGES)
        size = min(messages * message, self._max_bytes // 2)  # so that it fits beside those that pass by
        return Charge(account, size, messages, may_wait=message <= part)

    def _look_at(self, waiter: Waiter) -> None:
        """Let it ask out of its own part, or join the line; who holds its share does neither, until something is taken."""
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
        """Let those in the line ask, in turn, and others pass by the first as long as that leaves it its room."""
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
                break  # the next to pass by; those before it are too large for that
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
        """What it borrows now."""
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
