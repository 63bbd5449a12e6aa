"""Send queue of one partition: messages that wait, are in flight, or have to be retried, in the order of submission.

TubeMQ stores one message per request and has no sequence numbers. A Broker handles the requests of a connection in order. So
accepted messages keep their order, however many requests are in flight, and if a connection is lost, the stored messages are the
first ones of those in flight.

But a refusal (419 when memory is full, 503 while the Broker starts or stops) concerns one request only, and the Broker may still
store later requests. So the order survives every failure only with one request in flight. With more, a failed message waits until
no request is in flight, and is then sent again; the counter `overtaken` counts messages that were stored before such a message,
which was submitted earlier.

A queue works with callbacks, without a task or future per message. Its states are those of its `WaitingSends`.
"""

import asyncio
from collections.abc import Collection
from operator import attrgetter
from typing import Protocol

from mqbridge.errors import ClusterError, ConnectionLost, Failure, LocalProtocolError, MqbridgeError, TopicChanged
from mqbridge.net.failing_sends import FailingSends
from mqbridge.net.send_recovery import SendRecovery
from mqbridge.net.waiting_sends import SENDING, Caller, WaitingSends
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

    def on_settled(self, size: int) -> None:
        """Record that a message of `size` bytes is stored or has failed."""


class _Message:
    """A submitted message. `number` is its number in its queue, in the order of submission, from 1.

    `failed_at` is the loop time of its first failure; None if it has not failed. `caller` and `withdrawn` are those of
    `waiting_sends.Send`.
    """

    __slots__ = ("caller", "data", "done", "failed_at", "flag", "msg_time", "msg_type", "number", "queue", "withdrawn")

    def __init__(
        self,
        queue: "PartitionSendQueue",
        number: int,
        data: bytes,
        flag: int,
        msg_type: str | None,
        msg_time: str | None,
        done: SendCallback,
        caller: Caller,
    ) -> None:
        self.queue, self.number = queue, number
        self.data, self.flag = data, flag
        self.msg_type, self.msg_time = msg_type, msg_time
        self.done, self.caller = done, caller
        self.failed_at: float | None = None
        self.withdrawn = False

    def on_response(self, response: Response) -> None:
        """Pass the response, or the error in its place, to the queue; the connection calls this."""
        self.queue.on_response(self, response)

    def fail(self, error: MqbridgeError) -> None:
        """Report the failure to the caller and to the sender."""
        self.queue.report_failure(self, error)


class PartitionSendQueue:
    """The messages of one partition in three states: waiting, in flight, or failed.

    Failed messages (`_retries`) move to the front of the waiting ones as soon as no message is in flight.
    """

    def __init__(self, sender: SenderContext, partition: str) -> None:
        self._sender, self._partition = sender, partition
        self._route = sender.route
        self._max_in_flight = sender.max_in_flight
        self._sends: WaitingSends[_Message] = WaitingSends(in_order=sender.ordered)
        self._waiting = self._sends.waiting
        self._retries: list[_Message] = []
        self._retry_error: MqbridgeError | None = None
        """The error of the first failed message in `_retries`."""
        self._in_flight: set[_Message] = set()
        self._in_flight_bytes = 0
        self._submitted = 0
        """Number of messages that were ever submitted to this queue."""
        self._reconnector = BrokerReconnector(sender, partition)
        self._recovery = SendRecovery(
            self._sends,
            f"tubemq send to {sender.topic} {partition}",
            connect=self._reconnect,
            on_error=self._fail_expired,
            send=self.send_waiting,
        )
        self._encoder = sender.encoder_for(partition)
        self._encoded_auth: AuthorizedInfo | None = None
        """The authorization that the encoder writes into requests; None before the first request."""
        self._connection = sender.connection_for(partition)

    @property
    def failing(self) -> FailingSends:
        """The failures since a message was stored."""
        return self._reconnector.failing

    def add(
        self,
        data: bytes,
        flag: int,
        msg_type: str | None,
        msg_time: str | None,
        done: SendCallback,
        caller: Caller,
    ) -> None:
        """Queue a message and send as many waiting messages as possible, or let it fail while new messages are rejected."""
        self._submitted += 1
        message = _Message(self, self._submitted, data, flag, msg_type, msg_time, done, caller)
        if self._sends.rejection is not None and self._sends.rejects(message):
            return
        self._waiting.append(message)
        self.send_waiting()

    def send_waiting(self) -> None:
        """Send waiting messages until a limit is reached: `max_in_flight`, MAX_IN_FLIGHT_BYTES, or a full send buffer.

        Sends nothing during a reconnect, while failed messages wait for the responses to those in flight, or while the Master
        does not list the partition.
        """
        waiting, in_flight = self._waiting, self._in_flight
        if self._route.unlisted and (closed := self._reconnector.why_closed) is not None:
            if waiting and not in_flight:
                self._recovery.start(closed)
            return
        while waiting and len(in_flight) < self._max_in_flight and self._sends.link is SENDING and not self._retries:
            if in_flight and self._in_flight_bytes + len(waiting[0].data) > MAX_IN_FLIGHT_BYTES:
                return
            if not self._connection.is_writable:
                self._connection.when_writable(self.send_waiting)
                return
            message = waiting.popleft()
            try:
                self._post(message)
            except ConnectionLost:  # there is no connection: the message was not sent
                waiting.appendleft(message)
                self._recovery.start(None)
            except LocalProtocolError as error:  # the request does not fit into a frame
                self._fail_for_good(message, error)

    def _post(self, message: _Message) -> None:
        masters = self._sender.routes.masters
        if masters.broker_auth is not self._encoded_auth:  # a changed authorization is a new object
            self._encoded_auth = masters.broker_auth
            self._encoder.authorize(self._encoded_auth)
        request = self._encoder.encode(message.data, message.flag, message.msg_type, message.msg_time)
        self._connection.post(WRITE, SEND, request, message.on_response)
        self._in_flight.add(message)
        self._in_flight_bytes += len(message.data)

    # --- responses --------------------------------------------------------------------------------------------------

    def on_response(self, message: _Message, response: Response) -> None:
        """Handle the response to a message: report the result or handle the error, then send more messages."""
        sender, size = self._sender, len(message.data)
        self._in_flight.discard(message)
        self._in_flight_bytes -= size
        try:
            result = self._parse_response(response)
        except MqbridgeError as error:
            self._on_failure(message, error)
        else:
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
        failure = failure_of(error)
        if self._sends.in_order and failure is not Failure.REFUSED:
            where = f"topic {self._sender.topic} partition {self._partition}"
            problem = f"not sent to {where}, because an earlier message was not stored: {error}"
            self._sends.fail([message], error, ClusterError(problem, failure))
        else:
            message.fail(error)

    def report_failure(self, message: _Message, error: MqbridgeError) -> None:
        """Report a message as failed to its caller and to the sender (`_Message.fail` calls this)."""
        self._sender.counters.failed += 1
        message.done(error)
        self._sender.on_settled(len(message.data))

    def _on_failure(self, message: _Message, error: MqbridgeError) -> None:
        """Handle the failure of a request: retry the message later, or report it as failed if a retry is useless or too late."""
        if message.withdrawn:
            message.fail(self._withdrawn_error())
            return
        if self._must_give_up(message) or failure_of(error) in (Failure.REFUSED, Failure.FATAL):
            self._fail_for_good(message, error)
            return
        self._retries.append(message)
        self._retry_error = self._retry_error or error

    def withdraw(self, owners: Collection[object]) -> None:
        """Report the messages of these owners as failed, unless they are in flight: those are not retried if they fail."""
        error = self._withdrawn_error()
        withdrawn = [message for message in self._retries if message.caller.owner in owners]
        if withdrawn:
            self._retries = [message for message in self._retries if message.caller.owner not in owners]
            if not self._retries:
                self._retry_error = None
            for message in withdrawn:
                message.fail(error)
        self._sends.withdraw(owners, self._in_flight, error)
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
        self._sends.put_back(self._retries)
        self._sender.counters.retried += len(self._retries)
        self._sender.connectivity.retries += len(self._retries)
        self._retries.clear()
        error, self._retry_error = self._retry_error, None
        self._recovery.start(error)

    # --- recovery ---------------------------------------------------------------------------------------------------

    async def _reconnect(self, error: MqbridgeError | None) -> None:
        """Reconnect once; see `BrokerReconnector.reconnect`."""
        self._connection = await self._reconnector.reconnect(error)

    def _fail_expired(self, error: MqbridgeError) -> None:
        """Report waiting messages as failed with this error: those retried for `max_elapsed_s`.

        All of them if the sender is closed, or the topic was deleted.
        """
        remaining: list[_Message] = []
        while self._waiting:
            message = self._waiting.popleft()
            if self._must_give_up(message) or isinstance(error, TopicChanged):
                self._fail_for_good(message, error)
            else:
                remaining.append(message)
        self._sends.put_back(remaining)

    async def stop(self) -> None:
        """Stop reconnecting, and report all messages that are not in flight as failed, with SenderClosed."""
        error = SenderClosed(f"the sender to topic {self._sender.topic} was closed before this message was stored")
        retries, self._retries = self._retries, []
        for message in retries:
            message.fail(error)
        self._sends.close(error)
        await self._recovery.stop()
