"""Delivers one lane: receives batches, sends them to the targets, and acknowledges what every target has stored.

    receive -> rate -> budget -> filter -> shares of each target -> send ... receipts -> tickets -> acknowledge

The lane receives the next batch without waiting for receipts, within the budget of bytes in flight. A batch is acknowledged when
each of its sends (the legs of its ticket) is stored; refused messages must be stored as dead letters. Any other failure ends the
lane with an error, and the batch is delivered again.

An aborted lane (revoked, failed, or past its deadline) withdraws every send that is not on the wire, so that it does not store
messages at the same time as the partition's next consumer. The bytes of each send return to the budget when the send ends.
"""

import asyncio
import contextlib
import logging
from collections.abc import Sequence
from functools import partial

from mqbridge.adapter.inbound import CountsPossibleGaps, InboundLane
from mqbridge.adapter.receipt import MessageFailure, Receipt
from mqbridge.delivery.gap_policy import GapPolicy
from mqbridge.delivery.refusals import Refusals
from mqbridge.delivery.sends import Sends
from mqbridge.delivery.settings import LaneSettings
from mqbridge.delivery.target import Target
from mqbridge.delivery.tickets import Leg, Ticket, Tickets
from mqbridge.errors import DeliveryError, Failure, GapError, LaneRevoked
from mqbridge.message import Batch, Position, Share
from mqbridge.net.tasks import cancel, spawn

log = logging.getLogger(__name__)

DRAIN_S, REVOKED_DRAIN_S = 30.0, 5.0
"""How long a lane that stops, and one that is revoked, wait at most for sends in flight; an earlier deadline shortens this.

A revoked lane waits too, because some systems still accept its acknowledgements.
"""

LEG_BYTES = 2400
"""Measured memory per batch and target, besides the batch's own bytes: ticket, share, future, state of the outbound."""


class LaneDelivery:
    """Delivers one lane, from its assignment to its release.

    A lane that stops at a gap is not released: its partition stays assigned until the caller calls `InboundLane.release`.
    """

    def __init__(
        self, lane: InboundLane, targets: Sequence[Target], settings: LaneSettings, *, individual_ack: bool = False
    ) -> None:
        self.lane = lane
        self._targets = targets
        self._settings = settings
        self._loop: asyncio.AbstractEventLoop
        """The event loop, set by `run`."""
        self._tickets = Tickets(
            self._acknowledge, self._on_completed, self._on_ticket_ended, settings.budget.release, in_order=not individual_ack
        )
        self._receiver: asyncio.Task[None] | None = None
        """The task of `_receive`."""
        self._deadline: float | None = None
        """The deadline given to `stop` (loop time); None before, or without one."""
        self._stopping = False
        """True after `stop`."""
        self._abort_called = False
        """True after `_abort`."""
        self._drain_timeout: asyncio.Timeout | None = None
        """The timeout of the drain in progress; None if there is none."""
        self._awaiting_budget = 0
        """Number of received batches that wait for the rate limit or the budget: 0 or 1."""
        self._sends = Sends()
        self._refusals = Refusals(settings, self._sends, self._settle_leg, self._fail_leg, self._fail, self._charge)
        self.gap_policy = GapPolicy(lane.partition, settings)
        self._counting_lane = lane if isinstance(lane, CountsPossibleGaps) else None
        self._counted_gaps = 0
        """Possible gaps of the lane that were counted already."""
        self.error: Exception | None = None
        """Why the lane ended, or is about to end: LaneRevoked or an error; None otherwise."""
        self.position: Position | None = None
        """The position after the last batch that is stored with all batches before it; None until there is one."""

    @property
    def in_flight_batches(self) -> int:
        """Batches that were received and are not yet stored."""
        return len(self._tickets) + self._awaiting_budget

    @property
    def in_flight_messages(self) -> int:
        """Messages of the batches that passed the rate limit and the budget, and are not yet stored."""
        return self._tickets.message_count

    @property
    def oldest_opened_at(self) -> float | None:
        """Loop time at which the delivery of the oldest batch in flight began; None if none is in flight."""
        return self._tickets.oldest_opened_at

    async def run(self) -> None:
        """Deliver until `stop`, revocation or an error; then drain and release. Raises the error, but not LaneRevoked."""
        partition = self.lane.partition
        self._loop = asyncio.get_running_loop()
        self._receiver = spawn(self._receive(), f"deliver {partition}", log_errors=False)
        watcher = spawn(self._abort_when_revoked(self._receiver), f"revocation of {partition}")
        if self._stopping:
            self._receiver.cancel()
        try:
            await asyncio.wait([self._receiver])
            if not self._receiver.cancelled() and isinstance(error := self._receiver.exception(), Exception):
                self.error = self.error or error
            elif self.lane.revoked.is_set():
                self.error = self.error or LaneRevoked(f"partition {partition} was revoked")
        finally:
            try:
                await self._finish()
            finally:
                await cancel(watcher)
            if not isinstance(self.error, GapError):
                await self.lane.release(self._deadline)
        if self._has_failed:
            assert self.error is not None  # noqa: S101 - for the type checker
            raise self.error

    def stop(self, deadline: float | None = None) -> None:
        """Stop receiving; `run` then drains (see `_drain`) and returns. If `run` has not started yet, it receives nothing.

        `deadline` is a loop time; None: only the limits of `_drain` apply.
        """
        self._stopping = True
        self._deadline = deadline
        if deadline is not None:
            self._drain_until(deadline)
        if self._receiver is not None:
            self._receiver.cancel()

    async def _abort_when_revoked(self, receiver: "asyncio.Task[None]") -> None:
        """Abort when the partition is revoked, while the lane receives or drains."""
        await self.lane.revoked.wait()
        receiver.cancel()
        self._abort()
        self._drain_until(asyncio.get_running_loop().time() + REVOKED_DRAIN_S)

    # --- receiving --------------------------------------------------------------------------------------------------

    async def _receive(self) -> None:
        """Receive batches and dispatch them, until the lane stops. Raises ClusterError, and GapError if a gap is not skipped."""
        settings, loop = self._settings, self._loop
        while not self._stopping:  # `_dispatch` may stop the lane: then no batch may be sent after the failed one
            try:
                try:
                    batch = await self.lane.receive()
                except GapError as gap:
                    await self._skip_gap(gap)  # may raise LaneRevoked too
                    continue
            except LaneRevoked as revoked:
                self.error = self.error or revoked
                return
            self._count_possible_gaps()
            self._awaiting_budget = 1
            try:
                for attribute, rate in settings.rates:  # `count` or `size` of the batch
                    await rate.take(getattr(batch, attribute))
                if not settings.budget.try_reserve(cost := self._cost(batch.held_bytes)):
                    await settings.budget.reserve(cost)
            finally:
                self._awaiting_budget = 0
            if self.lane.revoked.is_set():  # revoked while the batch waited: the partition's next consumer delivers it
                settings.budget.release(cost)
                return
            settings.counters.last_batch_at = now = loop.time()
            self._dispatch(self._tickets.open(batch, now, cost))
            del batch  # the ticket owns it now: this reference would keep it in memory until the next batch

    def _count_possible_gaps(self) -> None:
        """Add the possible gaps that the lane has found since the last call."""
        if self._counting_lane is not None:
            found = self._counting_lane.possible_gaps
            self._settings.counters.possible_gaps += found - self._counted_gaps
            self._counted_gaps = found

    async def _skip_gap(self, gap: GapError) -> None:
        """Wait until all sends have ended, because a seek drops batches in flight, and seek past the gap.

        Raises the gap if the route does not skip it.
        """
        resume = self.gap_policy.skip(gap)
        if self._sends:
            await self._sends.all_ended.wait()
        await self.lane.seek(resume)

    def _dispatch(self, ticket: Ticket) -> None:
        """Send a batch to every target. The batch is decoded only if a filter, an edit or an outbound needs its messages."""
        batch, settings = ticket.batch, self._settings
        counters = settings.counters
        counters.received += batch.count
        counters.bytes += batch.size
        counters.batches += 1
        try:
            share = Share(batch) if settings.filter is None else settings.filter.keep(batch)
            parts = [
                (target, partition, part)
                for target in (self._targets if share.count else ())
                for partition, part in target.shares(share)
            ]
            # An earlier send to the same target partition has failed: its messages will be delivered again, after this batch.
            if any(self._sends.would_overtake(target.outbound, partition) for target, partition, _ in parts):
                self._tickets.fail(
                    ticket, Share(batch), [MessageFailure(0, Failure.RETRY, "not sent, because an earlier batch was not stored")]
                )
                self.stop(self._deadline)  # the failed send's callback reports its error in the next loop iteration
                return
            if len(parts) > 1:  # with one part, all messages are stored together
                self._tickets.track_messages(ticket, [part for _, _, part in parts])
            for target, partition, part in parts:
                self._sends.send(target.outbound, partition, part, partial(self._on_receipt, Leg(ticket, target, part)))
                ticket.legs += 1
                target.progress.count_send()
            self._charge(ticket, sum(part.held_bytes for _, _, part in parts))
        except Exception as error:  # some messages were not sent; any failure keeps the batch from counting as stored
            self._tickets.fail(ticket, Share(batch), [MessageFailure(0, Failure.RETRY, str(error))])
            raise
        else:
            self._tickets.settle(ticket)  # ends the extra leg, with which the ticket was opened
        finally:
            batch.release_messages()  # the outbounds have encoded them

    # --- receipts ---------------------------------------------------------------------------------------------------

    def _on_receipt(self, leg: Leg, future: "asyncio.Future[Receipt]") -> None:
        """Settle or fail the leg of a send that has ended."""
        leg.target.progress.count_receipt()
        try:
            if future.cancelled():
                self._fail_leg(leg, DeliveryError(f"sending to target {leg.target.label} was cancelled"))
            elif isinstance(error := future.exception(), Exception):
                self._fail_leg(leg, error)
            elif (receipt := future.result()).failures:
                self._refusals.handle(leg, receipt, aborted=self._is_aborted)
            else:
                self._settle_leg(leg, receipt)
        except Exception as error:  # noqa: BLE001 - an exception in a callback would go unnoticed
            self._fail(error)

    def _settle_leg(self, leg: Leg, receipt: Receipt) -> None:
        """End a leg with success; the failures of the receipt, if any, are refused messages that are stored as dead letters."""
        self._settings.counters.record_sent(stored=leg.share.count - len(receipt.failures), dead=len(receipt.failures))
        self._tickets.settle(leg.ticket, leg.share, receipt)

    def _fail_leg(self, leg: Leg, error: Exception, failures: Sequence[MessageFailure] = ()) -> None:
        """End a leg with failures, and the lane with the error.

        An aborted lane returns the batch to the source at once. It ignores a DeliveryError: withdrawn sends end with one.
        """
        self._tickets.fail(leg.ticket, leg.share, failures or [MessageFailure(0, Failure.RETRY, str(error))])
        if self._is_aborted and not leg.ticket.abandoned:
            self._return_batches(self._tickets.abandon_failed(leg.ticket))
        if not (self._is_aborted and isinstance(error, DeliveryError)):
            self._fail(error)

    # --- callbacks of the tickets -----------------------------------------------------------------------------------

    def _acknowledge(self, batch: Batch, indexes: Sequence[int] | None, receipt: Receipt | None) -> None:
        self.lane.acknowledge(batch, indexes, receipt)
        self._settings.counters.acknowledged += batch.count if indexes is None else len(indexes)

    def _on_completed(self, batch: Batch) -> None:
        """Record that a batch, and all batches before it, are stored."""
        self.position = batch.next
        self._settings.counters.record_completed(batch, self._loop.time())
        if self._settings.on_progress is not None:
            is_assigned = not self.lane.revoked.is_set()
            self._settings.on_progress(batch, is_assigned)

    def _on_ticket_ended(self, ticket: Ticket) -> None:
        """Free the bytes of a batch whose last leg has ended."""
        self._settings.budget.release(ticket.cost)

    def _cost(self, held_bytes: int) -> int:
        """Return the bytes that a batch occupies of the budget: the held bytes, and the overhead of its legs."""
        return held_bytes + LEG_BYTES * len(self._targets)

    def _charge(self, ticket: Ticket, held_bytes: int) -> None:
        """Charge the bytes that outbounds hold beyond the batch's own, for example decompressed bodies and stamped origins."""
        if (excess := self._cost(held_bytes) - ticket.cost) > 0:
            ticket.cost += excess
            self._settings.budget.reserve_beyond_limit(excess)

    # --- ending -----------------------------------------------------------------------------------------------------

    @property
    def _has_failed(self) -> bool:
        """True if `run` must raise the error; a revocation is no failure."""
        return self.error is not None and not isinstance(self.error, LaneRevoked)

    @property
    def _is_aborted(self) -> bool:
        """True if nothing more may be sent: `_abort` was called, or will be because the partition was revoked."""
        return self._abort_called or self.lane.revoked.is_set()

    def _fail(self, error: Exception) -> None:
        """Stop the lane with an error, without draining. The first error is kept, unless that was LaneRevoked or GapError."""
        if not self._has_failed or isinstance(self.error, GapError):
            self.error = error
        self._drain_until(0.0)  # a loop time in the past: end the drain now
        self.stop(self._deadline)

    def _abort(self) -> None:
        """Withdraw every send that is not on the wire."""
        self._abort_called = True
        try:
            self._sends.withdraw()
        except Exception as error:  # noqa: BLE001 - a bug of an outbound must not prevent the release of the lane
            self._fail(error)

    async def _finish(self) -> None:
        """Drain, unless the lane failed (not at a gap); then return unfinished batches to the source, also when cancelled."""
        try:
            await cancel(self._receiver)
            if not self._has_failed or isinstance(self.error, GapError):
                await self._drain()
        finally:
            self._abort()
            self._return_batches(self._tickets.abandon())

    def _return_batches(self, tickets: Sequence[Ticket]) -> None:
        """Request redelivery of the batches of these tickets."""
        for ticket in tickets:
            self._settings.counters.returned += ticket.batch.count
            self.lane.reject(ticket.batch, ticket.failures)
        if tickets:
            log.warning(
                "partition %s: reading ended before %d batches were stored in all targets; the source will deliver them again",
                self.lane.partition,
                len(tickets),
            )

    async def _drain(self) -> None:
        """Wait until every send has ended, or until the deadline.

        The deadline is that of `stop`, or REVOKED_DRAIN_S or DRAIN_S from now if that is earlier. A lane at a gap has no deadline
        unless it was revoked or stopped with one: its partition stays assigned.
        """
        timeout_s = None
        if self.lane.revoked.is_set():
            timeout_s = REVOKED_DRAIN_S
        elif not isinstance(self.error, GapError):
            timeout_s = DRAIN_S
        deadline = None if timeout_s is None else asyncio.get_running_loop().time() + timeout_s
        if self._deadline is not None:
            deadline = self._deadline if deadline is None else min(deadline, self._deadline)
        try:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout_at(deadline) as self._drain_timeout:
                    while self._sends:
                        await self._sends.all_ended.wait()
        finally:
            self._drain_timeout = None

    def _drain_until(self, deadline: float) -> None:
        """Limit the drain in progress, if any, to this deadline (loop time), unless its own deadline is earlier."""
        if self._drain_timeout is not None and not self._drain_timeout.expired():
            when = self._drain_timeout.when()
            self._drain_timeout.reschedule(deadline if when is None else min(deadline, when))
