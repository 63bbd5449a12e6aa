"""Delivers one lane: receives batches, sends them to the targets, and acknowledges what every target has stored.

    receive -> rate -> budget -> filter -> shares of each target -> send ... receipts -> tickets -> acknowledge

The next batch is received without waiting for receipts, within the budget of bytes in flight. A batch is acknowledged when every
leg of it is stored, with refused messages stored as dead letters. Any other failure ends the lane with an error, and the batch is
delivered again.

An aborted lane (revoked, failed, or past its deadline) withdraws every send that is not on the wire, so that it does not store
messages beside the next consumer of the partition. Their bytes return to the budget as each send ends.
"""

import asyncio
import contextlib
import logging
from collections.abc import Sequence
from functools import partial

from mqbridge.adapter.inbound import InboundLane
from mqbridge.adapter.receipt import MessageFailure, Receipt
from mqbridge.delivery.gaps import GapPolicy
from mqbridge.delivery.refusals import Refusals
from mqbridge.delivery.sends import Sends
from mqbridge.delivery.settings import LaneSettings
from mqbridge.delivery.target import Target
from mqbridge.delivery.tickets import Ticket, Tickets
from mqbridge.errors import DeliveryError, Failure, GapError, LaneRevoked
from mqbridge.message import Batch, Position, Share
from mqbridge.net.tasks import cancel, spawn

log = logging.getLogger(__name__)

DRAIN_S, REVOKED_DRAIN_S = 30.0, 5.0
"""How long a lane without a deadline waits for sends in flight; and a revoked one, since some systems still accept its acks."""

LEG_BYTES = 2400
"""Memory of a batch besides its own bytes, per target: ticket, share, future, bookkeeping of the outbound. Measured."""


class LaneDelivery:
    """One lane from its assignment to its release. A lane that stops at a gap stays ours: the caller then calls `release`."""

    def __init__(
        self, lane: InboundLane, targets: Sequence[Target], settings: LaneSettings, *, individual_ack: bool = False
    ) -> None:
        self.lane = lane
        self._targets = targets
        self._settings = settings
        self._loop: asyncio.AbstractEventLoop
        """The loop of `run`."""
        self._tickets = Tickets(self._acknowledge, self._completed, self._ended, in_order=not individual_ack)
        self._receiver: asyncio.Task[None] | None = None
        self._deadline: float | None = None
        self._stopping = False
        self._aborted = False
        """Nothing is sent any more, and sends not on the wire are withdrawn: later failures tell nothing new."""
        self._draining: asyncio.Timeout | None = None
        self._waiting = 0
        """Batches that wait for the rate limit or the budget: one or none."""
        self._sends = Sends()
        self._refusals = Refusals(settings, self._tickets, self._sends, self._leg_failed, self._fail, self._charge)
        self.gaps = GapPolicy(lane.partition, settings)
        self.error: Exception | None = None
        self.position: Position | None = None
        """Position after the last batch that is stored together with all before it."""

    @property
    def in_flight(self) -> int:
        """Batches that were received and are not yet stored."""
        return len(self._tickets) + self._waiting

    @property
    def messages(self) -> int:
        """Messages that were sent and not yet stored."""
        return self._tickets.messages

    @property
    def oldest_at(self) -> float | None:
        """Loop time at which the oldest batch in flight was received."""
        return self._tickets.oldest_at

    async def run(self) -> None:
        """Deliver until `stop`, revocation or an error; then drain and release. Raises the error, unless it is a revocation."""
        partition = self.lane.partition
        self._loop = asyncio.get_running_loop()
        self._receiver = spawn(self._receive(), f"deliver {partition}", quiet=True)
        watch = spawn(self._abort_when_revoked(self._receiver), f"revocation of {partition}")
        if self._stopping:
            self._receiver.cancel()
        try:
            await asyncio.wait([self._receiver])
            if not self._receiver.cancelled() and isinstance(error := self._receiver.exception(), Exception):
                self.error = self.error or error
            elif self.lane.revoked.is_set():
                self.error = self.error or LaneRevoked(f"{partition} was revoked")
        finally:
            try:
                await self._finish()
            finally:
                await cancel(watch)
            if not isinstance(self.error, GapError):
                await self.lane.release(self._deadline)
        if self._failed:
            assert self.error is not None  # noqa: S101 - for the type checker
            raise self.error

    def stop(self, deadline: float | None = None) -> None:
        """Receive no more; `run` then drains until the deadline and returns, also if it has not started yet."""
        self._stopping = True
        self._deadline = deadline
        if deadline is not None:
            self._drain_until(deadline)
        if self._receiver is not None:
            self._receiver.cancel()

    async def _abort_when_revoked(self, receiver: "asyncio.Task[None]") -> None:
        """Abort on revocation, whatever the receiver waits for, and also while the lane drains."""
        await self.lane.revoked.wait()
        receiver.cancel()
        self._abort()
        self._drain_until(asyncio.get_running_loop().time() + REVOKED_DRAIN_S)

    # --- receiving --------------------------------------------------------------------------------------------------

    async def _receive(self) -> None:
        settings, loop = self._settings, self._loop
        while not self._stopping:  # a batch that would overtake stops the lane synchronously, so that no other batch passes it
            try:
                try:
                    batch = await self.lane.receive()
                except GapError as gap:
                    await self._skip(gap)
                    continue
            except LaneRevoked as revoked:
                self.error = self.error or revoked
                return
            self._waiting = 1
            try:
                for unit, rate in settings.rates:
                    await rate.take(getattr(batch, unit))
                if not settings.budget.try_take(cost := self._cost(batch.held_bytes)):
                    await settings.budget.take(cost)
            finally:
                self._waiting = 0
            if self.lane.revoked.is_set():  # in the loop iteration that freed its bytes: the next consumer delivers the batch
                settings.budget.give(cost)
                return
            settings.counters.last_batch_at = now = loop.time()
            self._dispatch(self._tickets.open(batch, now, cost))
            del batch  # charged to the budget now; do not hold it while waiting for the next one

    async def _skip(self, gap: GapError) -> None:
        """Seek past a gap once all sends before it have ended, since a seek forgets batches in flight; or raise it."""
        resume = self.gaps.skip(gap)
        if self._sends:
            await self._sends.all_ended.wait()
        await self.lane.seek(resume)

    def _dispatch(self, ticket: Ticket) -> None:
        """Send a batch to every target. Does not decode it; code that needs the messages asks the batch."""
        batch, settings = ticket.batch, self._settings
        counters = settings.counters
        counters.received += batch.count
        counters.bytes += batch.size
        counters.batches += 1
        try:
            share = Share(batch) if settings.filter is None else settings.filter.keep(batch)
            routed = [(target, *part) for target in self._targets for part in target.shares(share)] if share.count else []
            if any(self._sends.would_overtake(target.outbound, partition) for target, partition, _ in routed):
                self._tickets.fail(ticket, Share(batch), [MessageFailure(0, Failure.RETRY, "an earlier batch was not stored")])
                self.stop(self._deadline)  # `_answered` reports the reason in the next loop iteration
                return
            if len(routed) > 1:
                self._tickets.track_messages(ticket, [part for _, _, part in routed])
            for target, partition, part in routed:
                self._sends.send(target.outbound, partition, part, partial(self._answered, ticket, target, part))
                ticket.legs += 1
                target.progress.sent()
            self._charge(ticket, sum(part.held_bytes for _, _, part in routed))
        except Exception as error:  # messages that were not sent are not stored: the batch must not look complete
            self._tickets.fail(ticket, Share(batch), [MessageFailure(0, Failure.RETRY, str(error))])
            raise
        else:
            self._tickets.settle(ticket)
        finally:
            batch.release_messages()

    # --- receipts ---------------------------------------------------------------------------------------------------

    def _answered(self, ticket: Ticket, target: Target, share: Share, future: "asyncio.Future[Receipt]") -> None:
        target.progress.answered()
        try:
            if future.cancelled():
                self._leg_failed(ticket, share, DeliveryError(f"sending to {target.label} was cancelled"))
            elif isinstance(error := future.exception(), Exception):
                self._leg_failed(ticket, share, error)
            elif (receipt := future.result()).failures:
                self._refusals.handle(ticket, target, share, receipt, aborted=self._is_aborted)
            else:
                self._settings.counters.stored += share.count
                self._tickets.settle(ticket, share, receipt)
        except Exception as error:  # noqa: BLE001 - an exception in a callback would go unnoticed
            self._fail(error)

    def _leg_failed(self, ticket: Ticket, share: Share, error: Exception, failures: Sequence[MessageFailure] = ()) -> None:
        self._tickets.fail(ticket, share, failures or [MessageFailure(0, Failure.RETRY, str(error))])
        if self._is_aborted and not ticket.abandoned:
            self._return_batches(self._tickets.abandon_failed(ticket))
        if not (self._is_aborted and isinstance(error, DeliveryError)):
            self._fail(error)

    # --- callbacks of the tickets -----------------------------------------------------------------------------------

    def _acknowledge(self, batch: Batch, indexes: Sequence[int] | None, receipt: Receipt | None) -> None:
        self.lane.acknowledge(batch, indexes, receipt)
        self._settings.counters.acknowledged += batch.count if indexes is None else len(indexes)

    def _completed(self, batch: Batch) -> None:
        self.position = batch.next
        self._settings.counters.batch_stored(batch, self._loop.time())
        if self._settings.on_progress is not None:
            self._settings.on_progress(batch, not self.lane.revoked.is_set())

    def _ended(self, ticket: Ticket) -> None:
        self._settings.budget.give(ticket.cost)

    def _cost(self, held_bytes: int) -> int:
        return held_bytes + LEG_BYTES * len(self._targets)

    def _charge(self, ticket: Ticket, held_bytes: int) -> None:
        """Charge what the outbounds hold beyond the batch's own bytes: bodies were decompressed, small messages got stamps."""
        if (more := self._cost(held_bytes) - ticket.cost) > 0:
            ticket.cost += more
            self._settings.budget.overdraw(more)

    # --- ending -----------------------------------------------------------------------------------------------------

    @property
    def _failed(self) -> bool:
        return self.error is not None and not isinstance(self.error, LaneRevoked)

    @property
    def _is_aborted(self) -> bool:
        return self._aborted or self.lane.revoked.is_set()

    def _fail(self, error: Exception) -> None:
        if not self._failed or isinstance(self.error, GapError):
            self.error = error
        self._drain_until(0.0)
        self.stop(self._deadline)

    def _abort(self) -> None:
        self._aborted = True
        try:
            self._sends.withdraw()
        except Exception as error:  # noqa: BLE001 - a bug of an outbound; the lane still has to be released
            self._fail(error)

    async def _finish(self) -> None:
        """Drain, unless it failed; then return unfinished batches to the source, also if this call is cancelled."""
        try:
            await cancel(self._receiver)
            if not self._failed or isinstance(self.error, GapError):
                await self._drain()
        finally:
            self._abort()
            self._return_batches(self._tickets.abandon())

    def _return_batches(self, tickets: Sequence[Ticket]) -> None:
        for ticket in tickets:
            self._settings.counters.returned += ticket.batch.count
            self.lane.reject(ticket.batch, ticket.failures)
        if tickets:
            log.warning("%s: %d batches were not stored and will be delivered again", self.lane.partition, len(tickets))

    async def _drain(self) -> None:
        """Wait until every send has ended, or until the deadline. At a gap without limit: the lane keeps the partition."""
        timeout = None
        if self.lane.revoked.is_set():
            timeout = REVOKED_DRAIN_S
        elif not isinstance(self.error, GapError):
            timeout = DRAIN_S
        deadline = None if timeout is None else asyncio.get_running_loop().time() + timeout
        if self._deadline is not None:
            deadline = self._deadline if deadline is None else min(deadline, self._deadline)
        try:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout_at(deadline) as self._draining:
                    while self._sends:
                        await self._sends.all_ended.wait()
        finally:
            self._draining = None

    def _drain_until(self, deadline: float) -> None:
        """Shorten a running drain to this deadline."""
        if self._draining is not None and not self._draining.expired():
            when = self._draining.when()
            self._draining.reschedule(deadline if when is None else min(deadline, when))
