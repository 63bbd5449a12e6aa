"""Delivers one lane: receives batches, sends them on, and acknowledges what every target has stored.

    receive -> rate -> budget -> filter -> shares of each target -> send ... receipts -> tickets -> acknowledge

Nothing waits for a receipt before the next batch is taken, except the bytes in flight. A batch is acknowledged when every leg
of it was stored, or its refused messages were stored as dead letters. Anything else ends the lane with an error, leaving the
batch to be delivered again.

A lane that gives up (it is revoked, something failed, its deadline is over) takes back every send that is not on its way, so that
nobody stores it beside the one who reads the partition next. Its bytes come back as each send ends.
"""

import asyncio
import contextlib
import logging
from collections.abc import Sequence
from functools import partial

from mqbridge.adapter.inbound import InboundLane
from mqbridge.adapter.receipt import MessageFailure, Receipt
from mqbridge.delivery.gaps import GapRule
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
"""How long a lane without a deadline waits for what is in flight; and one that was revoked, as some systems still listen."""

LEG_BYTES = 2400
"""What a batch holds beside its own bytes for each target: ticket, share, future, what the outbound remembers. Measured."""


class LaneDelivery:
    """One lane from its assignment to its release. A lane that stops at a gap stays ours: `release` is then for the caller."""

    def __init__(
        self, lane: InboundLane, targets: Sequence[Target], settings: LaneSettings, *, individual_ack: bool = False
    ) -> None:
        self.lane = lane
        self._targets = targets
        self._settings = settings
        self._loop: asyncio.AbstractEventLoop
        """That of `run`."""
        self._tickets = Tickets(self._acknowledge, self._passed, self._ended, in_order=not individual_ack)
        self._pump: asyncio.Task[None] | None = None
        self._deadline: float | None = None
        self._stopping = False
        self._given_up = False
        """Nothing is sent any more, and what was not on its way is taken back: later failures tell nothing new."""
        self._draining: asyncio.Timeout | None = None
        self._waiting = 0
        """Batches that wait for their rate or bytes: one or none."""
        self._sends = Sends()
        self._refusals = Refusals(settings, self._tickets, self._sends, self._leg_failed, self._fail, self._charge)
        self.gaps = GapRule(lane.partition, settings)
        self.error: Exception | None = None
        self.position: Position | None = None
        """What follows the last batch that is stored with all before it."""

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
        """Deliver until `stop`, revocation or an error; then drain and release. Raises what ended the lane, if not asked to."""
        partition = self.lane.partition
        self._loop = asyncio.get_running_loop()
        self._pump = spawn(self._receive(), f"deliver {partition}", quiet=True)
        watch = spawn(self._end_when_revoked(self._pump), f"revocation of {partition}")
        if self._stopping:
            self._pump.cancel()
        try:
            await asyncio.wait([self._pump])
            if not self._pump.cancelled() and isinstance(error := self._pump.exception(), Exception):
                self.error = self.error or error
            elif self.lane.revoked.is_set():
                self.error = self.error or LaneRevoked(f"{partition} was taken away")
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
        """Take no more; `run` then drains until the deadline and returns, also when it has not begun yet."""
        self._stopping = True
        self._deadline = deadline
        if deadline is not None:
            self._drain_until(deadline)
        if self._pump is not None:
            self._pump.cancel()

    async def _end_when_revoked(self, pump: "asyncio.Task[None]") -> None:
        """Whatever the pump waits for, and whether it still runs or the lane drains already."""
        await self.lane.revoked.wait()
        pump.cancel()
        self._give_up()
        self._drain_until(asyncio.get_running_loop().time() + REVOKED_DRAIN_S)

    # --- in ---------------------------------------------------------------------------------------------------------

    async def _receive(self) -> None:
        settings, loop = self._settings, self._loop
        while not self._stopping:  # a batch that was held back stops the lane without a pause, and nothing may pass it
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
            if self.lane.revoked.is_set():  # in the turn in which its bytes came free: whoever reads it next delivers it
                settings.budget.give(cost)
                return
            settings.counters.last_batch_at = now = loop.time()
            self._dispatch(self._tickets.open(batch, now, cost))
            del batch  # in the budget from here on, and not held while the next one is waited for

    async def _skip(self, gap: GapError) -> None:
        """Go on behind a gap when all before it is acknowledged: a seek forgets what is in flight. Or raise it."""
        resume = self.gaps.pass_by(gap)
        if self._sends:
            await self._sends.all_ended.wait()
        await self.lane.seek(resume)

    def _dispatch(self, ticket: Ticket) -> None:
        """Send a batch to every target. Nothing here makes messages of it; who needs them asks the batch."""
        batch, settings = ticket.batch, self._settings
        counters = settings.counters
        counters.received += batch.count
        counters.bytes += batch.size
        counters.batches += 1
        try:
            share = Share(batch) if settings.filter is None else settings.filter.keep(batch)
            placed = [(target, *one) for target in self._targets for one in target.shares(share)] if share.count else []
            if any(self._sends.would_overtake(target.outbound, partition) for target, partition, _ in placed):
                self._tickets.fail(ticket, Share(batch), [MessageFailure(0, Failure.RETRY, "what is before it was not stored")])
                self.stop(self._deadline)  # why is told in a moment, by `_answered`
                return
            if len(placed) > 1:
                self._tickets.divide(ticket, [one for _, _, one in placed])
            for target, partition, one in placed:
                self._sends.send(target.outbound, partition, one, partial(self._answered, ticket, target, one))
                ticket.legs += 1
                target.progress.sent()
            self._charge(ticket, sum(one.held_bytes for _, _, one in placed))
        except Exception as error:  # whatever was not sent is not stored: the batch must not look as if all of it were
            self._tickets.fail(ticket, Share(batch), [MessageFailure(0, Failure.RETRY, str(error))])
            raise
        else:
            self._tickets.settle(ticket)
        finally:
            batch.let_go()

    # --- out --------------------------------------------------------------------------------------------------------

    def _answered(self, ticket: Ticket, target: Target, share: Share, future: "asyncio.Future[Receipt]") -> None:
        target.progress.answered()
        try:
            if future.cancelled():
                self._leg_failed(ticket, share, DeliveryError(f"sending to {target.label} was cancelled"))
            elif isinstance(error := future.exception(), Exception):
                self._leg_failed(ticket, share, error)
            elif (receipt := future.result()).failures:
                self._refusals.take(ticket, target, share, receipt, given_up=self._has_given_up)
            else:
                self._settings.counters.stored += share.count
                self._tickets.settle(ticket, share, receipt)
        except Exception as error:  # noqa: BLE001 - in a callback nobody else would hear of it
            self._fail(error)

    def _leg_failed(self, ticket: Ticket, share: Share, error: Exception, failures: Sequence[MessageFailure] = ()) -> None:
        self._tickets.fail(ticket, share, failures or [MessageFailure(0, Failure.RETRY, str(error))])
        if self._has_given_up and not ticket.abandoned:
            self._leave_over(self._tickets.leave_over(ticket))
        if not (self._has_given_up and isinstance(error, DeliveryError)):
            self._fail(error)

    # --- what the tickets say ---------------------------------------------------------------------------------------

    def _acknowledge(self, batch: Batch, indexes: Sequence[int] | None, receipt: Receipt | None) -> None:
        self.lane.acknowledge(batch, indexes, receipt)
        self._settings.counters.acknowledged += batch.count if indexes is None else len(indexes)

    def _passed(self, batch: Batch) -> None:
        self.position = batch.next
        self._settings.counters.passed(batch, self._loop.time())
        if self._settings.on_progress is not None:
            self._settings.on_progress(batch, not self.lane.revoked.is_set())

    def _ended(self, ticket: Ticket) -> None:
        self._settings.budget.give(ticket.cost)

    def _cost(self, held_bytes: int) -> int:
        return held_bytes + LEG_BYTES * len(self._targets)

    def _charge(self, ticket: Ticket, held_bytes: int) -> None:
        """What the outbounds hold, where it is more than what came: bodies were unpacked, small messages got stamps."""
        if (more := self._cost(held_bytes) - ticket.cost) > 0:
            ticket.cost += more
            self._settings.budget.overdraw(more)

    # --- ending -----------------------------------------------------------------------------------------------------

    @property
    def _failed(self) -> bool:
        return self.error is not None and not isinstance(self.error, LaneRevoked)

    @property
    def _has_given_up(self) -> bool:
        return self._given_up or self.lane.revoked.is_set()

    def _fail(self, error: Exception) -> None:
        if not self._failed or isinstance(self.error, GapError):
            self.error = error
        self._drain_until(0.0)
        self.stop(self._deadline)

    def _give_up(self) -> None:
        self._given_up = True
        try:
            self._sends.withdraw()
        except Exception as error:  # noqa: BLE001 - a bug of an outbound, and the lane has still to be released
            self._fail(error)

    async def _finish(self) -> None:
        """Drain, unless it failed; leave what is left over to be delivered again, also when nobody waits for this any longer."""
        try:
            await cancel(self._pump)
            if not self._failed or isinstance(self.error, GapError):
                await self._drain()
        finally:
            self._give_up()
            self._leave_over(self._tickets.abandon())

    def _leave_over(self, left: Sequence[Ticket]) -> None:
        for ticket in left:
            self._settings.counters.returned += ticket.batch.count
            self.lane.reject(ticket.batch, ticket.failures)
        if left:
            log.warning("%s: %d batches were not stored and will be delivered again", self.lane.partition, len(left))

    async def _drain(self) -> None:
        """Wait until every send has ended, or for as long as there is. At a gap there is no hurry: the partition is kept."""
        patience = None
        if self.lane.revoked.is_set():
            patience = REVOKED_DRAIN_S
        elif not isinstance(self.error, GapError):
            patience = DRAIN_S
        deadline = None if patience is None else asyncio.get_running_loop().time() + patience
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
        """Wait no longer than that, if it drains."""
        if self._draining is not None and not self._draining.expired():
            when = self._draining.when()
            self._draining.reschedule(deadline if when is None else min(deadline, when))
