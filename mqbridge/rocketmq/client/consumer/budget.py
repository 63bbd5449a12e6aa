"""Memory budget of a consumer: the bytes that all its queues together may hold, and how they share it.

A queue holds the bytes of its responses until the consumer takes them or, with `AssignedQueue.holds_budget`, explicitly releases
them: the library's consumer does so when their messages are acknowledged. Before a pull is sent, it reserves bytes: its charge.
It requests as many messages as fit into the queue's part, estimated by the size of earlier messages. If the response is larger
than the charge, its real size counts, and nothing is lent until everything fits into the limit again.

Each queue has an equal share of the limit. A quarter of the share is reserved for the queue, its part: a pull for which the part
has room never waits for another queue. So a queue whose messages are taken continues, whatever the other queues hold. Everything
above the parts is lent to the queues that wait in the line, first come, first served:

- a queue borrows up to its share, to pull ahead while its responses wait to be taken;
- a queue that holds nothing also borrows for a single message larger than its share, up to half of the limit. The first queue in
  the line keeps its position until there is room, so its turn comes once other queues release bytes;
- other queues may release nothing for a long time. So meanwhile later queues may overtake the first one, and borrow at most a
  quarter of the limit in total: all parts together are another quarter, so half of the limit remains for the first one.

A pull that the broker holds (long polling) keeps its charge for up to 20 s, so it requests no more than a part. If a single
message exceeds the part, because there are many queues or large messages, idle queues send pulls that the broker must not hold,
one after the other.

When queues are added, the parts shrink, and the borrowed bytes of the other queues grow accordingly. New queues get their parts
nevertheless: the total may exceed the limit by a quarter until the borrowed bytes are released.
"""

import asyncio
from collections import deque

FIRST_MESSAGE_BYTES = 8 << 10
"""Assumed message size before the first message: 256 KiB / 32, a broker's default limits of a response."""
MAX_HELD_PULL_MESSAGES = 32
"""Limit of messages in a pull that the broker may hold: the broker responds as soon as one message arrives, and more messages are
rarely there by then."""
PART_DIVISOR = 4
"""The part of a queue is its share divided by this number. What the shares have beyond the parts is lent."""
OVERTAKING_DIVISOR = 4
"""Queues that overtake the first in the line may together borrow the limit divided by this number."""


class Account:
    """The account of one queue.

    `held` are the bytes that it holds, `requested` the bytes reserved by its pull, `message_bytes` its average message size (0
    while unknown).
    """

    __slots__ = ("borrowed", "held", "message_bytes", "overtook", "requested", "waiter")

    def __init__(self) -> None:
        self.held = self.requested = self.message_bytes = 0
        self.borrowed = 0
        """Held and requested bytes beyond the queue's part."""
        self.overtook = False
        """True if the queue borrowed `borrowed` while another queue was the first in the line."""
        self.waiter: Waiter | None = None
        """The queue's pending reservation, if any."""


class Charge:
    """The reservation of a pull: `size` bytes, for at most `messages`.

    `may_hold`: the broker may hold this pull if the queue is idle (long polling).
    """

    __slots__ = ("account", "may_hold", "messages", "size")

    def __init__(self, account: Account, size: int = 0, messages: int = 0, *, may_hold: bool = False) -> None:
        self.account, self.size = account, size
        self.messages, self.may_hold = messages, may_hold


class Waiter:
    """A queue that waits for a reservation (`granted`).

    `idle`: the queue was read to its end, so the broker may hold its pull. `in_line`: the waiter is in the budget's line.
    """

    __slots__ = ("account", "granted", "idle", "in_line")

    def __init__(self, account: Account, *, idle: bool) -> None:
        self.account, self.idle = account, idle
        self.in_line = False
        self.granted: asyncio.Future[Charge] = asyncio.get_running_loop().create_future()


class PullBudget:
    """Grants the pulls of one consumer's queues, which together may hold `max_bytes`."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._queues = 0
        self._share, self._part = max_bytes, max_bytes // PART_DIVISOR
        self.held = 0
        """Bytes received and not yet released."""
        self.requested = 0
        """Bytes reserved by pulls in flight."""
        self._borrowed = self._overtaking = 0
        """Bytes that all queues have borrowed, and the part of these bytes that queues borrowed by overtaking others."""
        self._message_bytes = FIRST_MESSAGE_BYTES
        """Average size of recent messages of all queues."""
        self._line: deque[Waiter] = deque()
        """Queues that wait until they can borrow, the oldest first."""
        self._active: set[Account] = set()
        """Accounts that hold or have requested something."""

    @property
    def queues(self) -> int:
        """The number of queues that share the limit.

        A change resizes all parts, so borrowed bytes change, and pulls of waiting queues may fit into their parts now.
        """
        return self._queues

    @queues.setter
    def queues(self, number: int) -> None:
        self._queues = number
        self._share = self._max_bytes // max(1, number)
        self._part = self._share // PART_DIVISOR
        for account in list(self._active):
            self._update_borrowed(account)
        for waiter in [*self._line, *(account.waiter for account in self._active if account.waiter is not None)]:
            self._grant_or_enqueue(waiter)
        self._grant_line()

    async def reserve(self, account: Account, *, idle: bool) -> Charge:
        """Wait until this queue may pull, and return the charge, which the caller ends by `settle` or `record_response`.

        `idle`: the queue was read to its end.
        """
        if not self._line:  # nobody waits: the same decision as in `_grant_or_enqueue` and `_grant_line`, without a future
            charge = self._next_charge(account, idle=idle)
            used, part = account.held + account.requested + charge.size, self._part
            # What this queue has borrowed so far is contained in `used`.
            free = self._max_bytes - part * self._queues - self._borrowed + account.borrowed
            if used <= part or ((not account.held or used <= self._share) and used - part <= free):
                self._grant(account, charge, overtakes=False)
                return charge
        waiter = account.waiter = Waiter(account, idle=idle)
        self._grant_or_enqueue(waiter)
        try:
            return await waiter.granted
        except asyncio.CancelledError:
            if waiter.granted.cancelled():
                self._grant_line()  # later queues in the line may need less
            else:
                self.settle(waiter.granted.result())  # it was granted in the same iteration of the event loop
            raise

    def settle(self, charge: Charge) -> None:
        """End the charge of a pull that failed or returned no messages; does nothing if the charge has already ended."""
        if size := charge.size:
            charge.size = 0
            self.requested -= size
            charge.account.requested -= size
            self._update_borrowed(charge.account)
            self._grant_line()

    def record_response(self, account: Account, charge: Charge, size: int, messages: int) -> None:
        """Replace the charge by the bytes that the pull returned: `size` bytes with this number of messages."""
        average, previous_average = size // max(1, messages), self._message_bytes
        # Larger messages count at once, smaller ones only gradually: a charge is better too large than too small.
        account.message_bytes = max(average, (account.message_bytes + 3 * average) // 4, 1)
        self._message_bytes = max(average, (previous_average + 3 * average) // 4, 1)
        account.held += size
        self.held += size
        self.requested -= charge.size
        account.requested -= charge.size
        charge.size = 0
        self._update_borrowed(account)
        if self._message_bytes < previous_average:  # the charges of queues without an average of their own get smaller
            for waiter in [waiter for waiter in self._line if not waiter.account.message_bytes]:
                self._grant_or_enqueue(waiter)
        self._grant_line()

    def hold(self, account: Account, size: int) -> None:
        """Add `size` bytes that the queue holds besides its responses; they may exceed the limit."""
        account.held += size
        self.held += size
        self._update_borrowed(account)

    def release(self, account: Account, size: int) -> None:
        """Release `size` bytes that the queue no longer holds, and grant charges that fit now."""
        account.held -= size
        self.held -= size
        self._update_borrowed(account)
        if account.waiter is not None:
            self._grant_or_enqueue(account.waiter)
        self._grant_line()

    def _next_charge(self, account: Account, *, idle: bool) -> Charge:
        """Return the charge of the queue's next pull: as many messages as probably fit into its part, at least one."""
        part, message = self._part, account.message_bytes or self._message_bytes
        messages = max(1, part // message)
        if idle:
            messages = min(messages, MAX_HELD_PULL_MESSAGES)
        size = min(messages * message, self._max_bytes // 2)  # the other half: all parts, and the queues that overtake
        return Charge(account, size, messages, may_hold=message <= part)

    def _grant_or_enqueue(self, waiter: Waiter) -> None:
        """Grant a charge that fits into the queue's part, else put the queue in the line.

        A queue whose share is full does neither: `release` calls this again.
        """
        if waiter.granted.done():
            return
        account, charge = waiter.account, self._next_charge(waiter.account, idle=waiter.idle)
        used = account.held + account.requested + charge.size
        if used <= self._part:
            self._grant(account, charge, overtakes=False)
            waiter.granted.set_result(charge)
        elif not waiter.in_line and (not account.held or used <= self._share):
            waiter.in_line = True
            self._line.append(waiter)
            self._grant_line()

    def _grant_line(self) -> None:
        """Grant charges of the queues in the line, in order, from the free bytes.

        Queues may overtake the first one within a limit.
        """
        if not self._line:
            return
        part, max_overtaking = self._part, self._max_bytes // OVERTAKING_DIVISOR
        free = self._max_bytes - part * self._queues - self._borrowed
        still_waiting: list[Waiter] = []
        while self._line:
            waiter = self._line.popleft()
            if waiter.granted.done():
                continue
            account, charge = waiter.account, self._next_charge(waiter.account, idle=waiter.idle)
            to_borrow = account.held + account.requested + charge.size - part
            # Granted: a charge that fits into the part, or one that the free bytes and the limit of overtaking allow.
            if to_borrow <= 0 or (
                to_borrow - account.borrowed <= free and (not still_waiting or self._overtaking + to_borrow <= max_overtaking)
            ):
                free -= max(0, to_borrow) - account.borrowed
                self._grant(account, charge, overtakes=bool(still_waiting))
                waiter.granted.set_result(charge)
                continue
            still_waiting.append(waiter)
            if len(still_waiting) > 1 and to_borrow <= max_overtaking:
                break  # this queue overtakes first as soon as there is room; the ones before it need too much to overtake
        self._line.extendleft(reversed(still_waiting))

    def _grant(self, account: Account, charge: Charge, *, overtakes: bool) -> None:
        """Reserve the bytes of a charge. `overtakes`: another queue is the first in the line."""
        account.waiter = None
        account.requested += charge.size
        self.requested += charge.size
        if overtakes != account.overtook:
            account.overtook = overtakes
            self._overtaking += account.borrowed if overtakes else -account.borrowed
        self._update_borrowed(account)

    def _update_borrowed(self, account: Account) -> None:
        """Update the borrowed bytes of an account."""
        used, part = account.held + account.requested, self._part
        borrowed = used - part if used > part else 0
        if difference := borrowed - account.borrowed:
            account.borrowed = borrowed
            self._borrowed += difference
            if account.overtook:
                self._overtaking += difference
        if used:
            self._active.add(account)
        else:
            self._active.discard(account)
