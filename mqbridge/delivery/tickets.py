"""Tickets: the batches of a lane that are in flight, and which of them may be acknowledged.

One ticket per batch, never per message. Its legs are the sends that must succeed; it starts with one extra leg, held by the lane
while it sends, so that a send that ends before the next one starts cannot complete the ticket. If the source acknowledges in
order, only completed tickets at the front of the queue are acknowledged. If it acknowledges individually, a message is
acknowledged as soon as all legs that contain it have succeeded; tickets still leave the queue in order, so the position before
the oldest one is the low-water mark.

The bytes of a batch are freed when its last leg has ended, not before: until then an outbound may hold them.
"""

from collections import deque
from collections.abc import Callable, Sequence
from functools import partial

from mqbridge.adapter.receipt import MessageFailure, Receipt
from mqbridge.errors import Failure
from mqbridge.message import Batch, Position, Share


class Ticket:
    """A batch in flight: its open legs, the receipts and failures of ended legs, and the open legs per message."""

    __slots__ = ("abandoned", "batch", "cost", "failures", "legs", "legs_by_message", "opened_at", "stored")

    def __init__(self, batch: Batch, opened_at: float, cost: int) -> None:
        self.batch = batch
        self.cost = cost
        """Bytes charged to the budget for it."""
        self.legs = 1
        self.opened_at = opened_at
        self.abandoned = False
        self.stored: list[tuple[Share, Receipt]] = []
        self.failures: list[MessageFailure] = []
        """Reasons, by index in the batch, why messages were not stored; a batch with failures is never done."""
        self.legs_by_message: list[int] | None = None
        """Number of open legs per message; None while the batch is acknowledged as a whole."""

    @property
    def is_done(self) -> bool:
        """Every leg has succeeded."""
        return not self.legs and not self.failures

    def receipt(self) -> Receipt | None:
        """Return the positions of the stored messages; with several targets, those of the first receipt."""
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
            in_batch = share.index_in_batch(index)
            found[in_batch] = found[in_batch] or position
    return found


Acknowledge = Callable[[Batch, Sequence[int] | None, Receipt | None], None]


class Tickets:
    """The batches in flight of one lane, oldest first.

    Callbacks: `acknowledge` gets a stored batch, or the indexes of its stored messages. `completed` gets each batch when it and
    all before it are stored. `ended` gets each ticket when its last leg has ended, successfully or not.
    """

    def __init__(
        self, acknowledge: Acknowledge, completed: Callable[[Batch], None], ended: Callable[[Ticket], None], *, in_order: bool
    ) -> None:
        self._acknowledge, self._completed, self._ended = acknowledge, completed, ended
        self._in_order = in_order
        self._open: deque[Ticket] = deque()

    def __len__(self) -> int:
        return len(self._open)

    @property
    def messages(self) -> int:
        """Messages of the open batches."""
        return sum(ticket.batch.count for ticket in self._open)

    @property
    def oldest_at(self) -> float | None:
        """Loop time at which the oldest ticket was opened."""
        return self._open[0].opened_at if self._open else None

    def open(self, batch: Batch, now: float, cost: int = 0) -> Ticket:
        """Start tracking a batch; the caller settles the ticket once more than it adds legs."""
        batch.received_at = now
        ticket = Ticket(batch, now, cost)
        self._open.append(ticket)
        return ticket

    def track_messages(self, ticket: Ticket, shares: Sequence[Share]) -> None:
        """Count the legs per message, before several shares are sent; if acks are individual, messages in no share are done."""
        if self._in_order:
            return
        legs = ticket.legs_by_message = [0] * ticket.batch.count
        for share in shares:
            for index in share.batch_indexes:
                legs[index] += 1
        if left_out := [index for index, count in enumerate(legs) if not count]:
            self._acknowledge_stored(ticket, left_out, None)

    def settle(self, ticket: Ticket, share: Share | None = None, receipt: Receipt | None = None) -> None:
        """End one leg successfully: the share was stored, or there was nothing to send."""
        ticket.legs -= 1
        if share is not None and receipt is not None:
            ticket.stored.append((share, receipt))
            if ticket.legs_by_message is not None and not ticket.abandoned:
                self._settle_messages(ticket, ticket.legs_by_message, share, receipt)
        self._leg_ended(ticket)

    def fail(self, ticket: Ticket, share: Share, failures: Sequence[MessageFailure]) -> None:
        """End one leg with `failures` (by index in the share, not empty): the batch is delivered again when the lane ends."""
        ticket.legs -= 1
        ticket.failures += [MessageFailure(share.index_in_batch(one.index), one.failure_kind, one.reason) for one in failures]
        self._leg_ended(ticket)

    def abandon(self) -> list[Ticket]:
        """Stop tracking all open batches that are not done: they will be delivered again."""
        return self._leave([ticket for ticket in self._open if self._in_order or not ticket.is_done], [])

    def abandon_failed(self, failed: Ticket) -> list[Ticket]:
        """Stop tracking a failed batch and those that it blocks: with in-order acknowledgement, everything after it."""
        if self._in_order:
            tickets = list(self._open)
            at = tickets.index(failed)
            return self._leave(tickets[at:], tickets[:at])
        return [] if failed.legs else self._leave([failed], [ticket for ticket in self._open if ticket is not failed])

    def _leave(self, abandoned: list[Ticket], kept: Sequence[Ticket]) -> list[Ticket]:
        self._open = deque(kept)
        for ticket in abandoned:
            ticket.abandoned = True
            if not ticket.legs:
                self._ended(ticket)
        return abandoned

    def _settle_messages(self, ticket: Ticket, legs: list[int], share: Share, receipt: Receipt) -> None:
        done = []
        for index in share.batch_indexes:
            legs[index] -= 1
            if not legs[index]:
                done.append(index)
        if done:
            self._acknowledge_stored(ticket, done, receipt)

    def _leg_ended(self, ticket: Ticket) -> None:
        if ticket.legs:
            return
        if ticket.abandoned:
            self._ended(ticket)
            return
        if not self._in_order and ticket.is_done:
            if ticket.legs_by_message is None:
                self._acknowledge_stored(ticket, None, ticket.receipt())
            self._ended(ticket)
        while self._open and self._open[0].is_done:
            self._complete(self._open[0])

    def _complete(self, oldest: Ticket) -> None:
        if self._in_order:
            self._acknowledge_stored(oldest, None, oldest.receipt())
        self._open.popleft()
        if self._in_order:
            self._ended(oldest)
        self._completed(oldest.batch)

    def _acknowledge_stored(self, ticket: Ticket, indexes: Sequence[int] | None, receipt: Receipt | None) -> None:
        """Call `acknowledge`. If that fails, the batch counts as not stored."""
        try:
            self._acknowledge(ticket.batch, indexes, receipt)
        except Exception as error:
            ticket.failures.append(MessageFailure(0, Failure.RETRY, str(error)))
            raise
