"""Sends to one queue: in order across all retries, or many in flight if order does not matter.

A broker handles the requests of one connection concurrently, so order requires a single request in flight per queue. It knows no
sequence numbers, so a request whose response was lost is sent again and may be stored twice.

Send queues run on callbacks: a send costs one request and two futures, no task and no timer.
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
from mqbridge.rocketmq.client.access_errors import AccessRefused
from mqbridge.rocketmq.client.connection import Connection
from mqbridge.rocketmq.client.queue_location import QueueGone, locate
from mqbridge.rocketmq.client.route import TopicRoute, queue_label
from mqbridge.rocketmq.client.send_outage import SendOutage, is_busy
from mqbridge.rocketmq.client.send_request import SendRequest, SendResult, read_result
from mqbridge.rocketmq.client.sender_context import SenderContext
from mqbridge.rocketmq.wire.bodies.queue import Queue
from mqbridge.rocketmq.wire.codes import Status
from mqbridge.rocketmq.wire.command import Command

AMBIGUOUS = frozenset({Status.NO_PERMISSION, Status.INVALID_PARAMETER})
"""Ambiguous: the queue was removed (its topic shrank, its broker is being emptied), or the request will never be accepted."""


class PartitionSendQueue:
    """The sends of one queue, in order: those that wait, and those in flight."""

    def __init__(self, context: SenderContext, queue: Queue) -> None:
        self.queue = queue
        self._context, self._client = context, context.client
        self._waiting: deque[SendRequest] = deque()
        self._in_flight: set[SendRequest] = set()
        self._barred_by: MqbridgeError | None = None
        self._address: str | None = None
        self._recovery: asyncio.Task[None] | None = None
        self._outage = SendOutage(queue_label(queue), context.max_elapsed_s, context.client.connectivity)
        self._ambiguous: list[tuple[SendRequest, ServerRefused]] = []
        self._loop = asyncio.get_running_loop()

    @property
    def pending(self) -> int:
        """The number of sends without a result."""
        return len(self._waiting) + len(self._in_flight)

    @property
    def healthy(self) -> bool:
        """True if no send failed here recently."""
        return not self._outage.is_recent

    def add(self, request: SendRequest) -> None:
        """Send it after all earlier sends."""
        if self._barred_by is not None:
            request.fail(self._barred_by)
            return
        self._waiting.append(request)
        self.pump()

    def withdraw(self, futures: Collection["asyncio.Future[SendResult]"]) -> None:
        """Drop those of these sends that wait; do not repeat those in flight. Other sends keep their order."""
        for request in self._in_flight:
            request.withdrawn = request.withdrawn or request.future in futures
        gone = {request for request in self._waiting if request.future in futures}
        self._waiting = deque(request for request in self._waiting if request not in gone)
        self._ambiguous = [doubt for doubt in self._ambiguous if doubt[0] not in gone]
        for request in gone:
            self._fail_withdrawn(request)
        self.pump()

    def _fail_withdrawn(self, request: SendRequest) -> None:
        request.fail(ClusterError(f"a send to {queue_label(self.queue)} was withdrawn"))

    def on_route(self, route: TopicRoute) -> None:
        """Adopt a new route: the master may have moved; if the queue is gone, `locate` raises."""
        self._address = route.master(self.queue.broker) if route.takes(self.queue) else None

    def pump(self) -> None:
        """Send what the limits allow."""
        waiting, client = self._waiting, self._client
        while waiting and self._recovery is None and len(self._in_flight) < self._context.in_flight_per_queue:
            request = waiting[0]
            if request.future.done():  # the caller has given up
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
            request.fail(ClusterError(f"a send to {queue_label(self.queue)}: {error}", Failure.REFUSED))
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
        ambiguous = isinstance(error, ServerRefused) and error.code in AMBIGUOUS and not isinstance(error, AccessRefused)
        if self._context.closing or (failure in (Failure.REFUSED, Failure.FATAL) and not ambiguous):
            self._give_up(request, error, failure)
            return
        if request.withdrawn:
            self._fail_withdrawn(request)
        else:
            self._waiting.appendleft(request)
            self._client.connectivity.retries += 1
            if isinstance(error, ServerRefused) and ambiguous:
                self._ambiguous.append((request, error))
        if self._outage.failed():
            self._fail_all(error)
            return
        if not is_busy(error):
            self._hand_over(self.queue.broker)
        self._recover(error)

    def _hand_over(self, avoid: str | None) -> None:
        """Move movable sends to other queues, not at the broker `avoid`."""
        if any(request.movable for request in self._waiting):
            waiting, self._waiting = self._waiting, deque()
            kept = [request for request in waiting if not (request.movable and self._context.take_over(request, avoid))]
            self._waiting.extendleft(reversed(kept))

    # --- failures ---------------------------------------------------------------------------------------------------

    def _fail_all(self, error: MqbridgeError) -> None:
        """Fail every waiting send; later sends get the whole time again."""
        waiting, self._waiting = self._waiting, deque()
        self._outage.reported()
        self._ambiguous.clear()
        for request in waiting:
            request.fail(error)
        if self._context.fail_behind:
            self._bar(error)

    def _give_up(self, request: SendRequest, error: MqbridgeError, failure: Failure) -> None:
        """Fail a send; in ordered mode also those behind it, unless the broker refuses only this message."""
        request.fail(error)
        if self._context.fail_behind and failure is not Failure.REFUSED:
            self._fail_all(error)

    def _bar(self, error: MqbridgeError) -> None:
        """Fail new sends until the sender knows of the failure: they would overtake the failed ones.

        The future's callbacks run in the next loop iteration and make the receipt, whose callbacks run in the one after.
        """
        self._barred_by = error
        self._loop.call_soon(self._loop.call_soon, self._unbar, error)

    def _unbar(self, error: MqbridgeError) -> None:
        if self._barred_by is error:
            self._barred_by = None

    def _recover(self, error: MqbridgeError | None) -> None:
        if self._recovery is None:
            self._recovery = spawn(self._recovering(error), f"rocketmq sends to {queue_label(self.queue)}")

    async def _recovering(self, error: MqbridgeError | None) -> None:
        """Pause, locate the queue again if that helps, connect; then continue sending."""
        while self._waiting:
            if error is not None:
                await self._outage.wait(error)
            try:
                address = await locate(self._context, self.queue, error)
                self._decide_ambiguous()
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

    def _decide_ambiguous(self) -> None:
        """The queue exists: so the broker refused the message, or our permission."""
        ambiguous, self._ambiguous = self._ambiguous, []
        for request, error in ambiguous:
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
