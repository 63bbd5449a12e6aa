"""Acknowledgements of a consumer, and redeliveries after a negative acknowledgement or an acknowledgement timeout.

Acknowledgements are collected (see `pending_acks.py`) and sent after a short time or a certain number. They are fire and forget,
unless `confirm` requests receipts. After the loss of a connection a cumulative acknowledgement is repeated if it may be lost.
Individual ones are not repeated, because their entries are redelivered.
"""

import asyncio
from collections.abc import Callable, Iterable, Sequence

from mqbridge.pulsar.client.connection import Connection
from mqbridge.pulsar.client.consumer_state import ConsumerState
from mqbridge.pulsar.client.pending_acks import IDS_PER_COMMAND, PendingAcks
from mqbridge.pulsar.client.receiver_queue import ReceiverQueue
from mqbridge.pulsar.client.redelivery_timer import TICK_S, RedeliveryTimer
from mqbridge.pulsar.client.subscription import Subscription
from mqbridge.pulsar.wire import codes, commands, ids
from mqbridge.pulsar.wire.ids import EntryId, full_mask
from mqbridge.pulsar.wire.pb import PulsarApi_pb2 as pb
from mqbridge.pulsar.wire.pb.PulsarApi_pb2 import BaseCommand

ACK_DELAY_S = 0.1
ACK_GROUP = 1000
"""Acknowledgements are sent after ACK_DELAY_S, or as soon as there are ACK_GROUP of them."""


class Acknowledger:
    """Acknowledger of one consumer. It calls `redeliver` with the entries whose redelivery time has come."""

    def __init__(
        self,
        consumer_id: int,
        topic: str,
        subscription: Subscription,
        state: ConsumerState,
        inbox: ReceiverQueue,
        connection: Callable[[], Connection | None],
        redeliver: Callable[[Sequence[EntryId]], None],
        request_timeout_s: float,
    ) -> None:
        self._id, self._topic, self._request_timeout_s = consumer_id, topic, request_timeout_s
        self._ack_timeout_s, self._ordered = subscription.ack_timeout_s, subscription.ordered
        self._state, self._inbox, self._connection, self._redeliver = state, inbox, connection, redeliver
        self._acks = PendingAcks(subscription.batch_index_ack)
        self.partial = self._acks.partial
        """Partly acknowledged batches."""
        self._redeliveries = RedeliveryTimer()
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._redelivery_wakeup: asyncio.TimerHandle | None = None

    # --- acknowledging ----------------------------------------------------------------------------------------------

    def acknowledge(self, entry: EntryId) -> None:
        """Acknowledge an entry with all of its chunks."""
        self._state.acknowledged_individually()
        self._redeliveries.discard(entry)
        for each in self._inbox.pop_chunks(entry):
            self._acks.add_entry(each)
        self._send_soon()

    def acknowledge_messages(self, entry: EntryId, done: int, count: int) -> bool:
        """Acknowledge the messages in the bit mask `done` of a batch of `count` messages.

        Return True if the whole entry is acknowledged now.
        """
        if done == full_mask(count) or self._acks.add_messages(entry, done, count):
            self.acknowledge(entry)
            return True
        self._state.acknowledged_individually()
        self._send_soon()
        return False

    def acknowledge_up_to(self, entry: EntryId, index: int | None, count: int) -> None:
        """Acknowledge everything up to this entry, or up to its message `index`.

        Does nothing for an entry of another generation.
        """
        is_whole = index is None or index + 1 >= count
        if not self._state.acknowledged(entry, whole=is_whole):
            return
        whole = self._state.acked_up_to  # later than `entry` if `entry` is a message that expired after later ones
        if self._redeliveries:
            self._redeliveries.discard_up_to(whole)
        safe, chunks = self._inbox.pop_chunks_up_to(whole, entry)
        if safe == whole < entry:
            self._acks.add_cumulative(entry, index, count)
        elif safe == whole:
            self._acks.add_cumulative(whole)
        else:
            self._acks.add_cumulative(safe)
            for chunk in chunks:
                self._acks.add_entry(chunk)
        self._send_soon()

    def acknowledge_undelivered(self, entries: Iterable[EntryId]) -> None:
        """Acknowledge entries that will never be delivered to the application."""
        for entry in entries:
            self._acks.add_entry(entry)
            self._send_soon()

    def _send_soon(self) -> None:
        if len(self._acks) >= ACK_GROUP:
            self.flush()
        elif self._timer is None:
            self._timer = self._loop.call_later(ACK_DELAY_S, self.flush)

    def flush(self) -> None:
        """Send the pending acknowledgements now; without a connection they are sent over the next one."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        connection = self._connection()
        if connection is None or not connection.alive:
            return
        if (ack_id := self._take_cumulative()) is not None:
            connection.endpoint.send(commands.ack(self._id, True, [ack_id]))
        for group in self._acks.take_individual():
            connection.endpoint.send(commands.ack(self._id, False, group))

    def _take_cumulative(self, *, again: bool = False) -> pb.MessageIdData | None:
        """Return the cumulative acknowledgement to send now, None if there is none; with `again` also one already sent."""
        state = self._state
        ack_id = self._acks.take_cumulative()
        if ack_id is None and (state.ack_may_be_lost or again):
            ack_id = state.last_sent_ack
        if ack_id is not None:
            state.ack_sent(ack_id)
        return ack_id

    async def confirm(self, connection: Connection) -> None:
        """Send the pending acknowledgements and wait for their receipts. Raises ClusterError; they are then sent again."""
        ack_id = self._take_cumulative(again=True)
        requests = [] if ack_id is None else [self._confirm(connection, True, [ack_id])]
        requests += [self._confirm(connection, False, group) for group in self._acks.take_individual()]
        for result in await asyncio.gather(*requests, return_exceptions=True):
            if isinstance(result, BaseException):
                raise result

    async def _confirm(self, connection: Connection, cumulative: bool, group: list[pb.MessageIdData]) -> None:
        generation, confirmed = self._state.generation, False
        try:
            answer: pb.CommandAckResponse = await connection.request(
                lambda request_id: commands.ack(self._id, cumulative, group, request_id),
                BaseCommand.ACK_RESPONSE,
                f"an acknowledgement on {self._topic}",
                self._request_timeout_s,
            )
            if answer.HasField("error"):
                raise codes.refused(answer.error, answer.message, f"acknowledging on {self._topic}")
            confirmed = True
        finally:
            if not confirmed and not cumulative and generation == self._state.generation:
                self._acks.put_back(group)
                self._send_soon()

    # --- redelivery -------------------------------------------------------------------------------------------------

    def start_ack_timeout(self, entry: EntryId) -> None:
        """Start the acknowledgement timeout of a delivered entry. The subscription must have an `ack_timeout_s`."""
        assert self._ack_timeout_s is not None  # noqa: S101 - else there is no timeout
        self._start_timer(entry, self._ack_timeout_s)

    def negative_acknowledge(self, entry: EntryId, delay_s: float) -> None:
        """Request the redelivery of an entry after a delay."""
        self._start_timer(entry, delay_s)

    def _start_timer(self, entry: EntryId, delay_s: float) -> None:
        at = self._loop.time() + delay_s
        self._redeliveries.add(entry, at)
        self._schedule_wakeup(at)

    def _schedule_wakeup(self, at: float) -> None:
        if self._redelivery_wakeup is not None:
            if self._redelivery_wakeup.when() <= at + TICK_S:
                return
            self._redelivery_wakeup.cancel()
        self._redelivery_wakeup = self._loop.call_at(at + TICK_S, self._redeliver_expired)

    def _redeliver_expired(self) -> None:
        self._redelivery_wakeup = None
        entries = self._redeliveries.pop(self._loop.time())
        if entries:
            self._redeliver(entries)
        if (at := self._redeliveries.next_at()) is not None:
            self._schedule_wakeup(at)

    # --- reset ------------------------------------------------------------------------------------------------------

    def disconnected(self, *, skips_delivered: bool) -> None:
        """Note the loss of the connection: the broker redelivers unacknowledged entries to this consumer or to another one.

        With `skips_delivered` this consumer drops redelivered entries that the application already has. Their redelivery timers
        continue: otherwise an entry with a negative acknowledgement would never be delivered again.

        A subscription can be reset while no consumer is connected, and the cursor of a shared subscription does not show it. So
        for those the acknowledged messages of partly acknowledged entries are forgotten: they are delivered twice rather than
        never.
        """
        if not skips_delivered:
            self._redeliveries.clear()
        if self._ordered:
            self.partial.release_all()
        else:
            self.partial.clear()

    def stop_timers(self) -> None:
        """Stop all redelivery timers, because the broker redelivers everything unacknowledged."""
        self._redeliveries.clear()

    def forget(self) -> None:
        """Discard pending acknowledgements and redeliveries, because all positions are discarded.

        A pending acknowledgement would move the cursor away from its new position.
        """
        self._acks.clear()
        self._redeliveries.clear()

    def send_redeliver(self, entries: Sequence[EntryId]) -> None:
        """Request the redelivery of these entries with all chunks of their messages; for shared subscriptions."""
        connection = self._connection()
        if connection is None or not connection.alive:
            return
        with_chunks: list[EntryId] = []
        for entry in entries:
            self._redeliveries.discard(entry)
            with_chunks += self._inbox.pop_chunks(entry)
        self.partial.release(with_chunks)
        for start in range(0, len(with_chunks), IDS_PER_COMMAND):
            group = [ids.message_id(*entry) for entry in with_chunks[start : start + IDS_PER_COMMAND]]
            connection.endpoint.send(commands.redeliver(self._id, group, None))

    def stop(self) -> None:
        """Cancel the timers."""
        for timer in (self._timer, self._redelivery_wakeup):
            if timer is not None:
                timer.cancel()
