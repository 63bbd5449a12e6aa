"""What becomes of messages that a target refuses: dead letters, and once these are stored the batch counts as stored.

Without a dead-letter topic they end the lane, as every failure does that retrying may help: as dead letters those would hide an
outage. What ends a lane is delivered again when the route runs again.
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
"""Told of a leg that ends its lane, with why."""
Failed = Callable[[Exception], None]
"""Told of what ends the lane besides: every leg has ended."""
Charge = Callable[[Ticket, int], None]
"""Told of the bytes that the dead letters of a batch take until they are stored."""


class Refusals:
    """The refused messages of one lane."""

    def __init__(
        self, settings: LaneSettings, tickets: Tickets, sends: Sends, leg_failed: LegFailed, failed: Failed, charge: Charge
    ) -> None:
        self._settings, self._tickets, self._sends = settings, tickets, sends
        self._leg_failed, self._failed, self._charge = leg_failed, failed, charge

    def take(self, ticket: Ticket, target: Target, share: Share, receipt: Receipt, *, given_up: bool) -> None:
        """Settle or fail a leg whose receipt has failures, some time: when what has to be stored for that is stored.

        Of a lane that has given up nothing more is sent, no dead letters either: whoever reads its partition next meets the same.
        """
        innocent = [failure for failure in receipt.failures if failure.kind is not Failure.REFUSED]
        if innocent or given_up:
            first = (innocent or receipt.failures)[0]
            count, why = len(innocent or receipt.failures), first.reason
            error = DeliveryError(f"{target.label} did not store {count} messages, which will be delivered again: {why}")
            self._leg_failed(ticket, share, error, receipt.failures)
        elif self._settings.dead_letters is None:
            first = receipt.failures[0]
            message = _name(ticket, share, first.index)
            advice = "Configure `dead_letter` for the route, or make the target accept it"
            error = DeliveryError(f"{target.label} refuses {message}: {first.reason}. {advice}", Failure.REFUSED)
            self._leg_failed(ticket, share, error, receipt.failures)
        else:
            self._send_letters(self._settings.dead_letters, ticket, target, share, receipt)

    def _send_letters(self, letters: DeadLetters, ticket: Ticket, target: Target, share: Share, receipt: Receipt) -> None:
        try:
            made = letters.of(target.label, share.originals, receipt.failures, ticket.batch.partition)
            ended = partial(self._answered, letters, ticket, target, share, receipt)
            self._sends.send(letters.outbound, letters.next_partition(), made, ended)
            self._charge(ticket, made.held_bytes)
        except Exception as error:  # noqa: BLE001 - whatever it is, it ends the lane and is raised by its `run`
            self._leg_failed(ticket, share, error, receipt.failures)
        finally:
            ticket.batch.let_go()  # it may wait for others long after this

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
            log.warning("%s: %d messages to dead letters, the first: %s", source, len(failures), failures[0].reason)
            self._settings.counters.dead += len(failures)
            self._settings.counters.stored += share.count - len(failures)
            try:
                self._tickets.settle(ticket, share, refused)
            except Exception as error:  # noqa: BLE001 - likewise; the leg has ended by now, a second end would miscount
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
        verb = "" if second.kind is Failure.REFUSED else "not stored "
        return DeliveryError(
            f"{message} was refused by {target.label} ({first.reason}) and {verb}by its dead-letter topic {letters.label} "
            f"({second.reason})",
            second.kind,
        )


def _name(ticket: Ticket, share: Share, index: int) -> str:
    """Which message it is, for people. Whatever is wrong with decoding it, its leg has to end."""
    batch = ticket.batch
    try:
        return describe(share.originals[index], batch.partition)
    except Exception as error:  # noqa: BLE001 - a bug of its mapping, most likely; it is told with the refusal
        return f"a message at {batch.partition} from position {format_position(batch.first)} on that cannot be decoded ({error})"
    finally:
        batch.let_go()
