"""Telling the broker what is done and what shall come again: acknowledgements, negative ones, and entries without either.

Acknowledgements are gathered (see `acks.py`) and sent by time or number. They are fire and forget, unless `confirm` asks for
receipts. A cumulative one is repeated to every new session; individual ones of a lost session are not needed, because whatever
arrived too late is delivered again.
"""

import asyncio
from collections.abc import Callable, Iterable, Sequence

from mqbridge.pulsar.client.acks import IDS_PER_COMMAND, Acks
from mqbridge.pulsar.client.connection import Connection
from mqbridge.pulsar.client.inbox import Inbox
from mqbridge.pulsar.client.redelivery_timer import TICK_S, RedeliveryTimer
from mqbridge.pulsar.client.subscription import Subscription
from mqbridge.pulsar.wire import codes, commands, ids
from mqbridge.pulsar.wire.ids import EntryId
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
        inbox: Inbox,
        session: Callable[[], Connection | None],
        redeliver: Callable[[Sequence[EntryId]], None],
        request_timeout_s: float,
    ) -> None:
        self.acked: EntryId = ids.EARLIEST
        """All up to here is acknowledged, as far as the application is concerned."""
        self._id, self._topic, self._request_timeout_s = consumer_id, topic, request_timeout_s
        self._ordered, self._ack_timeout_s = subscription.ordered, subscription.ack_timeout_s
        self._inbox, self._session, self._redeliver = inbox, session, redeliver
        self._acks = Acks(subscription.batch_index_ack)
        self._mark: pb.MessageIdData | None = None
        """The last cumulative acknowledgement; repeated to every new session."""
        self._due = RedeliveryTimer()
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._due_timer: asyncio.TimerHandle | None = None

    # --- acknowledging ----------------------------------------------------------------------------------------------

    def entry(self, place: EntryId) -> None:
        """This message, with all of its chunks."""
        self._due.discard(place)
        for each in self._inbox.settle(place):
            self._acks.entry(each)
        self._send_soon()

    def message(self, place: EntryId, index: int, count: int) -> None:
        """Message `index` of the batch of `count` in this entry."""
        if count == 1:
            self.entry(place)
            return
        if self._acks.message(place, index, count):
            self._due.discard(place)
        self._send_soon()

    def up_to(self, place: EntryId, index: int | None, count: int) -> None:
        """This entry and all before it, or its messages up to `index` only."""
        whole = place if index is None or index + 1 >= count else (place[0], place[1] - 1)
        self.acked = max(self.acked, whole)
        if self._due:
            self._due.discard_up_to(whole)
        safe, chunks = self._inbox.settle_up_to(whole)
        if safe == whole:
            self._acks.cumulative(place, index, count)
        else:
            self._acks.cumulative(safe)
            for chunk in chunks:
                self._acks.entry(chunk)
        self._send_soon()

    def unseen(self, places: Iterable[EntryId]) -> None:
        """Entries that the application will never see."""
        for place in places:
            self._acks.entry(place)
            self._send_soon()

    def _send_soon(self) -> None:
        if len(self._acks) >= ACK_GROUP:
            self.flush()
        elif self._timer is None:
            self._timer = self._loop.call_later(ACK_DELAY_S, self.flush)

    def flush(self) -> None:
        """Send what is acknowledged now; without a session it waits for the next one."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        session = self._session()
        if session is None or not session.alive:
            return
        self._mark = self._acks.take_cumulative() or self._mark
        if self._mark is not None:
            session.endpoint.send(commands.ack(self._id, True, [self._mark]))
        for group in self._acks.take_individual():
            session.endpoint.send(commands.ack(self._id, False, group))

    async def confirm(self, session: Connection) -> None:
        """Send what is acknowledged and wait until the broker has noted it. Raises ClusterError: then it is sent again."""
        self._mark = self._acks.take_cumulative() or self._mark
        asked = [] if self._mark is None else [self._confirm(session, True, [self._mark])]
        asked += [self._confirm(session, False, group) for group in self._acks.take_individual()]
        for done in await asyncio.gather(*asked, return_exceptions=True):
            if isinstance(done, BaseException):
                raise done

    async def _confirm(self, session: Connection, cumulative: bool, group: list[pb.MessageIdData]) -> None:
        generation, noted = self._acks.generation, False
        try:
            answer: pb.CommandAckResponse = await session.request(
                lambda request_id: commands.ack(self._id, cumulative, group, request_id),
                BaseCommand.ACK_RESPONSE,
                f"an acknowledgement on {self._topic}",
                self._request_timeout_s,
            )
            if answer.HasField("error"):
                raise codes.refused(answer.error, answer.message, f"acknowledging on {self._topic}")
            noted = True
        finally:
            if not noted and not cumulative and generation == self._acks.generation:
                self._acks.put_back(group)
                self._send_soon()

    # --- again ------------------------------------------------------------------------------------------------------

    def handed_over(self, place: EntryId) -> None:
        """From now on an acknowledgement is expected."""
        if self._ack_timeout_s is not None:
            self._expect(place, self._ack_timeout_s)

    def negative(self, place: EntryId, delay_s: float) -> None:
        """Have it delivered again after a delay."""
        self._expect(place, delay_s)

    def _expect(self, place: EntryId, delay_s: float) -> None:
        at = self._loop.time() + delay_s
        self._due.add(place, at)
        self._set_due_timer(at)

    def _set_due_timer(self, at: float) -> None:
        if self._due_timer is not None:
            if self._due_timer.when() <= at + TICK_S:
                return
            self._due_timer.cancel()
        self._due_timer = self._loop.call_at(at + TICK_S, self._on_due)

    def _on_due(self) -> None:
        self._due_timer = None
        places = self._due.pop(self._loop.time())
        if places:
            self._redeliver(places)
        if (at := self._due.next_at()) is not None:
            self._set_due_timer(at)

    # --- new starts -------------------------------------------------------------------------------------------------

    def session_ended(self) -> None:
        """What is not acknowledged will come again by itself."""
        self._due.clear()

    def forget(self) -> None:
        """The position was set anew: what is acknowledged and not yet sent would move it again."""
        self._acks.clear()
        self._due.clear()
        self._mark = None
        self.acked = ids.EARLIEST

    def send_redeliver(self, places: Sequence[EntryId]) -> None:
        """Have these entries, and all chunks of their messages, delivered again; for shared subscriptions."""
        session = self._session()
        if session is None or not session.alive:
            return
        every: list[EntryId] = []
        for place in places:
            self._due.discard(place)
            every += self._inbox.settle(place)
        for at in range(0, len(every), IDS_PER_COMMAND):
            group = [ids.message_id(*place) for place in every[at : at + IDS_PER_COMMAND]]
            session.endpoint.send(commands.redeliver(self._id, group, None))

    def stop(self) -> None:
        """No timer any more."""
        for timer in (self._timer, self._due_timer):
            if timer is not None:
                timer.cancel()
