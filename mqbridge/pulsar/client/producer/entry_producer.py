"""Producer of one concrete topic (a partition, or an unpartitioned topic): ordered, with many entries in flight, reconnecting.

After a reconnection the producer sends all entries without a receipt again, with the same bytes and the same sequence ids (see
`send_queue.py`). A broker with deduplication drops entries that it has already stored; without it they may be stored twice.

A PRODUCER creates a missing topic, where the broker allows that. So the producer asks for the topic's metadata before each
registration but the first one, and ends if the topic was deleted. A topic may be deleted between the two requests; therefore it
asks again before it sends.

`send` never blocks, and its queue is unbounded: the caller must limit the waiting bytes.
"""

import asyncio
import logging
import time
from collections.abc import Collection

from mqbridge.errors import ClusterError, ConnectionLost, Failure, RequestTimeout, TopicChanged
from mqbridge.net.backoff import Backoff
from mqbridge.net.connectivity import retry_log_level
from mqbridge.net.failing_sends import FailingSends
from mqbridge.net.home_loop import HomeLoop
from mqbridge.net.waiting_sends import Caller
from mqbridge.net.waiting_sends import State as SendState
from mqbridge.pulsar.client.connection.authorization import PRODUCE, explain_topic_denial
from mqbridge.pulsar.client.connection.broker_registration import BrokerRegistration
from mqbridge.pulsar.client.connection.connection import Connection
from mqbridge.pulsar.client.connection.lookup import FIRST_DELAY_S, MAX_DELAY_S, REQUEST_TIMEOUT_S, Lookup
from mqbridge.pulsar.client.producer.pending_entry import MAX_SEQUENCE, PendingEntry, SendResult, StoredEntry, message_count
from mqbridge.pulsar.client.producer.producer_settings import ProducerSettings
from mqbridge.pulsar.client.producer.producer_state import ProducerState, State
from mqbridge.pulsar.client.producer.send_queue import SendQueue
from mqbridge.pulsar.wire import client_commands, codes
from mqbridge.pulsar.wire.frame import Frame
from mqbridge.pulsar.wire.names import parse_topic
from mqbridge.pulsar.wire.pb import PulsarApi_pb2 as pb
from mqbridge.pulsar.wire.pb.PulsarApi_pb2 import BaseCommand, MessageMetadata

log = logging.getLogger(__name__)

OPEN_TIMEOUT_S = 30.0
"""Timeout of the first opening, not counting the wait for exclusive access. Later the producer reconnects without a timeout."""
CLOSE_TIMEOUT_S = 10.0
"""Default time for which `close` waits for receipts."""
EXPIRY_CHECK_S = 0.5
"""Interval between two checks for entries that exceed `ProducerSettings.max_elapsed_s`."""


class EntryProducer:
    """Sends entries to one topic. It starts to open when it is created, which must be inside a running loop."""

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
        self._home = HomeLoop(f"the producer of topic {topic!r}")
        self.topic = topic
        self.settings = settings
        self._id = producer_id
        self._open_timeout_s, self._request_timeout_s = open_timeout_s, request_timeout_s
        state = self._state = ProducerState(settings.name, sole_sender=settings.sole_sender)
        self._send_queue = SendQueue(topic, producer_id, settings)
        self._sends = self._send_queue.sends
        self._lookup = lookup
        self._exclusive_wait: tuple[Connection, int] | None = None
        """Connection and request id of the wait for exclusive access; None if the producer does not wait."""
        self._loop = asyncio.get_running_loop()
        self._opened: asyncio.Future[None] = self._loop.create_future()
        self._deadline = self._loop.time() + open_timeout_s
        """Deadline of the first opening (loop time)."""
        self._expiry_timer: asyncio.TimerHandle | None = None
        self._error_backoff = Backoff(FIRST_DELAY_S, MAX_DELAY_S)
        """Delays before the producer is opened again after temporary SEND_ERRORs; reset by a receipt."""
        self._failing = FailingSends()
        """The temporary SEND_ERRORs since the last receipt."""
        self._registration = BrokerRegistration(
            lookup,
            self,
            what="producer",
            topic=topic,
            key=producer_id,
            table=lambda connection: connection.producers,
            close_command=client_commands.close_producer,
            request_timeout_s=request_timeout_s,
            is_over=lambda: state.link is State.ENDED,
        )
        self._registration.reopen()

    @property
    def name(self) -> str | None:
        """Name of the producer; None until the broker has generated it, if none is configured."""
        return self._state.name

    @property
    def last_sequence_id(self) -> int:
        """The highest sequence id of this producer name that the broker had stored at the first opening; -1 if none."""
        return self._state.last_sequence_id

    @property
    def topic_epoch(self) -> int | None:
        """The number that the broker assigned to this producer's exclusive access; None without exclusive access."""
        return self._state.topic_epoch

    @property
    def registrations(self) -> int:
        """Number of successful registrations at a broker."""
        return self._state.registrations

    @property
    def closed(self) -> bool:
        """True once `close` was called."""
        return self._state.closing

    @property
    def pending(self) -> int:
        """Number of entries that have neither a receipt nor an error."""
        return len(self._send_queue)

    @property
    def failing(self) -> FailingSends:
        """The failures since entries were stored: of sends, or else of the registration."""
        return self._registration.failing if self._failing.failing_since is None else self._failing

    @property
    def is_rejecting(self) -> bool:
        """True while new entries fail because callers do not know yet that an earlier one has; see `fails_in_order`."""
        return self._sends.intake is SendState.REJECTING

    @property
    def duplicates(self) -> int:
        """Number of entries that the broker had already stored."""
        return self._send_queue.duplicates

    @property
    def max_message_size(self) -> int | None:
        """The limit of the present broker for the size of an entry; None while no broker is connected."""
        return self._send_queue.max_message_size

    @property
    def schema_version(self) -> bytes:
        """Version of the producer's schema at the broker; empty without a schema."""
        return self._send_queue.schema_version

    @property
    def awaits_exclusive_access(self) -> bool:
        """True while the producer waits at the broker for exclusive access."""
        return self._state.link is State.WAITING

    async def opened(self) -> None:
        """Wait until a broker has accepted the producer for the first time. Raises the ClusterError that ended the producer."""
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
        divisible: bool = True,
        owner: object = None,
        caller: Caller | None = None,
    ) -> "asyncio.Future[SendResult]":
        """Queue an entry of `count` messages; return a future that is completed with the receipt when the entry is stored.

        The producer sets these fields of `metadata`: name, sequence ids, compression, schema version, and the publish time if it
        is unset. The sequence id of the first message is `sequence_id`, which must be greater than all earlier ones; by default
        (None) the producer counts. The last message has `highest_sequence_id`, by default `sequence_id + count - 1`. `owner` is
        any object by which the caller can `withdraw` the entry. The future that is returned tells the caller the result. If other
        futures do so, `caller` names these, and the owner. `divisible` is False if the caller cannot send several messages in
        smaller entries, because it cannot read them.

        The future fails with a ClusterError: REFUSED if the broker does not accept the entry, RETRY after `max_elapsed_s`, after
        `withdraw`, or if a divisible entry of several messages is too large, FATAL if the producer ends.
        """
        self._home.check()
        future: asyncio.Future[SendResult] = self._loop.create_future()
        if (problem := self._sequence_problem(sequence_id, highest_sequence_id, count)) is not None:
            future.set_exception(ClusterError(problem, Failure.REFUSED))
            return future
        if not metadata.publish_time:
            metadata.publish_time = time.time_ns() // 1_000_000
        if caller is None:
            caller = Caller(owner, None, (future,))
        self._add(PendingEntry(metadata, payload, count, sequence_id, future, caller, highest_sequence_id, divisible=divisible))
        return future

    def send_stored(
        self,
        data: bytes,
        metadata: MessageMetadata,
        payload_size: int,
        sequence_id: int | None = None,
        *,
        highest_sequence_id: int | None = None,
        caller: Caller,
    ) -> "asyncio.Future[SendResult]":
        """Queue an entry that is stored as it is (see `StoredEntry`); return a future that is completed as that of `send`.

        `metadata` are those of the entry, whose last `payload_size` bytes are the payload. The sequence ids are those of `send`;
        they are sent beside the entry.
        """
        self._home.check()
        future: asyncio.Future[SendResult] = self._loop.create_future()
        if (problem := self._sequence_problem(sequence_id, highest_sequence_id, message_count(metadata))) is not None:
            future.set_exception(ClusterError(problem, Failure.REFUSED))
            return future
        self._add(StoredEntry(data, metadata, payload_size, sequence_id, future, caller, highest_sequence_id))
        return future

    def _sequence_problem(self, first: int | None, highest: int | None, count: int) -> str | None:
        """Return why an entry of `count` messages cannot have these sequence ids; None if it can, or if none is given."""
        if first is None:
            return None
        # The ids of the entry's other messages follow the first one; an explicit highest one must not be smaller than it.
        limit = MAX_SEQUENCE + 1 - count if highest is None else highest
        return None if 0 <= first <= limit else f"topic {self.topic}: the sequence id {first} is not within 0 to {limit}"

    def _add(self, pending: PendingEntry) -> None:
        """Queue an entry, unless entries are rejected now."""
        if self._sends.rejection is not None and self._sends.rejects(pending):
            return
        if self.settings.max_elapsed_s is not None:
            pending.added_at = self._loop.time()
            if self._expiry_timer is None:
                self._expiry_timer = self._loop.call_later(EXPIRY_CHECK_S, self._expire)
        self._send_queue.add(pending)

    def withdraw(self, owners: Collection[object]) -> None:
        """Stop sending the entries that were queued with one of these owners, see `SendQueue.withdraw`."""
        self._send_queue.withdraw(owners)

    async def flush(self) -> None:
        """Wait until no entry is pending: each has a receipt or has failed. Entries added during the wait count too."""
        await self._send_queue.wait_until_idle()

    def _expire(self) -> None:
        """Fail the entries that exceed `max_elapsed_s`, and schedule the next check."""
        max_elapsed_s = self.settings.max_elapsed_s
        assert max_elapsed_s is not None  # noqa: S101 - else there is no timer
        self._expiry_timer = None
        error = RequestTimeout(f"the entry was not stored in topic {self.topic} within {max_elapsed_s:g} s")
        self._send_queue.expire(self._loop.time() - max_elapsed_s, error)
        if self.pending:
            self._expiry_timer = self._loop.call_later(EXPIRY_CHECK_S, self._expire)

    # --- commands of the broker -------------------------------------------------------------------------------------

    def on_push(self, frame: Frame) -> None:
        """Process a command of the broker: a receipt, an error, or the end of the registration."""
        match frame.type:
            case BaseCommand.SEND_RECEIPT:
                if self._send_queue.on_receipt(frame.command.send_receipt) and self._error_backoff.has_failed:
                    self._error_backoff.reset()
                    self._failing.clear()
            case BaseCommand.SEND_ERROR:
                if self._state.link is State.REGISTERED:  # else it is of an earlier registration, whose entries are sent again
                    self._on_send_error(frame.command.send_error)
            case BaseCommand.TOPIC_MIGRATED:
                self._registration.on_migrated(frame.command.topicMigrated)
            case _:  # CLOSE_PRODUCER
                log.info("topic %s: the broker closed the producer, looking up the topic's new owner", self.topic)
                self._registration.on_closed(frame.command.close_producer)
                if self._exclusive_wait is not None:
                    connection, request_id = self._exclusive_wait
                    connection.fail_exclusive_wait(
                        request_id,
                        ConnectionLost(
                            f"the broker closed the producer of topic {self.topic}, which waited for exclusive access"
                        ),
                    )
                self._detach()
                self._registration.reopen()

    def on_lost(self, error: Exception) -> None:
        """Register again after the loss of the connection; entries without a receipt will be sent again."""
        log.log(
            retry_log_level(error, logging.INFO),
            "topic %s: the producer lost its connection (%s), reconnecting",
            self.topic,
            error,
        )
        self._detach()
        self._registration.reopen()

    def _on_send_error(self, send_error: pb.CommandSendError) -> None:
        """Send all pending entries again after a temporary error; otherwise fail the refused entry, or end the producer."""
        failure = codes.of(send_error.error).sending
        error = codes.refusal_error(send_error.error, send_error.message, f"sending to {self.topic}")
        if failure is Failure.RETRY:
            level = logging.DEBUG if self._error_backoff.has_failed else logging.WARNING  # one warning until a receipt arrives
            text = "topic %s: opening the producer again and resending its %d pending entries: %s"
            log.log(level, text, self.topic, self.pending, error)
            self._failing.record(error)
            self._registration.close_before_next()
            self._detach()
            self._registration.reopen(self._error_backoff.delay())
        elif failure is Failure.FATAL:
            self.end(error)
        else:
            self._send_queue.refuse(send_error.sequence_id, ClusterError(str(error), failure))

    # --- registration -----------------------------------------------------------------------------------------------

    def _detach(self) -> None:
        self._state.on_detached()
        self._registration.detach()
        self._send_queue.detach()

    async def register(self, connection: Connection) -> None:
        """Send PRODUCER; with the access mode `WaitForExclusive`, wait until no other producer has access."""
        state, queue = self._state, self._send_queue
        checks_topic = state.was_opened or self.settings.is_partition is not None
        if checks_topic:
            await self._check_topic(connection)
        command = self.settings.command(self.topic, self._id, state.name, state.begin_register(), state.topic_epoch)
        with explain_topic_denial("produce to", self.topic, connection.principal, PRODUCE):
            response: pb.CommandProducerSuccess = await connection.request(
                lambda request_id: client_commands.producer(request_id, command),
                BaseCommand.PRODUCER_SUCCESS,
                f"PRODUCER for {self.topic}",
                self._request_timeout_s,
            )
        if state.link is State.DETACHED:
            raise ConnectionLost(f"the broker closed the producer of topic {self.topic} while it was being opened")
        if not response.producer_ready:
            response = await self._wait_for_access(connection, response.request_id)
        if checks_topic:
            try:
                await self._check_topic(connection)
            except ClusterError:
                self._registration.close_before_next(connection)
                raise
        queue.schema_version = response.schema_version
        last = response.last_sequence_id
        queue.reported_sequence = last
        was_opened = state.was_opened
        state.on_response(response, is_own=queue.is_own_sequence(last))
        if not was_opened:
            queue.name, queue.last_stored_sequence = response.producer_name, last
        # Another producer may have used the name meanwhile: a deduplicating broker drops entries up to that producer's last id.
        queue.next_sequence = max(queue.next_sequence, last + 1)

    async def _check_topic(self, connection: Connection) -> None:
        """Raise TopicChanged if a PRODUCER would create the topic, or has created it; see `ProducerSettings.is_partition`."""
        is_partition = self.settings.is_partition
        may_be_created = False
        if is_partition is None:  # only now, because the broker has accepted the name
            is_partition = parse_topic(self.topic).partition_index >= 0
            may_be_created = not is_partition
        await self._lookup.check_exists(self.topic, connection, is_partition=is_partition, may_be_created=may_be_created)

    async def _wait_for_access(self, connection: Connection, request_id: int) -> pb.CommandProducerSuccess:
        """Wait for exclusive access; afterwards the first opening has its whole time again."""
        log.info("topic %s: another producer has exclusive access, waiting until that producer closes", self.topic)
        self._state.on_not_ready()
        self._exclusive_wait = (connection, request_id)
        try:
            return await connection.wait_exclusive_access(request_id)
        finally:
            self._exclusive_wait = None
            self._deadline = self._loop.time() + self._open_timeout_s

    def on_registered(self, connection: Connection) -> None:
        """Send the queued entries over the new connection, or end if another producer used the name of a `sole_sender`."""
        if not self._state.on_registered():
            return
        if self._state.foreign_sequence_id is not None:
            self._registration.close_before_next()  # so that `close` closes this registration at the broker, though none follows
            problem = (
                f"another producer named {self.name!r} has sent to topic {self.topic}, "
                f"up to sequence id {self._state.foreign_sequence_id}: choose another producer name"
            )
            self.end(ClusterError(problem, Failure.FATAL))
            return
        if not self._opened.done():
            self._opened.set_result(None)
        self._send_queue.attach(connection)

    def is_final(self, error: ClusterError, delay: float) -> bool:
        """Return True if the error is FATAL or REFUSED, or if in `delay` seconds the deadline of the first opening will be over.

        With `ProducerSettings.retries_first_opening` there is no such deadline.
        """
        has_deadline = not self._opened.done() and not self.settings.retries_first_opening
        is_late = has_deadline and self._loop.time() + delay > self._deadline
        return is_late or error.failure in (Failure.FATAL, Failure.REFUSED)

    # --- the end ----------------------------------------------------------------------------------------------------

    def end(self, error: ClusterError) -> None:
        """End the producer: fail all pending entries and every later one with this error."""
        if self.settings.is_partition is not None and codes.is_topic_missing(error):
            error = TopicChanged(str(error))
        self._state.on_ended(error)
        self._detach()
        self._registration.failing.clear()  # nothing is retried any more: sends fail with the error
        self._failing.clear()
        if not self._opened.done():
            self._opened.set_exception(error)
            self._opened.exception()  # mark as retrieved: nobody may be waiting for the opening
        self._send_queue.close(error)

    async def close(self, timeout: float = CLOSE_TIMEOUT_S, *, deadline: float | None = None) -> None:
        """Wait for the receipts and close the producer; entries that have no receipt by then fail.

        The wait ends at `deadline` (loop time), or after `timeout` seconds if there is no `deadline`.
        """
        self._state.closing = True
        if deadline is None:
            deadline = self._loop.time() + timeout
        try:
            async with asyncio.timeout_at(deadline):
                await self._send_queue.wait_until_idle()
        except TimeoutError:
            log.warning(
                "topic %s: closing the producer at its deadline; %d entries have no receipt and count as failed",
                self.topic,
                self.pending,
            )
        await self._registration.cancel_attempt()
        if self._expiry_timer is not None:
            self._expiry_timer.cancel()
        connection = self._registration.connection
        self.end(ClusterError(f"the producer of topic {self.topic} is closed", Failure.FATAL))
        await self._registration.close(connection, deadline)
