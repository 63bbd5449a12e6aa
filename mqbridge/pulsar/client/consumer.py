"""A consumer of one topic (a partition, or a topic without), over any number of reconnections.

Entries wait in a queue that is bounded by bytes: credit is granted accordingly (see `credit.py`), and if messages suddenly become
much larger the consumer subscribes anew rather than hold what it cannot. After a reconnection the broker delivers again what was
not acknowledged; where the order of a topic is one consumer's (exclusive, failover, reader) what this one has handed over already
is skipped, so the application sees no duplicates while it lives. On shared subscriptions duplicates are normal.
"""

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Sequence

from mqbridge.errors import ClusterError, ConnectionLost, Failure, MqbridgeError, ServerRefused
from mqbridge.net.backoff import Backoff
from mqbridge.net.tasks import cancel, spawn
from mqbridge.pulsar.client.acks import IDS_PER_COMMAND, Acks
from mqbridge.pulsar.client.connection import Connection
from mqbridge.pulsar.client.credit import Credit
from mqbridge.pulsar.client.lookup import FIRST_DELAY_S, MOST_DELAY_S, REQUEST_TIMEOUT_S, Lookup, retrying
from mqbridge.pulsar.client.subscription import Subscription, Types
from mqbridge.pulsar.wire import codes, commands, ids
from mqbridge.pulsar.wire.entry import Entry, decode_entry
from mqbridge.pulsar.wire.frame import DEFAULT_MAX_MESSAGE_SIZE, Frame
from mqbridge.pulsar.wire.ids import EntryId
from mqbridge.pulsar.wire.names import parse_topic
from mqbridge.pulsar.wire.pb import PulsarApi_pb2 as pb
from mqbridge.pulsar.wire.pb.PulsarApi_pb2 import BaseCommand

log = logging.getLogger(__name__)

ACK_DELAY_S = 0.1
ACK_GROUP = 1000
"""Acknowledgements are sent after this time or this many, whichever comes first."""


class Consumer:
    """A consumer; `open` subscribes it for the first time. Made inside a running loop."""

    def __init__(
        self,
        lookup: Lookup,
        consumer_id: int,
        topic: str,
        subscription: Subscription,
        *,
        request_timeout_s: float = REQUEST_TIMEOUT_S,
    ) -> None:
        self.topic = topic
        self.subscription = subscription
        self.active = subscription.type != Types.Failover
        """Whether this is the one that a failover subscription delivers to."""
        self.sessions = 0
        """How often it has subscribed."""
        self._lookup = lookup
        self._id = consumer_id
        self._partition = parse_topic(topic).partition_index
        self._request_timeout_s = request_timeout_s
        self._queue: deque[tuple[Entry, int, int]] = deque()
        self._credit = Credit(subscription.max_bytes, DEFAULT_MAX_MESSAGE_SIZE)
        self._acks = Acks(subscription.batch_index_ack)
        self._ack_timer: asyncio.TimerHandle | None = None
        self._handed: EntryId = ids.EARLIEST
        self._mark: pb.MessageIdData | None = None
        """The last cumulative acknowledgement; repeated to every new session."""
        self._acked: EntryId = ids.EARLIEST
        self._start = subscription.reader_from
        self._epoch = 0
        self._session: Connection | None = None
        self._to_close: Connection | None = None
        """Where the next session must close the last one before it begins."""
        self._seeking = False
        self.ended: ClusterError | None = None
        """Why nothing more will come."""
        self.closed = False
        self._changed = asyncio.Event()
        """Set whenever `receive` or `wait_active` has something to look at."""
        self._loop = asyncio.get_running_loop()
        self._opening: asyncio.Task[None] | None = None

    # --- receiving --------------------------------------------------------------------------------------------------

    @property
    def waiting(self) -> int:
        """Entries that `receive` would return at once."""
        return len(self._queue)

    @property
    def held_bytes(self) -> int:
        """Bytes of the entries that wait."""
        return self._credit.held

    async def receive(self) -> Entry:
        """The next entry, unpacked; waits. Raises ClusterError when the consumer has ended."""
        while not self._queue:
            if self.ended is not None:
                raise self.ended
            await self._wait()
        entry = self.take()
        assert entry is not None  # noqa: S101 - the queue is not empty
        return entry

    def take(self) -> Entry | None:
        """The next entry if there is one."""
        if not self._queue:
            return None
        entry, size, _ = self._queue.popleft()
        self._credit.handed_over(size)
        self._handed = max(self._handed, (entry.ledger, entry.entry))
        self._grant()
        entry.unpack()
        return entry

    async def wait_active(self, active: bool) -> None:
        """Wait until a failover subscription makes this consumer the active one, or no longer does. Raises as `receive`."""
        while self.active is not active:
            if self.ended is not None:
                raise self.ended
            await self._wait()

    async def changed(self, timeout: float) -> None:
        """Wait until an entry is there or something else has happened, at most `timeout` seconds."""
        if not self._queue and self.ended is None:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._wait(), timeout)

    def wake(self) -> None:
        """Let those who wait look again."""
        self._changed.set()

    async def _wait(self) -> None:
        self._changed.clear()
        await self._changed.wait()

    def _grant(self) -> None:
        session = self._session
        if session is not None and session.alive:
            permits = self._credit.grant()
            if permits:
                session.endpoint.send(commands.flow(self._id, permits))

    # --- what the broker says ---------------------------------------------------------------------------------------

    def on_push(self, frame: Frame) -> None:
        """An entry, a change of the active consumer, or the end of the session."""
        match frame.type:
            case BaseCommand.MESSAGE:
                self._on_message(frame)
            case BaseCommand.ACTIVE_CONSUMER_CHANGE:
                self._on_active(frame.command.active_consumer_change.is_active)
            case BaseCommand.REACHED_END_OF_TOPIC:
                log.info("%s was terminated and is read to its end", self.topic)
            case _:
                log.info("%s: the broker closed the consumer, looking up again", self.topic)
                self._leave_session()
                if not self._seeking:  # then that is why, and the new position comes first
                    self._reopen()

    def on_lost(self, error: Exception) -> None:
        """The connection is gone."""
        log.info("%s: the consumer lost its connection (%s), reconnecting", self.topic, error)
        self._leave_session()
        self._reopen()

    def _on_message(self, frame: Frame) -> None:
        message = frame.command.message
        place = ids.entry_id(message.message_id)
        entry = decode_entry(frame.data, frame.rest)
        entry.ledger, entry.entry = place
        entry.partition, entry.redelivery_count = self._partition, message.redelivery_count
        mask = ids.from_words(message.ack_set)
        if mask:
            entry.ack_set = tuple(message.ack_set)
        charged = mask.bit_count() if mask else entry.count
        size = len(frame.data)
        self._credit.received(charged, size)
        outdated = message.HasField("consumer_epoch") and message.consumer_epoch < self._epoch
        if outdated or self._seeking or (self.subscription.ordered and place <= self._handed):
            self._credit.handed_over(size)
            self._grant()
            return
        self._queue.append((entry, size, charged))
        self._changed.set()
        if self._credit.overflowed:
            self._shed()

    def _shed(self) -> None:
        """Give everything that waits back to the broker; a new session has no credit that it did not earn."""
        log.warning(
            "%s: %d bytes wait where %d are allowed, subscribing anew", self.topic, self.held_bytes, self.subscription.max_bytes
        )
        self._restart_session()

    def _on_active(self, active: bool) -> None:
        self.active = active
        if not active:
            self._drop_queue()
            self._handed = self._acked
        self._changed.set()

    # --- acknowledging ----------------------------------------------------------------------------------------------

    def acknowledge(self, place: EntryId) -> None:
        """This entry; for shared subscriptions."""
        self._acks.entry(place)
        self._ack_soon()

    def acknowledge_message(self, place: EntryId, index: int, count: int) -> None:
        """Message `index` of the batch of `count` in this entry."""
        self._acks.message(place, index, count)
        self._ack_soon()

    def acknowledge_up_to(self, place: EntryId, index: int | None = None, count: int = 1) -> None:
        """This entry and all before it, or its messages up to `index` only; for exclusive and failover subscriptions."""
        self._acks.cumulative(place, index, count)
        self._acked = max(self._acked, place if index is None else (place[0], place[1] - 1))
        self._ack_soon()

    def _ack_soon(self) -> None:
        if len(self._acks) >= ACK_GROUP:
            self.flush_acks()
        elif self._ack_timer is None:
            self._ack_timer = self._loop.call_later(ACK_DELAY_S, self.flush_acks)

    def flush_acks(self) -> None:
        """Send what is acknowledged now; without a session it waits for the next one."""
        if self._ack_timer is not None:
            self._ack_timer.cancel()
            self._ack_timer = None
        session = self._session
        if session is None or not session.alive:
            return
        self._mark = self._acks.take_cumulative() or self._mark
        if self._mark is not None:
            session.endpoint.send(commands.ack(self._id, True, [self._mark]))
        for group in self._acks.take_individual():
            session.endpoint.send(commands.ack(self._id, False, group))

    def redeliver(self, places: Sequence[EntryId] = ()) -> None:
        """Have these entries delivered again; on exclusive and failover subscriptions all that are not acknowledged."""
        self.flush_acks()
        session = self._session
        if self.subscription.ordered:
            self._drop_queue()
            self._handed = self._acked
            self._epoch += 1
            if session is not None and session.alive:
                session.endpoint.send(commands.redeliver(self._id, (), self._epoch))
            self._grant()
        elif session is not None and session.alive:
            for at in range(0, len(places), IDS_PER_COMMAND):
                group = [ids.message_id(*place) for place in places[at : at + IDS_PER_COMMAND]]
                session.endpoint.send(commands.redeliver(self._id, group, None))

    def _drop_queue(self) -> None:
        for _, size, _ in self._queue:
            self._credit.handed_over(size)
        self._queue.clear()

    # --- positions --------------------------------------------------------------------------------------------------

    async def last_id(self) -> EntryId:
        """The newest entry of the topic, (-1, -1) when there is none. Raises ClusterError."""
        answer = await self._last()
        return ids.entry_id(answer.last_message_id)

    async def has_more(self) -> bool:
        """Whether the topic has entries beyond what was received (or acknowledged before). Raises ClusterError."""
        if self._queue:
            return True
        answer = await self._last()
        last = ids.entry_id(answer.last_message_id)
        known = max(self._handed, self._acked)
        if answer.HasField("consumer_mark_delete_position"):
            known = max(known, ids.entry_id(answer.consumer_mark_delete_position))
        return last > known and last[1] >= 0

    async def _last(self) -> pb.CommandGetLastMessageIdResponse:
        async def ask() -> pb.CommandGetLastMessageIdResponse:
            answer: pb.CommandGetLastMessageIdResponse = await self._live_session().request(
                lambda request_id: commands.get_last_message_id(request_id, self._id),
                BaseCommand.GET_LAST_MESSAGE_ID_RESPONSE,
                f"the last message id of {self.topic}",
                self._request_timeout_s,
            )
            return answer

        return await retrying(ask, self._request_timeout_s)

    def _live_session(self) -> Connection:
        if self.ended is not None:
            raise self.ended
        if self._session is None:
            raise ConnectionLost(f"the consumer of {self.topic} is not connected just now")
        return self._session

    async def seek(self, place: EntryId | None = None, *, publish_time: int | None = None) -> None:
        """Continue with this entry, or with the first one published at that time (ms) or later. Raises ClusterError.

        What is acknowledged and not yet sent is forgotten: it would move the position again.
        """
        self._seeking = True
        try:
            await retrying(lambda: self._seek(place, publish_time), self._request_timeout_s)
        finally:
            self._seeking = False
            self._acks.clear()
            self._mark = None
            self._handed = self._acked = ids.EARLIEST
            if self._start is not None and place is not None:
                self._start = place
            self._restart_session()

    async def _seek(self, place: EntryId | None, publish_time: int | None) -> None:
        await self._live_session().request(
            lambda request_id: commands.seek(request_id, self._id, to=place, publish_time=publish_time),
            BaseCommand.SUCCESS,
            f"SEEK on {self.topic}",
            self._request_timeout_s,
        )

    def _restart_session(self) -> None:
        """Subscribe anew. A broker closes the consumer when it seeks; if it did not, no old entry shall slip through."""
        self._to_close = self._session
        self._leave_session()
        self._reopen()

    # --- sessions ---------------------------------------------------------------------------------------------------

    async def open(self, timeout: float) -> None:
        """Subscribe for the first time. Raises ClusterError."""
        self._begin(await retrying(self._subscribe, timeout))

    def _leave_session(self) -> None:
        session, self._session = self._session, None
        self._drop_queue()
        if not self.subscription.ordered:
            self._handed = ids.EARLIEST
        if session is not None and session.consumers.get(self._id) is self:
            del session.consumers[self._id]

    def _reopen(self) -> None:
        if self.ended is None and self._opening is None and self.sessions:
            self._opening = spawn(self._open_again(), f"open consumer {self.topic}")

    async def _open_again(self) -> None:
        to_close, self._to_close = self._to_close, None
        if to_close is not None and to_close.alive:
            await self._close_at(to_close)
        backoff = Backoff(FIRST_DELAY_S, MOST_DELAY_S)
        while self.ended is None:
            try:
                session = await self._subscribe()
            except ClusterError as error:
                # Another consumer may hold an exclusive subscription for as long as our old connection is not given up.
                busy = isinstance(error, ServerRefused) and error.code == codes.CONSUMER_BUSY
                if error.failure is Failure.FATAL and not busy:
                    self._opening = None
                    self._end(ClusterError(f"no consumer for {self.topic}: {error}", Failure.FATAL))
                    return
                await asyncio.sleep(backoff.delay())
            else:
                self._opening = None
                self._begin(session)
                return

    async def _subscribe(self) -> Connection:
        connection = await self._lookup.owner(self.topic)
        connection.consumers[self._id] = self
        self._credit.reset()
        start = None if self._start is None else max(self._start, self._handed)
        command = self.subscription.command(self.topic, self._id, start, self._epoch)
        try:
            await connection.request(
                lambda request_id: commands.subscribe(request_id, command),
                BaseCommand.SUCCESS,
                f"SUBSCRIBE {self.subscription.name} to {self.topic}",
                self._request_timeout_s,
            )
        except MqbridgeError:
            connection.consumers.pop(self._id, None)
            raise
        if connection.consumers.get(self._id) is not self:
            raise ConnectionLost(f"the broker closed the consumer of {self.topic} while it subscribed")
        return connection

    def _begin(self, session: Connection) -> None:
        self._session = session
        self.sessions += 1
        self.flush_acks()
        self._grant()
        self._changed.set()

    # --- the end ----------------------------------------------------------------------------------------------------

    def _end(self, error: ClusterError) -> None:
        self.ended = error
        self._leave_session()
        self._changed.set()

    async def unsubscribe(self) -> None:
        """Delete the subscription. Raises ClusterError, for instance while others are subscribed."""
        await self._live_session().request(
            lambda request_id: commands.unsubscribe(request_id, self._id),
            BaseCommand.SUCCESS,
            f"UNSUBSCRIBE {self.subscription.name}",
            self._request_timeout_s,
        )

    async def close(self) -> None:
        """Send the acknowledgements and close; what is not acknowledged will be delivered again."""
        if self.closed:
            return
        self.closed = True
        self.flush_acks()
        await cancel(self._opening)
        session = self._session
        self._end(ClusterError(f"the consumer of {self.topic} is closed", Failure.FATAL))
        if self._ack_timer is not None:
            self._ack_timer.cancel()
        if session is not None and session.alive:
            await self._close_at(session)

    async def _close_at(self, session: Connection) -> None:
        try:
            await session.request(
                lambda request_id: commands.close_consumer(request_id, self._id),
                BaseCommand.SUCCESS,
                f"CLOSE_CONSUMER for {self.topic}",
                self._request_timeout_s,
            )
        except ClusterError as error:
            log.info("%s: closing the consumer: %s", self.topic, error)
