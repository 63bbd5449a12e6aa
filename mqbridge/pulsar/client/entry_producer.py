"""A producer of one concrete topic (a partition, or an unpartitioned topic): ordered, many entries in flight, reconnecting.

After a reconnection it sends again what has no receipt, the same bytes under the same sequence ids (see `outbox.py`): a broker
that deduplicates drops what it has already, and one that does not may store it twice.

`send` never blocks and takes whatever it is given: who calls it bounds the bytes that wait.
"""

import asyncio
import logging
import time
from collections.abc import Collection

from mqbridge.errors import ClusterError, ConnectionLost, Failure, RequestTimeout
from mqbridge.net.backoff import Backoff
from mqbridge.net.connectivity import level_of
from mqbridge.pulsar.client.authorization import PRODUCE, explain_topic_denial
from mqbridge.pulsar.client.broker_registration import BrokerRegistration
from mqbridge.pulsar.client.connection import Connection
from mqbridge.pulsar.client.lookup import FIRST_DELAY_S, MOST_DELAY_S, REQUEST_TIMEOUT_S, Lookup
from mqbridge.pulsar.client.pending_entry import PendingEntry, SendReceipt
from mqbridge.pulsar.client.producer_settings import ProducerSettings
from mqbridge.pulsar.client.send_queue import MAX_SEQUENCE, SendQueue
from mqbridge.pulsar.wire import codes, commands
from mqbridge.pulsar.wire.frame import Frame
from mqbridge.pulsar.wire.pb import PulsarApi_pb2 as pb
from mqbridge.pulsar.wire.pb.PulsarApi_pb2 import BaseCommand, MessageMetadata

log = logging.getLogger(__name__)

OPEN_TIMEOUT_S = 30.0
"""Deadline of the first opening, without the wait for exclusive access; later a producer reconnects for as long as it is open."""
CLOSE_TIMEOUT_S = 10.0
EXPIRY_CHECK_S = 0.5


class EntryProducer:
    """Sends entries to one topic; opens itself as soon as it is made. Made inside a running loop."""

    def __init__(
        self,
        lookup: Lookup,
        producer_id: int,
        topic: str,
        settings: ProducerSettings,
        *,
        open_timeout_s: float = OPEN_TIMEOUT_S,
        request_timeout_s: float = REQUEST_TIMEOUT_S,
    ) -> None:
        self.topic = topic
        self.settings = settings
        self.name = settings.name
        self.last_sequence_id = -1
        """The highest sequence id of this producer name that the broker had stored at the first opening."""
        self.topic_epoch: int | None = None
        """Counts the producers that have had exclusive access."""
        self.closed = False
        """True once `close` was called."""
        self.sessions = 0
        """Number of registrations at a broker."""
        self._id = producer_id
        self._open_timeout_s, self._request_timeout_s = open_timeout_s, request_timeout_s
        self._outbox = SendQueue(topic, producer_id, settings)
        self._epoch = -1
        self._in_queue: tuple[Connection, int] | None = None
        """Connection and request with which it waits for exclusive access."""
        self._replaced_at: int | None = None
        """The last sequence id of another producer that used the name, see `ProducerSettings.sole_sender`."""
        self._ended: ClusterError | None = None
        self._failing: ClusterError | None = None
        """Why nothing is taken until all have heard of a failure, see `ProducerSettings.fails_in_order`."""
        self._loop = asyncio.get_running_loop()
        self._opened: asyncio.Future[None] = self._loop.create_future()
        self._deadline = self._loop.time() + open_timeout_s
        self._expiry: asyncio.TimerHandle | None = None
        self._trouble = Backoff(FIRST_DELAY_S, MOST_DELAY_S)
        self._registration = BrokerRegistration(
            lookup, self, "producer", topic, producer_id, lambda at: at.producers, commands.close_producer, request_timeout_s
        )
        self._registration.reopen()

    @property
    def pending(self) -> int:
        """Entries without a receipt."""
        return len(self._outbox)

    @property
    def duplicates(self) -> int:
        """Entries that the broker had stored before."""
        return self._outbox.duplicates

    @property
    def schema_version(self) -> bytes:
        """Version of the producer's schema at the broker; empty without a schema."""
        return self._outbox.schema_version

    @property
    def queued(self) -> bool:
        """True while it waits at the broker for exclusive access."""
        return self._in_queue is not None

    async def opened(self) -> None:
        """Wait until the broker has accepted the producer once. Raises ClusterError if the broker refuses."""
        await asyncio.shield(self._opened)

    # --- sending ----------------------------------------------------------------------------------------------------

    def send(
        self,
        metadata: MessageMetadata,
        payload: bytes,
        count: int = 1,
        sequence_id: int | None = None,
        *,
        highest_sequence_id: int | None = None,
        owner: object = None,
    ) -> "asyncio.Future[SendReceipt]":
        """Send an entry of `count` messages after all before it; the receipt comes when it is stored.

        Fills producer name, sequence ids, compression, schema version, and the publish time when it is unset. A `sequence_id` of
        the caller's must be above all that were used; its last message has the `highest_sequence_id`, or one that counts on. The
        future fails with ClusterError: REFUSED for what the broker does not take, RETRY after `max_elapsed_s` or when its `owner`
        withdraws it, FATAL when the producer cannot go on.
        """
        future: asyncio.Future[SendReceipt] = self._loop.create_future()
        error = self._ended or self._failing
        highest = highest_sequence_id
        if sequence_id is not None and not 0 <= sequence_id <= (MAX_SEQUENCE + 1 - count if highest is None else highest):
            error = ClusterError(f"the sequence id {sequence_id} is not within 0 to {MAX_SEQUENCE}", Failure.REFUSED)
        if error is not None:
            future.set_exception(error)
            return future
        if not metadata.publish_time:
            metadata.publish_time = time.time_ns() // 1_000_000
        sending = PendingEntry(metadata, payload, count, sequence_id, future, owner, highest)
        if self.settings.max_elapsed_s is not None:
            sending.since = self._loop.time()
            if self._expiry is None:
                self._expiry = self._loop.call_later(EXPIRY_CHECK_S, self._expire)
        self._outbox.add(sending)
        return future

    def withdraw(self, owners: Collection[object]) -> None:
        """Send nothing more of these owners: what is on the wire stays there, and is not sent again when its session ends."""
        self._outbox.withdraw(owners)

    async def flush(self) -> None:
        """Wait until everything sent so far and since then has its receipt, or has failed."""
        await self._outbox.idle.wait()

    def _expire(self) -> None:
        patience = self.settings.max_elapsed_s
        assert patience is not None  # noqa: S101 - or there is no timer
        self._expiry = None
        error = RequestTimeout(f"not stored in {self.topic} within {patience:g} s")
        if self._outbox.expire(self._loop.time() - patience, error) and self.settings.fails_in_order:
            self._failing = error
            # The sender hears of it by the callbacks of callbacks; what it sends before that is behind what failed, too.
            self._loop.call_soon(self._loop.call_soon, self._loop.call_soon, self._end_failing)
        if self.pending:
            self._expiry = self._loop.call_later(EXPIRY_CHECK_S, self._expire)

    def _end_failing(self) -> None:
        self._failing = None

    # --- from the broker --------------------------------------------------------------------------------------------

    def on_push(self, frame: Frame) -> None:
        """Handle a receipt, an error, or the end of the registration."""
        match frame.type:
            case BaseCommand.SEND_RECEIPT:
                if self._outbox.on_receipt(frame.command.send_receipt) and self._trouble.begun:
                    self._trouble.reset()
            case BaseCommand.SEND_ERROR:
                self._on_send_error(frame.command.send_error)
            case BaseCommand.TOPIC_MIGRATED:
                self._registration.on_migrated(frame.command.topicMigrated)
            case _:
                log.info("%s: the broker closed the producer, looking for its next owner", self.topic)
                self._registration.on_closed(frame.command.close_producer)
                if self._in_queue is not None:
                    connection, request_id = self._in_queue
                    connection.stop_queueing(
                        request_id, ConnectionLost(f"the broker closed the waiting producer of {self.topic}")
                    )
                self._leave()
                self._registration.reopen()

    def on_lost(self, error: Exception) -> None:
        """The connection is lost: send again over the next one."""
        log.log(level_of(error, logging.INFO), "%s: the producer lost its connection (%s), reconnecting", self.topic, error)
        self._leave()
        self._registration.reopen()

    def _on_send_error(self, said: pb.CommandSendError) -> None:
        failure = codes.of(said.error).sending
        error = codes.refused(said.error, said.message, f"sending to {self.topic}")
        if failure is Failure.RETRY:
            log.warning("%s: opening the producer again and repeating what has no receipt, of %d entries", error, self.pending)
            self._registration.close_first()
            self._leave()
            self._registration.reopen(self._trouble.delay())
        elif failure is Failure.FATAL:
            self.end(error)
        else:
            self._outbox.refuse(said.sequence_id, ClusterError(str(error), failure))

    # --- sessions ---------------------------------------------------------------------------------------------------

    def _leave(self) -> None:
        self._registration.leave()
        self._outbox.detach()

    async def register(self, connection: Connection) -> None:
        """Send PRODUCER; if another producer has exclusive access, wait for it where the access mode says so."""
        self._epoch += 1
        command = self.settings.command(self.topic, self._id, self.name, self._epoch, self.topic_epoch)
        with explain_topic_denial("produce to", self.topic, connection.principal, PRODUCE):
            answer: pb.CommandProducerSuccess = await connection.request(
                lambda request_id: commands.producer(request_id, command),
                BaseCommand.PRODUCER_SUCCESS,
                f"PRODUCER for {self.topic}",
                self._request_timeout_s,
            )
        if not answer.producer_ready:
            answer = await self._wait_for_access(connection, answer.request_id)
        if answer.HasField("topic_epoch"):
            self.topic_epoch = answer.topic_epoch
        self._outbox.schema_version = answer.schema_version
        if not self._opened.done():
            self.name = self._outbox.name = answer.producer_name
            self.last_sequence_id = self._outbox.answered = answer.last_sequence_id
        elif self.settings.sole_sender and not self._outbox.may_end_at(answer.last_sequence_id):
            self._replaced_at = answer.last_sequence_id
        # Somebody else may have used the name meanwhile: what is at or below this is a repetition to a broker that deduplicates.
        self._outbox.next_sequence = max(self._outbox.next_sequence, answer.last_sequence_id + 1)

    async def _wait_for_access(self, connection: Connection, request_id: int) -> pb.CommandProducerSuccess:
        log.info("%s: another producer has exclusive access, waiting", self.topic)
        self._in_queue = (connection, request_id)
        try:
            return await connection.exclusive_access(request_id)
        finally:
            self._in_queue = None
            self._deadline = self._loop.time() + self._open_timeout_s

    def begin(self, connection: Connection) -> None:
        """Send the waiting entries."""
        self.sessions += 1
        if self._replaced_at is not None:
            self._registration.close_first()
            problem = f"somebody else has sent as {self.name!r} into {self.topic}, up to sequence id {self._replaced_at}"
            self.end(ClusterError(problem, Failure.FATAL))
            return
        if not self._opened.done():
            self._opened.set_result(None)
        self._outbox.attach(connection)

    def gives_up(self, error: ClusterError, delay: float) -> bool:
        """At once where it will never be let in; for the first time also after a while, unless it is patient."""
        patient = self._opened.done() or self.settings.retries_first_opening
        late = not patient and self._loop.time() + delay > self._deadline
        return late or error.failure in (Failure.FATAL, Failure.REFUSED)

    # --- the end ----------------------------------------------------------------------------------------------------

    def end(self, error: ClusterError) -> None:
        """Fail all pending entries and every later one with this error."""
        self._ended = error
        self._registration.ended = True
        self._leave()
        if not self._opened.done():
            self._opened.set_exception(error)
            self._opened.exception()  # perhaps only the sends are waited for
        self._outbox.fail_all(error)

    async def close(self, timeout: float = CLOSE_TIMEOUT_S, *, deadline: float | None = None) -> None:
        """Wait for the receipts, at most `timeout` seconds or until `deadline` (loop time), and close; the rest fails."""
        self.closed = True
        if deadline is None:
            deadline = self._loop.time() + timeout
        try:
            async with asyncio.timeout_at(deadline):
                await self._outbox.idle.wait()
        except TimeoutError:
            log.warning("%s: closed with %d entries that have no receipt", self.topic, self.pending)
        await self._registration.stop_trying()
        if self._expiry is not None:
            self._expiry.cancel()
        session = self._registration.connection
        self.end(ClusterError(f"the producer of {self.topic} is closed", Failure.FATAL))
        await self._registration.close(session, deadline)
