"""Acknowledgements and redeliveries of a consumer: positive, negative, and by acknowledgement timeout.

Acknowledgements are collected (see `pending_acks.py`) and sent by time or number. They are fire and forget, unless `confirm`
requests receipts. A cumulative acknowledgement is repeated on the next connection if it may be lost; individual ones of a lost
connection are not, because their entries are redelivered.
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
"""Acknowledgements are sent after ACK_DELAY_S or when there are ACK_GROUP of them, whichever comes first."""


class Acknowledger:
    """Acknowledger of one consumer. `redeliver` is called with the entries whose timer has expired."""

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
        """Partly acknowledged entries."""
        self._due = RedeliveryTimer()
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._due_timer: asyncio.TimerHandle | None = None

    # --- acknowledging ----------------------------------------------------------------------------------------------

    def entry(self, entry: EntryId) -> None:
        """Acknowledge a message with all of its chunks."""
        self._state.acknowledged_individually()
        self._due.discard(entry)
        for each in self._inbox.settle(entry):
            self._acks.entry(each)
        self._send_soon()

    def messages(self, entry: EntryId, done: int, count: int) -> bool:
        """Acknowledge the messages of the mask `done` of a batch of `count`; return True if the entry is now complete."""
        if done == full_mask(count) or self._acks.messages(entry, done, count):
            self.entry(entry)
            return True
        self._state.acknowledged_individually()
        self._send_soon()
        return False

    def up_to(self, entry: EntryId, index: int | None, count: int) -> None:
        """Acknowledge up to this entry, or up to its message `index`. Does nothing for an entry of another generation."""
        is_whole = index is None or index + 1 >= count
        if not self._state.acknowledged(entry, whole=is_whole):
            return
        whole = self._state.acked_up_to  # beyond `entry`, if a message that was given up late is acknowledged after others
        if self._due:
            self._due.discard_up_to(whole)
        safe, chunks = self._inbox.settle_up_to(whole, entry)
        if safe == whole < entry:
            self._acks.cumulative(entry, index, count)
        elif safe == whole:
            self._acks.cumulative(whole)
        else:
            self._acks.cumulative(safe)
            for chunk in chunks:
                self._acks.entry(chunk)
        self._send_soon()

    def undelivered(self, entries: Iterable[EntryId]) -> None:
        """Acknowledge entries that will never be delivered to the application."""
        for entry in entries:
            self._acks.entry(entry)
            self._send_soon()

    def _send_soon(self) -> None:
        if len(self._acks) >= ACK_GROUP:
            self.flush()
        elif self._timer is None:
            self._timer = self._loop.call_later(ACK_DELAY_S, self.flush)

    def flush(self) -> None:
        """Send the pending acknowledgements now; without a connection they wait for the next one."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        connection = self._connection()
        if connection is None or not connection.alive:
            return
        if (mark := self._take_mark()) is not None:
            connection.endpoint.send(commands.ack(self._id, True, [mark]))
        for group in self._acks.take_individual():
            connection.endpoint.send(commands.ack(self._id, False, group))

    def _take_mark(self, *, again: bool = False) -> pb.MessageIdData | None:
        """Take the cumulative acknowledgement to send now; with `again` also one that was sent before."""
        state = self._state
        mark = self._acks.take_cumulative()
        if mark is None and (state.ack_may_be_lost or again):
            mark = state.last_sent_ack
        if mark is not None:
            state.ack_sent(mark)
        return mark

    async def confirm(self, connection: Connection) -> None:
        """Send the pending acknowledgements and wait for receipts. After a ClusterError they are sent again."""
        mark = self._take_mark(again=True)
        requests = [] if mark is None else [self._confirm(connection, True, [mark])]
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

    def handed_out(self, entry: EntryId) -> None:
        """Start the acknowledgement timeout of a delivered entry; for subscriptions with an `ack_timeout_s`."""
        assert self._ack_timeout_s is not None  # noqa: S101 - else there is no timeout
        self._start_timer(entry, self._ack_timeout_s)

    def negative(self, entry: EntryId, delay_s: float) -> None:
        """Have an entry redelivered after a delay."""
        self._start_timer(entry, delay_s)

    def _start_timer(self, entry: EntryId, delay_s: float) -> None:
        at = self._loop.time() + delay_s
        self._due.add(entry, at)
        self._set_due_timer(at)

    def _set_due_timer(self, at: float) -> None:
        if self._due_timer is not None:
            if self._due_timer.when() <= at + TICK_S:
                return
            self._due_timer.cancel()
        self._due_timer = self._loop.call_at(at + TICK_S, self._on_due)

    def _on_due(self) -> None:
        self._due_timer = None
        entries = self._due.pop(self._loop.time())
        if entries:
            self._redeliver(entries)
        if (at := self._due.next_at()) is not None:
            self._set_due_timer(at)

    # --- reset ------------------------------------------------------------------------------------------------------

    def disconnected(self, *, skips: bool) -> None:
        """Note the end of the connection: unacknowledged entries are redelivered by the broker, here or to another consumer.

        If this consumer `skips` delivered entries, their timers stay: the application would wait for the redelivery in vain.
        The subscription may be reset while no consumer is connected. A shared cursor does not show that, so all messages of an
        entry are delivered again: some twice rather than some never.
        """
        if not skips:
            self._due.clear()
        if self._ordered:
            self.partial.give_all_back()
        else:
            self.partial.clear()

    def rewind(self) -> None:
        """Stop all timers, because everything unacknowledged is redelivered."""
        self._due.clear()

    def forget(self) -> None:
        """Discard pending acknowledgements, because all positions are discarded: they would move the cursor."""
        self._acks.clear()
        self._due.clear()

    def send_redeliver(self, entries: Sequence[EntryId]) -> None:
        """Have these entries, with all chunks of their messages, redelivered; for shared subscriptions."""
        connection = self._connection()
        if connection is None or not connection.alive:
            return
        with_chunks: list[EntryId] = []
        for entry in entries:
            self._due.discard(entry)
            with_chunks += self._inbox.settle(entry)
        self.partial.give_back(with_chunks)
        for start in range(0, len(with_chunks), IDS_PER_COMMAND):
            group = [ids.message_id(*entry) for entry in with_chunks[start : start + IDS_PER_COMMAND]]
            connection.endpoint.send(commands.redeliver(self._id, group, None))

    def stop(self) -> None:
        """Cancel the timers."""
        for timer in (self._timer, self._due_timer):
            if timer is not None:
                timer.cancel()
