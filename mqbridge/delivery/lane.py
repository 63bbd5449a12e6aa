"""Delivers one lane: receives batches, sends them on, and acknowledges what every target has stored.

    receive -> budget -> filter -> shares of each target -> send ... receipts -> tickets -> acknowledge

Nothing waits for a receipt before the next batch is taken, except the bytes in flight. A batch is acknowledged when every leg
of it was stored, or its refused messages were stored as dead letters. Anything else ends the lane with an error, leaving the
batch to be delivered again. A lane that is revoked ends at once, also while it waits for bytes or for its rate.
"""

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Sequence
from functools import partial
from itertools import takewhile

from mqbridge.adapter import InboundLane, MessageFailure, Receipt
from mqbridge.delivery.gaps import GapRule
from mqbridge.delivery.refusals import Refusals
from mqbridge.delivery.settings import LaneSettings
from mqbridge.delivery.target import Target
from mqbridge.delivery.tickets import Ticket, Tickets
from mqbridge.errors import DeliveryError, Failure, GapError, LaneRevoked
from mqbridge.message import Batch, Position, Share
from mqbridge.net.tasks import cancel, spawn

log = logging.getLogger(__name__)

DRAIN_S, REVOKED_DRAIN_S = 30.0, 5.0
"""How long a lane without a deadline waits for what is in flight; and one that was revoked, as some systems still listen."""


class LaneDelivery:
    """One lane from its assignment to its release."""

    def __init__(
        self, lane: InboundLane, targets: Sequence[Target], settings: LaneSettings, *, individual_ack: bool = False
    ) -> None:
        self.lane = lane
        self._targets = targets
        self._settings = settings
        self._tickets = Tickets(self._acknowledge, self._passed, self._ended, in_order=not individual_ack)
        self._pump: asyncio.Task[None] | None = None
        self._deadline: float | None = None
        self._stopping = False
        self._draining: asyncio.Timeout | None = None
        self._settled = asyncio.Event()
        self._sent: dict[tuple[Target, int], deque[asyncio.Future[Receipt]]] = {}
        """What was sent to each target partition and is not known to be stored, in order."""
        self._refusals = Refusals(settings, self._tickets, self._leg_failed, self._fail)
        self.gaps = GapRule(lane.partition, settings)
        self.error: Exception | None = None
        self.position: Position | None = None
        """What follows the last batch that is stored with all before it."""

    @property
    def in_flight(self) -> int:
        """Batches that were sent and not yet stored."""
        return len(self._tickets)

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
        self._pump = spawn(self._receive(), f"deliver {partition}", quiet=True)
        revoked = spawn(self.lane.revoked.wait(), f"revocation of {partition}")
        if self._stopping:
            self._pump.cancel()
        try:
            await asyncio.wait([self._pump, revoked], return_when=asyncio.FIRST_COMPLETED)
            if not self._pump.done():
                self.error = self.error or LaneRevoked(f"{partition} was taken away")
            elif not self._pump.cancelled() and isinstance(error := self._pump.exception(), Exception):
                self.error = self.error or error
        finally:
            await cancel(revoked)
            await self._finish()
        if self._failed:
            assert self.error is not None  # noqa: S101 - for the type checker
            raise self.error

    def stop(self, deadline: float | None = None) -> None:
        """Take no more; `run` then drains until the deadline and returns, also when it has not begun yet."""
        self._stopping = True
        self._deadline = deadline
        if deadline is not None and self._draining is not None and not self._draining.expired():
            self._draining.reschedule(min(deadline, self._draining.when() or deadline))
        if self._pump is not None:
            self._pump.cancel()

    # --- in ---------------------------------------------------------------------------------------------------------

    async def _receive(self) -> None:
        settings = self._settings
        loop = asyncio.get_running_loop()
        while True:
            try:
                batch = await self._next()
            except LaneRevoked as revoked:
                self.error = self.error or revoked
                return
            for unit, rate in settings.rates:
                await rate.take(getattr(batch, unit))
            await settings.budget.take(batch.held_bytes)
            if self.lane.revoked.is_set():  # in the turn in which its bytes came free: whoever reads it next delivers it
                settings.budget.give(batch.held_bytes)
                return
            settings.counters.last_batch_at = loop.time()
            self._dispatch(self._tickets.open(batch, loop.time()))

    async def _next(self) -> Batch:
        while True:
            try:
                return await self.lane.receive()
            except GapError as gap:
                await self._skip(gap)

    async def _skip(self, gap: GapError) -> None:
        """Go on behind a gap when all before it is acknowledged: a seek forgets what is in flight. Or raise it."""
        resume = self.gaps.pass_by(gap)
        if self._tickets:
            self._settled.clear()
            await self._settled.wait()
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
            if any(self._would_overtake(target, partition) for target, partition, _ in placed):
                self._tickets.fail(ticket, Share(batch), [MessageFailure(0, Failure.RETRY, "what is before it was not stored")])
                self.stop(self._deadline)  # why is told in a moment, by `_answered`
                return
            if len(placed) > 1:
                self._tickets.divide(ticket, [one for _, _, one in placed])
            for target, partition, one in placed:
                future = target.outbound.send(partition, one)
                ticket.legs += 1
                target.progress.sent()
                sent = self._sent.setdefault((target, partition), deque())
                sent.append(future)
                future.add_done_callback(partial(self._answered, ticket, target, one, sent))
        except Exception as error:  # whatever was not sent is not stored: the batch must not look as if all of it were
            self._tickets.fail(ticket, Share(batch), [MessageFailure(0, Failure.RETRY, str(error))])
            raise
        else:
            self._tickets.settle(ticket)
        finally:
            batch.let_go()

    def _would_overtake(self, target: Target, partition: int) -> bool:
        """Whether something failed there already, of which we hear only in the next turn of the loop."""
        return any(map(_has_failed, takewhile(asyncio.Future.done, self._sent.get((target, partition), ()))))

    # --- out --------------------------------------------------------------------------------------------------------

    def _answered(
        self,
        ticket: Ticket,
        target: Target,
        share: Share,
        sent: "deque[asyncio.Future[Receipt]]",
        future: "asyncio.Future[Receipt]",
    ) -> None:
        sent.remove(future)
        target.progress.answered()
        try:
            if future.cancelled():
                self._leg_failed(ticket, share, DeliveryError(f"sending to {target.label} was cancelled"))
            elif isinstance(error := future.exception(), Exception):
                self._leg_failed(ticket, share, error)
            elif (receipt := future.result()).failures:
                self._refusals.take(ticket, target, share, receipt)
            else:
                self._settings.counters.stored += share.count
                self._tickets.settle(ticket, share, receipt)
        except Exception as error:  # noqa: BLE001 - in a callback nobody else would hear of it
            self._fail(error)

    def _leg_failed(self, ticket: Ticket, share: Share, error: Exception, failures: Sequence[MessageFailure] = ()) -> None:
        self._tickets.fail(ticket, share, failures or [MessageFailure(0, Failure.RETRY, str(error))])
        self._fail(error)

    # --- what the tickets say ---------------------------------------------------------------------------------------

    def _acknowledge(self, batch: Batch, indexes: Sequence[int] | None, receipt: Receipt | None) -> None:
        self.lane.acknowledge(batch, indexes, receipt)
        self._settings.counters.acknowledged += batch.count if indexes is None else len(indexes)

    def _passed(self, batch: Batch) -> None:
        self.position = batch.next
        self._settings.counters.passed(batch, asyncio.get_running_loop().time())
        if self._settings.on_progress is not None:
            self._settings.on_progress(batch)
        if not self._tickets:
            self._settled.set()

    def _ended(self, batch: Batch) -> None:
        self._settings.budget.give(batch.held_bytes)

    # --- ending -----------------------------------------------------------------------------------------------------

    @property
    def _failed(self) -> bool:
        return self.error is not None and not isinstance(self.error, LaneRevoked)

    def _fail(self, error: Exception) -> None:
        if not self._failed:
            self.error = error
        self._settled.set()
        self.stop(self._deadline)

    async def _finish(self) -> None:
        """Drain, unless it failed; leave what is left over to be delivered again; release."""
        await cancel(self._pump)
        if self._tickets and not self._failed:
            self._settled.clear()
            patience = REVOKED_DRAIN_S if self.lane.revoked.is_set() else DRAIN_S
            deadline = asyncio.get_running_loop().time() + patience
            if self._deadline is not None:
                deadline = min(deadline, self._deadline)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout_at(deadline) as self._draining:
                    await self._settled.wait()
            self._draining = None
        await self._refusals.cancel()
        left = self._tickets.abandon()
        for ticket in left:
            self._settings.counters.returned += ticket.batch.count
            self.lane.reject(ticket.batch, ticket.failures)
        if left:
            log.warning("%s: %d batches were not stored and will be delivered again", self.lane.partition, len(left))
        await self.lane.release(self._deadline)


def _has_failed(future: "asyncio.Future[Receipt]") -> bool:
    """Whether an answer that is there says that something is to be sent again, before all that follows."""
    if future.cancelled() or future.exception() is not None:
        return True
    return any(failure.kind is not Failure.REFUSED for failure in future.result().failures)
