"""Requests to one queue: in order across every retry, or many in flight where order does not matter.

A broker works on the requests of one connection side by side, so order is kept only by having one request of a queue outstanding;
and it knows no sequence numbers, so a request whose answer was lost is sent again and may then be stored twice.

The queues run on callbacks: a send costs one request and two futures, no task and no timer.
"""

import asyncio
from collections import deque
from collections.abc import Collection
from functools import partial

from mqbridge.errors import (
    ClusterError,
    ConnectionLost,
    Failure,
    LocalProtocolError,
    MqbridgeError,
    RemoteProtocolError,
    RequestTimeout,
    ServerRefused,
)
from mqbridge.net.tasks import cancel, spawn
from mqbridge.rocketmq.client.access import AccessRefused
from mqbridge.rocketmq.client.connection import Connection
from mqbridge.rocketmq.client.queue_location import QueueGone, locate
from mqbridge.rocketmq.client.route import TopicRoute, shown
from mqbridge.rocketmq.client.send_outage import SendOutage, is_busy
from mqbridge.rocketmq.client.send_request import SendRequest, SendResult, read_result
from mqbridge.rocketmq.client.sender_context import SenderContext
from mqbridge.rocketmq.wire.bodies.queue import Queue
from mqbridge.rocketmq.wire.codes import Status
from mqbridge.rocketmq.wire.command import Command

DOUBTFUL = frozenset({Status.NO_PERMISSION, Status.INVALID_PARAMETER})
"""Said for a queue that was taken away (its topic shrank, its broker is being emptied), and for what will never be accepted."""


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
        self._outage = SendOutage(shown(queue), context.max_elapsed_s, context.client.connectivity)
        self._doubted: list[tuple[SendRequest, ServerRefused]] = []
        self._loop = asyncio.get_running_loop()

    @property
    def pending(self) -> int:
        """Requests that are not decided."""
        return len(self._waiting) + len(self._in_flight)

    @property
    def healthy(self) -> bool:
        """Whether nothing has failed here lately."""
        return not self._outage.is_recent

    def add(self, request: SendRequest) -> None:
        """Send it after all before it."""
        if self._barred_by is not None:
            request.fail(self._barred_by)
            return
        self._waiting.append(request)
        self.pump()

    def withdraw(self, futures: Collection["asyncio.Future[SendResult]"]) -> None:
        """Never send what waits here of these requests, nor again what is on its way. Others keep their order, and go on."""
        for request in self._in_flight:
            request.withdrawn = request.withdrawn or request.future in futures
        gone = {request for request in self._waiting if request.future in futures}
        self._waiting = deque(request for request in self._waiting if request not in gone)
        self._doubted = [doubt for doubt in self._doubted if doubt[0] not in gone]
        for request in gone:
            self._take_back(request)
        self.pump()

    def _take_back(self, request: SendRequest) -> None:
        request.fail(ClusterError(f"a send to {shown(self.queue)} was withdrawn"))

    def on_route(self, route: TopicRoute) -> None:
        """The master may have moved, the queue may be gone: then `locate` says so."""
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
            self._outage.stored()
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

    def _failed(self, request: SendRequest, error: MqbridgeError) -> None:
        failure = error.failure if isinstance(error, ClusterError) else Failure.RETRY
        doubtful = isinstance(error, ServerRefused) and error.code in DOUBTFUL and not isinstance(error, AccessRefused)
        if self._context.closing or (failure in (Failure.REFUSED, Failure.FATAL) and not doubtful):
            self._give_up(request, error, failure)
            return
        if request.withdrawn:
            self._take_back(request)
        else:
            self._waiting.appendleft(request)
            self._client.connectivity.retries += 1
            if isinstance(error, ServerRefused) and doubtful:
                self._doubted.append((request, error))
        if self._outage.failed():
            self._fail_all(error)
            return
        if not is_busy(error):
            self._hand_over(self.queue.broker)
        self._recover(error)

    def _hand_over(self, avoid: str | None) -> None:
        """Let other queues, not at the broker `avoid`, have what may go to any."""
        if any(request.movable for request in self._waiting):
            waiting, self._waiting = self._waiting, deque()
            kept = [request for request in waiting if not (request.movable and self._context.take_over(request, avoid))]
            self._waiting.extendleft(reversed(kept))

    # --- trouble ----------------------------------------------------------------------------------------------------

    def _fail_all(self, error: MqbridgeError) -> None:
        """Report everything that waits here; what is sent later gets the whole time anew."""
        waiting, self._waiting = self._waiting, deque()
        self._outage.reported()
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
                await self._outage.wait(error)
            try:
                address = await locate(self._context, self.queue, error)
                self._end_doubt()
                await self._client.pool.get(address)
            except ClusterError as failed:
                error = failed
                late, gone = self._outage.failed(), isinstance(failed, QueueGone)
                self._hand_over(None if gone else self.queue.broker)
                if late or gone or failed.failure in (Failure.FATAL, Failure.REFUSED):
                    self._fail_all(failed)
            else:
                self._address = address
                break
        self._recovery = None
        self.pump()

    def _end_doubt(self) -> None:
        """The queue is there, so it was the message, or our rights."""
        doubted, self._doubted = self._doubted, []
        for request, error in doubted:
            failure = Failure.REFUSED if error.code == Status.INVALID_PARAMETER else Failure.FATAL
            self._give_up(request, ServerRefused(str(error), error.code, failure), failure)

    async def stop(self) -> None:
        """Fail what has no answer yet; answers that still come find nobody."""
        await cancel(self._recovery)
        self._recovery = None
        closed = ConnectionLost(f"the producer of {self.queue.topic} is closed")
        closed.failure = Failure.FATAL  # sending it again by this producer does not help
        for request in self._in_flight:
            request.fail(closed)
        self._fail_all(closed)
