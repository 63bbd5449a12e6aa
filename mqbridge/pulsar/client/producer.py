"""A producer of one topic (a partition, or a topic without): ordered, many in flight, over any number of reconnections.

Entries wait in `_queue`, then in `_flight` until their receipts, which come in the order of sending. When the session ends, what
was in flight goes back to the front of the queue, and the next session sends the same bytes under the same sequence ids: a broker
that deduplicates drops what it has already, and one that does not may store it twice.

`send` never blocks and takes whatever it is given: who calls it bounds the bytes that wait.
"""

import asyncio
import logging
import time
from collections import deque

from mqbridge.errors import ClusterError, ConnectionLost, Failure, MqbridgeError, RemoteProtocolError, RequestTimeout
from mqbridge.net.backoff import Backoff
from mqbridge.net.tasks import cancel, spawn
from mqbridge.pulsar.client.connection import Connection
from mqbridge.pulsar.client.lookup import FIRST_DELAY_S, MOST_DELAY_S, REQUEST_TIMEOUT_S, Lookup
from mqbridge.pulsar.client.sending import Sending, SendReceipt
from mqbridge.pulsar.wire import codes, commands
from mqbridge.pulsar.wire.entry import SendEncoder
from mqbridge.pulsar.wire.frame import Frame
from mqbridge.pulsar.wire.ids import signed
from mqbridge.pulsar.wire.pb import PulsarApi_pb2 as pb
from mqbridge.pulsar.wire.pb.PulsarApi_pb2 import BaseCommand, MessageMetadata

log = logging.getLogger(__name__)

OPEN_TIMEOUT_S = 30.0
"""How long the first opening may take; after it has succeeded once, a producer reconnects for as long as it is open."""
CLOSE_TIMEOUT_S = 10.0
EXPIRY_CHECK_S = 0.5


class Producer:
    """Sends entries to one topic; opens itself as soon as it is made. Made inside a running loop."""

    def __init__(
        self,
        lookup: Lookup,
        producer_id: int,
        topic: str,
        *,
        name: str | None = None,
        codec: int = pb.NONE,
        max_elapsed_s: float | None = None,
        open_timeout_s: float = OPEN_TIMEOUT_S,
        request_timeout_s: float = REQUEST_TIMEOUT_S,
    ) -> None:
        self.topic = topic
        self.name = name
        self.last_sequence_id = -1
        """The highest of this producer name that the broker had stored when it was opened first."""
        self.duplicates = 0
        """Entries that the broker had already."""
        self._lookup = lookup
        self._id = producer_id
        self._user_named = name is not None
        self._codec = codec
        self._max_elapsed_s, self._open_timeout_s, self._request_timeout_s = max_elapsed_s, open_timeout_s, request_timeout_s
        self._encoder = SendEncoder(producer_id)
        self._queue: deque[Sending] = deque()
        self._flight: deque[Sending] = deque()
        self._flight_bytes = 0
        self._next_sequence = 0
        self._epoch = -1
        self._session: Connection | None = None
        self._to_close: Connection | None = None
        """Where the next session must close the last one before it begins."""
        self._ended: ClusterError | None = None
        self._loop = asyncio.get_running_loop()
        self._opened: asyncio.Future[None] = self._loop.create_future()
        self._idle = asyncio.Event()
        self._idle.set()
        self._expiry: asyncio.TimerHandle | None = None
        self._trouble = Backoff(FIRST_DELAY_S, MOST_DELAY_S)
        self._opening: asyncio.Task[None] | None = spawn(self._open(), f"open producer {topic}")

    @property
    def pending(self) -> int:
        """Entries without a receipt."""
        return len(self._queue) + len(self._flight)

    async def opened(self) -> None:
        """Wait until the broker has accepted the producer once. Raises ClusterError when it will not."""
        await asyncio.shield(self._opened)

    # --- sending ----------------------------------------------------------------------------------------------------

    def send(
        self, metadata: MessageMetadata, payload: bytes, count: int = 1, sequence_id: int | None = None
    ) -> "asyncio.Future[SendReceipt]":
        """Send an entry of `count` messages after all before it; the receipt comes when it is stored.

        Fills producer name, sequence ids, compression, and the publish time when it is unset. A `sequence_id` of the caller's
        must be above all that were used. The future fails with ClusterError: REFUSED for what the broker does not take,
        RETRY after `max_elapsed_s`, FATAL when the producer cannot go on.
        """
        future: asyncio.Future[SendReceipt] = self._loop.create_future()
        if self._ended is not None:
            future.set_exception(self._ended)
            return future
        if not metadata.publish_time:
            metadata.publish_time = time.time_ns() // 1_000_000
        sending = Sending(metadata, payload, count, sequence_id, future)
        self._queue.append(sending)
        self._idle.clear()
        if self._max_elapsed_s is not None:
            sending.since = self._loop.time()
            if self._expiry is None:
                self._expiry = self._loop.call_later(EXPIRY_CHECK_S, self._expire)
        if self._session is not None:
            self._pump()
        return future

    def _pump(self) -> None:
        """Move from the queue to the flight what the connection has room for."""
        session, queue = self._session, self._queue
        while queue and session is not None and session.alive:
            sending = queue[0]
            if not sending.head and not self._encode(sending, session.max_message_size):
                queue.popleft()
                continue
            if not session.window.take(sending.size, self._pump):
                return
            queue.popleft()
            self._flight.append(sending)
            self._flight_bytes += sending.size
            session.endpoint.send(sending.head, sending.payload)
        self._settle()

    def _encode(self, sending: Sending, max_message_size: int) -> bool:
        """Give it its sequence ids and its bytes; False when it has failed."""
        if sending.sequence < 0:
            sending.sequence = self._next_sequence
        sending.highest = sending.sequence + sending.count - 1
        metadata = sending.metadata
        metadata.producer_name = self.name or ""
        metadata.sequence_id = sending.sequence
        if sending.highest > sending.sequence:
            metadata.highest_sequence_id = sending.highest
        try:
            sending.encode(self._encoder, self._codec, max_message_size)
        except ClusterError as error:
            sending.fail(error)
            return False
        self._next_sequence = sending.highest + 1
        return True

    def _settle(self) -> None:
        if not self._queue and not self._flight:
            self._idle.set()

    def _expire(self) -> None:
        """Fail what has waited too long, oldest first. It may be stored nevertheless, when it was in flight."""
        assert self._max_elapsed_s is not None  # noqa: S101 - or there is no timer
        self._expiry = None
        deadline = self._loop.time() - self._max_elapsed_s
        error = RequestTimeout(f"not stored in {self.topic} within {self._max_elapsed_s:g} s")
        while self._flight and self._flight[0].since <= deadline:
            self._land().fail(error)
        while not self._flight and self._queue and self._queue[0].since <= deadline:
            self._queue.popleft().fail(error)
        if self.pending:
            self._expiry = self._loop.call_later(EXPIRY_CHECK_S, self._expire)
        self._settle()

    def _land(self) -> Sending:
        """Take the oldest one out of the flight."""
        sending = self._flight.popleft()
        self._flight_bytes -= sending.size
        if self._session is not None:
            self._session.window.give(1, sending.size)
        return sending

    # --- what the broker says ---------------------------------------------------------------------------------------

    def on_push(self, frame: Frame) -> None:
        """A receipt, an error, or the end of the session."""
        match frame.type:
            case BaseCommand.SEND_RECEIPT:
                self._on_receipt(frame.command.send_receipt)
            case BaseCommand.SEND_ERROR:
                self._on_send_error(frame.command.send_error)
            case _:
                log.info("%s: the broker closed the producer, looking up again", self.topic)
                self._leave_session()
                self._reopen()

    def on_lost(self, error: Exception) -> None:
        """The connection is gone: send again over the next one."""
        log.info("%s: the producer lost its connection (%s), reconnecting", self.topic, error)
        self._leave_session()
        self._reopen()

    def _on_receipt(self, receipt: pb.CommandSendReceipt) -> None:
        flight = self._flight
        if not flight or receipt.sequence_id < flight[0].sequence:
            return  # of something that was given up, or that was sent twice
        if receipt.sequence_id != flight[0].sequence:
            expected = flight[0].sequence
            raise RemoteProtocolError(f"a receipt for sequence id {receipt.sequence_id} of {self.topic} where {expected} is due")
        sending = self._land()
        self._trouble.reset()
        ledger, entry = signed(receipt.message_id.ledgerId), signed(receipt.message_id.entryId)
        duplicate = ledger == entry == -1
        self.duplicates += duplicate
        if not sending.future.done():
            sending.future.set_result(SendReceipt(ledger, entry, duplicate))
        if not flight:
            self._settle()

    def _on_send_error(self, said: pb.CommandSendError) -> None:
        failure = codes.SEND_FAILURES.get(said.error)
        error = codes.refused(said.error, said.message, f"sending to {self.topic}")
        if failure is None:
            log.warning("%s: opening the producer again and repeating %d entries", error, len(self._flight))
            self._to_close = self._session
            self._leave_session()
            self._reopen(self._trouble.delay())
        elif failure is Failure.FATAL:
            self._end(error)
        else:
            self._refuse(said.sequence_id, ClusterError(str(error), failure))

    def _refuse(self, sequence: int, error: ClusterError) -> None:
        """One entry will never be stored. The broker names it by its highest sequence id."""
        for sending in self._flight:
            if sequence in (sending.sequence, sending.highest):
                self._flight.remove(sending)
                self._flight_bytes -= sending.size
                if self._session is not None:
                    self._session.window.give(1, sending.size)
                sending.fail(error)
                break
        self._settle()

    # --- sessions ---------------------------------------------------------------------------------------------------

    def _leave_session(self) -> None:
        """Forget the session; what was in flight goes back to the front of the queue."""
        session, self._session = self._session, None
        if session is None:
            return
        sends, size = len(self._flight), self._flight_bytes
        self._queue.extendleft(reversed(self._flight))
        self._flight.clear()
        self._flight_bytes = 0
        if session.producers.get(self._id) is self:
            del session.producers[self._id]
        session.window.give(sends, size)

    def _reopen(self, delay: float = 0.0) -> None:
        if self._ended is None and self._opening is None:
            self._opening = spawn(self._open(delay), f"open producer {self.topic}")

    async def _open(self, delay: float = 0.0) -> None:
        """Open until it succeeds, fails for good, or (the first time) takes too long."""
        await asyncio.sleep(delay)
        to_close, self._to_close = self._to_close, None
        if to_close is not None and to_close.alive:
            await self._close_at(to_close)
        backoff = Backoff(FIRST_DELAY_S, MOST_DELAY_S)
        deadline = self._loop.time() + self._open_timeout_s
        while self._ended is None:
            try:
                session = await self._register()
            except ClusterError as error:
                delay = backoff.delay()
                late = not self._opened.done() and self._loop.time() + delay > deadline
                if late or error.failure in (Failure.FATAL, Failure.REFUSED):
                    self._opening = None
                    self._end(ClusterError(f"no producer for {self.topic}: {error}", Failure.FATAL))
                    return
                log.info("%s: %s; trying again in %.1f s", self.topic, error, delay)
                await asyncio.sleep(delay)
            else:
                self._opening = None
                self._start(session)
                return

    async def _register(self) -> Connection:
        """Look up the owner and make the producer known to it."""
        connection = await self._lookup.owner(self.topic)
        self._epoch += 1
        connection.producers[self._id] = self
        try:
            answer: pb.CommandProducerSuccess = await connection.request(
                lambda request_id: commands.producer(
                    request_id, self._id, self.topic, name=self.name, user_named=self._user_named, epoch=self._epoch
                ),
                BaseCommand.PRODUCER_SUCCESS,
                f"PRODUCER for {self.topic}",
                self._request_timeout_s,
            )
        except MqbridgeError:
            connection.producers.pop(self._id, None)
            raise
        if connection.producers.get(self._id) is not self:
            raise ConnectionLost(f"the broker closed the producer of {self.topic} while it was being opened")
        if not self._opened.done():
            self.name = answer.producer_name
            self.last_sequence_id = answer.last_sequence_id
            self._next_sequence = answer.last_sequence_id + 1
        return connection

    def _start(self, session: Connection) -> None:
        self._session = session
        if not self._opened.done():
            self._opened.set_result(None)
        self._pump()

    # --- the end ----------------------------------------------------------------------------------------------------

    def _end(self, error: ClusterError) -> None:
        """Nothing more will be sent, for this reason."""
        self._ended = error
        self._leave_session()
        if not self._opened.done():
            self._opened.set_exception(error)
            self._opened.exception()  # perhaps only the sends are waited for
        while self._queue:
            self._queue.popleft().fail(error)
        self._settle()

    async def close(self, timeout: float = CLOSE_TIMEOUT_S) -> None:
        """Wait for the receipts, at most `timeout` seconds, and close; what has none by then fails."""
        try:
            async with asyncio.timeout(timeout):
                await self._idle.wait()
        except TimeoutError:
            log.warning("%s: closed with %d entries that have no receipt", self.topic, self.pending)
        await cancel(self._opening)
        if self._expiry is not None:
            self._expiry.cancel()
        session = self._session
        self._end(ClusterError(f"the producer of {self.topic} is closed", Failure.FATAL))
        if session is not None and session.alive:
            await self._close_at(session)

    async def _close_at(self, session: Connection) -> None:
        try:
            await session.request(
                lambda request_id: commands.close_producer(request_id, self._id),
                BaseCommand.SUCCESS,
                f"CLOSE_PRODUCER for {self.topic}",
                self._request_timeout_s,
            )
        except ClusterError as error:
            log.info("%s: closing the producer: %s", self.topic, error)
