"""Sending: a line per partition, which keeps order across every retry, or many requests in flight where order does not matter.

TubeMQ stores one message per request and knows no sequence numbers. So order is kept only by having one request of a partition
outstanding, and a request whose answer was lost is sent again and may then be stored twice.

The lines run on callbacks: a message costs one request object and no task.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from ipaddress import IPv4Address
from typing import NamedTuple

from mqbridge.errors import ClusterError, ConnectionLost, Failure, LocalProtocolError, MqbridgeError, ProtocolError
from mqbridge.net.backoff import Backoff
from mqbridge.net.tasks import cancel, spawn
from mqbridge.tubemq.client.routes import Routes, TopicRoute
from mqbridge.tubemq.client.session import Answer, Session, Sessions
from mqbridge.tubemq.wire import codes
from mqbridge.tubemq.wire.pb.broker_pb2 import SendMessageRequestP2B, SendMessageResponseB2P
from mqbridge.tubemq.wire.rpc import SEND, WRITE, parse

log = logging.getLogger(__name__)

MAX_MESSAGE_BYTES = (20 << 20) + (10 << 10)
"""The most that any Broker can be set to take; below it the Broker decides."""
WINDOW_REQUESTS = 1000
WINDOW_BYTES = 8 << 20
"""In flight on one partition where order does not matter: enough for any round trip, small beside a Broker's memory."""
NO_CHECK_SUM = -1
FIRST_RETRY_S = 0.02
MOST_RETRY_S = 5.0
"""A full memory store (419) is on disk within milliseconds; a Broker restarts within seconds."""
CLOSE_TIMEOUT_S = 10.0


class SendResult(NamedTuple):
    """Where a message was stored: its id, its place in the store's index, and when, in ms."""

    message_id: int
    offset: int
    append_time: int


Done = Callable[[SendResult | MqbridgeError], None]
"""Called once per message with what became of it, from the event loop; it must not raise."""


class _Send:
    """A message on its way. `failed_at` is when it failed first."""

    __slots__ = ("data", "done", "failed_at", "flag", "line", "msg_time", "msg_type")

    def __init__(self, line: "_Line", data: bytes, flag: int, types: tuple[str | None, str | None], done: Done) -> None:
        self.line, self.data, self.flag, self.done = line, data, flag, done
        self.msg_type, self.msg_time = types
        self.failed_at: float | None = None

    def answered(self, answer: Answer) -> None:
        """The session's callback."""
        self.line.answered(self, answer)


class _Line:
    """One partition's messages, in order: those that wait, and those whose answers are due."""

    def __init__(self, sender: "Sender", name: str) -> None:
        self._sender, self._name = sender, name
        self._waiting: deque[_Send] = deque()
        self._in_flight = 0
        self._in_flight_bytes = 0
        self._recovery: asyncio.Task[None] | None = None
        self._backoff = Backoff(FIRST_RETRY_S, MOST_RETRY_S)
        self._request = sender.request_for(name)
        self._token: int | None = None
        self._msg_type: str | None = None
        self._msg_time: str | None = None
        """What `_request` says now: most messages change none of them, and clearing a field costs as much as sending."""
        self._troubled = False
        self._session = sender.session_for(name)

    @property
    def idle(self) -> bool:
        return not self._waiting and not self._in_flight

    def add(self, message: _Send) -> None:
        self._waiting.append(message)
        self.pump()

    def pump(self) -> None:
        """Send what the window allows."""
        sender, waiting = self._sender, self._waiting
        while waiting and self._recovery is None and self._in_flight < sender.window:
            if self._in_flight and self._in_flight_bytes + len(waiting[0].data) > WINDOW_BYTES:
                return
            message = waiting.popleft()
            try:
                self._post(message)
            except ConnectionLost:
                waiting.appendleft(message)
                self._recover(None)
            except LocalProtocolError as error:
                message.done(error)

    def _post(self, message: _Send) -> None:
        request = self._request
        request.data, request.flag = message.data, message.flag
        if message.msg_type != self._msg_type:
            _set(request, "msgType", message.msg_type)
            self._msg_type = message.msg_type
        if message.msg_time != self._msg_time:
            _set(request, "msgTime", message.msg_time)
            self._msg_time = message.msg_time
        token = self._sender.routes.masters.visit_token
        if token != self._token:
            self._token = request.authInfo.visitAuthorizedToken = token
        self._session.post(WRITE, SEND, request.SerializeToString(), message.answered)
        self._in_flight += 1
        self._in_flight_bytes += len(message.data)

    def answered(self, message: _Send, answer: Answer) -> None:
        self._in_flight -= 1
        self._in_flight_bytes -= len(message.data)
        try:
            result = self._read(answer)
        except MqbridgeError as error:
            self._failed(message, error)
        else:
            message.done(result)
            if self._troubled:
                self._troubled = False
                self._backoff.reset()
        self.pump()
        if not self._in_flight and not self._waiting:
            self._sender.line_emptied()

    def _read(self, answer: Answer) -> SendResult:
        if isinstance(answer, Exception):
            raise answer
        response = parse(SendMessageResponseB2P, answer)
        if response.errCode != codes.SUCCESS:
            raise codes.refused(f"a message for {self._sender.topic} partition {self._name}", response.errCode, response.errMsg)
        return SendResult(response.messageId, response.appendOffset, response.appendTime)

    def _failed(self, message: _Send, error: MqbridgeError) -> None:
        failure = error.failure if isinstance(error, ClusterError) else Failure.RETRY
        now = self._sender.loop.time()
        if message.failed_at is None:
            message.failed_at = now
        limit = self._sender.max_elapsed_s
        over = limit is not None and now - message.failed_at >= limit
        if over or self._sender.closing or failure in (Failure.REFUSED, Failure.FATAL):
            message.done(error)
            return
        self._waiting.appendleft(message)
        self._recover(error)

    def _recover(self, error: MqbridgeError | None) -> None:
        if self._recovery is None:
            self._recovery = spawn(self._recovered(error), f"tubemq send to {self._sender.topic} {self._name}")

    async def _recovered(self, error: MqbridgeError | None) -> None:
        """Wait, look the partition up again where that helps, connect; then go on with what waits."""
        sender = self._sender
        while self._waiting:
            if error is not None:
                self._say(error)
                await asyncio.sleep(self._backoff.delay())
            try:
                if error is not None and not _only_full(error):
                    await sender.routes.refresh()
                    self._session = sender.session_for(self._name)
                await self._session.connected()
            except (ClusterError, ProtocolError) as failed:
                error = failed
                self._give_up_late(failed)
            else:
                break
        self._recovery = None
        self.pump()

    def _say(self, error: MqbridgeError) -> None:
        """Once per outage; a full memory store is no news."""
        level = logging.DEBUG if self._troubled or _only_full(error) else logging.WARNING
        self._troubled = True
        log.log(level, "sending to %s partition %s goes on later: %s", self._sender.topic, self._name, error)

    def _give_up_late(self, error: MqbridgeError) -> None:
        """Report what has waited longer than allowed while there was no connection."""
        limit, now = self._sender.max_elapsed_s, self._sender.loop.time()
        kept: deque[_Send] = deque()
        for message in self._waiting:
            if message.failed_at is None:
                message.failed_at = now
            if self._sender.closing or (limit is not None and now - message.failed_at >= limit):
                message.done(error)
            else:
                kept.append(message)
        self._waiting = kept

    async def stop(self) -> None:
        await cancel(self._recovery)
        waiting, self._waiting = self._waiting, deque()
        for message in waiting:
            message.done(ConnectionLost(f"the sender to {self._sender.topic} was closed before this message was sent"))


def _set(request: SendMessageRequestP2B, field: str, value: str | None) -> None:
    if value is None:
        request.ClearField(field)
    else:
        setattr(request, field, value)


def _only_full(error: MqbridgeError) -> bool:
    """The Broker's memory store is full: normal under load, and gone in a moment."""
    return getattr(error, "code", None) == codes.RECEIVE_OVERFLOW


class Sender:
    """A way into one topic; made by `Producer.sender`."""

    def __init__(self, producer: "Producer", route: TopicRoute, *, ordered: bool, max_elapsed_s: float | None) -> None:
        self.topic = route.topic
        self.route = route
        self.routes = producer.routes
        self.window = 1 if ordered else WINDOW_REQUESTS
        self.max_elapsed_s = max_elapsed_s
        self.closing = False
        self.loop = asyncio.get_running_loop()
        self._sessions = producer.sessions
        self._lines: dict[str, _Line] = {}
        self._emptied: asyncio.Future[None] | None = None

    def submit(self, partition: str, data: bytes, flag: int, msg_type: str | None, msg_time: str | None, *, done: Done) -> None:
        """Send to a partition (its name) in order, without waiting; `done` is called when it is decided.

        Transient failures are retried for `max_elapsed_s`; then, and for refusals, `done` gets the exception.
        """
        line = self._lines.get(partition)
        if line is None:
            line = self._lines[partition] = _Line(self, partition)
        if len(data) > MAX_MESSAGE_BYTES:
            problem = codes.refused(
                f"a message for {self.topic}", codes.OVER_MAX_LENGTH, f"{len(data)} bytes, {MAX_MESSAGE_BYTES} at most"
            )
            self.loop.call_soon(done, problem)
            return
        line.add(_Send(line, data, flag, (msg_type, msg_time), done))

    def send(
        self, partition: str, data: bytes, flag: int = 0, msg_type: str | None = None, msg_time: str | None = None
    ) -> "asyncio.Future[SendResult]":
        """Like `submit`, with a future."""
        future: asyncio.Future[SendResult] = self.loop.create_future()

        def done(result: SendResult | MqbridgeError) -> None:
            if future.done():
                return
            if isinstance(result, MqbridgeError):
                future.set_exception(result)
            else:
                future.set_result(result)

        self.submit(partition, data, flag, msg_type, msg_time, done=done)
        return future

    @property
    def idle(self) -> bool:
        """Nothing waits and nothing is in flight."""
        return all(line.idle for line in self._lines.values())

    def line_emptied(self) -> None:
        """A line has nothing left: `close` may be waiting for the last one."""
        if self._emptied is not None and not self._emptied.done() and self.idle:
            self._emptied.set_result(None)

    async def close(self, timeout: float = CLOSE_TIMEOUT_S) -> None:
        """Wait for what is in flight, at most `timeout` seconds; the rest fails with ConnectionLost."""
        if not self.idle:
            self._emptied = self.loop.create_future()
            await asyncio.wait([self._emptied], timeout=timeout)
        self.closing = True
        for line in self._lines.values():
            await line.stop()

    def request_for(self, name: str) -> SendMessageRequestP2B:
        """What the requests of one partition have in common. Raises KeyError for a partition that the topic does not have."""
        request = SendMessageRequestP2B()
        request.clientId = self.routes.client_id
        request.topicName = self.topic
        request.partitionId = self.route.partitions[name].partition
        request.checkSum = NO_CHECK_SUM
        request.sentAddr = _signed_address(self.routes.host)
        return request

    def session_for(self, name: str) -> Session:
        """The session of the Broker that has the partition."""
        broker = self.route.partitions[name].broker
        return self._sessions.to(broker.host, broker.port)


def _signed_address(host: str) -> int:
    value = int(IPv4Address(host))
    return value - (1 << 32) if value >> 31 else value


class Producer:
    """A producer of any number of topics."""

    def __init__(self, routes: Routes, sessions: Sessions) -> None:
        self.routes, self.sessions = routes, sessions

    async def sender(self, topic: str, *, ordered: bool = True, max_elapsed_s: float | None = None) -> Sender:
        """A way into a topic. Raises ServerRefused (FATAL), which names it, when the Master knows no such topic."""
        return Sender(self, await self.routes.topic(topic), ordered=ordered, max_elapsed_s=max_elapsed_s)
