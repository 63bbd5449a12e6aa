"""Send queue of one partition: messages that wait, are in flight, or have to be retried, in the order of submission.

TubeMQ stores one message per request and has no sequence numbers. A Broker handles the requests of a connection in order. So
accepted requests keep their order with any number in flight, and if a connection is lost, a prefix of them is stored.
But a refusal (419 when memory is full, 503) concerns one request only, and later requests may still be stored. So only with one
request in flight does the order hold across every failure. With more, failed messages are sent again only after all responses
have arrived, and the counter `overtaken` counts messages stored before one that was submitted earlier.

A queue works with callbacks: a message costs one object and no task.
"""

import asyncio
from collections import deque
from operator import attrgetter
from typing import Protocol

from mqbridge.errors import ClusterError, ConnectionLost, Failure, LocalProtocolError, MqbridgeError, ProtocolError
from mqbridge.net.connectivity import Connectivity
from mqbridge.net.tasks import cancel, spawn
from mqbridge.tubemq.client.broker_reconnector import BrokerReconnector, ReconnectContext
from mqbridge.tubemq.client.counters import SendCounters
from mqbridge.tubemq.client.send_result import SendCallback, SenderClosed, SendResult, Withdrawn, failure_of
from mqbridge.tubemq.client.tcp_connection import Response
from mqbridge.tubemq.wire import codes
from mqbridge.tubemq.wire.pb.broker_pb2 import AuthorizedInfo, SendMessageResponseB2P
from mqbridge.tubemq.wire.rpc import SEND, WRITE, parse_flat
from mqbridge.tubemq.wire.send import SendRequestEncoder

WINDOW_BYTES = 8 << 20
"""Maximum bytes in flight on one partition: enough for any round trip, small compared to a Broker's memory."""


class SenderContext(ReconnectContext, Protocol):
    """The part of a sender that its queues need."""

    ordered: bool
    """True if all messages queued after a failed message fail, too."""
    window: int
    """Maximum requests in flight on one partition."""
    max_elapsed_s: float | None
    closing: bool
    counters: SendCounters
    connectivity: Connectivity
    loop: asyncio.AbstractEventLoop

    def encoder_for(self, name: str) -> SendRequestEncoder:
        """Return the encoder of a partition's requests."""

    def is_withdrawn(self, done: SendCallback) -> bool:
        """Return True if the message with this callback is withdrawn: it must not be sent or retried."""

    def settled(self, size: int) -> None:
        """Record that a message of `size` bytes is stored or has failed."""


class _Message:
    """A submitted message. `number` is its sequence number; `failed_at` is the time of its first failure."""

    __slots__ = ("data", "done", "failed_at", "flag", "msg_time", "msg_type", "number", "queue")

    def __init__(
        self,
        queue: "PartitionSendQueue",
        number: int,
        data: bytes,
        flag: int,
        types: tuple[str | None, str | None],
        done: SendCallback,
    ) -> None:
        self.queue, self.number, self.data, self.flag, self.done = queue, number, data, flag, done
        self.msg_type, self.msg_time = types
        self.failed_at: float | None = None

    def answered(self, response: Response) -> None:
        """Callback of the connection with the response, or the error instead of one."""
        self.queue.answered(self, response)


class PartitionSendQueue:
    """Messages in three states: waiting, in flight, and failed: these are retried when no other message is in flight."""

    def __init__(self, sender: SenderContext, name: str) -> None:
        self._sender, self._name = sender, name
        self._waiting: deque[_Message] = deque()
        self._retries: list[_Message] = []
        self._retry_error: MqbridgeError | None = None
        self._in_flight = 0
        self._in_flight_bytes = 0
        self._submitted = 0
        self._recovery: asyncio.Task[None] | None = None
        self._reconnector = BrokerReconnector(sender, name)
        self._encoder = sender.encoder_for(name)
        self._authorized: AuthorizedInfo | None = None
        self._connection = sender.connection_for(name)

    @property
    def idle(self) -> bool:
        """True if nothing is queued or in flight."""
        return not self._waiting and not self._in_flight and not self._retries

    def add(self, data: bytes, flag: int, types: tuple[str | None, str | None], done: SendCallback) -> None:
        """Queue a message, then send as many messages as the window allows."""
        self._submitted += 1
        self._waiting.append(_Message(self, self._submitted, data, flag, types, done))
        self.pump()

    def pump(self) -> None:
        """Send as many messages as the window and the connection allow."""
        sender = self._sender
        while (waiting := self._waiting) and self._in_flight < sender.window and self._recovery is None and not self._retries:
            if self._in_flight and self._in_flight_bytes + len(waiting[0].data) > WINDOW_BYTES:
                return
            if not self._connection.is_writable:
                self._connection.when_writable(self.pump)
                return
            message = waiting.popleft()
            try:
                self._post(message)
            except ConnectionLost:
                self._waiting.appendleft(message)
                self._recover(None)
            except LocalProtocolError as error:
                self._fail(message, error)

    def _post(self, message: _Message) -> None:
        masters = self._sender.routes.masters
        if masters.broker_auth is not self._authorized:
            self._authorized = masters.broker_auth
            self._encoder.authorize(self._authorized)
        request = self._encoder.encode(message.data, message.flag, message.msg_type, message.msg_time)
        self._connection.post(WRITE, SEND, request, message.answered)
        self._in_flight += 1
        self._in_flight_bytes += len(message.data)

    # --- responses --------------------------------------------------------------------------------------------------

    def answered(self, message: _Message, response: Response) -> None:
        """Handle the response to a message: store the result or the error, then send more messages."""
        self._in_flight -= 1
        self._in_flight_bytes -= len(message.data)
        try:
            result = self._read(response)
        except MqbridgeError as error:
            self._failed(message, error)
        else:
            sender, size = self._sender, len(message.data)
            counters = sender.counters
            counters.stored += 1
            counters.stored_bytes += size
            if self._retries:
                counters.overtaken += 1
            elif self._reconnector.is_failing:
                self._reconnector.stored()
            message.done(result)
            sender.settled(size)
        if self._retries and not self._in_flight:
            self._requeue_failed()
        self.pump()

    def _read(self, response: Response) -> SendResult:
        if isinstance(response, Exception):
            raise response
        stored = parse_flat(SendMessageResponseB2P, response)
        if stored.errCode != codes.SUCCESS:
            raise codes.refusal_error(f"a message for {self._sender.topic} partition {self._name}", stored.errCode, stored.errMsg)
        return SendResult(stored.messageId, stored.appendOffset, stored.appendTime)

    def _fail(self, message: _Message, error: MqbridgeError) -> None:
        """Fail a message for good. In an ordered queue all later messages fail, too, unless only this message was refused."""
        self._decide(message, error)
        failure = failure_of(error)
        if self._sender.ordered and failure is not Failure.REFUSED:
            later, self._waiting = self._waiting, deque()
            problem = f"not sent to {self._sender.topic} partition {self._name}, since an earlier one was not stored: {error}"
            for other in later:
                self._decide(other, ClusterError(problem, failure))

    def _decide(self, message: _Message, error: MqbridgeError) -> None:
        self._sender.counters.failed += 1
        message.done(error)
        self._sender.settled(len(message.data))

    def _failed(self, message: _Message, error: MqbridgeError) -> None:
        if self._sender.is_withdrawn(message.done):
            self._decide(message, self._was_withdrawn())
            return
        if self._is_over(message) or failure_of(error) in (Failure.REFUSED, Failure.FATAL):
            self._fail(message, error)
            return
        self._retries.append(message)
        self._retry_error = self._retry_error or error

    def withdraw(self) -> None:
        """Fail withdrawn messages that are not in flight. Those in flight are not retried; other messages are not affected."""
        is_withdrawn = self._sender.is_withdrawn
        withdrawn = [message for message in (*self._retries, *self._waiting) if is_withdrawn(message.done)]
        if not withdrawn:
            return
        self._retries = [message for message in self._retries if not is_withdrawn(message.done)]
        self._waiting = deque(message for message in self._waiting if not is_withdrawn(message.done))
        if not self._retries:
            self._retry_error = None
        for message in withdrawn:
            self._decide(message, self._was_withdrawn())
        self.pump()

    def _was_withdrawn(self) -> Withdrawn:
        return Withdrawn(f"withdrawn before it was stored, as far as known, in {self._sender.topic} partition {self._name}")

    def _is_over(self, message: _Message) -> bool:
        """Return True if a failed message must not be retried any more: its time is over, or the sender is closing."""
        now, limit = self._sender.loop.time(), self._sender.max_elapsed_s
        if message.failed_at is None:
            message.failed_at = now
        return self._sender.closing or (limit is not None and now - message.failed_at >= limit)

    def _requeue_failed(self) -> None:
        """Put failed messages back in front of the queue, in order; called when all responses have arrived."""
        self._retries.sort(key=attrgetter("number"))
        self._waiting.extendleft(reversed(self._retries))
        self._sender.counters.retried += len(self._retries)
        self._sender.connectivity.retries += len(self._retries)
        self._retries.clear()
        error, self._retry_error = self._retry_error, None
        self._recover(error)

    # --- recovery ---------------------------------------------------------------------------------------------------

    def _recover(self, error: MqbridgeError | None) -> None:
        if self._recovery is None:
            self._recovery = spawn(self._reconnect(error), f"tubemq send to {self._sender.topic} {self._name}")

    async def _reconnect(self, error: MqbridgeError | None) -> None:
        """Reconnect until it succeeds or no message waits any more, then send the waiting messages."""
        while self._waiting:
            try:
                self._connection = await self._reconnector.reconnect(error)
            except (ClusterError, ProtocolError) as failed:
                error = failed
                self._fail_expired(failed)
            else:
                break
        self._recovery = None
        self.pump()

    def _fail_expired(self, error: MqbridgeError) -> None:
        """Fail the messages that were retried for too long while there was no connection."""
        remaining: deque[_Message] = deque()
        while self._waiting:
            message = self._waiting.popleft()
            if self._is_over(message):
                self._fail(message, error)
            else:
                remaining.append(message)
        self._waiting = remaining

    async def stop(self) -> None:
        """Stop reconnecting, and fail the messages that are not in flight."""
        await cancel(self._recovery)
        waiting = [*self._retries, *self._waiting]
        self._retries, self._waiting = [], deque()
        for message in waiting:
            self._decide(message, SenderClosed(f"the sender to {self._sender.topic} was closed before this message was sent"))
