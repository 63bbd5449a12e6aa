"""Producer of one topic: batches and single messages as wire bytes to chosen queues, in order, with transient failures retried.

No call waits for room: the caller bounds the bytes that wait. The messages of programs are encoded in `library/`, those of the
gateway in its adapter.
"""

import asyncio
import logging
import time
from collections.abc import Collection, Sequence

from mqbridge.errors import ClusterError, Failure, LocalProtocolError, ServerRefused
from mqbridge.net.connectivity import level_of
from mqbridge.rocketmq.client.admin import Admin
from mqbridge.rocketmq.client.base_client import BaseClient
from mqbridge.rocketmq.client.name_rules import check_group, check_topic
from mqbridge.rocketmq.client.route import TopicRoute
from mqbridge.rocketmq.client.send_queue import PartitionSendQueue
from mqbridge.rocketmq.client.send_request import SendRequest, SendResult
from mqbridge.rocketmq.wire import properties as props
from mqbridge.rocketmq.wire.bodies.queue import Queue
from mqbridge.rocketmq.wire.codes import Code, Status
from mqbridge.rocketmq.wire.command import MAX_FRAME_BYTES
from mqbridge.rocketmq.wire.headers.send import SendHeader
from mqbridge.rocketmq.wire.record import MAX_MESSAGE_BYTES
from mqbridge.wire.javahash import java_string_hash

log = logging.getLogger(__name__)

HEADER_RESERVE = 128 << 10
"""Of a frame, for everything but the body: properties may have 32 KiB, and JSON may double them."""
CLOSE_TIMEOUT_S = 10.0
ORDERED = 1


class QueueProducer:
    """Made inside a running loop, by `BaseClient.producer`.

    `in_flight_per_queue` requests of a queue may be outstanding: 1 keeps the order. `max_elapsed_s`: when nothing was stored in a
    queue for so long since a send failed first, what waits for it fails with the last error; None retries for ever. With
    `fail_behind` a failure that is not REFUSED also fails what was sent behind it to that queue, so that nothing overtakes.
    """

    def __init__(
        self,
        client: BaseClient,
        group: str,
        topic: str,
        *,
        in_flight_per_queue: int = ORDERED,
        max_elapsed_s: float | None = None,
        max_message_bytes: int = MAX_MESSAGE_BYTES,
        fail_behind: bool = False,
    ) -> None:
        self.fail_behind = fail_behind
        self.client, self.group, self.topic = client, check_group(group), check_topic(topic)
        self.in_flight_per_queue, self.max_elapsed_s = in_flight_per_queue, max_elapsed_s
        self.max_message_bytes = min(max_message_bytes, MAX_FRAME_BYTES - HEADER_RESERVE)
        self.closing = False
        self._loop = asyncio.get_running_loop()
        self._send_queues: dict[Queue, PartitionSendQueue] = {}
        self._known: TopicRoute | None = None
        self._round_robin = time.monotonic_ns()
        self._emptied: asyncio.Future[None] | None = None
        self._unwatch = client.routes.watch(topic, self._on_route)
        client.add_producer(group)

    # --- wire bytes to chosen queues --------------------------------------------------------------------------------

    def send_batch(
        self, queue: Queue, body: bytes, count: int, born: int, *, movable: bool = False
    ) -> "asyncio.Future[SendResult]":
        """Send `count` messages, encoded by `wire.batch`, after all before them; `born` in ms.

        The header carries no properties: a broker appends them to those of every message, and a UNIQ_KEY there would give all of
        them one id. The future fails with ClusterError: REFUSED for what the broker does not take, REFRESH when the queue is
        gone, FATAL for missing rights or a missing topic, RETRY after `max_elapsed_s`. A `movable` batch may go to another queue
        if this one fails.
        """
        header = SendHeader(self.group, self.topic, queue.id, born, "", batch=True, default_topic=self.topic)
        request = SendRequest(Code.SEND_BATCH_MESSAGE, header, body, self._loop.create_future(), movable=movable)
        return self._add(queue, request, count)

    def send_single(
        self,
        queue: Queue,
        body: bytes,
        properties: bytes,
        flag: int = 0,
        sys_flag: int = 0,
        born: int | None = None,
        *,
        movable: bool = False,
    ) -> "asyncio.Future[SendResult]":
        """Send a message with this property string; see `send_batch`.

        A `movable` one may go to another queue if this one fails.
        """
        header = self._header(queue, properties, flag, sys_flag, born)
        request = SendRequest(Code.SEND_MESSAGE_V2, header, body, self._loop.create_future(), movable=movable)
        return self._add(queue, request, 1)

    async def send_oneway(
        self, queue: Queue, body: bytes, properties: bytes, flag: int = 0, sys_flag: int = 0, born: int | None = None
    ) -> None:
        """Hand a message to the connection; no response says whether it is stored.

        Raises ClusterError when the queue's broker has no master, or cannot be reached.
        """
        header = self._header(queue, properties, flag, sys_flag, born)
        problem = self._problem(SendRequest(Code.SEND_MESSAGE_V2, header, body, self._loop.create_future()), 1)
        address = (await self.route()).master(queue.broker)
        if problem is None and address is None:
            problem = ClusterError(f"the route of {self.topic} names no master of {queue.broker} now", Failure.REFRESH)
        if problem is not None:
            raise problem
        assert address is not None  # noqa: S101 - for the type checker
        await self.client.oneway(address, Code.SEND_MESSAGE_V2, header.encode(), body)

    def _header(self, queue: Queue, properties: bytes, flag: int, sys_flag: int, born: int | None) -> SendHeader:
        if born is None:
            born = time.time_ns() // 1_000_000
        text = properties.decode()
        # A template topic that does not exist: a topic that was deleted is not created again by the next send.
        return SendHeader(self.group, self.topic, queue.id, born, text, sys_flag, flag, default_topic=self.topic)

    def _add(self, queue: Queue, request: SendRequest, count: int) -> "asyncio.Future[SendResult]":
        problem = self._problem(request, count)
        if problem is not None:
            request.fail(problem)
            return request.future
        send_queue = self._send_queues.get(queue)
        if send_queue is None:
            send_queue = self._send_queues[queue] = PartitionSendQueue(self, queue)
            if self._known is not None:
                send_queue.on_route(self._known)
        send_queue.add(request)
        return request.future

    def _problem(self, request: SendRequest, count: int) -> ClusterError | None:
        """Why it can be refused without asking the broker."""
        size = len(request.body)
        if self.closing:
            return ClusterError(f"the producer of {self.topic} is closed", Failure.FATAL)
        if not size:
            return ClusterError(f"a message for {self.topic} without a body: RocketMQ cannot carry it", Failure.REFUSED)
        if size > self.max_message_bytes:
            problem = f"{count} message(s) for {self.topic} of {size} bytes, and the broker takes {self.max_message_bytes}"
            return ClusterError(f"{problem}: raise its maxMessageSize, or send smaller ones", Failure.REFUSED)
        if len(request.header.properties.encode()) > props.MAX_BYTES:
            problem = f"a message for {self.topic} with more than {props.MAX_BYTES} bytes of properties"
            return ClusterError(problem, Failure.REFUSED)
        return None

    def withdraw(self, queue: Queue, sends: Collection["asyncio.Future[SendResult]"]) -> None:
        """Take back what is not on its way of these sends to a queue: they fail with RETRY, those behind them go on.

        What is on its way is decided by its answer, and not sent again: without one it fails with RETRY.
        """
        if (send_queue := self._send_queues.get(queue)) is not None:
            send_queue.withdraw(sends)

    # --- choosing queues ----------------------------------------------------------------------------------------------

    async def queues(self) -> Sequence[Queue]:
        """The queues that take messages, sorted.

        Raises ClusterError: FATAL when there is no such topic, REFRESH when none takes any.
        """
        # Name servers are asked when there is something to learn: a client that knows its queues works without them.
        queues = (self._known if self._known is not None else await self.route()).write_queues()
        if not queues:
            queues = (await self.route()).write_queues()
        if not queues:
            problem = f"no queue of {self.topic} takes messages: it may not be written, or has no master"
            raise ClusterError(problem, Failure.REFRESH)
        return queues

    def choose(self, sharding_key: str | None = None) -> Queue:
        """Choose the queue of a message: by its sharding key as in Java, else round robin over healthy queues.

        Messages with one sharding key go to one queue while the number of queues stays the same. Raises LocalProtocolError
        before `queues`.
        """
        queues = self._known.write_queues() if self._known is not None else ()
        if not queues:
            raise LocalProtocolError(f"no queue of {self.topic} is known: await queues() before")
        if sharding_key is not None:
            return queues[abs(java_string_hash(sharding_key)) % len(queues)]
        for _ in queues:
            self._round_robin += 1
            queue = queues[self._round_robin % len(queues)]
            send_queue = self._send_queues.get(queue)
            if send_queue is None or send_queue.healthy:
                return queue
        return queue

    # --- for the send queues -------------------------------------------------------------------------------------------

    async def route(self, *, missing: bool = False) -> TopicRoute:
        """Return the topic's route. `missing`: its broker reports that the topic does not exist.

        Raises ClusterError if no name server knows the topic: FATAL if it is `missing` or never had a route, else REFRESH. Name
        servers alone are no proof: they drop the topics of a broker that restarts, and of all brokers when they restart.
        """
        try:
            if self._known is None:
                route = await Admin(self.client).route(self.topic)
            else:
                route = await self.client.routes.get(self.topic)
        except ClusterError as error:
            if self._known is None or error.failure is Failure.FATAL:
                raise
            log.log(level_of(error, logging.INFO), "using the last known route of %s: %s", self.topic, error)
            return self._known
        if route is not None:
            self._known = route
            return route
        if self._known is None or missing:
            problem = f"no name server knows topic {self.topic!r}; create it, or correct the name"
            raise ServerRefused(problem, Status.TOPIC_NOT_EXIST, Failure.FATAL)
        raise ClusterError(f"no name server knows topic {self.topic!r} now", Failure.REFRESH)

    def take_over(self, request: SendRequest, avoid: str | None) -> bool:
        """Move the request to a healthy queue, if there is one that is not at the broker `avoid`."""
        for queue in self._known.write_queues() if self._known is not None else ():
            send_queue = self._send_queues.get(queue)
            if queue.broker != avoid and (send_queue is None or send_queue.healthy):
                self._add(queue, request, 1)
                return True
        return False

    def emptied(self) -> None:
        """A send queue has nothing left: `close` may be waiting for the last one."""
        if self._emptied is not None and not self._emptied.done() and not self.pending:
            self._emptied.set_result(None)

    @property
    def pending(self) -> int:
        """Requests that are not decided."""
        return sum(send_queue.pending for send_queue in self._send_queues.values())

    def _on_route(self, route: TopicRoute) -> None:
        self._known = route
        for send_queue in self._send_queues.values():
            send_queue.on_route(route)

    async def close(self, timeout: float = CLOSE_TIMEOUT_S) -> None:
        """Wait for what is on its way, at most `timeout` seconds; the rest fails with ConnectionLost."""
        if self.closing:
            return
        if self.pending:
            self._emptied = self._loop.create_future()
            await asyncio.wait([self._emptied], timeout=timeout)
        self.closing = True
        self._unwatch()
        for send_queue in list(self._send_queues.values()):
            await send_queue.stop()
        await self.client.remove_producer(self.group)
