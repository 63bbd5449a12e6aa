"""Sending: a line per queue, which keeps order across every retry, or many requests in flight where order does not matter.

A broker works on the requests of one connection side by side, so order is kept only by having one request of a queue outstanding;
and it knows no sequence numbers, so a request whose answer was lost is sent again and may then be stored twice.

The lines run on callbacks: a send costs one request and two futures, no task and no timer.
"""

import asyncio
import logging
from collections import deque
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from mqbridge.errors import (
    ClusterError,
    ConnectionLost,
    Failure,
    LocalProtocolError,
    MqbridgeError,
    RemoteProtocolError,
    RequestTimeout,
    ServerRefused,
    Unreachable,
)
from mqbridge.net.backoff import Backoff
from mqbridge.net.tasks import cancel, spawn
from mqbridge.rocketmq.client.connection import Connection
from mqbridge.rocketmq.client.route import TopicRoute, shown
from mqbridge.rocketmq.wire import headers
from mqbridge.rocketmq.wire.bodies import Queue
from mqbridge.rocketmq.wire.codes import STORED, Status, refused
from mqbridge.rocketmq.wire.command import Command

if TYPE_CHECKING:
    from mqbridge.rocketmq.client.producer import Producer

log = logging.getLogger(__name__)

FIRST_RETRY_S = 0.02
MOST_RETRY_S = 5.0
"""An overloaded broker takes sends again within milliseconds; one that restarts needs seconds."""
AVOID_S = 5.0
"""How long a queue that failed is not chosen for messages that may go to any."""
OVERSIZED = "message body size exceeded"
"""In the remark of a SYSTEM_ERROR: how a 5.3 broker refuses a batch above its maxMessageSize; a message gets MESSAGE_ILLEGAL."""
DOUBTFUL = frozenset({Status.NO_PERMISSION, Status.INVALID_PARAMETER})
"""Said for a queue that was taken away (its topic shrank, its broker is being emptied), and for what will never be accepted."""


class SendResult(NamedTuple):
    """Where it was stored: the queue, the first offset there, and the offset message ids, joined by commas for a batch.

    A delayed message and a half message wait elsewhere: their offset and id are those of that place. `status` is SUCCESS, or says
    that it is stored but not yet on disk or at a slave (FLUSH_DISK_TIMEOUT, SLAVE_NOT_AVAILABLE, FLUSH_SLAVE_TIMEOUT). `address`
    is the broker's.
    """

    queue: Queue
    offset: int
    message_id: str
    status: int
    transaction_id: str | None
    address: str


class Sending:
    """A request on its way, with the same bytes each time. One that is `movable` may go to any queue."""

    __slots__ = ("body", "code", "future", "header", "movable", "size")

    def __init__(
        self, code: int, header: headers.SendHeader, body: bytes, future: "asyncio.Future[SendResult]", *, movable: bool = False
    ) -> None:
        self.code, self.header, self.body, self.future, self.movable = code, header, body, future, movable
        self.size = len(body) + len(header.properties)

    def fail(self, error: Exception) -> None:
        """It will not be stored."""
        if not self.future.done():
            self.future.set_exception(error)


class Line:
    """One queue's requests, in order: those that wait, and those whose answers are due."""

    def __init__(self, producer: "Producer", queue: Queue) -> None:
        self.queue = queue
        self._producer, self._client = producer, producer.client
        self._waiting: deque[Sending] = deque()
        self._in_flight = 0
        self._address: str | None = None
        self._recovery: asyncio.Task[None] | None = None
        self._backoff = Backoff(FIRST_RETRY_S, MOST_RETRY_S)
        self._failing_since: float | None = None
        self._avoid_until = 0.0
        self._told = False
        self._doubted: list[tuple[Sending, ServerRefused]] = []
        self._loop = asyncio.get_running_loop()

    @property
    def pending(self) -> int:
        """Requests that are not decided."""
        return len(self._waiting) + self._in_flight

    @property
    def healthy(self) -> bool:
        """Whether nothing has failed here lately."""
        return self._avoid_until <= self._loop.time()

    def add(self, sending: Sending) -> None:
        """Send it after all before it."""
        self._waiting.append(sending)
        self.pump()

    def on_route(self, route: TopicRoute) -> None:
        """The master may have moved, the queue may be gone: then `_locate` says so."""
        self._address = route.master(self.queue.broker) if route.takes(self.queue) else None

    def pump(self) -> None:
        """Send what the limits allow."""
        waiting, client = self._waiting, self._client
        while waiting and self._recovery is None and self._in_flight < self._producer.in_flight_per_queue:
            sending = waiting[0]
            if sending.future.done():  # whoever wanted it has given up
                waiting.popleft()
                continue
            connection = client.pool.ready(self._address) if self._address else None
            if connection is None:
                self._recover(None)
                return
            if not client.window.take(sending.size, self.pump):
                return
            waiting.popleft()
            self._post(connection, sending)
        if not waiting and not self._in_flight:
            self._producer.line_emptied()

    def _post(self, connection: Connection, sending: Sending) -> None:
        sending.header.queue_id = self.queue.id
        timeout = self._client.timing.request
        try:
            future = connection.post(sending.code, sending.header.encode(), sending.body, timeout)
        except LocalProtocolError as error:  # it does not fit a frame
            self._client.window.give(sending.size)
            sending.fail(ClusterError(f"a send to {shown(self.queue)}: {error}", Failure.REFUSED))
        except ConnectionLost as error:
            self._client.window.give(sending.size)
            self._failed(sending, error)
        else:
            self._in_flight += 1
            future.add_done_callback(partial(self._answered, sending, connection, self._loop.time()))

    # --- answers ----------------------------------------------------------------------------------------------------

    def _answered(self, sending: Sending, connection: Connection, sent_at: float, future: "asyncio.Future[Command]") -> None:
        self._in_flight -= 1
        self._client.window.give(sending.size)
        try:
            result = self._read(future.result(), connection)
        except MqbridgeError as error:
            if isinstance(error, RequestTimeout):
                connection.suspect(sent_at, error)
            self._failed(sending, error)
        else:
            if self._failing_since is not None:
                self._recovered()
            if not sending.future.done():
                sending.future.set_result(result)
        self.pump()

    def _read(self, answer: Command, connection: Connection) -> SendResult:
        if answer.code == Status.GO_AWAY:
            self._client.pool.retire(connection)
        if answer.code not in STORED:
            raise self._refused(answer)
        try:
            said = headers.SendResult.decode(answer.ext)
            self._check(said)
        except RemoteProtocolError as error:
            wrong = RemoteProtocolError(
                f"{connection.address} answered a send to {shown(self.queue)} by what makes no sense: {error}"
            )
            connection.endpoint.abort(wrong)
            raise wrong from error
        return SendResult(self.queue, said.queue_offset, said.msg_id, answer.code, said.transaction_id, connection.address)

    def _refused(self, answer: Command) -> ServerRefused:
        error = refused(f"a send to {shown(self.queue)}", answer.code, answer.remark)
        if answer.code == Status.SYSTEM_ERROR and OVERSIZED in (answer.remark or ""):
            error.failure = Failure.REFUSED
        return error

    def _check(self, said: headers.SendResult) -> None:
        if said.queue_id != self.queue.id or said.queue_offset < 0:
            raise RemoteProtocolError(f"it names queue {said.queue_id} and offset {said.queue_offset}")

    def _recovered(self) -> None:
        self._failing_since, self._avoid_until, self._told = None, 0.0, False
        self._backoff.reset()

    def _failed(self, sending: Sending, error: MqbridgeError) -> None:
        failure = error.failure if isinstance(error, ClusterError) else Failure.RETRY
        doubtful = isinstance(error, ServerRefused) and error.code in DOUBTFUL
        if self._producer.closing or (failure in (Failure.REFUSED, Failure.FATAL) and not doubtful):
            sending.fail(error)
            return
        self._waiting.appendleft(sending)
        if isinstance(error, ServerRefused) and doubtful:
            self._doubted.append((sending, error))
        if self._too_long():
            self._fail_all(error)
            return
        if not _busy(error):
            self._hand_over(self.queue.broker)
        self._recover(error)

    def _hand_over(self, avoid: str | None) -> None:
        """Let other queues, not at the broker `avoid`, have what may go to any."""
        if any(sending.movable for sending in self._waiting):
            waiting, self._waiting = self._waiting, deque()
            kept = [sending for sending in waiting if not (sending.movable and self._producer.take_over(sending, avoid))]
            self._waiting.extendleft(reversed(kept))

    # --- trouble ----------------------------------------------------------------------------------------------------

    def _too_long(self) -> bool:
        """Whether nothing was stored for as long as is allowed, since a request failed first."""
        now, limit = self._loop.time(), self._producer.max_elapsed_s
        self._avoid_until = now + AVOID_S
        if self._failing_since is None:
            self._failing_since = now
        return limit is not None and now - self._failing_since >= limit

    def _fail_all(self, error: MqbridgeError) -> None:
        """Report everything that waits here; what is sent later gets the whole time anew."""
        waiting, self._waiting = self._waiting, deque()
        self._failing_since = None
        self._doubted.clear()
        for sending in waiting:
            sending.fail(error)

    def _recover(self, error: MqbridgeError | None) -> None:
        if self._recovery is None:
            self._recovery = spawn(self._recovering(error), f"rocketmq sends to {shown(self.queue)}")

    async def _recovering(self, error: MqbridgeError | None) -> None:
        """Wait, look the queue up again where that helps, connect; then go on with what waits."""
        while self._waiting:
            if error is not None:
                self._say(error)
                await asyncio.sleep(self._backoff.delay())
            try:
                address = await self._locate(error)
                await self._client.pool.get(address)
            except ClusterError as failed:
                error = failed
                late, gone = self._too_long(), isinstance(failed, QueueGone)
                self._hand_over(None if gone else self.queue.broker)
                if late or gone or failed.failure in (Failure.FATAL, Failure.REFUSED):
                    self._fail_all(failed)
            else:
                self._address = address
                break
        self._recovery = None
        self.pump()

    async def _locate(self, error: MqbridgeError | None) -> str:
        """The address of the queue's master by a route that the last error does not put in doubt. Raises ClusterError."""
        topic, broker, routes = self.queue.topic, self.queue.broker, self._client.routes
        if isinstance(error, Unreachable):
            routes.distrust(topic)
        elif isinstance(error, ConnectionLost) or (isinstance(error, ClusterError) and error.failure is not Failure.RETRY):
            routes.invalidate(topic)
        missing = isinstance(error, ServerRefused) and error.code == Status.TOPIC_NOT_EXIST
        route = await self._producer.route(missing=missing)
        address = route.master(broker)
        if address is None:
            raise ClusterError(f"the route of {topic} names no master of {broker} now", Failure.REFRESH)
        if not route.takes(self.queue):
            raise QueueGone(f"{shown(self.queue)} takes no messages any more: the topic shrank, or its broker is being emptied")
        self._end_doubt()
        return address

    def _end_doubt(self) -> None:
        """The queue is there, so it was the message, or our rights."""
        doubted, self._doubted = self._doubted, []
        for sending, error in doubted:
            failure = Failure.REFUSED if error.code == Status.INVALID_PARAMETER else Failure.FATAL
            sending.fail(ServerRefused(str(error), error.code, failure))

    def _say(self, error: MqbridgeError) -> None:
        """Once per outage; a broker that is busy is no news."""
        level = logging.DEBUG if self._told or _busy(error) else logging.WARNING
        self._told = True
        log.log(level, "sending to %s goes on later: %s", shown(self.queue), error)

    async def stop(self) -> None:
        """Fail what waits; the answers of what is in flight find nobody."""
        await cancel(self._recovery)
        self._recovery = None
        self._fail_all(ConnectionLost(f"the producer of {self.queue.topic} is closed"))


class QueueGone(ClusterError):
    """The queue was there and is not any more: choose another."""

    def __init__(self, problem: str) -> None:
        super().__init__(problem, Failure.REFRESH)


def _busy(error: MqbridgeError) -> bool:
    return isinstance(error, ServerRefused) and error.code == Status.SYSTEM_BUSY
