"""Handles messages that a target refuses: sends them as dead letters, and counts the batch as stored when these are stored.

Without a dead-letter topic, a refusal ends the lane. A transient failure always ends the lane: storing its messages as dead
letters would hide an outage. Messages of a lane that ended are delivered again when the route runs again.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from functools import partial

from mqbridge.adapter.receipt import MessageFailure, Receipt
from mqbridge.delivery.deadletter import DeadLetters, describe
from mqbridge.delivery.sends import Sends
from mqbridge.delivery.settings import LaneSettings
from mqbridge.delivery.target import Target
from mqbridge.delivery.tickets import Ticket, Tickets
from mqbridge.errors import DeliveryError, Failure
from mqbridge.message import Share, format_position

log = logging.getLogger(__name__)

LegFailed = Callable[[Ticket, Share, Exception, Sequence[MessageFailure]], None]
"""Callback for a failed leg: it ends the leg and, with this error, the lane."""
Failed = Callable[[Exception], None]
"""Callback for an error after the leg has ended: it ends the lane."""
Charge = Callable[[Ticket, int], None]
"""Callback for the bytes that the dead letters of a batch hold until they are stored."""


class Refusals:
    """Handles the refused messages of one lane."""

    def __init__(
        self, settings: LaneSettings, tickets: Tickets, sends: Sends, leg_failed: LegFailed, failed: Failed, charge: Charge
    ) -> None:
        self._settings, self._tickets, self._sends = settings, tickets, sends
        self._leg_failed, self._failed, self._charge = leg_failed, failed, charge

    def handle(self, ticket: Ticket, target: Target, share: Share, receipt: Receipt, *, aborted: bool) -> None:
        """Settle a leg whose receipt has failures once its dead letters are stored, or fail it.

        An aborted lane sends no dead letters: the target refuses the same messages from the partition's next consumer.
        """
        retryable = [failure for failure in receipt.failures if failure.failure_kind is not Failure.REFUSED]
        if retryable or aborted:
            first = (retryable or receipt.failures)[0]
            count, reason = len(retryable or receipt.failures), first.reason
            error = DeliveryError(f"{target.label} did not store {count} messages, which will be delivered again: {reason}")
            self._leg_failed(ticket, share, error, receipt.failures)
        elif self._settings.dead_letters is None:
            first = receipt.failures[0]
            message = _name(ticket, share, first.index)
            advice = "Configure `dead_letter` for the route, or make the target accept it"
            error = DeliveryError(f"{target.label} refuses {message}: {first.reason}. {advice}", Failure.REFUSED)
            self._leg_failed(ticket, share, error, receipt.failures)
        else:
            self._send_dead_letters(self._settings.dead_letters, ticket, target, share, receipt)

    def _send_dead_letters(self, letters: DeadLetters, ticket: Ticket, target: Target, share: Share, receipt: Receipt) -> None:
        try:
            dead = letters.make(target.label, share.originals, receipt.failures, ticket.batch.partition)
            ended = partial(self._answered, letters, ticket, target, share, receipt)
            self._sends.send(letters.outbound, letters.next_partition(), dead, ended)
            self._charge(ticket, dead.held_bytes)
        except Exception as error:  # noqa: BLE001 - any error ends the lane and is raised by its `run`
            self._leg_failed(ticket, share, error, receipt.failures)
        finally:
            ticket.batch.release_messages()  # the ticket, which holds the batch, may wait for other legs for long

    def _answered(
        self,
        letters: DeadLetters,
        ticket: Ticket,
        target: Target,
        share: Share,
        refused: Receipt,
        sent: "asyncio.Future[Receipt]",
    ) -> None:
        failures, source = refused.failures, ticket.batch.partition
        if sent.cancelled():
            self._leg_failed(ticket, share, DeliveryError(f"sending to {letters.label} was cancelled"), failures)
        elif isinstance(error := sent.exception(), Exception):
            self._leg_failed(ticket, share, error, failures)
        elif sent.result().failures:
            self._leg_failed(
                ticket, share, self._refused_twice(letters, ticket, target, share, failures, sent.result()), failures
            )
        else:
            log.warning("%s: %d messages stored as dead letters, first reason: %s", source, len(failures), failures[0].reason)
            self._settings.counters.dead += len(failures)
            self._settings.counters.stored += share.count - len(failures)
            try:
                self._tickets.settle(ticket, share, refused)
            except Exception as error:  # noqa: BLE001 - as above; but the leg has ended, and must not be ended twice
                self._failed(error)

    def _refused_twice(
        self,
        letters: DeadLetters,
        ticket: Ticket,
        target: Target,
        share: Share,
        failures: Sequence[MessageFailure],
        receipt: Receipt,
    ) -> DeliveryError:
        second = receipt.failures[0]
        first = failures[second.index]
        message = _name(ticket, share, first.index)
        verb = "" if second.failure_kind is Failure.REFUSED else "not stored "
        return DeliveryError(
            f"{message} was refused by {target.label} ({first.reason}) and {verb}by its dead-letter topic {letters.label} "
            f"({second.reason})",
            second.failure_kind,
        )


def _name(ticket: Ticket, share: Share, index: int) -> str:
    """Return a text that names a message. Never raises: the leg has to end even if the message cannot be decoded."""
    batch = ticket.batch
    try:
        return describe(share.originals[index], batch.partition)
    except Exception as error:  # noqa: BLE001 - most likely a bug of the mapping; it is reported with the refusal
        return f"a message at {batch.partition} from position {format_position(batch.first)} on that cannot be decoded ({error})"
    finally:
        batch.release_messages()
