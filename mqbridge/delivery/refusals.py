"""Handles messages that a target refuses: sends them as dead letters, and settles their leg when the dead letters are stored.

A lane delivers one source partition. A ticket is the state of one of its batches in flight. A leg is one send of a batch to a
target (see `tickets`); to settle it is to end it with success. Without a dead-letter topic, a refusal ends the lane. Any other
failure always ends the lane: storing its messages as dead letters would hide an outage. Messages of a lane that ended are
delivered again when the route runs again.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from functools import partial

from mqbridge.adapter.receipt import MessageFailure, Receipt
from mqbridge.delivery.deadletter import DeadLetters, describe
from mqbridge.delivery.sends import Sends
from mqbridge.delivery.settings import LaneSettings
from mqbridge.delivery.tickets import Leg, Ticket
from mqbridge.errors import DeliveryError, Failure
from mqbridge.message import format_position

log = logging.getLogger(__name__)

SettleLeg = Callable[[Leg, Receipt], None]
"""Callback that ends a leg with success: its messages are stored, or refused and stored as dead letters."""
FailLeg = Callable[[Leg, Exception, Sequence[MessageFailure]], None]
"""Callback that ends a leg with failures, and the lane with the error."""
FailLane = Callable[[Exception], None]
"""Callback that ends only the lane, for an error after the leg has ended."""
Charge = Callable[[Ticket, int], None]
"""Callback that charges the bytes of dead letters to the memory budget, until the last leg of the ticket has ended."""


class Refusals:
    """Handles the refused messages of one lane."""

    def __init__(
        self, settings: LaneSettings, sends: Sends, settle_leg: SettleLeg, fail_leg: FailLeg, fail_lane: FailLane, charge: Charge
    ) -> None:
        self._settings, self._sends = settings, sends
        self._settle_leg, self._fail_leg = settle_leg, fail_leg
        self._fail_lane, self._charge = fail_lane, charge

    def handle(self, leg: Leg, receipt: Receipt, *, aborted: bool) -> None:
        """Handle a receipt with failures: send dead letters and settle the leg when they are stored, or fail the leg.

        An aborted lane sends no dead letters: the partition's next consumer sends the messages again, and handles the refusal.
        """
        not_refused = [failure for failure in receipt.failures if failure.failure_kind is not Failure.REFUSED]
        if not_refused or aborted:
            failures = not_refused or receipt.failures
            is_fatal = any(failure.failure_kind is Failure.FATAL for failure in not_refused)
            count, reason = len(failures), failures[0].reason
            error = DeliveryError(
                f"target {leg.target.label} did not store {count} messages of {leg.batch.partition}; the source will deliver "
                f"them again: {reason}",
                Failure.FATAL if is_fatal else Failure.RETRY,
            )
            self._fail_leg(leg, error, receipt.failures)
        elif self._settings.dead_letters is None:
            first = receipt.failures[0]
            message = _message_location(leg, first.index)
            advice = "Configure `dead_letter` for the route, or change the target so that it accepts the message"
            error = DeliveryError(f"target {leg.target.label} refuses {message}: {first.reason}. {advice}", Failure.REFUSED)
            self._fail_leg(leg, error, receipt.failures)
        else:
            self._send_dead_letters(self._settings.dead_letters, leg, receipt)

    def _send_dead_letters(self, letters: DeadLetters, leg: Leg, receipt: Receipt) -> None:
        try:
            dead_share = letters.make(leg.target.label, leg.share.originals, receipt.failures, leg.batch.partition)
            on_ended = partial(self._on_dead_letters_sent, letters, leg, receipt)
            self._sends.send(letters.outbound, letters.partition_of(leg.batch.partition), dead_share, on_ended)
            self._charge(leg.ticket, dead_share.held_bytes)
        except Exception as error:  # noqa: BLE001 - any error ends the lane and is raised by its `run`
            self._fail_leg(leg, error, receipt.failures)
        finally:
            leg.batch.release_messages()  # decoded for the dead letters; the ticket may hold the batch for long

    def _on_dead_letters_sent(self, letters: DeadLetters, leg: Leg, receipt: Receipt, sent: "asyncio.Future[Receipt]") -> None:
        """Settle or fail the leg: `receipt` came from the target, and `sent` has the receipt of the dead letters."""
        failures, source = receipt.failures, leg.batch.partition
        if sent.cancelled():
            cancelled = DeliveryError(
                f"sending dead letters of {source} to {letters.label} was cancelled; the source will deliver the messages again"
            )
            self._fail_leg(leg, cancelled, failures)
        elif isinstance(error := sent.exception(), Exception):
            self._fail_leg(leg, error, failures)
        elif sent.result().failures:
            self._fail_leg(leg, self._dead_letter_error(letters, leg, failures, sent.result()), failures)
        else:
            text = "partition %s: %d messages that target %s refused are stored as dead letters in %s, first reason: %s"
            log.warning(text, source, len(failures), leg.target.label, letters.label, failures[0].reason)
            try:
                self._settle_leg(leg, receipt)
            except Exception as error:  # noqa: BLE001 - any error ends the lane; the leg has ended already
                self._fail_lane(error)

    def _dead_letter_error(
        self, letters: DeadLetters, leg: Leg, failures: Sequence[MessageFailure], letter_receipt: Receipt
    ) -> DeliveryError:
        """Return the error for a message that neither the target nor the dead-letter topic has stored."""
        letter_failure = letter_receipt.failures[0]
        failure = failures[letter_failure.index]  # the dead letters are in the order of the target's failures
        message = _message_location(leg, failure.index)
        verb = "refused" if letter_failure.failure_kind is Failure.REFUSED else "did not store"
        return DeliveryError(
            f"target {leg.target.label} refused {message} ({failure.reason}), and the dead-letter topic {letters.label} {verb} "
            f"it ({letter_failure.reason})",
            letter_failure.failure_kind,
        )


def _message_location(leg: Leg, index: int) -> str:
    """Return a text that locates a message. Never raises: the leg must end even if the message cannot be decoded."""
    batch = leg.batch
    try:
        return describe(leg.share.originals[index], batch.partition)
    except Exception as error:  # noqa: BLE001 - most likely a bug of the mapping; it is reported with the refusal
        return f"an undecodable message of {batch.partition} at or after position {format_position(batch.first)} ({error})"
    finally:
        batch.release_messages()
