"""Telling the broker what is done and what shall come again: acknowledgements, negative ones, and entries without either.

Acknowledgements are gathered (see `acks.py`) and sent by time or number. They are fire and forget, unless `confirm` asks for
receipts. A cumulative one is repeated to the next connection if it may be lost; individual ones of a lost connection are not
needed, because whatever arrived too late is delivered again.
"""

import asyncio
from collections.abc import Callable, Iterable, Sequence

from mqbridge.pulsar.client.acks import IDS_PER_COMMAND, Acks
from mqbridge.pulsar.client.connection import Connection
from mqbridge.pulsar.client.consumer_state import ConsumerState
from mqbridge.pulsar.client.inbox import Inbox
from mqbridge.pulsar.client.redelivery_timer import TICK_S, RedeliveryTimer
from mqbridge.pulsar.client.subscription import Subscription
from mqbridge.pulsar.wire import codes, commands, ids
from mqbridge.pulsar.wire.ids import EntryId, full_mask
from mqbridge.pulsar.wire.pb import PulsarApi_pb2 as pb
from mqbridge.pulsar.wire.pb.PulsarApi_pb2 import BaseCommand

ACK_DELAY_S = 0.1
ACK_GROUP = 1000
"""Acknowledgements are sent after this time or this many, whichever comes first."""


class Acknowledger:
    """Of one consumer. `redeliver` is what happens to entries whose time has come."""

    def __init__(
        self,
        consumer_id: int,
        topic: str,
        subscription: Subscription,
        state: ConsumerState,
        inbox: Inbox,
        connection: Callable[[], Connection | None],
        redeliver: Callable[[Sequence[EntryId]], None],
        request_timeout_s: float,
    ) -> None:
        self._id, self._topic, self._request_timeout_s = consumer_id, topic, request_timeout_s
        self._ack_timeout_s, self._ordered = subscription.ack_timeout_s, subscription.ordered
        self._state, self._inbox, self._connection, self._redeliver = state, inbox, connection, redeliver
        self._acks = Acks(subscription.batch_index_ack)
        self.partial = self._acks.partial
        """Of which entries only a part is acknowledged."""
        self._due = RedeliveryTimer()
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._due_timer: asyncio.TimerHandle | None = None

    # --- acknowledging ----------------------------------------------------------------------------------------------

    def entry(self, entry: EntryId) -> None:
        """This message, with all of its chunks."""
        self._state.acknowledged_alone()
        self._due.discard(entry)
        for each in self._inbox.settle(entry):
            self._acks.entry(each)
        self._send_soon()

    def messages(self, entry: EntryId, done: int, count: int) -> bool:
        """The messages of the mask `done` of the batch of `count` in this entry; whether the whole entry is acknowledged now."""
        if done == full_mask(count) or self._acks.messages(entry, done, count):
            self.entry(entry)
            return True
        self._state.acknowledged_alone()
        self._send_soon()
        return False

    def up_to(self, entry: EntryId, index: int | None, count: int) -> None:
        """This entry and all before it, or its messages up to `index` only. Nothing, if it was not handed out in this run."""
        is_whole = index is None or index + 1 >= count
        if not self._state.acknowledged(entry, whole=is_whole):
            return
        whole = self._state.acked  # more than is said now, if a message that was given up late is acknowledged behind others
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

    def unseen(self, entries: Iterable[EntryId]) -> None:
        """Entries that the application will never see."""
        for entry in entries:
            self._acks.entry(entry)
            self._send_soon()

    def _send_soon(self) -> None:
        if len(self._acks) >= ACK_GROUP:
            self.flush()
        elif self._timer is None:
            self._timer = self._loop.call_later(ACK_DELAY_S, self.flush)

    def flush(self) -> None:
        """Send what is acknowledged now; without a connection it waits for the next one."""
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
        """The cumulative acknowledgement to send now; with `again` also one that was sent before."""
        state = self._state
        mark = self._acks.take_cumulative()
        if mark is None and (state.repeats or again):
            mark = state.told
        if mark is not None:
            state.sent(mark)
        return mark

    async def confirm(self, connection: Connection) -> None:
        """Send what is acknowledged and wait until the broker has noted it. Raises ClusterError: then it is sent again."""
        mark = self._take_mark(again=True)
        asked = [] if mark is None else [self._confirm(connection, True, [mark])]
        asked += [self._confirm(connection, False, group) for group in self._acks.take_individual()]
        for done in await asyncio.gather(*asked, return_exceptions=True):
            if isinstance(done, BaseException):
                raise done

    async def _confirm(self, connection: Connection, cumulative: bool, group: list[pb.MessageIdData]) -> None:
        run, noted = self._state.run, False
        try:
            answer: pb.CommandAckResponse = await connection.request(
                lambda request_id: commands.ack(self._id, cumulative, group, request_id),
                BaseCommand.ACK_RESPONSE,
                f"an acknowledgement on {self._topic}",
                self._request_timeout_s,
            )
            if answer.HasField("error"):
                raise codes.refused(answer.error, answer.message, f"acknowledging on {self._topic}")
            noted = True
        finally:
            if not noted and not cumulative and run == self._state.run:
                self._acks.put_back(group)
                self._send_soon()

    # --- again ------------------------------------------------------------------------------------------------------

    def handed_out(self, entry: EntryId) -> None:
        """From now on an acknowledgement is expected; for subscriptions with an `ack_timeout_s`."""
        assert self._ack_timeout_s is not None  # noqa: S101 - else nothing is expected
        self._expect(entry, self._ack_timeout_s)

    def negative(self, entry: EntryId, delay_s: float) -> None:
        """Have it delivered again after a delay."""
        self._expect(entry, delay_s)

    def _expect(self, entry: EntryId, delay_s: float) -> None:
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

    # --- new starts -------------------------------------------------------------------------------------------------

    def session_ended(self, *, skips: bool) -> None:
        """What is not acknowledged will come again by itself, here or elsewhere.

        Where this consumer `skips` what it has handed out, that stays due: the application would wait for it in vain.
        The subscription may be set back while nobody listens. Where that cannot be seen at the cursor, as many have a part in it,
        all messages of an entry are wanted again: some twice rather than some never.
        """
        if not skips:
            self._due.clear()
        if self._ordered:
            self.partial.give_all_back()
        else:
            self.partial.clear()

    def rewound(self) -> None:
        """All that is not acknowledged comes again."""
        self._due.clear()

    def forget(self) -> None:
        """The positions have lost their meaning: what is acknowledged and not yet sent would move the cursor."""
        self._acks.clear()
        self._due.clear()

    def send_redeliver(self, entries: Sequence[EntryId]) -> None:
        """Have these entries, and all chunks of their messages, delivered again; for shared subscriptions."""
        connection = self._connection()
        if connection is None or not connection.alive:
            return
        every: list[EntryId] = []
        for entry in entries:
            self._due.discard(entry)
            every += self._inbox.settle(entry)
        self.partial.give_back(every)
        for at in range(0, len(every), IDS_PER_COMMAND):
            group = [ids.message_id(*entry) for entry in every[at : at + IDS_PER_COMMAND]]
            connection.endpoint.send(commands.redeliver(self._id, group, None))

    def stop(self) -> None:
        """No timer any more."""
        for timer in (self._timer, self._due_timer):
            if timer is not None:
                timer.cancel()
