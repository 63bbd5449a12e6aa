"""Delivers one lane: receives batches, sends them on, and acknowledges what every target has stored.

    receive -> budget -> filter -> shares of each target -> send ... receipts -> tickets -> acknowledge

Nothing waits for a receipt before the next batch is taken, except the bytes in flight. A batch is acknowledged when every leg
of it was stored, or its refused messages were stored as dead letters. Anything else ends the lane with an error, leaving the
batch to be delivered again.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

from mqbridge.adapter import InboundLane, MessageFailure, Receipt
from mqbridge.delivery.budget import Budget, RateLimit
from mqbridge.delivery.counters import Counters
from mqbridge.delivery.deadletter import DeadLetters, describe
from mqbridge.delivery.target import Target
from mqbridge.delivery.tickets import Ticket, Tickets
from mqbridge.errors import DeliveryError, Failure, GapError, LaneRevoked
from mqbridge.message import Batch, Message, Position, format_position
from mqbridge.net.tasks import cancel, spawn
from mqbridge.routing.filters import Filter

log = logging.getLogger(__name__)


@dataclass(slots=True)
class Terms:
    """What a route demands of each of its lanes."""

    budget: Budget
    counters: Counters
    filter: Filter | None = None
    individual_ack: bool = False
    dead_letters: DeadLetters | None = None
    skip_gaps: bool = False
    """Go on behind what the source has lost, if it says where that is."""
    rates: list[tuple[str, RateLimit]] = field(default_factory=list)
    """Limits in units of a batch's attribute: (`count` or `size`, limit)."""
    on_progress: Callable[[Batch], None] | None = None
    drain_timeout_s: float = 30.0
    """How long a lane that ends waits for what it has in flight."""


class LaneDelivery:
    """One lane from its assignment to its release."""

    def __init__(self, lane: InboundLane, targets: Sequence[Target], terms: Terms) -> None:
        self.lane = lane
        self._targets = targets
        self._terms = terms
        self._tickets = Tickets(self._done, in_order=not terms.individual_ack)
        self._pump: asyncio.Task[None] | None = None
        self._stopping = False
        self._settled = asyncio.Event()
        self._parking: set[asyncio.Task[None]] = set()
        self._passed: Position | None = None
        """Where it went on behind the last gap."""
        self.error: Exception | None = None
        self.position: Position | None = None
        """What follows the last batch that was acknowledged."""

    @property
    def in_flight(self) -> int:
        """Batches that were sent and not yet stored."""
        return len(self._tickets)

    @property
    def oldest_at(self) -> float | None:
        """Loop time at which the oldest batch in flight was received."""
        return self._tickets.oldest_at

    async def run(self) -> None:
        """Deliver until `stop`, revocation or an error; then drain and release. Raises what ended the lane, if not asked to."""
        self._pump = spawn(self._receive(), f"deliver {self.lane.partition}", quiet=True)
        if self._stopping:
            self._pump.cancel()
        try:
            await asyncio.wait([self._pump])
            if not self._pump.cancelled() and isinstance(error := self._pump.exception(), Exception) and self.error is None:
                self.error = error
        finally:
            await self._finish()
        if self.error is not None and not isinstance(self.error, LaneRevoked):
            raise self.error

    def stop(self) -> None:
        """Take no more; `run` then drains and returns, also when it has not begun yet."""
        self._stopping = True
        if self._pump is not None:
            self._pump.cancel()

    # --- in ---------------------------------------------------------------------------------------------------------

    async def _receive(self) -> None:
        terms = self._terms
        loop = asyncio.get_running_loop()
        while True:
            try:
                batch = await self._next()
            except LaneRevoked as revoked:
                self.error = revoked
                return
            for unit, rate in terms.rates:
                await rate.take(getattr(batch, unit))
            await terms.budget.take(batch.size)
            terms.counters.last_batch_at = loop.time()
            self._dispatch(self._tickets.open(batch, loop.time()))

    async def _next(self) -> Batch:
        while True:
            try:
                return await self.lane.receive()
            except GapError as gap:
                await self._skip(gap)

    def pass_by(self, gap: GapError) -> Position:
        """Where to go on behind a gap, which is counted; raises it where the route does not want that, or nobody knows where."""
        resume = gap.resume
        if not self._terms.skip_gaps or resume is None:
            raise gap
        if resume != self._passed:  # else the checkpoint has shown it before the source does
            self._passed = resume
            self._terms.counters.gaps += 1
            log.warning("%s goes on at %s without what was lost: %s", self.lane.partition, format_position(resume), gap)
        return resume

    async def _skip(self, gap: GapError) -> None:
        """Go on behind a gap when all before it is acknowledged: a seek forgets what is in flight. Or raise it."""
        resume = self.pass_by(gap)
        if self._tickets:
            self._settled.clear()
            await self._settled.wait()
        await self.lane.seek(resume)

    def _dispatch(self, ticket: Ticket) -> None:
        batch, counters = ticket.batch, self._terms.counters
        counters.received += batch.count
        counters.bytes += batch.size
        counters.batches += 1
        messages = batch.messages
        if self._terms.filter is not None:
            messages = self._terms.filter.keep(messages)
            counters.filtered += batch.count - len(messages)
        for target in self._targets if messages else ():
            for partition, share in target.shares(batch, messages):
                ticket.legs += 1
                future = target.outbound.send(partition, share, batch.partition)
                future.add_done_callback(partial(self._stored, ticket, target, share))
        self._tickets.settle(ticket)

    # --- out --------------------------------------------------------------------------------------------------------

    def _stored(self, ticket: Ticket, target: Target, share: Sequence[Message], future: "asyncio.Future[Receipt]") -> None:
        if future.cancelled():
            self._fail(DeliveryError(f"sending to {target.label} was cancelled"))
        elif isinstance(error := future.exception(), Exception):
            self._fail(error)
        elif failures := future.result().failures:
            self._refused(ticket, target, share, failures)
        else:
            self._terms.counters.stored += len(share)
            self._tickets.settle(ticket)

    def _refused(self, ticket: Ticket, target: Target, share: Sequence[Message], failures: list[MessageFailure]) -> None:
        innocent = [failure for failure in failures if failure.kind is not Failure.REFUSED]
        if innocent:
            # As dead letters they would hide an outage. Unacknowledged they come again, once the route runs again.
            count, why = len(innocent), innocent[0].reason
            self._fail(DeliveryError(f"{target.label} did not store {count} messages, which will be delivered again: {why}"))
            return
        task = spawn(self._park(ticket, target, share, failures), f"dead letters of {ticket.batch.partition}")
        self._parking.add(task)
        task.add_done_callback(self._parking.discard)

    async def _park(self, ticket: Ticket, target: Target, share: Sequence[Message], failures: list[MessageFailure]) -> None:
        source = ticket.batch.partition
        letters = self._terms.dead_letters
        first = failures[0]
        if letters is None:
            place = describe(share[first.index], source)
            advice = "Configure `dead_letter` for the route, or make the target accept it"
            self._fail(DeliveryError(f"{target.label} refuses {place}: {first.reason}. {advice}"))
            return
        try:
            await letters.put(target.label, target.originals(ticket.batch, share), failures, source)
        except Exception as error:  # noqa: BLE001 - whatever it is, it ends this lane and is raised by `run`
            self._fail(error)
            return
        log.warning("%s: %d messages to dead letters, the first: %s", source, len(failures), first.reason)
        self._terms.counters.dead += len(failures)
        self._terms.counters.stored += len(share) - len(failures)
        self._tickets.settle(ticket)

    def _done(self, batch: Batch) -> None:
        self.lane.acknowledge(batch)
        self.position = batch.next
        self._terms.counters.acknowledged += batch.count
        self._terms.budget.give(batch.size)
        if self._terms.on_progress is not None:
            self._terms.on_progress(batch)
        if not self._tickets:
            self._settled.set()

    # --- ending -----------------------------------------------------------------------------------------------------

    def _fail(self, error: Exception) -> None:
        if self.error is None or isinstance(self.error, LaneRevoked):
            self.error = error
        self._settled.set()
        self.stop()

    async def _finish(self) -> None:
        await cancel(self._pump)
        failed = self.error is not None and not isinstance(self.error, LaneRevoked)
        if self._tickets and not failed:
            self._settled.clear()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._settled.wait(), self._terms.drain_timeout_s)
        await cancel(*self._parking)
        left = self._tickets.abandon()
        for batch in left:
            self._terms.budget.give(batch.size)
            self.lane.reject(batch)
        if left:
            log.warning("%s: %d batches were not stored and will be delivered again", self.lane.partition, len(left))
        await self.lane.release()
