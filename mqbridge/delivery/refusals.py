"""What becomes of messages that a target refuses: dead letters, and once these are stored the batch counts as stored.

Without a dead-letter topic they end the lane, as every failure does that retrying may help: as dead letters those would hide an
outage. What ends a lane is delivered again when the route runs again.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from functools import partial

from mqbridge.adapter import MessageFailure, Receipt
from mqbridge.delivery.deadletter import describe
from mqbridge.delivery.settings import LaneSettings
from mqbridge.delivery.target import Target
from mqbridge.delivery.tickets import Ticket, Tickets
from mqbridge.errors import DeliveryError, Failure
from mqbridge.message import Share
from mqbridge.net.tasks import cancel, spawn

log = logging.getLogger(__name__)

LegFailed = Callable[[Ticket, Share, Exception, Sequence[MessageFailure]], None]
"""Told of a leg that ends its lane, with why."""
Failed = Callable[[Exception], None]
"""Told of what ends the lane besides: every leg has ended."""


class Refusals:
    """The refused messages of one lane."""

    def __init__(self, settings: LaneSettings, tickets: Tickets, leg_failed: LegFailed, failed: Failed) -> None:
        self._settings, self._tickets, self._leg_failed, self._failed = settings, tickets, leg_failed, failed
        self._parking: set[asyncio.Task[None]] = set()

    def take(self, ticket: Ticket, target: Target, share: Share, receipt: Receipt) -> None:
        """Settle or fail a leg whose receipt has failures; when what has to be stored for that is stored."""
        innocent = [failure for failure in receipt.failures if failure.kind is not Failure.REFUSED]
        if innocent:
            count, why = len(innocent), innocent[0].reason
            error = DeliveryError(f"{target.label} did not store {count} messages, which will be delivered again: {why}")
            self._leg_failed(ticket, share, error, receipt.failures)
            return
        task = spawn(self._park(ticket, target, share, receipt), f"dead letters of {ticket.batch.partition}")
        self._parking.add(task)
        task.add_done_callback(partial(self._parked, ticket, share, receipt))

    async def cancel(self) -> None:
        """Wait for no dead letter any more; their batches are left over."""
        await cancel(*self._parking)

    def _parked(self, ticket: Ticket, share: Share, receipt: Receipt, task: "asyncio.Task[None]") -> None:
        self._parking.discard(task)
        if task.cancelled():  # perhaps before it began, so nothing in it would see that
            self._tickets.fail(ticket, share, receipt.failures)

    async def _park(self, ticket: Ticket, target: Target, share: Share, receipt: Receipt) -> None:
        source, failures = ticket.batch.partition, receipt.failures
        letters, first, originals = self._settings.dead_letters, failures[0], share.originals
        ticket.batch.let_go()  # it may wait for others long after this
        if letters is None:
            message = describe(originals[first.index], source)
            advice = "Configure `dead_letter` for the route, or make the target accept it"
            error = DeliveryError(f"{target.label} refuses {message}: {first.reason}. {advice}")
            self._leg_failed(ticket, share, error, failures)
            return
        try:
            await letters.put(target.label, originals, failures, source)
        except Exception as error:  # noqa: BLE001 - whatever it is, it ends the lane and is raised by its `run`
            self._leg_failed(ticket, share, error, failures)
            return
        log.warning("%s: %d messages to dead letters, the first: %s", source, len(failures), first.reason)
        self._settings.counters.dead += len(failures)
        self._settings.counters.stored += share.count - len(failures)
        try:
            self._tickets.settle(ticket, share, receipt)
        except Exception as error:  # noqa: BLE001 - likewise; the leg has ended by now, a second end would miscount
            self._failed(error)
