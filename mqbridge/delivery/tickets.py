"""Tickets: which batches of a lane are still in flight, and what may be acknowledged.

One ticket per batch, never per message. Its legs are the sends that must succeed; it starts with one more, the router's own hold,
so that a send which ends before the next one began cannot close it. Where the source acknowledges in order, only tickets at the
head of the line are handed on. Where it acknowledges individually, a message is handed on as soon as every leg that it takes part
in has succeeded; tickets leave the line in order all the same, so what lies before the oldest one is the low-water mark.

The bytes of a batch are free when its last leg has ended, and not before: until then an outbound may hold them.
"""

from collections import deque
from collections.abc import Callable, Sequence
from functools import partial

from mqbridge.adapter.receipt import MessageFailure, Receipt
from mqbridge.errors import Failure
from mqbridge.message import Batch, Position, Share


class Ticket:
    """A batch in flight: its open legs, what the others brought, and how many of them each message still waits for."""

    __slots__ = ("abandoned", "batch", "cost", "failures", "legs", "opened_at", "stored", "waiting")

    def __init__(self, batch: Batch, opened_at: float, cost: int) -> None:
        self.batch = batch
        self.cost = cost
        """Bytes of the budget that it has."""
        self.legs = 1
        self.opened_at = opened_at
        self.abandoned = False
        self.stored: list[tuple[Share, Receipt]] = []
        self.failures: list[MessageFailure] = []
        """By index in the batch, why messages were not stored; the batch is then never done."""
        self.waiting: list[int] | None = None
        """Open legs by message; None while the batch is acknowledged as a whole."""

    @property
    def is_done(self) -> bool:
        """Every leg has succeeded."""
        return not self.legs and not self.failures

    def receipt(self) -> Receipt | None:
        """Where the messages of the batch are; of several targets, where the first one to answer stored them."""
        if not self.stored:
            return None
        share, receipt = self.stored[0]
        if len(self.stored) == 1 and share.indexes is None:
            return receipt
        return Receipt(partial(_positions, self.batch.count, self.stored))


def _positions(count: int, stored: Sequence[tuple[Share, Receipt]]) -> list[Position]:
    found: list[Position] = [()] * count
    for share, receipt in stored:
        for index, position in enumerate(receipt.positions):
            place = share.index_in_batch(index)
            found[place] = found[place] or position
    return found


Acknowledge = Callable[[Batch, Sequence[int] | None, Receipt | None], None]


class Tickets:
    """The batches in flight of one lane, oldest first.

    `acknowledge` is told what is stored: a batch, or the messages at some indexes of it. `passed` is told of each batch when it
    and all before it are stored. `ended` is told when the last leg of a batch has ended, whatever became of it.
    """

    def __init__(
        self, acknowledge: Acknowledge, passed: Callable[[Batch], None], ended: Callable[[Ticket], None], *, in_order: bool
    ) -> None:
        self._acknowledge, self._passed, self._ended = acknowledge, passed, ended
        self._in_order = in_order
        self._open: deque[Ticket] = deque()

    def __len__(self) -> int:
        return len(self._open)

    @property
    def messages(self) -> int:
        """Messages of the batches that are open."""
        return sum(ticket.batch.count for ticket in self._open)

    @property
    def oldest_at(self) -> float | None:
        """When the oldest was opened, loop time."""
        return self._open[0].opened_at if self._open else None

    def open(self, batch: Batch, now: float, cost: int = 0) -> Ticket:
        """Start following a batch; the caller settles the ticket once more than it adds legs."""
        batch.received_at = now
        ticket = Ticket(batch, now, cost)
        self._open.append(ticket)
        return ticket

    def divide(self, ticket: Ticket, shares: Sequence[Share]) -> None:
        """These several are to be sent. Where messages are acknowledged one by one, those in none of them are done with."""
        if self._in_order:
            return
        waiting = ticket.waiting = [0] * ticket.batch.count
        for share in shares:
            for index in share.places:
                waiting[index] += 1
        if left_out := [index for index, legs in enumerate(waiting) if not legs]:
            self._say_stored(ticket, left_out, None)

    def settle(self, ticket: Ticket, share: Share | None = None, receipt: Receipt | None = None) -> None:
        """One leg succeeded: the share was stored, or there was nothing to send."""
        ticket.legs -= 1
        if share is not None and receipt is not None:
            ticket.stored.append((share, receipt))
            if ticket.waiting is not None and not ticket.abandoned:
                self._settle_messages(ticket, ticket.waiting, share, receipt)
        self._leg_ended(ticket)

    def fail(self, ticket: Ticket, share: Share, failures: Sequence[MessageFailure]) -> None:
        """One leg failed: its batch is left over when the lane ends. `failures` are by index in the share, and not empty."""
        ticket.legs -= 1
        ticket.failures += [MessageFailure(share.index_in_batch(one.index), one.kind, one.reason) for one in failures]
        self._leg_ended(ticket)

    def abandon(self) -> list[Ticket]:
        """Stop following what is open: it will be delivered again."""
        return self._leave([ticket for ticket in self._open if self._in_order or not ticket.is_done], [])

    def leave_over(self, failed: Ticket) -> list[Ticket]:
        """Stop following one that failed and all that it keeps from being done: in order, everything behind it."""
        if self._in_order:
            tickets = list(self._open)
            place = tickets.index(failed)
            return self._leave(tickets[place:], tickets[:place])
        return [] if failed.legs else self._leave([failed], [ticket for ticket in self._open if ticket is not failed])

    def _leave(self, left: list[Ticket], kept: Sequence[Ticket]) -> list[Ticket]:
        self._open = deque(kept)
        for ticket in left:
            ticket.abandoned = True
            if not ticket.legs:
                self._ended(ticket)
        return left

    def _settle_messages(self, ticket: Ticket, waiting: list[int], share: Share, receipt: Receipt) -> None:
        done = []
        for index in share.places:
            waiting[index] -= 1
            if not waiting[index]:
                done.append(index)
        if done:
            self._say_stored(ticket, done, receipt)

    def _leg_ended(self, ticket: Ticket) -> None:
        if ticket.legs:
            return
        if ticket.abandoned:
            self._ended(ticket)
            return
        if not self._in_order and ticket.is_done:
            if ticket.waiting is None:
                self._say_stored(ticket, None, ticket.receipt())
            self._ended(ticket)
        while self._open and self._open[0].is_done:
            self._pass_on(self._open[0])

    def _pass_on(self, head: Ticket) -> None:
        if self._in_order:
            self._say_stored(head, None, head.receipt())
        self._open.popleft()
        if self._in_order:
            self._ended(head)
        self._passed(head.batch)

    def _say_stored(self, ticket: Ticket, indexes: Sequence[int] | None, receipt: Receipt | None) -> None:
        """Have it acknowledged. A batch with which that fails is left over, as one that was not stored."""
        try:
            self._acknowledge(ticket.batch, indexes, receipt)
        except Exception as error:
            ticket.failures.append(MessageFailure(0, Failure.RETRY, str(error)))
            raise
