"""Acknowledgements of a consumer, and redeliveries after a negative acknowledgement or an acknowledgement timeout.

Acknowledgements are collected (see `pending_acks.py`) and sent together: after ACK_DELAY_S, or earlier if there are
MAX_UNSENT_ACKS of them. They get no response, unless `confirm` requests receipts; but the response to a later ping shows that the
broker has a cumulative acknowledgement. After the loss of a connection it is sent again if it may be lost. Individual ones are
not sent again, because their entries are redelivered.
"""

import asyncio
from collections.abc import Callable, Iterable, Sequence

from mqbridge.pulsar.client.connection.connection import Connection
from mqbridge.pulsar.client.consumer.consumer_state import ConsumerState
from mqbridge.pulsar.client.consumer.pending_acks import MAX_IDS_PER_COMMAND, PendingAcks
from mqbridge.pulsar.client.consumer.receiver_queue import ReceiverQueue
from mqbridge.pulsar.client.consumer.redelivery_timer import TICK_S, RedeliveryTimer
from mqbridge.pulsar.client.consumer.subscription import Subscription
from mqbridge.pulsar.wire import client_commands, codes, ids
from mqbridge.pulsar.wire.ids import EntryId, full_mask
from mqbridge.pulsar.wire.pb import PulsarApi_pb2 as pb
from mqbridge.pulsar.wire.pb.PulsarApi_pb2 import BaseCommand

ACK_DELAY_S = 0.1
"""Maximum time between an acknowledgement and its command, in seconds, while there is a connection."""
MAX_UNSENT_ACKS = 1000
"""Number of collected acknowledgements that are sent without waiting for ACK_DELAY_S."""


class Acknowledger:
    """Acknowledger of one consumer.

    `connection` returns the consumer's current connection, None without one. `redeliver` is called with the entries whose
    redelivery time has come. With `sends` False, as on a non-persistent topic, nothing is sent: the broker stores nothing.
    """

    def __init__(
        self,
        consumer_id: int,
        topic: str,
        subscription: Subscription,
        state: ConsumerState,
        receiver_queue: ReceiverQueue,
        connection: Callable[[], Connection | None],
        redeliver: Callable[[Sequence[EntryId]], None],
        request_timeout_s: float,
        *,
        sends: bool = True,
    ) -> None:
        self._id, self._topic, self._sends = consumer_id, topic, sends
        self._request_timeout_s = request_timeout_s
        self._ack_timeout_s, self._ordered = subscription.ack_timeout_s, subscription.ordered
        self._state, self._receiver_queue = state, receiver_queue
        self._connection, self._redeliver = connection, redeliver
        self._acks = PendingAcks(subscription.batch_index_ack)
        self.partial = self._acks.partial
        """Masks of partly acknowledged batches. Few are kept of released entries: those that any consumer may receive next."""
        self._redeliveries = RedeliveryTimer()
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        """Timer of the next `flush`; None if no acknowledgement waits for it."""
        self._redelivery_wakeup: asyncio.TimerHandle | None = None
        """Timer of the next `_redeliver_expired`."""

    # --- acknowledging ----------------------------------------------------------------------------------------------

    def acknowledge(self, entry: EntryId) -> None:
        """Acknowledge an entry; if it is the last chunk of a message, acknowledge all chunks."""
        self._state.record_individual_ack()
        self._redeliveries.discard(entry)
        for each in self._receiver_queue.pop_chunks(entry):
            self._acks.add_entry(each)
        self._schedule_flush()

    def acknowledge_messages(self, entry: EntryId, acknowledged: int, count: int) -> bool:
        """Acknowledge the messages whose bits are set in `acknowledged`, of a batch of `count` messages.

        Return True if the whole entry is acknowledged now.
        """
        if acknowledged == full_mask(count) or self._acks.add_messages(entry, acknowledged, count):
            self.acknowledge(entry)
            return True
        self._state.record_individual_ack()
        self._schedule_flush()
        return False

    def acknowledge_up_to(self, entry: EntryId, index: int | None, count: int) -> None:
        """Acknowledge all earlier entries and this entry; with `index`, of its messages only 0 to `index` of `count`.

        `index` None stands for all messages of the entry. Do nothing if the entry was not delivered since
        the positions were last reset.
        """
        is_whole = index is None or index + 1 >= count
        if not self._state.record_cumulative_ack(entry, is_whole=is_whole):
            return
        # Later than `entry` if that is an expired message: chunks of it did not arrive, so it was delivered after later entries.
        acked_up_to = self._state.acked_up_to
        if self._redeliveries:
            self._redeliveries.discard_up_to(acked_up_to)
        last_cumulative, chunks = self._receiver_queue.pop_chunks_up_to(acked_up_to, entry)
        if last_cumulative == acked_up_to < entry:  # only some messages of `entry` are acknowledged
            self._acks.add_cumulative(entry, index, count)
        elif last_cumulative == acked_up_to:
            self._acks.add_cumulative(acked_up_to)
        else:  # an unacknowledged chunked message begins after `last_cumulative`
            self._acks.add_cumulative(last_cumulative)
            for chunk in chunks:
                self._acks.add_entry(chunk)
        self._schedule_flush()

    def acknowledge_undelivered(self, entries: Iterable[EntryId]) -> None:
        """Acknowledge entries that will not be delivered to the application, or not again.

        Unlike `acknowledge`, this does not count as an acknowledgement by the application.
        """
        for entry in entries:
            self._acks.add_entry(entry)
            self._schedule_flush()

    def release_withheld(self) -> None:
        """Acknowledge one by one what the application has acknowledged behind a chunked message that is still open.

        The caller leaves the subscription. Before, this would be too much work for a broker: the message usually becomes complete
        within moments, and then one cumulative acknowledgement includes everything.
        """
        self.acknowledge_undelivered(self._receiver_queue.withheld_acks())

    def _schedule_flush(self) -> None:
        """Flush at once if there are enough acknowledgements, otherwise ACK_DELAY_S after the first of them."""
        if len(self._acks) >= MAX_UNSENT_ACKS:
            self.flush()
        elif self._timer is None:
            self._timer = self._loop.call_later(ACK_DELAY_S, self.flush)

    def flush(self) -> None:
        """Send the pending acknowledgements now; without a connection they are sent over the next one."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if not self._sends:
            self._acks.discard()
            return
        connection = self._connection()
        if connection is None or not connection.alive:
            return
        self._state.record_pongs(connection.pongs)
        if (ack_id := self._take_cumulative()) is not None:
            connection.endpoint.send(client_commands.ack(self._id, cumulative=True, message_ids=[ack_id]))
            self._state.record_ack_check(connection.check_soon())
        for group in self._acks.take_individual():
            connection.endpoint.send(client_commands.ack(self._id, cumulative=False, message_ids=group))

    def _take_cumulative(self, *, again: bool = False) -> pb.MessageIdData | None:
        """Take the cumulative acknowledgement to send now, and record it as sent; None if there is none.

        If there is no new one, return the last one that was sent, provided that it may be lost or `again` is True.
        """
        state = self._state
        ack_id = self._acks.take_cumulative()
        if ack_id is None and (state.ack_may_be_lost or again):
            ack_id = state.last_sent_ack
        if ack_id is not None:
            state.record_sent_ack(ack_id)
        return ack_id

    async def confirm(self, connection: Connection) -> None:
        """Send the pending acknowledgements over this connection and wait for their receipts.

        A cumulative acknowledgement that was sent before is sent again, to get its receipt. Raises ClusterError; the
        acknowledgements without a receipt will then be sent again.
        """
        if not self._sends:
            self._acks.discard()
            return
        ack_id = self._take_cumulative(again=True)
        requests = [] if ack_id is None else [self._send_and_confirm(connection, [ack_id], cumulative=True)]
        requests += [self._send_and_confirm(connection, group, cumulative=False) for group in self._acks.take_individual()]
        for result in await asyncio.gather(*requests, return_exceptions=True):
            if isinstance(result, BaseException):
                raise result

    async def _send_and_confirm(self, connection: Connection, group: list[pb.MessageIdData], *, cumulative: bool) -> None:
        """Send one ACK command and wait for its receipt; without a receipt, individual acknowledgements are pending again."""
        generation, confirmed = self._state.generation, False
        try:
            response: pb.CommandAckResponse = await connection.request(
                lambda request_id: client_commands.ack(self._id, cumulative=cumulative, message_ids=group, request_id=request_id),
                BaseCommand.ACK_RESPONSE,
                f"an acknowledgement on {self._topic}",
                self._request_timeout_s,
            )
            if response.HasField("error"):
                raise codes.refusal_error(response.error, response.message, f"acknowledging on {self._topic}")
            confirmed = True
            if cumulative and generation == self._state.generation:
                self._state.record_ack_receipt(group[0])
        finally:
            # A cumulative acknowledgement is not put back, because the state has stored it as the last one that was sent. After a
            # reset of the positions, which starts another generation, nothing is put back.
            if not confirmed and not cumulative and generation == self._state.generation:
                self._acks.put_back(group)
                self._schedule_flush()

    # --- redelivery -------------------------------------------------------------------------------------------------

    def start_ack_timeout(self, entry: EntryId) -> None:
        """Request the redelivery of a delivered entry after the subscription's `ack_timeout_s`, which must be set."""
        assert self._ack_timeout_s is not None  # noqa: S101 - else there is no timeout
        self._start_timer(entry, self._ack_timeout_s)

    def negative_acknowledge(self, entry: EntryId, delay_s: float) -> None:
        """Request the redelivery of an entry after `delay_s` seconds."""
        self._start_timer(entry, delay_s)

    def _start_timer(self, entry: EntryId, delay_s: float) -> None:
        redeliver_at = self._loop.time() + delay_s
        self._redeliveries.add(entry, redeliver_at)
        self._schedule_wakeup(redeliver_at)

    def _schedule_wakeup(self, redeliver_at: float) -> None:
        """Schedule `_redeliver_expired` for this redelivery time (loop time), unless it is scheduled earlier.

        It runs one tick later, because redelivery times are rounded up to ticks.
        """
        if self._redelivery_wakeup is not None:
            if self._redelivery_wakeup.when() <= redeliver_at + TICK_S:
                return
            self._redelivery_wakeup.cancel()
        self._redelivery_wakeup = self._loop.call_at(redeliver_at + TICK_S, self._redeliver_expired)

    def _redeliver_expired(self) -> None:
        """Request the redelivery of all entries whose time has come, and schedule the next wake-up."""
        self._redelivery_wakeup = None
        entries = self._redeliveries.pop(self._loop.time())
        if entries:
            self._redeliver(entries)
        if (at := self._redeliveries.next_at()) is not None:
            self._schedule_wakeup(at)

    # --- disconnection, reset and redelivery commands ---------------------------------------------------------------

    def on_disconnected(self, *, skips_delivered: bool) -> None:
        """Process the loss of the connection: the broker redelivers unacknowledged entries to this consumer or to another one.

        If `skips_delivered` is True, this consumer drops redelivered entries that the application already has. In this case the
        redelivery times are kept: otherwise an entry with a negative acknowledgement would never be delivered again.

        A subscription can be reset while no consumer is connected, and the cursor of a shared subscription does not show this.
        So on a shared subscription the consumer forgets which messages of partly acknowledged entries are acknowledged: they are
        delivered twice rather than never.
        """
        if not skips_delivered:
            self._redeliveries.clear()
        if self._ordered:
            self.partial.release_all()  # keep the newest masks, in case the broker redelivers the entries to this consumer
        else:
            self.partial.clear()

    def abandon(self, entries: Iterable[EntryId]) -> None:
        """Forget delivered entries that the application has rejected, and that cannot be delivered again."""
        for entry in entries:
            self._redeliveries.discard(entry)
            self._receiver_queue.pop_chunks(entry)
            self.partial.complete(entry)

    def clear_redeliveries(self) -> None:
        """Discard all redelivery times, because the broker redelivers everything unacknowledged."""
        self._redeliveries.clear()

    def forget(self) -> None:
        """Discard pending acknowledgements and redeliveries, after the positions of the consumer were reset.

        A pending acknowledgement would move the cursor away from its new position.
        """
        self._acks.clear()
        self._redeliveries.clear()

    def send_redeliver(self, entries: Sequence[EntryId]) -> None:
        """Send the command to redeliver these entries, with all chunks of their messages; for shared subscriptions.

        Without a connection do nothing: the broker redelivers all unacknowledged entries anyway.
        """
        connection = self._connection()
        if connection is None or not connection.alive:
            return
        with_chunks: list[EntryId] = []
        for entry in entries:
            self._redeliveries.discard(entry)
            with_chunks += self._receiver_queue.pop_chunks(entry)
        self.partial.release(with_chunks)
        for start in range(0, len(with_chunks), MAX_IDS_PER_COMMAND):
            group = [ids.message_id(*entry) for entry in with_chunks[start : start + MAX_IDS_PER_COMMAND]]
            connection.endpoint.send(client_commands.redeliver(self._id, group, epoch=None))

    def stop(self) -> None:
        """Cancel the timers of acknowledgements and redeliveries."""
        for timer in (self._timer, self._redelivery_wakeup):
            if timer is not None:
                timer.cancel()
