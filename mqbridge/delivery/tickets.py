"""Tickets: which batches of a lane are still in flight, and what may be acknowledged.

One ticket per batch, never per message. Its legs are the sends that must succeed; it starts with one more, the router's own hold,
so that a send which ends before the next one began cannot close it. Where the source acknowledges in order, only tickets at the
head of the line are handed on.
"""

from collections import deque
from collections.abc import Callable

from mqbridge.message import Batch


class Ticket:
    """A batch in flight."""

    __slots__ = ("batch", "legs", "opened_at")

    def __init__(self, batch: Batch, opened_at: float) -> None:
        self.batch = batch
        self.legs = 1
        self.opened_at = opened_at


class Tickets:
    """The batches in flight of one lane, oldest first."""

    def __init__(self, done: Callable[[Batch], None], *, in_order: bool) -> None:
        self._done = done
        self._in_order = in_order
        self._open: deque[Ticket] = deque()

    def __len__(self) -> int:
        return len(self._open)

    @property
    def oldest_at(self) -> float | None:
        """When the oldest was opened, loop time."""
        return self._open[0].opened_at if self._open else None

    def open(self, batch: Batch, now: float) -> Ticket:
        """Start following a batch; the caller settles the ticket once more than it adds legs."""
        ticket = Ticket(batch, now)
        self._open.append(ticket)
        return ticket

    def settle(self, ticket: Ticket) -> None:
        """One leg succeeded."""
        ticket.legs -= 1
        if ticket.legs or ticket not in self._open:  # abandoned: a late receipt
            return
        if not self._in_order:
            self._open.remove(ticket)
            self._done(ticket.batch)
            return
        while self._open and not self._open[0].legs:
            self._done(self._open.popleft().batch)

    def abandon(self) -> list[Batch]:
        """Stop following what is open: it will be delivered again."""
        left = [ticket.batch for ticket in self._open]
        self._open.clear()
        return left
