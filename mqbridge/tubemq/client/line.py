"""One partition's messages on their way, in the order in which they were submitted.

TubeMQ stores one message per request and knows no sequence numbers. A Broker takes the requests of a connection one after the
other, so requests that are all accepted keep their order however many are in flight, and when a connection is lost the first of
them are stored and the rest are not. But a refusal (419 when memory is full, 503) concerns one request only, and those behind it
may still be stored: order holds across every failure only with one request in flight. With more, nothing is sent again before all
answers are in, and `overtaken` counts what was stored ahead of its turn.

A line runs on callbacks: a message costs one object and no task.
"""

import asyncio
from collections import deque
from operator import attrgetter
from typing import Protocol

from mqbridge.errors import ClusterError, ConnectionLost, Failure, LocalProtocolError, MqbridgeError, ProtocolError
from mqbridge.net.connectivity import Connectivity
from mqbridge.net.tasks import cancel, spawn
from mqbridge.tubemq.client.connection import Answer
from mqbridge.tubemq.client.line_connection import ConnectionContext, LineConnection
from mqbridge.tubemq.client.send_result import Done, SenderClosed, SendResult, Withdrawn, failure_of
from mqbridge.tubemq.client.stats import SendCounters
from mqbridge.tubemq.wire import codes
from mqbridge.tubemq.wire.pb.broker_pb2 import AuthorizedInfo, SendMessageResponseB2P
from mqbridge.tubemq.wire.rpc import SEND, WRITE, parse_flat
from mqbridge.tubemq.wire.send import SendRequestEncoder

WINDOW_BYTES = 8 << 20
"""In flight on one partition: enough for any round trip, small beside a Broker's memory."""


class Way(ConnectionContext, Protocol):
    """What a line needs of its sender."""

    ordered: bool
    """Nothing may be stored that was submitted behind a message that is given up."""
    window: int
    """Requests in flight at once on one partition."""
    max_elapsed_s: float | None
    closing: bool
    counters: SendCounters
    connectivity: Connectivity
    loop: asyncio.AbstractEventLoop

    def encoder_for(self, name: str) -> SendRequestEncoder:
        """Encodes the requests of one partition."""

    def is_withdrawn(self, done: Done) -> bool:
        """Whether the message with this callback is not to be sent (again); asked of those that failed, and by `withdraw`."""

    def settled(self, size: int) -> None:
        """A message of so many bytes is decided."""


class _Message:
    """A message on its way. `number` is its turn; `failed_at` is when it failed first."""

    __slots__ = ("data", "done", "failed_at", "flag", "line", "msg_time", "msg_type", "number")

    def __init__(
        self, line: "Line", number: int, data: bytes, flag: int, types: tuple[str | None, str | None], done: Done
    ) -> None:
        self.line, self.number, self.data, self.flag, self.done = line, number, data, flag, done
        self.msg_type, self.msg_time = types
        self.failed_at: float | None = None

    def answered(self, answer: Answer) -> None:
        """The session's callback."""
        self.line.answered(self, answer)


class Line:
    """Those that wait, those whose answers are due, and those that were refused while others were in flight."""

    def __init__(self, way: Way, name: str) -> None:
        self._way, self._name = way, name
        self._waiting: deque[_Message] = deque()
        self._again: list[_Message] = []
        self._again_for: MqbridgeError | None = None
        self._in_flight = 0
        self._in_flight_bytes = 0
        self._submitted = 0
        self._recovery: asyncio.Task[None] | None = None
        self._connection = LineConnection(way, name)
        self._encoder = way.encoder_for(name)
        self._authorized: AuthorizedInfo | None = None
        self._session = way.session_for(name)

    @property
    def idle(self) -> bool:
        """Nothing waits and nothing is in flight."""
        return not self._waiting and not self._in_flight and not self._again

    def add(self, data: bytes, flag: int, types: tuple[str | None, str | None], done: Done) -> None:
        """Send in turn."""
        self._submitted += 1
        self._waiting.append(_Message(self, self._submitted, data, flag, types, done))
        self.pump()

    def pump(self) -> None:
        """Send what the window and the connection allow."""
        way = self._way
        while (waiting := self._waiting) and self._in_flight < way.window and self._recovery is None and not self._again:
            if self._in_flight and self._in_flight_bytes + len(waiting[0].data) > WINDOW_BYTES:
                return
            if not self._session.is_writable:
                self._session.when_writable(self.pump)
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
        masters = self._way.routes.masters
        if masters.authorized is not self._authorized:
            self._authorized = masters.authorized
            self._encoder.authorize(self._authorized)
        request = self._encoder.encode(message.data, message.flag, message.msg_type, message.msg_time)
        self._session.post(WRITE, SEND, request, message.answered)
        self._in_flight += 1
        self._in_flight_bytes += len(message.data)

    # --- answers ----------------------------------------------------------------------------------------------------

    def answered(self, message: _Message, answer: Answer) -> None:
        """The session's callback for a message."""
        self._in_flight -= 1
        self._in_flight_bytes -= len(message.data)
        try:
            result = self._read(answer)
        except MqbridgeError as error:
            self._failed(message, error)
        else:
            way, size = self._way, len(message.data)
            counters = way.counters
            counters.stored += 1
            counters.stored_bytes += size
            if self._again:
                counters.overtaken += 1
            elif self._connection.is_troubled:
                self._connection.stored()
            message.done(result)
            way.settled(size)
        if self._again and not self._in_flight:
            self._go_back()
        self.pump()

    def _read(self, answer: Answer) -> SendResult:
        if isinstance(answer, Exception):
            raise answer
        response = parse_flat(SendMessageResponseB2P, answer)
        if response.errCode != codes.SUCCESS:
            raise codes.refused(f"a message for {self._way.topic} partition {self._name}", response.errCode, response.errMsg)
        return SendResult(response.messageId, response.appendOffset, response.appendTime)

    def _fail(self, message: _Message, error: MqbridgeError) -> None:
        """Give a message up. Where order counts, what waits behind it goes with it, unless it was refused for itself alone."""
        self._decide(message, error)
        failure = failure_of(error)
        if self._way.ordered and failure is not Failure.REFUSED:
            behind, self._waiting = self._waiting, deque()
            problem = f"not sent to {self._way.topic} partition {self._name}, since one before it was not stored: {error}"
            for other in behind:
                self._decide(other, ClusterError(problem, failure))

    def _decide(self, message: _Message, error: MqbridgeError) -> None:
        self._way.counters.failed += 1
        message.done(error)
        self._way.settled(len(message.data))

    def _failed(self, message: _Message, error: MqbridgeError) -> None:
        if self._way.is_withdrawn(message.done):
            self._decide(message, self._was_withdrawn())
            return
        if self._is_over(message) or failure_of(error) in (Failure.REFUSED, Failure.FATAL):
            self._fail(message, error)
            return
        self._again.append(message)
        self._again_for = self._again_for or error

    def withdraw(self) -> None:
        """Give up what is withdrawn and not on its way: others go on without it. What is on its way is not sent again."""
        is_withdrawn = self._way.is_withdrawn
        taken = [message for message in (*self._again, *self._waiting) if is_withdrawn(message.done)]
        if not taken:
            return
        self._again = [message for message in self._again if not is_withdrawn(message.done)]
        self._waiting = deque(message for message in self._waiting if not is_withdrawn(message.done))
        if not self._again:
            self._again_for = None
        for message in taken:
            self._decide(message, self._was_withdrawn())
        self.pump()

    def _was_withdrawn(self) -> Withdrawn:
        return Withdrawn(f"withdrawn before {self._way.topic} partition {self._name} is known to have stored it")

    def _is_over(self, message: _Message) -> bool:
        """Whether a message that failed has been tried for long enough."""
        now, limit = self._way.loop.time(), self._way.max_elapsed_s
        if message.failed_at is None:
            message.failed_at = now
        return self._way.closing or (limit is not None and now - message.failed_at >= limit)

    def _go_back(self) -> None:
        """All answers are in: what failed is sent once more, in its old order."""
        self._again.sort(key=attrgetter("number"))
        self._waiting.extendleft(reversed(self._again))
        self._way.counters.retried += len(self._again)
        self._way.connectivity.retries += len(self._again)
        self._again.clear()
        error, self._again_for = self._again_for, None
        self._recover(error)

    # --- recovery ---------------------------------------------------------------------------------------------------

    def _recover(self, error: MqbridgeError | None) -> None:
        if self._recovery is None:
            self._recovery = spawn(self._recovered(error), f"tubemq send to {self._way.topic} {self._name}")

    async def _recovered(self, error: MqbridgeError | None) -> None:
        """Connect, again and again; then go on with what waits."""
        while self._waiting:
            try:
                self._session = await self._connection.restored(error)
            except (ClusterError, ProtocolError) as failed:
                error = failed
                self._give_up_late(failed)
            else:
                break
        self._recovery = None
        self.pump()

    def _give_up_late(self, error: MqbridgeError) -> None:
        """Report what has waited longer than allowed while there was no connection; those behind have waited less."""
        kept: deque[_Message] = deque()
        while self._waiting:
            message = self._waiting.popleft()
            if self._is_over(message):
                self._fail(message, error)
            else:
                kept.append(message)
        self._waiting = kept

    async def stop(self) -> None:
        """Fail what still waits."""
        await cancel(self._recovery)
        waiting = [*self._again, *self._waiting]
        self._again, self._waiting = [], deque()
        for message in waiting:
            self._decide(message, SenderClosed(f"the sender to {self._way.topic} was closed before this message was sent"))
