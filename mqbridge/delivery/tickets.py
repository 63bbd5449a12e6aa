"""Tickets: the state of a lane's batches in flight, which decides when a batch may be acknowledged.

There is one ticket per batch. Its legs are the sends that must succeed, each of one share: the messages of the batch for one
target partition. A ticket starts with one extra leg, which the lane ends after its last send: otherwise a send that ends before
the next one starts would complete the ticket.

Tickets leave the queue in order. If the source acknowledges in order, a batch is acknowledged when its ticket leaves the queue.
With individual acknowledgement, a message is acknowledged as soon as all legs with this message have succeeded.

The bytes of a batch are freed only when its last leg has ended: until then an outbound may hold them. With individual
acknowledgement, a batch that is stored drops its contents at once, and its ticket counts WAITING_TICKET_BYTES until all tickets
before it are done: one batch that is not stored may have many stored ones behind it.
"""

from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

from mqbridge.adapter.receipt import MessageFailure, Receipt
from mqbridge.delivery.target import Target
from mqbridge.errors import Failure
from mqbridge.message import Batch, Position, Share

WAITING_TICKET_BYTES = 1000
"""Memory of a ticket that is done and waits for earlier ones, with the rest of its batch (measured: 0.85 kB)."""


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
        """Loop time at which the lane began to deliver the batch."""
        self.abandoned = False
        """True if the batch was returned to the source: it is not acknowledged, even if its open legs succeed."""
        self.stored: list[tuple[Share, Receipt]] = []
        """The stored shares, with their receipts."""
        self.failures: list[MessageFailure] = []
        """Messages that were not stored, by index in the batch; a batch with failures is never acknowledged as a whole."""
        self.legs_by_message: list[int] | None = None
        """Number of open legs per message; None if the batch is acknowledged as a whole."""

    @property
    def is_done(self) -> bool:
        """True if every leg has succeeded."""
        return not self.legs and not self.failures

    def receipt(self) -> Receipt | None:
        """Return the receipt of the whole batch: for each message, the position in the first receipt that contains it.

        None if no share was stored, for example because all messages were filtered out.
        """
        if not self.stored:
            return None
        share, receipt = self.stored[0]
        if len(self.stored) == 1 and share.indexes is None:  # the share is the whole batch
            return receipt
        return Receipt(partial(_positions_by_message, self.batch.count, self.stored))


class Leg(NamedTuple):
    """One send of a ticket: a share of its batch for one partition of a target."""

    ticket: Ticket
    target: Target
    share: Share

    @property
    def batch(self) -> Batch:
        """The batch of the ticket."""
        return self.ticket.batch


def _positions_by_message(count: int, stored: Sequence[tuple[Share, Receipt]]) -> list[Position]:
    """Return the position of each of the `count` messages of a batch, from the first receipt that has one; () if none has."""
    positions: list[Position] = [()] * count
    for share, receipt in stored:
        for index, position in enumerate(receipt.positions):
            in_batch = share.index_in_batch(index)
            positions[in_batch] = positions[in_batch] or position
    return positions


Acknowledge = Callable[[Batch, Sequence[int] | None, Receipt | None], None]
"""Callback that acknowledges messages of a batch at the source: see `Tickets`."""


class Tickets:
    """The tickets of one lane, oldest first.

    `acknowledge` is called with a batch and the indexes of its messages to acknowledge (None means all of them), and a receipt
    with the positions at which a target stored them, if one did. `on_completed` is called with each batch when it and all batches
    before it are stored, except batches that `abandon_failed` has removed. `on_ended` is called with each ticket that has no open
    leg, once it is abandoned, or stored with all tickets before it; then its cost is free. `on_shrunk` is called with the bytes
    by which the cost of a ticket has decreased before that. With `in_order`, the source acknowledges in order.
    """

    def __init__(
        self,
        acknowledge: Acknowledge,
        on_completed: Callable[[Batch], None],
        on_ended: Callable[[Ticket], None],
        on_shrunk: Callable[[int], None],
        *,
        in_order: bool,
    ) -> None:
        self._acknowledge, self._on_completed = acknowledge, on_completed
        self._on_ended, self._on_shrunk = on_ended, on_shrunk
        self._in_order = in_order
        self._queue: deque[Ticket] = deque()

    def __len__(self) -> int:
        return len(self._queue)

    @property
    def message_count(self) -> int:
        """Number of messages of the batches in the queue."""
        return sum(ticket.batch.count for ticket in self._queue)

    @property
    def oldest_opened_at(self) -> float | None:
        """Loop time at which the oldest ticket was opened; None without tickets."""
        return self._queue[0].opened_at if self._queue else None

    def open(self, batch: Batch, now: float, cost: int = 0) -> Ticket:
        """Add a ticket for a batch; `now` is loop time, and `cost` is charged to the budget.

        The caller adds a leg per send, and after the last send calls `settle` for the extra leg.
        """
        batch.dispatched_at = now
        ticket = Ticket(batch, now, cost)
        self._queue.append(ticket)
        return ticket

    def track_messages(self, ticket: Ticket, shares: Sequence[Share]) -> None:
        """Count the legs per message, before several shares are sent; does nothing if the source acknowledges in order.

        Messages that are in no share are acknowledged at once: they need not be stored.
        """
        if self._in_order:
            return
        legs = ticket.legs_by_message = [0] * ticket.batch.count
        for share in shares:
            for index in share.batch_indexes:
                legs[index] += 1
        if dropped := [index for index, count in enumerate(legs) if not count]:
            self._acknowledge_at_source(ticket, dropped, None)

    def settle(self, ticket: Ticket, share: Share | None = None, receipt: Receipt | None = None) -> None:
        """End one leg successfully: its share was stored, or it is the extra leg, which has no share."""
        ticket.legs -= 1
        if share is not None and receipt is not None:
            ticket.stored.append((share, receipt))
            if ticket.legs_by_message is not None and not ticket.abandoned:
                self._settle_messages(ticket, ticket.legs_by_message, share, receipt)
        self._on_leg_ended(ticket)

    def fail(self, ticket: Ticket, share: Share, failures: Sequence[MessageFailure]) -> None:
        """End one leg with failures, whose indexes are those in the share.

        One failure, at any index, is enough: the batch then does not count as stored. The caller ends the lane, and the source
        delivers the messages that are not acknowledged again.
        """
        ticket.legs -= 1
        ticket.failures += [
            MessageFailure(share.index_in_batch(failure.index), failure.failure_kind, failure.reason) for failure in failures
        ]
        self._on_leg_ended(ticket)

    def abandon(self) -> list[Ticket]:
        """Empty the queue; return the tickets of the batches whose unacknowledged messages will be delivered again."""
        done = [] if self._in_order else [ticket for ticket in self._queue if ticket.is_done]
        abandoned = self._abandon([ticket for ticket in self._queue if self._in_order or not ticket.is_done], [])
        for ticket in done:  # acknowledged, and in the queue only because earlier ones were not done
            self._on_ended(ticket)
        return abandoned

    def abandon_failed(self, failed: Ticket) -> list[Ticket]:
        """Remove a failed ticket, and all later ones if the source acknowledges in order; return the removed tickets.

        With individual acknowledgement, nothing is removed while the ticket has open legs: other messages of the batch may
        still be stored and acknowledged. The next failed leg calls this again; otherwise `abandon` removes the ticket.
        """
        if self._in_order:
            tickets = list(self._queue)
            index = tickets.index(failed)
            return self._abandon(tickets[index:], tickets[:index])
        if failed.legs:
            return []
        return self._abandon([failed], [ticket for ticket in self._queue if ticket is not failed])

    def _abandon(self, abandoned: list[Ticket], remaining: Sequence[Ticket]) -> list[Ticket]:
        """Keep only the remaining tickets in the queue, mark the others as abandoned, and return those."""
        self._queue = deque(remaining)
        for ticket in abandoned:
            ticket.abandoned = True
            if not ticket.legs:
                self._on_ended(ticket)
        return abandoned

    def _settle_messages(self, ticket: Ticket, legs: list[int], share: Share, receipt: Receipt) -> None:
        """End a leg of each message of the share, and acknowledge the messages whose last leg it was; `legs` is per message."""
        stored_indexes = []
        for index in share.batch_indexes:
            legs[index] -= 1
            if not legs[index]:
                stored_indexes.append(index)
        if stored_indexes:
            self._acknowledge_at_source(ticket, stored_indexes, receipt)

    def _on_leg_ended(self, ticket: Ticket) -> None:
        """If this was the last leg, acknowledge the batch if it may be acknowledged now; then complete the oldest tickets."""
        if ticket.legs:
            return
        if ticket.abandoned:
            self._on_ended(ticket)
            return
        if not self._in_order and ticket.is_done:
            if ticket.legs_by_message is None:
                self._acknowledge_at_source(ticket, None, ticket.receipt())
            if self._queue[0] is not ticket:
                self._shrink(ticket)
        while self._queue and self._queue[0].is_done:
            self._complete(self._queue[0])

    def _shrink(self, ticket: Ticket) -> None:
        """Drop what an acknowledged ticket does not need while it waits for earlier ones, and lower its cost."""
        ticket.batch.drop_contents()
        ticket.stored.clear()
        ticket.legs_by_message = None
        if (freed := ticket.cost - WAITING_TICKET_BYTES) > 0:
            ticket.cost -= freed
            self._on_shrunk(freed)

    def _complete(self, oldest: Ticket) -> None:
        """Remove the oldest ticket, which is stored, from the queue."""
        if self._in_order:
            self._acknowledge_at_source(oldest, None, oldest.receipt())
        self._queue.popleft()
        self._on_ended(oldest)
        self._on_completed(oldest.batch)

    def _acknowledge_at_source(self, ticket: Ticket, indexes: Sequence[int] | None, receipt: Receipt | None) -> None:
        """Call `acknowledge`. If it raises, record a failure, so that the batch is delivered again, and raise the error."""
        try:
            self._acknowledge(ticket.batch, indexes, receipt)
        except Exception as error:
            ticket.failures.append(MessageFailure(0, Failure.RETRY, str(error)))
            raise
