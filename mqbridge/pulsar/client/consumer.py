"""A consumer of one topic (a partition, or a topic without), over any number of reconnections.

Entries wait in an inbox that is bounded by bytes: credit is granted accordingly (see `credit.py`), and if messages suddenly
become much larger the consumer subscribes anew rather than hold what it cannot. After a reconnection the broker delivers again
what was not acknowledged; where the order of a topic is one consumer's (exclusive, failover, reader) what this one has handed
over already is skipped, so the application sees no duplicates while it lives. On shared subscriptions duplicates are normal.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Sequence

from mqbridge.errors import ClusterError, ConnectionLost, Failure, ServerRefused
from mqbridge.pulsar.client.acknowledger import Acknowledger
from mqbridge.pulsar.client.attachment import Attachment
from mqbridge.pulsar.client.connection import Connection
from mqbridge.pulsar.client.consumer_requests import ConsumerRequests, ConsumerStats
from mqbridge.pulsar.client.inbox import Inbox
from mqbridge.pulsar.client.lookup import REQUEST_TIMEOUT_S, Lookup, retrying
from mqbridge.pulsar.client.silence import SilenceWatch
from mqbridge.pulsar.client.subscription import Subscription, Types
from mqbridge.pulsar.wire import codes, commands, ids
from mqbridge.pulsar.wire.entry import Entry, decode_entry
from mqbridge.pulsar.wire.frame import Frame
from mqbridge.pulsar.wire.ids import EntryId
from mqbridge.pulsar.wire.names import parse_topic
from mqbridge.pulsar.wire.pb.PulsarApi_pb2 import BaseCommand

log = logging.getLogger(__name__)

NEGATIVE_ACK_DELAY_S = 60.0


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
        self.at_end = False
        """The topic was terminated and everything in it has been delivered."""
        self.ended: ClusterError | None = None
        """Why nothing more will come."""
        self.closed = False
        self.on_change: Callable[[], None] | None = None
        """Called whenever `receive` or `wait_active` has something to look at."""
        self._id = consumer_id
        self._partition = parse_topic(topic).partition_index
        self._request_timeout_s = request_timeout_s
        reads = subscription.reader_from is not None
        self._inbox = Inbox(subscription.ordered, not reads, subscription.max_bytes, subscription.chunk_limits)
        self._start = subscription.reader_from
        self._epoch = 0
        self._changed = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._chunk_timer: asyncio.TimerHandle | None = None
        self._attachment = Attachment(
            lookup, self, "consumer", topic, consumer_id, lambda at: at.consumers, commands.close_consumer, request_timeout_s
        )
        self._acks = Acknowledger(consumer_id, topic, subscription, self._inbox, self._session, self.redeliver, request_timeout_s)
        self._requests = ConsumerRequests(consumer_id, topic, self._live_session, request_timeout_s)
        self._seeking = False
        self._unsubscribing = False
        self._silence = SilenceWatch(topic, subscription.silence_s, self._listens, self._beyond, self._restart_session)

    # --- receiving --------------------------------------------------------------------------------------------------

    @property
    def waiting(self) -> int:
        """Entries that `receive` would return at once."""
        return len(self._inbox)

    @property
    def held_bytes(self) -> int:
        """Bytes of the entries that wait, and of chunks that wait for the rest of their message."""
        return self._inbox.credit.held + self._inbox.chunks.held_bytes

    async def receive(self) -> Entry:
        """The next entry, unpacked; waits. Raises ClusterError when the consumer has ended."""
        while True:
            entry = self.take()
            if entry is not None:
                return entry
            if self.ended is not None:
                raise self.ended
            await self._wait()

    def take(self) -> Entry | None:
        """The next entry if there is one."""
        entry = self._inbox.take()
        if entry is None:
            return None
        self._acks.handed_over(entry.place)
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
        if not self._inbox and self.ended is None:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._wait(), timeout)

    def wake(self) -> None:
        """Let those who wait look again."""
        self._changed.set()
        if self.on_change is not None:
            self.on_change()

    async def _wait(self) -> None:
        self._changed.clear()
        await self._changed.wait()

    def _grant(self) -> None:
        session = self._attachment.connection
        if session is not None and session.alive:
            permits = self._inbox.credit.grant()
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
                self.at_end = True
                self.wake()
            case BaseCommand.TOPIC_MIGRATED:
                self._attachment.on_migrated(frame.command.topicMigrated)
            case _:
                log.info("%s: the broker closed the consumer, looking for its next owner", self.topic)
                self._attachment.on_closed(frame.command.close_consumer)
                self._leave()
                if not self._seeking and not self._unsubscribing:  # then that is why, and what it is for comes first
                    self._reopen()

    def on_lost(self, error: Exception) -> None:
        """The connection is gone."""
        log.info("%s: the consumer lost its connection (%s), reconnecting", self.topic, error)
        self._leave()
        self._reopen()

    def _on_message(self, frame: Frame) -> None:
        inbox, message = self._inbox, frame.command.message
        before = len(inbox)
        self._silence.heard = True
        entry = decode_entry(frame.data, frame.rest)
        entry.ledger, entry.entry = ids.entry_id(message.message_id)
        entry.partition, entry.redelivery_count = self._partition, message.redelivery_count
        mask = ids.from_words(message.ack_set)
        if mask:
            entry.ack_set = tuple(message.ack_set)
        size = len(frame.data)
        inbox.credit.received(mask.bit_count() if mask else entry.count, size)
        outdated = message.HasField("consumer_epoch") and message.consumer_epoch < self._epoch
        if outdated or self._seeking:
            inbox.credit.handed_over(size)
        else:
            self._acks.unseen(inbox.add(entry, size, self._loop.time()))
            if inbox.chunks and self._chunk_timer is None:
                self._chunk_timer = self._loop.call_later(self.subscription.chunk_limits.expiry_s, self._expire_chunks)
        if len(inbox) == before:
            self._grant()
            return
        self.wake()
        if inbox.credit.overflowed and len(inbox) > 1:
            self._shed()

    def _expire_chunks(self) -> None:
        """Without credit or a session nothing could come: then the chunks that are here are not to blame."""
        inbox, now = self._inbox, self._loop.time()
        self._chunk_timer = None
        if self._attachment.connection is None or inbox.credit.outstanding <= 0:
            inbox.chunks.touch(now)
        self._acks.unseen(inbox.add_joined(inbox.chunks.expire(now)))
        if inbox:
            self.wake()
        if inbox.chunks:
            self._chunk_timer = self._loop.call_later(self.subscription.chunk_limits.expiry_s / 4, self._expire_chunks)

    def _shed(self) -> None:
        """Give everything that waits back to the broker; a new session has no credit that it did not earn."""
        log.warning(
            "%s: %d bytes wait where %d are allowed, subscribing anew", self.topic, self.held_bytes, self.subscription.max_bytes
        )
        self._restart_session()

    def _on_active(self, active: bool) -> None:
        self.active = self._silence.heard = active
        if not active:
            self._inbox.drop()
            self._inbox.handed = self._acks.acked
        self.wake()

    # --- acknowledging ----------------------------------------------------------------------------------------------

    def acknowledge(self, place: EntryId) -> None:
        """This entry, with all of its chunks; for shared subscriptions."""
        self._acks.entry(place)

    def acknowledge_message(self, place: EntryId, index: int, count: int) -> None:
        """Message `index` of the batch of `count` in this entry."""
        self._acks.message(place, index, count)

    def acknowledge_up_to(self, place: EntryId, index: int | None = None, count: int = 1) -> None:
        """This entry and all before it, or its messages up to `index` only; for exclusive and failover subscriptions."""
        self._acks.up_to(place, index, count)

    def flush_acks(self) -> None:
        """Send what is acknowledged now; without a session it waits for the next one."""
        self._acks.flush()

    async def confirm_acks(self) -> None:
        """Send what is acknowledged and wait until the broker has noted it. Raises ClusterError: then it is sent again."""
        await self._acks.confirm(self._live_session())

    def negative_acknowledge(self, place: EntryId, delay_s: float = NEGATIVE_ACK_DELAY_S) -> None:
        """Have this entry delivered again after a delay, as `redeliver` does; counted by the broker on shared subscriptions."""
        self._acks.negative(place, delay_s)

    def redeliver(self, places: Sequence[EntryId] = ()) -> None:
        """Have these entries delivered again; on exclusive and failover subscriptions all that are not acknowledged."""
        self._acks.flush()
        if not self.subscription.ordered:
            self._acks.send_redeliver(places)
            return
        self._inbox.drop()
        self._inbox.handed = self._acks.acked
        self._acks.session_ended()
        self._epoch += 1
        session = self._session()
        if session is not None and session.alive:
            session.endpoint.send(commands.redeliver(self._id, (), self._epoch))
        self._grant()

    # --- positions --------------------------------------------------------------------------------------------------

    async def last_id(self) -> EntryId:
        """The newest entry of the topic, (-1, -1) when there is none. Raises ClusterError."""
        answer = await retrying(self._requests.last, self._request_timeout_s)
        return ids.entry_id(answer.last_message_id)

    async def last_message(self) -> tuple[int, int, int]:
        """The newest message: ledger, entry, and index in the entry's batch, -1 where that is none. Raises ClusterError."""
        last = (await retrying(self._requests.last, self._request_timeout_s)).last_message_id
        return (*ids.entry_id(last), last.batch_index)

    async def has_more(self) -> bool:
        """Whether the topic has entries beyond what was received (or acknowledged before). Raises ClusterError."""
        return bool(self._inbox) or await self._beyond() is not None

    async def _beyond(self) -> EntryId | None:
        """The topic's last entry, if that was not taken (or acknowledged before)."""
        answer = await retrying(self._requests.last, self._request_timeout_s)
        last = ids.entry_id(answer.last_message_id)
        known = max(self._inbox.handed, self._inbox.dropped, self._acks.acked)
        if answer.HasField("consumer_mark_delete_position"):
            known = max(known, ids.entry_id(answer.consumer_mark_delete_position))
        return last if last > known and last[1] >= 0 else None

    def _listens(self) -> bool:
        """Whether all that is not received yet should be on its way."""
        session, inbox = self._session(), self._inbox
        live = session is not None and session.alive and self.active and not self._seeking
        return live and not inbox and not inbox.chunks and inbox.credit.outstanding > 0

    async def seek(self, place: EntryId | None = None, *, publish_time: int | None = None) -> None:
        """Continue with this entry, or with the first one published at that time (ms) or later. Raises ClusterError.

        What is acknowledged and not yet sent is forgotten: it would move the position again.
        """
        self._seeking = True
        try:
            await retrying(lambda: self._requests.seek(place, publish_time), self._request_timeout_s)
        finally:
            self._seeking = False
            self._acks.forget()
            if self._start is not None:
                # The broker keeps the position of a time; should it be lost before anything comes, all comes rather than less.
                self._start = place or ids.EARLIEST
            self._restart_session(self._inbox.forget)

    async def stats(self) -> ConsumerStats:
        """What the broker counts about this consumer. Raises ClusterError."""
        return await retrying(self._requests.stats, self._request_timeout_s)

    async def unsubscribe(self, *, force: bool = False) -> None:
        """Delete the subscription, which ends the consumer. Raises ClusterError: others are subscribed and it is not by force."""
        self._unsubscribing = True
        try:
            await self._requests.unsubscribe(force)
            self.end(ClusterError(f"the subscription {self.subscription.name} of {self.topic} is deleted", Failure.FATAL))
        finally:
            self._unsubscribing = False
            if self._session() is None:
                self._reopen()

    # --- sessions ---------------------------------------------------------------------------------------------------

    async def open(self, timeout: float) -> None:
        """Subscribe for the first time. Raises ClusterError."""
        await retrying(self._attachment.attach, timeout)
        if self.subscription.ordered:
            self._silence.begin()

    def _restart_session(self, forget: Callable[[], None] | None = None) -> None:
        """Subscribe anew. A broker closes the consumer when it seeks; if it did not, no old entry shall slip through."""
        self._attachment.close_first()
        self._leave()
        if forget is not None:
            forget()
        self._reopen()

    def _leave(self) -> None:
        if self._attachment.leave() is not None:
            self._inbox.drop()
        if not self.subscription.ordered:
            self._inbox.handed = ids.EARLIEST
        self._acks.session_ended()

    def _reopen(self) -> None:
        if self.sessions:
            self._attachment.reopen()

    async def register(self, connection: Connection) -> None:
        """SUBSCRIBE."""
        self._inbox.credit.reset()
        start = None if self._start is None else max(self._start, self._inbox.resume_at)
        command = self.subscription.command(self.topic, self._id, start, self._epoch)
        await connection.request(
            lambda request_id: commands.subscribe(request_id, command),
            BaseCommand.SUCCESS,
            f"SUBSCRIBE {self.subscription.name} to {self.topic}",
            self._request_timeout_s,
        )

    def begin(self, connection: Connection) -> None:  # noqa: ARG002 - every role gets it
        """Repeat the acknowledgements and ask for messages."""
        self.sessions += 1
        self._acks.flush()
        self._grant()
        self.wake()

    def gives_up(self, error: ClusterError, delay: float) -> bool:  # noqa: ARG002 - every role gets it
        """Another consumer may hold an exclusive subscription for as long as our old connection is not given up."""
        busy = isinstance(error, ServerRefused) and error.code == codes.CONSUMER_BUSY
        return error.failure is Failure.FATAL and not busy

    def _live_session(self) -> Connection:
        if self.ended is not None:
            raise self.ended
        session = self._session()
        if session is None:
            raise ConnectionLost(f"the consumer of {self.topic} is not connected just now")
        return session

    def _session(self) -> Connection | None:
        return self._attachment.connection

    # --- the end ----------------------------------------------------------------------------------------------------

    @property
    def resumed(self) -> int:
        """How often it was found that the broker had stopped delivering, see `silence`."""
        return self._silence.resumed

    def end(self, error: ClusterError) -> None:
        """Nothing more will come, for this reason."""
        self.ended = error
        self._silence.end()
        self._attachment.ended = True
        self._leave()
        self.wake()

    async def close(self) -> None:
        """Send the acknowledgements and close; what is not acknowledged will be delivered again."""
        if self.closed:
            return
        self.closed = True
        self.flush_acks()
        await self._silence.stop()
        await self._attachment.stop_trying()
        session = self._attachment.connection
        self.end(ClusterError(f"the consumer of {self.topic} is closed", Failure.FATAL))
        self._acks.stop()
        if self._chunk_timer is not None:
            self._chunk_timer.cancel()
        await self._attachment.close(session)
