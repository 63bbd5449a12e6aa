"""SendRequest: a line per queue, which keeps order across every retry, or many requests in flight where order does not matter.

A broker works on the requests of one connection side by side, so order is kept only by having one request of a queue outstanding;
and it knows no sequence numbers, so a request whose answer was lost is sent again and may then be stored twice.

The queues run on callbacks: a send costs one request and two futures, no task and no timer.
"""

import asyncio
import logging
from collections import deque
from functools import partial
from typing import Protocol

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
from mqbridge.rocketmq.client.base_client import BaseClient
from mqbridge.rocketmq.client.connection import Connection
from mqbridge.rocketmq.client.route import TopicRoute, shown
from mqbridge.rocketmq.client.send_request import SendRequest, SendResult, read_result
from mqbridge.rocketmq.wire.bodies.queue import Queue
from mqbridge.rocketmq.wire.codes import Status
from mqbridge.rocketmq.wire.command import Command

log = logging.getLogger(__name__)

FIRST_RETRY_S = 0.02
MOST_RETRY_S = 5.0
"""An overloaded broker takes sends again within milliseconds; one that restarts needs seconds."""
AVOID_S = 5.0
"""How long a queue that failed is not chosen for messages that may go to any."""
DOUBTFUL = frozenset({Status.NO_PERMISSION, Status.INVALID_PARAMETER})
"""Said for a queue that was taken away (its topic shrank, its broker is being emptied), and for what will never be accepted."""


class SenderContext(Protocol):
    """What the send queues of one producer share."""

    client: BaseClient
    in_flight_per_queue: int
    max_elapsed_s: float | None
    fail_behind: bool
    closing: bool

    async def route(self, *, missing: bool = False) -> TopicRoute:
        """The topic's route. Raises ClusterError."""

    def take_over(self, request: SendRequest, avoid: str | None) -> bool:
        """Give a movable request to another queue, not at the broker `avoid`; False if there is none."""

    def emptied(self) -> None:
        """A queue has nothing left to send."""


class PartitionSendQueue:
    """One queue's requests, in order: those that wait, and those whose answers are due."""

    def __init__(self, context: SenderContext, queue: Queue) -> None:
        self.queue = queue
        self._context, self._client = context, context.client
        self._waiting: deque[SendRequest] = deque()
        self._in_flight: set[SendRequest] = set()
        self._barred_by: MqbridgeError | None = None
        self._address: str | None = None
        self._recovery: asyncio.Task[None] | None = None
        self._backoff = Backoff(FIRST_RETRY_S, MOST_RETRY_S)
        self._failing_since: float | None = None
        self._avoid_until = 0.0
        self._told = False
        self._doubted: list[tuple[SendRequest, ServerRefused]] = []
        self._loop = asyncio.get_running_loop()

    @property
    def pending(self) -> int:
        """Requests that are not decided."""
        return len(self._waiting) + len(self._in_flight)

    @property
    def healthy(self) -> bool:
        """Whether nothing has failed here lately."""
        return self._avoid_until <= self._loop.time()

    def add(self, request: SendRequest) -> None:
        """Send it after all before it."""
        if self._barred_by is not None:
            request.fail(self._barred_by)
            return
        self._waiting.append(request)
        self.pump()

    def on_route(self, route: TopicRoute) -> None:
        """The master may have moved, the queue may be gone: then `_locate` says so."""
        self._address = route.master(self.queue.broker) if route.takes(self.queue) else None

    def pump(self) -> None:
        """Send what the limits allow."""
        waiting, client = self._waiting, self._client
        while waiting and self._recovery is None and len(self._in_flight) < self._context.in_flight_per_queue:
            request = waiting[0]
            if request.future.done():  # whoever wanted it has given up
                waiting.popleft()
                continue
            connection = client.pool.ready(self._address) if self._address else None
            if connection is None:
                self._recover(None)
                return
            if not client.window.take(request.size, self.pump):
                return
            waiting.popleft()
            self._post(connection, request)
        if not waiting and not self._in_flight:
            self._context.emptied()

    def _post(self, connection: Connection, request: SendRequest) -> None:
        request.header.queue_id = self.queue.id
        timeout = self._client.timing.request
        try:
            future = connection.post(request.code, request.header.encode(), request.body, timeout)
        except LocalProtocolError as error:  # it does not fit a frame
            self._client.window.give(request.size)
            request.fail(ClusterError(f"a send to {shown(self.queue)}: {error}", Failure.REFUSED))
        except ConnectionLost as error:
            self._client.window.give(request.size)
            self._failed(request, error)
        else:
            self._in_flight.add(request)
            future.add_done_callback(partial(self._answered, request, connection, self._loop.time()))

    # --- answers ----------------------------------------------------------------------------------------------------

    def _answered(self, request: SendRequest, connection: Connection, sent_at: float, future: "asyncio.Future[Command]") -> None:
        self._in_flight.discard(request)
        self._client.window.give(request.size)
        try:
            result = self._read(future.result(), connection)
        except MqbridgeError as error:
            if isinstance(error, RequestTimeout):
                connection.suspect(sent_at, error)
            self._failed(request, error)
        else:
            if self._failing_since is not None:
                self._recovered()
            if not request.future.done():
                request.future.set_result(result)
        self.pump()

    def _read(self, answer: Command, connection: Connection) -> SendResult:
        if answer.code == Status.GO_AWAY:
            self._client.pool.retire(connection)
        try:
            return read_result(self.queue, answer, connection.address)
        except RemoteProtocolError as wrong:
            connection.endpoint.abort(wrong)
            raise

    def _recovered(self) -> None:
        self._failing_since, self._avoid_until, self._told = None, 0.0, False
        self._backoff.reset()

    def _failed(self, request: SendRequest, error: MqbridgeError) -> None:
        failure = error.failure if isinstance(error, ClusterError) else Failure.RETRY
        doubtful = isinstance(error, ServerRefused) and error.code in DOUBTFUL
        if self._context.closing or (failure in (Failure.REFUSED, Failure.FATAL) and not doubtful):
            self._give_up(request, error, failure)
            return
        self._waiting.appendleft(request)
        if isinstance(error, ServerRefused) and doubtful:
            self._doubted.append((request, error))
        if self._too_long():
            self._fail_all(error)
            return
        if not _busy(error):
            self._hand_over(self.queue.broker)
        self._recover(error)

    def _hand_over(self, avoid: str | None) -> None:
        """Let other queues, not at the broker `avoid`, have what may go to any."""
        if any(request.movable for request in self._waiting):
            waiting, self._waiting = self._waiting, deque()
            kept = [request for request in waiting if not (request.movable and self._context.take_over(request, avoid))]
            self._waiting.extendleft(reversed(kept))

    # --- trouble ----------------------------------------------------------------------------------------------------

    def _too_long(self) -> bool:
        """Whether nothing was stored for as long as is allowed, since a request failed first."""
        now, limit = self._loop.time(), self._context.max_elapsed_s
        self._avoid_until = now + AVOID_S
        if self._failing_since is None:
            self._failing_since = now
        return limit is not None and now - self._failing_since >= limit

    def _fail_all(self, error: MqbridgeError) -> None:
        """Report everything that waits here; what is sent later gets the whole time anew."""
        waiting, self._waiting = self._waiting, deque()
        self._failing_since = None
        self._doubted.clear()
        for request in waiting:
            request.fail(error)
        if self._context.fail_behind:
            self._bar(error)

    def _give_up(self, request: SendRequest, error: MqbridgeError, failure: Failure) -> None:
        """It will not be stored; where order counts nothing behind it is, unless the broker refuses just this message."""
        request.fail(error)
        if self._context.fail_behind and failure is not Failure.REFUSED:
            self._fail_all(error)

    def _bar(self, error: MqbridgeError) -> None:
        """Until the sender knows of the failure, what it sends fails as well: it would overtake what failed.

        The future's callbacks run in the next step of the loop and make the receipt, whose own callbacks run in the step after.
        """
        self._barred_by = error
        self._loop.call_soon(self._loop.call_soon, self._unbar, error)

    def _unbar(self, error: MqbridgeError) -> None:
        if self._barred_by is error:
            self._barred_by = None

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
        route = await self._context.route(missing=missing)
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
        for request, error in doubted:
            failure = Failure.REFUSED if error.code == Status.INVALID_PARAMETER else Failure.FATAL
            self._give_up(request, ServerRefused(str(error), error.code, failure), failure)

    def _say(self, error: MqbridgeError) -> None:
        """Once per outage; a broker that is busy is no news."""
        level = logging.DEBUG if self._told or _busy(error) else logging.WARNING
        self._told = True
        log.log(level, "sending to %s goes on later: %s", shown(self.queue), error)

    async def stop(self) -> None:
        """Fail what has no answer yet; answers that still come find nobody."""
        await cancel(self._recovery)
        self._recovery = None
        closed = ConnectionLost(f"the producer of {self.queue.topic} is closed")
        closed.failure = Failure.FATAL  # sending it again by this producer does not help
        for request in self._in_flight:
            request.fail(closed)
        self._fail_all(closed)


class QueueGone(ClusterError):
    """The queue was there and is not any more: choose another."""

    def __init__(self, problem: str) -> None:
        super().__init__(problem, Failure.REFRESH)


def _busy(error: MqbridgeError) -> bool:
    return isinstance(error, ServerRefused) and error.code == Status.SYSTEM_BUSY
