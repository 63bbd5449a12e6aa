"""Sends to one queue: in order across all retries, or with many requests in flight if the order does not matter.

A broker handles the requests of one connection concurrently, so order requires a single request in flight per queue. RocketMQ has
no sequence numbers, so if a response is lost, the request is sent again and may be stored twice.

Send queues work with callbacks, because a task or a timer for each send would be slow. Only the recovery after a failure is a
task.
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
from mqbridge.rocketmq.client.connection.access_errors import AccessRefused
from mqbridge.rocketmq.client.connection.connection import Connection
from mqbridge.rocketmq.client.connection.route import TopicRoute, queue_label
from mqbridge.rocketmq.client.producer.queue_location import QueueRemoved, locate
from mqbridge.rocketmq.client.producer.send_outage import SendOutage, is_busy
from mqbridge.rocketmq.client.producer.send_request import SendRequest, SendResult, read_result
from mqbridge.rocketmq.client.producer.sender_context import SenderContext
from mqbridge.rocketmq.wire.bodies.queue import Queue
from mqbridge.rocketmq.wire.codes import Status
from mqbridge.rocketmq.wire.command import Command

AMBIGUOUS_CODES = frozenset({Status.NO_PERMISSION, Status.INVALID_PARAMETER})
"""Response codes with two possible causes: the queue was removed (its topic has fewer queues now, or its broker is drained), or
the broker will never accept this request. `_recover_loop` queries the route again to find out which."""


class PartitionSendQueue:
    """The pending sends to one queue: those that wait, in order, and those in flight (written, without a response)."""

    def __init__(self, context: SenderContext, queue: Queue) -> None:
        self.queue = queue
        self._context, self._client = context, context.client
        self._waiting: deque[SendRequest] = deque()
        self._in_flight: set[SendRequest] = set()
        self._rejecting_with: MqbridgeError | None = None
        """The error with which new sends fail at once; see `_reject_new_sends`."""
        self._address: str | None = None
        """Address of the queue's master; None until it is located, and while the route has none or the queue is not writable."""
        self._recovery: asyncio.Task[None] | None = None
        """The task that locates the master after a failure; until it ends, nothing is sent."""
        self._outage = SendOutage(queue_label(queue), context.max_elapsed_s, context.client.connectivity)
        self._ambiguous: list[tuple[SendRequest, ServerRefused]] = []
        """Waiting requests that got a response with one of AMBIGUOUS_CODES, each with the error of its response."""
        self._loop = asyncio.get_running_loop()

    @property
    def pending(self) -> int:
        """The number of sends without a result."""
        return len(self._waiting) + len(self._in_flight)

    @property
    def healthy(self) -> bool:
        """True if no send failed in the last few seconds, or one was stored since."""
        return not self._outage.is_recent

    def add(self, request: SendRequest) -> None:
        """Send a request after all earlier ones, or fail it at once while new sends are rejected."""
        if self._rejecting_with is not None:
            request.fail(self._rejecting_with)
            return
        self._waiting.append(request)
        self.pump()

    def withdraw(self, futures: Collection["asyncio.Future[SendResult]"]) -> None:
        """Fail the given sends that wait; those in flight are not sent again if they fail. Other sends keep their order."""
        for request in self._in_flight:
            request.withdrawn = request.withdrawn or request.future in futures
        withdrawn = {request for request in self._waiting if request.future in futures}
        self._waiting = deque(request for request in self._waiting if request not in withdrawn)
        self._ambiguous = [(request, error) for request, error in self._ambiguous if request not in withdrawn]
        for request in withdrawn:
            self._fail_withdrawn(request)
        self.pump()

    def _fail_withdrawn(self, request: SendRequest) -> None:
        request.fail(ClusterError(f"a send to queue {queue_label(self.queue)} was withdrawn by the caller"))

    def on_route(self, route: TopicRoute) -> None:
        """Send later requests to the queue's master in this route. If it lacks a writable one, `pump` starts a recovery."""
        self._address = route.master(self.queue.broker) if route.is_writable(self.queue) else None

    def pump(self) -> None:
        """Send waiting requests, as many as the limits of this queue and of the client allow."""
        waiting, client = self._waiting, self._client
        while waiting and self._recovery is None and len(self._in_flight) < self._context.in_flight_per_queue:
            request = waiting[0]
            if request.future.done():  # the caller has cancelled it
                waiting.popleft()
                continue
            connection = client.pool.ready(self._address) if self._address else None
            if connection is None:
                self._start_recovery(error=None)
                return
            if not client.window.reserve(request.size, self.pump):
                return  # the window calls `pump` again when it has room
            waiting.popleft()
            self._post(connection, request)
        if not waiting and not self._in_flight:
            self._context.on_queue_empty()

    def _post(self, connection: Connection, request: SendRequest) -> None:
        """Write a request to the connection; its response is handled by `_on_response`."""
        request.header.queue_id = self.queue.id
        timeout = self._client.timing.request
        try:
            future = connection.post(request.code, request.header.encode(), request.body, timeout)
        except LocalProtocolError as error:  # the request does not fit into a frame
            self._client.window.release(request.size)
            request.fail(ClusterError(f"a send to queue {queue_label(self.queue)} cannot be encoded: {error}", Failure.REFUSED))
        except ConnectionLost as error:
            self._client.window.release(request.size)
            self._handle_failure(request, error)
        else:
            self._in_flight.add(request)
            future.add_done_callback(partial(self._on_response, request, connection, self._loop.time()))

    # --- responses --------------------------------------------------------------------------------------------------

    def _on_response(
        self, request: SendRequest, connection: Connection, sent_at: float, future: "asyncio.Future[Command]"
    ) -> None:
        self._in_flight.discard(request)
        self._client.window.release(request.size)
        try:
            result = self._read_response(future.result(), connection)
        except MqbridgeError as error:
            if isinstance(error, RequestTimeout):  # if nothing at all has arrived since, the connection is dead
                connection.close_if_silent(sent_at, error)
            self._handle_failure(request, error)
        else:
            self._outage.record_success()
            if not request.future.done():
                request.future.set_result(result)
        self.pump()

    def _read_response(self, response: Command, connection: Connection) -> SendResult:
        """Return the result in a response; an invalid response ends the connection. Raises the errors of `read_result`."""
        if response.code == Status.GO_AWAY:
            self._client.pool.retire(connection)
        try:
            return read_result(self.queue, response, connection.address)
        except RemoteProtocolError as error:
            connection.endpoint.abort(error)
            raise

    def _handle_failure(self, request: SendRequest, error: MqbridgeError) -> None:
        """Fail the request if it must not be sent again; else put it back as the first to send, and begin a recovery.

        If nothing was stored for `max_elapsed_s`, all waiting sends fail instead.
        """
        failure = error.failure if isinstance(error, ClusterError) else Failure.RETRY
        ambiguous = isinstance(error, ServerRefused) and error.code in AMBIGUOUS_CODES and not isinstance(error, AccessRefused)
        if self._context.closing or (failure in (Failure.REFUSED, Failure.FATAL) and not ambiguous):
            self._fail_one(request, error, failure)
            return
        if request.withdrawn:
            self._fail_withdrawn(request)
        else:
            self._waiting.appendleft(request)
            self._client.connectivity.retries += 1
            if isinstance(error, ServerRefused) and ambiguous:
                self._ambiguous.append((request, error))
        if self._outage.record_failure():
            self._fail_all(error)
            return
        if not is_busy(error):  # an overloaded broker is alive: the sends stay here, and are retried after a pause
            self._move_to_other_queues(self.queue.broker)
        self._start_recovery(error)

    def _move_to_other_queues(self, avoid: str | None) -> None:
        """Move waiting sends that may go to any queue (`movable`) to healthy queues of other brokers than `avoid`.

        With None, the queues may be at any broker. Sends for which there is no such queue stay here.
        """
        if any(request.movable for request in self._waiting):
            waiting, self._waiting = self._waiting, deque()
            kept = [request for request in waiting if not (request.movable and self._context.send_elsewhere(request, avoid))]
            self._waiting.extendleft(reversed(kept))  # in front of any that were added meanwhile

    # --- failures ---------------------------------------------------------------------------------------------------

    def _fail_all(self, error: MqbridgeError) -> None:
        """Fail every waiting send; later sends get the whole `max_elapsed_s` again.

        With `fail_behind`, sends that the caller adds before it knows of the failure fail too.
        """
        waiting, self._waiting = self._waiting, deque()
        self._outage.restart_time_limit()
        self._ambiguous.clear()
        for request in waiting:
            request.fail(error)
        if self._context.fail_behind:
            self._reject_new_sends(error)

    def _fail_one(self, request: SendRequest, error: MqbridgeError, failure: Failure) -> None:
        """Fail a send; with `fail_behind` also all waiting ones, unless the broker refuses only this message (REFUSED)."""
        request.fail(error)
        if self._context.fail_behind and failure is not Failure.REFUSED:
            self._fail_all(error)

    def _reject_new_sends(self, error: MqbridgeError) -> None:
        """Fail new sends with this error until the caller knows of the failure; else they would overtake the failed sends.

        The caller's callbacks run two loop iterations later: those of the request's future in the next one, where the adapter
        completes its receipt, and the receipt's own callbacks in the one after that.
        """
        self._rejecting_with = error
        self._loop.call_soon(self._loop.call_soon, self._accept_new_sends, error)

    def _accept_new_sends(self, error: MqbridgeError) -> None:
        """End the rejection, unless a later failure has begun another one."""
        if self._rejecting_with is error:
            self._rejecting_with = None

    def _start_recovery(self, error: MqbridgeError | None) -> None:
        if self._recovery is None:
            self._recovery = spawn(self._recover_loop(error), f"rocketmq sends to {queue_label(self.queue)}")

    async def _recover_loop(self, error: MqbridgeError | None) -> None:
        """Pause after an error, locate the queue's master, and connect to it; repeat this until it succeeds. Then send again.

        Ends early once no sends wait, because all have moved to other queues, failed, or been withdrawn.
        `error` is the failure that began the recovery; None if there is only no connection.
        """
        while self._waiting:
            if error is not None:
                await self._outage.wait(error)
            try:
                # Gets the error because some errors show that the known route is outdated.
                address = await locate(self._context, self.queue, error)
                self._decide_ambiguous()
                await self._client.pool.get(address)
            except ClusterError as new_error:
                error = new_error
                timed_out, removed = self._outage.record_failure(), isinstance(new_error, QueueRemoved)
                # If only the queue was removed, other queues of its broker will do.
                self._move_to_other_queues(None if removed else self.queue.broker)
                if timed_out or removed or new_error.failure in (Failure.FATAL, Failure.REFUSED):
                    self._fail_all(new_error)
            else:
                self._address = address
                break
        self._recovery = None
        self.pump()

    def _decide_ambiguous(self) -> None:
        """Fail requests that got a response with one of AMBIGUOUS_CODES. The queue exists: it is not the cause."""
        ambiguous, self._ambiguous = self._ambiguous, []
        for request, error in ambiguous:
            failure = Failure.REFUSED if error.code == Status.INVALID_PARAMETER else Failure.FATAL
            self._fail_one(request, ServerRefused(str(error), error.code, failure), failure)

    async def stop(self) -> None:
        """Fail all sends without a result; responses that arrive later are ignored."""
        await cancel(self._recovery)
        self._recovery = None
        closed = ConnectionLost(f"the producer of topic {self.queue.topic} is closed")
        closed.failure = Failure.FATAL  # a retry with this producer cannot succeed
        for request in self._in_flight:
            request.fail(closed)
        self._fail_all(closed)
