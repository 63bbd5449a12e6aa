"""Tickets: the state of a lane's batches in flight, which decides when a batch may be acknowledged.

There is one ticket per batch. Its legs are the sends that must succeed. It starts with one extra leg, which the lane ends after
its last send: otherwise a send that ends before the next one starts would complete the ticket.

Tickets leave the queue in order. If the source acknowledges in order, a batch is acknowledged when its ticket leaves the queue.
With individual acknowledgement, a message is acknowledged as soon as all legs with this message have succeeded.

The bytes of a batch are freed only when its last leg has ended: until then an outbound may hold them.
"""

from collections import deque
from collections.abc import Callable, Sequence
from functools import partial

from mqbridge.adapter.receipt import MessageFailure, Receipt
from mqbridge.errors import Failure
from mqbridge.message import Batch, Position, Share


class Ticket:
    """A batch in flight, with its open legs, and the receipts and failures of the ended legs."""

    __slots__ = ("abandoned", "batch", "cost", "failures", "legs", "legs_by_message", "opened_at", "stored")

    def __init__(self, batch: Batch, opened_at: float, cost: int) -> None:
        self.batch = batch
        self.cost = cost
        """Bytes charged to the budget for this batch."""
        self.legs = 1
        """Number of open legs."""
        self.opened_at = opened_at
        self.abandoned = False
        self.stored: list[tuple[Share, Receipt]] = []
        self.failures: list[MessageFailure] = []
        """Messages that were not stored, by index in the batch; a batch with failures is never acknowledged as a whole."""
        self.legs_by_message: list[int] | None = None
        """Number of open legs per message; None if the batch is acknowledged as a whole."""

    @property
    def is_done(self) -> bool:
        """True if every leg has succeeded."""
        return not self.legs and not self.failures

    def receipt(self) -> Receipt | None:
        """Return the receipt of the whole batch: for each message, the position in the first receipt that contains it."""
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
    """The tickets of one lane, oldest first.

    `acknowledge` is called with a stored batch, and the indexes of its stored messages if these are not all. `completed` is
    called with each batch when it and all batches before it are stored. `ended` is called with each ticket when its last leg has
    ended, successfully or not.
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
        """Start tracking a batch; the caller adds a leg per send, and calls `settle` once after the last send."""
        batch.received_at = now
        ticket = Ticket(batch, now, cost)
        self._open.append(ticket)
        return ticket

    def track_messages(self, ticket: Ticket, shares: Sequence[Share]) -> None:
        """Count the legs per message, before several shares are sent; does nothing if the source acknowledges in order.

        Messages in no share are acknowledged at once: there is nothing to store.
        """
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
        """End one leg with failures, by index in the share; the batch is delivered again when the lane ends."""
        ticket.legs -= 1
        ticket.failures += [
            MessageFailure(share.index_in_batch(failure.index), failure.failure_kind, failure.reason) for failure in failures
        ]
        self._leg_ended(ticket)

    def abandon(self) -> list[Ticket]:
        """Stop tracking all open batches; return those that are not acknowledged and will be delivered again."""
        return self._abandon([ticket for ticket in self._open if self._in_order or not ticket.is_done], [])

    def abandon_failed(self, failed: Ticket) -> list[Ticket]:
        """Stop tracking a failed batch and, if the source acknowledges in order, all batches after it; return their tickets."""
        if self._in_order:
            tickets = list(self._open)
            index = tickets.index(failed)
            return self._abandon(tickets[index:], tickets[:index])
        return [] if failed.legs else self._abandon([failed], [ticket for ticket in self._open if ticket is not failed])

    def _abandon(self, abandoned: list[Ticket], remaining: Sequence[Ticket]) -> list[Ticket]:
        self._open = deque(remaining)
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
        """Call `acknowledge`. If it raises, record a failure, so that the batch is delivered again."""
        try:
            self._acknowledge(ticket.batch, indexes, receipt)
        except Exception as error:
            ticket.failures.append(MessageFailure(0, Failure.RETRY, str(error)))
            raise
