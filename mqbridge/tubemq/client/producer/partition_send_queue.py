"""Send queue of one partition: messages that wait, are in flight, or have to be retried, in the order of submission.

TubeMQ stores one message per request and has no sequence numbers. A Broker handles the requests of a connection in order. So
accepted messages keep their order, however many requests are in flight, and if a connection is lost, the stored messages are the
first ones of those in flight.

But a refusal (419 when memory is full, 503 while the Broker starts or stops) concerns one request only, and the Broker may still
store later requests. So the order survives every failure only with one request in flight. With more, a failed message waits until
no request is in flight, and is then sent again; the counter `overtaken` counts messages that were stored before such a message,
which was submitted earlier.

A queue works with callbacks, without a task or future per message.
"""

import asyncio
from collections import deque
from operator import attrgetter
from typing import Protocol

from mqbridge.errors import ClusterError, ConnectionLost, Failure, LocalProtocolError, MqbridgeError, ProtocolError
from mqbridge.net.tasks import cancel, spawn
from mqbridge.tubemq.client.connection.counters import SendCounters
from mqbridge.tubemq.client.connection.tcp_connection import Response
from mqbridge.tubemq.client.producer.broker_reconnector import BrokerReconnector, ReconnectContext
from mqbridge.tubemq.client.producer.send_result import SendCallback, SenderClosed, SendResult, Withdrawn, failure_of
from mqbridge.tubemq.wire import codes
from mqbridge.tubemq.wire.pb.broker_pb2 import AuthorizedInfo, SendMessageResponseB2P
from mqbridge.tubemq.wire.rpc import SEND, WRITE, parse_flat
from mqbridge.tubemq.wire.send import SendRequestEncoder

MAX_IN_FLIGHT_BYTES = 8 << 20
"""Maximum bytes in flight on one partition, except for a single larger message.

Enough to keep a long connection busy, and small compared to a Broker's memory.
"""


class SenderContext(ReconnectContext, Protocol):
    """What a send queue needs from its sender."""

    ordered: bool
    """True if all messages that wait behind a failed message fail, too."""
    max_in_flight: int
    """Maximum requests in flight on one partition."""
    max_elapsed_s: float | None
    """How long a message is retried after its first failure; None for ever."""
    closed: bool
    """True once the sender has stopped waiting for pending messages: failed messages are not retried any more."""
    counters: SendCounters
    loop: asyncio.AbstractEventLoop

    def encoder_for(self, name: str) -> SendRequestEncoder:
        """Return the encoder of the requests to the partition with this name."""

    def is_withdrawn(self, done: SendCallback) -> bool:
        """Return True if the caller has withdrawn the message that was submitted with this callback: do not send or retry it."""

    def on_settled(self, size: int) -> None:
        """Record that a message of `size` bytes is stored or has failed."""


class _Message:
    """A submitted message. `number` is its number in its queue, in the order of submission, from 1.

    `failed_at` is the loop time of its first failure; None if it has not failed.
    """

    __slots__ = ("data", "done", "failed_at", "flag", "msg_time", "msg_type", "number", "queue")

    def __init__(
        self,
        queue: "PartitionSendQueue",
        number: int,
        data: bytes,
        flag: int,
        type_and_time: tuple[str | None, str | None],
        done: SendCallback,
    ) -> None:
        self.queue, self.number, self.data, self.flag, self.done = queue, number, data, flag, done
        self.msg_type, self.msg_time = type_and_time
        self.failed_at: float | None = None

    def on_response(self, response: Response) -> None:
        """Pass the response, or the error in its place, to the queue; the connection calls this."""
        self.queue.on_response(self, response)


class PartitionSendQueue:
    """The messages of one partition in three states: waiting, in flight, or failed.

    Failed messages (`_retries`) move to the front of the waiting ones as soon as no message is in flight.
    """

    def __init__(self, sender: SenderContext, partition: str) -> None:
        self._sender, self._partition = sender, partition
        self._waiting: deque[_Message] = deque()
        self._retries: list[_Message] = []
        self._retry_error: MqbridgeError | None = None
        """The error of the first failed message in `_retries`."""
        self._in_flight = 0
        self._in_flight_bytes = 0
        self._submitted = 0
        """Number of messages that were ever submitted to this queue."""
        self._reconnect_task: asyncio.Task[None] | None = None
        self._reconnector = BrokerReconnector(sender, partition)
        self._encoder = sender.encoder_for(partition)
        self._encoded_auth: AuthorizedInfo | None = None
        """The authorization that the encoder writes into requests; None before the first request."""
        self._connection = sender.connection_for(partition)

    @property
    def idle(self) -> bool:
        """True if nothing is queued or in flight."""
        return not self._waiting and not self._in_flight and not self._retries

    def add(self, data: bytes, flag: int, type_and_time: tuple[str | None, str | None], done: SendCallback) -> None:
        """Queue a message, then send as many waiting messages as possible."""
        self._submitted += 1
        self._waiting.append(_Message(self, self._submitted, data, flag, type_and_time, done))
        self.send_waiting()

    def send_waiting(self) -> None:
        """Send waiting messages until a limit is reached: `max_in_flight`, MAX_IN_FLIGHT_BYTES, or a full send buffer.

        Sends nothing during a reconnect, or while failed messages wait for the responses to those in flight.
        """
        max_in_flight = self._sender.max_in_flight
        while (
            (waiting := self._waiting) and self._in_flight < max_in_flight and self._reconnect_task is None and not self._retries
        ):
            if self._in_flight and self._in_flight_bytes + len(waiting[0].data) > MAX_IN_FLIGHT_BYTES:
                return
            if not self._connection.is_writable:
                self._connection.when_writable(self.send_waiting)
                return
            message = waiting.popleft()
            try:
                self._post(message)
            except ConnectionLost:  # there is no connection: the message was not sent
                self._waiting.appendleft(message)
                self._start_reconnecting(None)
            except LocalProtocolError as error:  # the request does not fit into a frame
                self._fail_for_good(message, error)

    def _post(self, message: _Message) -> None:
        masters = self._sender.routes.masters
        if masters.broker_auth is not self._encoded_auth:  # a changed authorization is a new object
            self._encoded_auth = masters.broker_auth
            self._encoder.authorize(self._encoded_auth)
        request = self._encoder.encode(message.data, message.flag, message.msg_type, message.msg_time)
        self._connection.post(WRITE, SEND, request, message.on_response)
        self._in_flight += 1
        self._in_flight_bytes += len(message.data)

    # --- responses --------------------------------------------------------------------------------------------------

    def on_response(self, message: _Message, response: Response) -> None:
        """Handle the response to a message: report the result or handle the error, then send more messages."""
        self._in_flight -= 1
        self._in_flight_bytes -= len(message.data)
        try:
            result = self._parse_response(response)
        except MqbridgeError as error:
            self._on_failure(message, error)
        else:
            sender, size = self._sender, len(message.data)
            counters = sender.counters
            counters.stored += 1
            counters.stored_bytes += size
            if self._retries:  # a message that was sent before this one has failed
                counters.overtaken += 1
            elif self._reconnector.is_failing:  # no message waits for a retry: the outage is over
                self._reconnector.on_stored()
            message.done(result)
            sender.on_settled(size)
        if self._retries and not self._in_flight:
            self._requeue_retries()
        self.send_waiting()

    def _parse_response(self, response: Response) -> SendResult:
        if isinstance(response, Exception):
            raise response
        fields = parse_flat(SendMessageResponseB2P, response)
        if fields.errCode != codes.SUCCESS:
            request = f"a message for topic {self._sender.topic} partition {self._partition}"
            raise codes.refusal_error(request, fields.errCode, fields.errMsg)
        return SendResult(fields.messageId, fields.appendOffset, fields.appendTime)

    def _fail_for_good(self, message: _Message, error: MqbridgeError) -> None:
        """Report a message as failed. In an ordered queue all waiting messages fail, too.

        The exception is a REFUSED message: the error concerns only this message, so the waiting ones are still sent.
        """
        self._report_failure(message, error)
        failure = failure_of(error)
        if self._sender.ordered and failure is not Failure.REFUSED:
            later, self._waiting = self._waiting, deque()
            where = f"topic {self._sender.topic} partition {self._partition}"
            problem = f"not sent to {where}, because an earlier message was not stored: {error}"
            for later_message in later:
                self._report_failure(later_message, ClusterError(problem, failure))

    def _report_failure(self, message: _Message, error: MqbridgeError) -> None:
        self._sender.counters.failed += 1
        message.done(error)
        self._sender.on_settled(len(message.data))

    def _on_failure(self, message: _Message, error: MqbridgeError) -> None:
        """Handle the failure of a request: retry the message later, or report it as failed if a retry is useless or too late."""
        if self._sender.is_withdrawn(message.done):
            self._report_failure(message, self._withdrawn_error())
            return
        if self._must_give_up(message) or failure_of(error) in (Failure.REFUSED, Failure.FATAL):
            self._fail_for_good(message, error)
            return
        self._retries.append(message)
        self._retry_error = self._retry_error or error

    def withdraw(self) -> None:
        """Report withdrawn messages as failed, unless they are in flight: those are not retried if they fail."""
        is_withdrawn = self._sender.is_withdrawn
        withdrawn = [message for message in (*self._retries, *self._waiting) if is_withdrawn(message.done)]
        if not withdrawn:
            return
        self._retries = [message for message in self._retries if not is_withdrawn(message.done)]
        self._waiting = deque(message for message in self._waiting if not is_withdrawn(message.done))
        if not self._retries:
            self._retry_error = None
        for message in withdrawn:
            self._report_failure(message, self._withdrawn_error())
        self.send_waiting()

    def _withdrawn_error(self) -> Withdrawn:
        where = f"topic {self._sender.topic} partition {self._partition}"
        return Withdrawn(f"a message for {where} was withdrawn before the Broker confirmed that it is stored")

    def _must_give_up(self, message: _Message) -> bool:
        """Return True if a failed message must not be retried: `max_elapsed_s` has passed, or the sender is closed.

        Sets `failed_at` at the first failure.
        """
        now, limit = self._sender.loop.time(), self._sender.max_elapsed_s
        if message.failed_at is None:
            message.failed_at = now
        return self._sender.closed or (limit is not None and now - message.failed_at >= limit)

    def _requeue_retries(self) -> None:
        """Move failed messages to the front of the waiting ones, in the order of submission, and reconnect.

        Called when no message is in flight.
        """
        self._retries.sort(key=attrgetter("number"))
        self._waiting.extendleft(reversed(self._retries))
        self._sender.counters.retried += len(self._retries)
        self._sender.connectivity.retries += len(self._retries)
        self._retries.clear()
        error, self._retry_error = self._retry_error, None
        self._start_reconnecting(error)

    # --- recovery ---------------------------------------------------------------------------------------------------

    def _start_reconnecting(self, error: MqbridgeError | None) -> None:
        """Start the task that reconnects, unless it runs; with an `error`, the first attempt follows a backoff delay."""
        if self._reconnect_task is None:
            self._reconnect_task = spawn(self._reconnect(error), f"tubemq send to {self._sender.topic} {self._partition}")

    async def _reconnect(self, error: MqbridgeError | None) -> None:
        """Reconnect until this succeeds or no message waits any more, then send the waiting messages.

        `error` is the failure that led to this; see `BrokerReconnector.reconnect`.
        """
        while self._waiting:
            try:
                self._connection = await self._reconnector.reconnect(error)
            except (ClusterError, ProtocolError) as reconnect_error:
                error = reconnect_error
                self._fail_expired(reconnect_error)
            else:
                break
        self._reconnect_task = None
        self.send_waiting()

    def _fail_expired(self, error: MqbridgeError) -> None:
        """Report waiting messages as failed with this error: those retried for `max_elapsed_s`; all if the sender is closed."""
        remaining: deque[_Message] = deque()
        while self._waiting:
            message = self._waiting.popleft()
            if self._must_give_up(message):
                self._fail_for_good(message, error)
            else:
                remaining.append(message)
        self._waiting = remaining

    async def stop(self) -> None:
        """Stop reconnecting, and report all messages that are not in flight as failed, with SenderClosed."""
        await cancel(self._reconnect_task)
        waiting = [*self._retries, *self._waiting]
        self._retries, self._waiting = [], deque()
        problem = f"the sender to topic {self._sender.topic} was closed before this message was stored"
        for message in waiting:
            self._report_failure(message, SenderClosed(problem))
