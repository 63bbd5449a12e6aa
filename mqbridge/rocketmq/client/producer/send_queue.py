"""Sends to one queue: in order across all retries, or with many requests in flight if the order does not matter.

A broker handles the requests of one connection concurrently, so order requires a single request in flight per queue. RocketMQ has
no sequence numbers, so if a response is lost, the request is sent again and may be stored twice.

Send queues work with callbacks, because a task or a timer for each send would be slow. Only the recovery after a failure is a
task. The states of a queue are those of its `WaitingSends`.
"""

import asyncio
import logging
from collections.abc import Collection, Sequence
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
from mqbridge.net.failing_sends import FailingSends
from mqbridge.net.send_recovery import SendRecovery
from mqbridge.net.waiting_sends import SENDING, WaitingSends
from mqbridge.rocketmq.client.connection.access_errors import AccessRefused
from mqbridge.rocketmq.client.connection.connection import Connection
from mqbridge.rocketmq.client.connection.route import TopicRoute, queue_label
from mqbridge.rocketmq.client.producer.queue_location import QueueFrozen, QueueRemoved, locate
from mqbridge.rocketmq.client.producer.send_outage import SendOutage, is_busy
from mqbridge.rocketmq.client.producer.send_request import SendRequest, SendResult, read_result
from mqbridge.rocketmq.client.producer.sender_context import SenderContext
from mqbridge.rocketmq.wire.bodies.queue import Queue
from mqbridge.rocketmq.wire.codes import Status, refusal_error
from mqbridge.rocketmq.wire.command import Command

log = logging.getLogger(__name__)

AMBIGUOUS_CODES = frozenset({Status.NO_PERMISSION, Status.INVALID_PARAMETER})
"""Response codes with two possible causes: the queue was removed (its topic has fewer queues now, or its broker is drained), or
the broker will never accept this request. `_connect` queries the route again to find out which."""


class PartitionSendQueue:
    """The pending sends to one queue: those that wait, in order, and those in flight (written, without a response)."""

    def __init__(self, context: SenderContext, queue: Queue) -> None:
        self.queue = queue
        self._context, self._client = context, context.client
        self._unreplicated = context.client.unreplicated
        self._sends: WaitingSends[SendRequest] = WaitingSends(in_order=context.fail_behind)
        self._waiting = self._sends.waiting
        self._in_flight: set[SendRequest] = set()
        self._address: str | None = None
        """Address of the queue's master; None until it is located, and while the route has none or the queue is not writable."""
        self._recovery = SendRecovery(
            self._sends,
            f"rocketmq sends to {queue_label(queue)}",
            connect=self._connect,
            on_error=self._on_connect_error,
            send=self.pump,
        )
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

    @property
    def failing(self) -> FailingSends:
        """The failures since a message was stored."""
        return self._outage.failing

    def add(self, request: SendRequest) -> None:
        """Send a request after all earlier ones, or let it fail while new sends are rejected."""
        if self._sends.rejection is not None and self._sends.rejects(request):
            return
        self._waiting.append(request)
        self.pump()

    def withdraw(self, owners: Collection[object]) -> None:
        """Fail the sends of these owners that wait; those in flight are not sent again if they fail. Others keep their order."""
        self._sends.withdraw(owners, self._in_flight, self._withdrawal_error())
        self._ambiguous = [(request, error) for request, error in self._ambiguous if request.caller.owner not in owners]
        self.pump()

    def _withdrawal_error(self) -> ClusterError:
        return ClusterError(f"a send to queue {queue_label(self.queue)} was withdrawn by the caller")

    def on_route(self, route: TopicRoute) -> None:
        """Send later requests to the queue's master in this route. If it lacks a writable one, `pump` starts a recovery."""
        self._address = route.master(self.queue.broker) if route.is_writable(self.queue) else None

    def pump(self) -> None:
        """Send waiting requests, as many as the limits of this queue and of the client allow."""
        waiting, sends, client = self._waiting, self._sends, self._client
        while waiting and sends.link is SENDING and len(self._in_flight) < self._context.in_flight_per_queue:
            request = waiting[0]
            if request.future.done():  # the caller has cancelled it
                waiting.popleft()
                continue
            connection = client.pool.ready(self._address) if self._address else None
            if connection is None:
                self._recovery.start(error=None)
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
            problem = ClusterError(f"a send to queue {queue_label(self.queue)} cannot be encoded: {error}", Failure.REFUSED)
            self._fail_one(request, problem, Failure.REFUSED)
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
            result = self._read_response(request, future.result(), connection)
        except MqbridgeError as error:
            if isinstance(error, RequestTimeout):  # if nothing at all has arrived since, the connection is dead
                connection.close_if_silent(sent_at, error)
            self._handle_failure(request, error)
        else:
            self._outage.record_success()
            if self._unreplicated.brokers and result.status == Status.SUCCESS and self.queue.broker in self._unreplicated.brokers:
                self._unreplicated.record_success(self.queue.broker)
            if not request.future.done():
                request.future.set_result(result)
        self.pump()

    def _read_response(self, request: SendRequest, response: Command, connection: Connection) -> SendResult:
        """Return the result in a response; an invalid response ends the connection. Raises the errors of `read_result`.

        With `require_replica`, a message that was stored without the flush or the replica is an error, and is sent again.
        """
        if response.code == Status.GO_AWAY:
            self._client.pool.retire(connection)
        try:
            result = read_result(self.queue, response, connection.address)
        except RemoteProtocolError as error:
            connection.endpoint.abort(error)
            raise
        if result.status != Status.SUCCESS:
            self._unreplicated.record(self.queue.broker, result.status, request.count)
            if self._context.require_replica:
                raise refusal_error(f"a send to queue {queue_label(self.queue)}", response.code, response.remark)
        return result

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
            request.fail(self._withdrawal_error())
        else:
            self._waiting.appendleft(request)
            self._client.connectivity.retries += 1
            if isinstance(error, ServerRefused) and ambiguous:
                self._ambiguous.append((request, error))
        self._outage.failing.record(error)
        if self._outage.record_failure():
            self._fail_all(error)
            return
        if not is_busy(error):  # an overloaded broker is alive: the sends stay here, and are retried after a pause
            self._move_to_other_queues(self.queue.broker)
        self._recovery.start(error)

    def _move_to_other_queues(self, avoid: str | None) -> None:
        """Move waiting sends that may go to any queue (`movable`) to healthy queues of other brokers than `avoid`.

        With None, the queues may be at any broker. Sends for which there is no such queue stay here.
        """
        if any(request.movable for request in self._waiting):
            waiting = list(self._waiting)
            self._waiting.clear()
            kept = [request for request in waiting if not (request.movable and self._context.send_elsewhere(request, avoid))]
            self._sends.put_back(kept)  # in front of any that were added meanwhile
            if self._ambiguous:
                remaining = frozenset(kept)
                self._ambiguous = [(request, error) for request, error in self._ambiguous if request in remaining]

    # --- failures ---------------------------------------------------------------------------------------------------

    def _fail_all(self, error: MqbridgeError, failed: Sequence[SendRequest] = ()) -> None:
        """Fail these sends and every waiting one; later sends get the whole `max_elapsed_s` again.

        With `fail_behind`, sends that are added before their callers know of the failure fail too.
        """
        self._outage.restart_time_limit()
        self._ambiguous.clear()
        self._sends.fail(failed, error)

    def _fail_one(self, request: SendRequest, error: MqbridgeError, failure: Failure) -> None:
        """Fail a send; with `fail_behind` also all waiting ones, unless the broker refuses only this message (REFUSED).

        A refused batch is divided instead, and its parts are sent before all waiting sends: most of its messages may be accepted.
        """
        if failure is Failure.REFUSED and request.is_divisible:
            if not (self._context.closing or request.withdrawn):
                self._divide(request, error)
                return
            error = ClusterError(f"a batch was not divided, because it is not sent again: {error}", Failure.RETRY)
            if self._context.closing:  # its messages may be accepted later, so those behind it must not be stored now
                failure = Failure.RETRY
        if self._context.fail_behind and failure is not Failure.REFUSED:
            self._fail_all(error, [request])
        else:
            request.fail(error)

    def _divide(self, request: SendRequest, error: MqbridgeError) -> None:
        """Send the messages of a refused batch in parts."""
        log.debug("a batch of %d messages for queue %s is sent in parts: %s", request.count, queue_label(self.queue), error)
        self._waiting.extendleft(reversed(request.divide(self._address or "")))

    # --- recovery ---------------------------------------------------------------------------------------------------

    async def _connect(self, error: MqbridgeError | None) -> None:
        """Pause after an error, locate the queue's master, and connect to it; `error` is the last failure, if any.

        Raises ClusterError, and ProtocolError after an invalid response.
        """
        if error is not None:
            await self._outage.wait(error)
        # Gets the error because some errors show that the known route is outdated.
        address = await locate(self._context, self.queue, error)
        self._decide_ambiguous()
        await self._client.pool.get(address)
        self._address = address

    def _on_connect_error(self, error: MqbridgeError) -> None:
        """Move waiting sends to other queues; fail those that remain if the queue is removed or was down for too long."""
        self._outage.failing.record(error)
        timed_out, removed = self._outage.record_failure(), isinstance(error, QueueRemoved)
        if isinstance(error, QueueFrozen):
            self._ambiguous.clear()  # this is why the broker refused them: they wait
        # If only the queue was removed, other queues of its broker will do.
        self._move_to_other_queues(None if removed else self.queue.broker)
        is_final = isinstance(error, ClusterError) and error.failure in (Failure.FATAL, Failure.REFUSED)
        if timed_out or removed or is_final:
            self._fail_all(error)

    def _decide_ambiguous(self) -> None:
        """Fail requests that got a response with one of AMBIGUOUS_CODES. The queue exists: it is not the cause."""
        ambiguous, self._ambiguous = self._ambiguous, []
        for request, error in ambiguous:
            failure = Failure.REFUSED if error.code == Status.INVALID_PARAMETER else Failure.FATAL
            self._fail_one(request, type(error)(str(error), error.code, failure), failure)

    async def stop(self) -> None:
        """Fail all sends without a result; responses that arrive later are ignored."""
        closed = ConnectionLost(f"the producer of topic {self.queue.topic} is closed")
        closed.failure = Failure.FATAL  # a retry with this producer cannot succeed
        for request in self._in_flight:
            request.fail(closed)
        self._sends.close(closed)
        await self._recovery.stop()
