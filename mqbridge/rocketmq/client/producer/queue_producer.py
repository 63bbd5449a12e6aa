"""Producer of one topic: sends encoded messages and batches to chosen queues, in order, and retries after transient failures.

Sends that cannot go out yet wait in memory without a limit here: the caller limits their bytes. `library/` encodes the messages
of applications, the adapter those of the gateway.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import Collection, Iterable, Sequence

from mqbridge.errors import ClusterError, Failure, LocalProtocolError, ServerRefused
from mqbridge.net.connectivity import retry_log_level
from mqbridge.net.failing_sends import FailingSends
from mqbridge.net.waiting_sends import Caller
from mqbridge.rocketmq.client.admin.admin import Admin
from mqbridge.rocketmq.client.admin.name_rules import check_group, check_topic
from mqbridge.rocketmq.client.connection.base_client import BaseClient
from mqbridge.rocketmq.client.connection.route import TopicRoute
from mqbridge.rocketmq.client.producer.send_queue import PartitionSendQueue
from mqbridge.rocketmq.client.producer.send_request import OnDivided, SendRequest, SendResult
from mqbridge.rocketmq.client.producer.topic_rules import requires_keys
from mqbridge.rocketmq.wire import properties as props
from mqbridge.rocketmq.wire.bodies.queue import Queue
from mqbridge.rocketmq.wire.codes import Code, Status
from mqbridge.rocketmq.wire.command import MAX_FRAME_BYTES
from mqbridge.rocketmq.wire.headers.send import SendHeader
from mqbridge.rocketmq.wire.record import MAX_MESSAGE_BYTES
from mqbridge.wire.javahash import java_string_hash

log = logging.getLogger(__name__)

HEADER_RESERVE_BYTES = 128 << 10
"""Part of a frame that is reserved for everything but the body: properties may have 32 KiB, and JSON may double their size."""
MAX_BODY_BYTES = MAX_FRAME_BYTES - HEADER_RESERVE_BYTES
"""Maximum bytes of a message's body or of a batch that fit a frame, whatever the brokers' limit is."""
CLOSE_TIMEOUT_S = 10.0
"""How long `close` waits by default for the results of pending sends."""
ORDERED = 1
"""The `in_flight_per_queue` that keeps the order: with one request in flight, messages are stored in the order of the calls."""


class QueueProducer:
    """Producer of one topic. `ClusterClient.producer` creates it, inside a running loop.

    `in_flight_per_queue` is the limit of requests to one queue that have no response yet; 1 keeps the order. `max_elapsed_s`
    limits an outage of a queue: if nothing was stored there for this time after the first failed send, all waiting sends to the
    queue fail with the last error. With None, they are retried for ever. With `fail_behind`, a send that fails for another reason
    than REFUSED also fails all later sends to its queue, because they would be stored before the caller can send it again;
    without it, they continue. With `require_replica`, a message that a broker has stored without the flush or the replica that
    its settings demand is sent again, so it may be stored several times.
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
        require_replica: bool = False,
        route: TopicRoute | None = None,
    ) -> None:
        self.fail_behind, self.require_replica = fail_behind, require_replica
        self.client = client
        self.group, self.topic = check_group(group), check_topic(topic)
        self.in_flight_per_queue, self.max_elapsed_s = in_flight_per_queue, max_elapsed_s
        self.max_message_bytes = min(max_message_bytes, MAX_BODY_BYTES)
        self.closing = False
        """True once `close` has stopped waiting: new sends fail, and failed ones are not repeated."""
        self._loop = asyncio.get_running_loop()
        self._send_queues: dict[Queue, PartitionSendQueue] = {}
        self._route = route
        """The last known route of the topic; None if it was never known."""
        self._round_robin = time.monotonic_ns()
        """Index of the last queue that `choose` returned without a key; it starts at a different queue in each producer."""
        self._all_sent: asyncio.Future[None] | None = None
        """While `close` waits: its result is set when no send is pending."""
        self._route_changed = asyncio.Event()
        """Set, and replaced, at each change of the route and at the end of `close`."""
        self._stop_watching_route = client.routes.watch(topic, self._on_route)
        client.add_producer(group)

    # --- sending encoded messages to a given queue ------------------------------------------------------------------

    def send_batch(
        self,
        queue: Queue,
        body: bytes,
        count: int,
        born: int,
        sys_flag: int = 0,
        reconsume_times: int = 0,
        *,
        movable: bool = False,
        caller: Caller | None = None,
        on_divided: OnDivided | None = None,
    ) -> "asyncio.Future[SendResult]":
        """Send a batch of `count` messages, encoded by `wire.batch`, after all earlier sends to this queue.

        `born` is the born timestamp, ms since the epoch. It, `sys_flag` (bits of SysFlag) and `reconsume_times` (how often they
        were redelivered) are stored with every message. A `movable` batch may go to another queue if this one fails. Without a
        `caller`, the future that is returned is its owner, and tells the result.

        With `on_divided`, a batch that the broker refuses is sent in parts: `on_divided` gets the parts, whose futures have the
        results, and the result of the whole has the offset DIVIDED. Without it, the broker stores all messages or none.

        The future fails with ClusterError: REFUSED for messages that the broker does not accept, REFRESH if the queue no longer
        exists, FATAL for a missing permission or topic, RETRY after `max_elapsed_s`.
        """
        # Without properties: a broker appends those of the header to every message, so a UNIQ_KEY would give all the same id.
        header = SendHeader(
            self.group,
            self.topic,
            queue.id,
            born,
            sys_flag=sys_flag,
            batch=True,
            reconsume_times=reconsume_times,
            default_topic=self.topic,
        )
        request = SendRequest(
            Code.SEND_BATCH_MESSAGE,
            header,
            body,
            self._loop.create_future(),
            movable=movable,
            caller=caller,
            on_divided=on_divided,
            count=count,
        )
        return self._add(queue, request, count)

    def send_single(
        self,
        queue: Queue,
        body: bytes,
        properties: bytes,
        flag: int = 0,
        sys_flag: int = 0,
        born: int | None = None,
        reconsume_times: int = 0,
        *,
        movable: bool = False,
        caller: Caller | None = None,
    ) -> "asyncio.Future[SendResult]":
        """Send a message with these encoded properties, after all earlier sends to this queue.

        `born` is the born timestamp, ms since the epoch; None: now. `flag` (a number of the application), `sys_flag` (bits of
        SysFlag) and `reconsume_times` (how often it was redelivered) are stored with the message. `movable`, `caller` and the
        errors are those of `send_batch`.
        """
        header = self._header(queue, properties, flag, sys_flag, born)
        header.reconsume_times = reconsume_times
        request = SendRequest(Code.SEND_MESSAGE_V2, header, body, self._loop.create_future(), movable=movable, caller=caller)
        return self._add(queue, request, count=1)

    async def send_oneway(
        self, queue: Queue, body: bytes, properties: bytes, flag: int = 0, sys_flag: int = 0, born: int | None = None
    ) -> None:
        """Write a message to the connection without requesting a response, so nobody learns whether it was stored.

        Waits first while the broker does not read what was sent before (see `BaseClient.oneway`). The arguments are those of
        `send_single`. Raises ClusterError: REFUSED or FATAL if the message cannot be sent at all, REFRESH if the queue's broker
        has no master now, RETRY or FATAL if the broker cannot be reached, or does not read for the timeout of a request.
        """
        header = self._header(queue, properties, flag, sys_flag, born)
        problem = self._problem(SendRequest(Code.SEND_MESSAGE_V2, header, body, self._loop.create_future()), count=1)
        address = (await self.route()).master(queue.broker)
        if problem is None and address is None:
            problem = ClusterError(
                f"the route of topic {self.topic} contains no master of broker {queue.broker} now", Failure.REFRESH
            )
        if problem is not None:
            raise problem
        assert address is not None  # noqa: S101 - for the type checker
        await self.client.oneway(address, Code.SEND_MESSAGE_V2, header.encode(), body)

    def _header(self, queue: Queue, properties: bytes, flag: int, sys_flag: int, born: int | None) -> SendHeader:
        if born is None:
            born = time.time_ns() // 1_000_000
        text = properties.decode()
        # A broker creates a missing topic if `default_topic` names a topic to copy the settings from. The missing topic itself as
        # `default_topic` prevents that, so a send cannot create a topic that was just deleted.
        return SendHeader(self.group, self.topic, queue.id, born, text, sys_flag, flag, default_topic=self.topic)

    def _add(self, queue: Queue, request: SendRequest, count: int) -> "asyncio.Future[SendResult]":
        """Send a request of `count` messages, or let it fail if it cannot succeed; return its future."""
        problem = self._problem(request, count)
        if problem is not None:
            request.fail(problem)
            return request.future
        send_queue = self._send_queues.get(queue)
        if send_queue is None:
            send_queue = self._send_queues[queue] = PartitionSendQueue(self, queue)
            if self._route is not None:
                send_queue.on_route(self._route)
        send_queue.add(request)
        return request.future

    def _problem(self, request: SendRequest, count: int) -> ClusterError | None:
        """Return the error for a request of `count` messages that cannot succeed, None if it may be sent."""
        size = len(request.body)
        if self.closing:
            return ClusterError(f"the producer of topic {self.topic} is closed", Failure.FATAL)
        if not size:
            return ClusterError(f"a message for topic {self.topic} has no body: RocketMQ cannot store it", Failure.REFUSED)
        if size > self.max_message_bytes:
            problem = f"{count} message(s) for topic {self.topic} have {size} bytes, the limit is {self.max_message_bytes}"
            return ClusterError(f"{problem}: raise the broker's maxMessageSize, or send smaller ones", Failure.REFUSED)
        if len(request.header.properties.encode()) > props.MAX_BYTES:
            problem = f"a message for topic {self.topic} has more than {props.MAX_BYTES} bytes of properties"
            return ClusterError(problem, Failure.REFUSED)
        return None

    def withdraw(self, owners: Collection[object]) -> None:
        """Withdraw the sends whose callers have one of these owners: those that still wait fail with RETRY. Other sends continue.

        A send that is in flight gets the result of its response. If it fails, it is not sent again.
        """
        for send_queue in list(self._send_queues.values()):
            send_queue.withdraw(owners)

    # --- choosing queues ----------------------------------------------------------------------------------------------

    async def queues(self) -> Sequence[Queue]:
        """Return the writable queues, sorted.

        Raises ClusterError: FATAL if the topic does not exist, REFRESH if it has no writable queue now.
        """
        # With a known route no name server is queried, so that the producer continues while they cannot be reached.
        queues = (self._route if self._route is not None else await self.route()).write_queues()
        if not queues:
            queues = (await self.route()).write_queues()
        if not queues:
            problem = f"topic {self.topic} has no queue that accepts messages: it is not writable, or its brokers have no master"
            raise ClusterError(problem, Failure.REFRESH)
        return queues

    async def wait_for_route(self, timeout: float) -> None:
        """Wait until the route changes or the producer is closed, but at most `timeout` seconds."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                await self._route_changed.wait()

    def choose(self, sharding_key: str | None = None) -> Queue:
        """Choose the queue of a message: by the hash of its sharding key, as Java clients do; without a key, by round robin.

        Messages with the same sharding key go to the same queue, as long as the number of queues does not change. Round robin
        avoids queues whose last sends failed. Raises LocalProtocolError if `queues` was not called before.
        """
        queues = self._route.write_queues() if self._route is not None else ()
        if not queues:
            raise LocalProtocolError(f"the queues of topic {self.topic} are not known: call queues() first")
        if sharding_key is not None:
            return queues[abs(java_string_hash(sharding_key)) % len(queues)]
        for _ in queues:  # round robin; if no queue is healthy, the last one tried is used
            self._round_robin += 1
            queue = queues[self._round_robin % len(queues)]
            send_queue = self._send_queues.get(queue)
            if send_queue is None or send_queue.healthy:
                return queue
        return queue

    async def requires_keys(self) -> bool:
        """Return True if the topic is compacted: its brokers drop messages of a batch that have no KEYS. Raises ClusterError."""
        return await requires_keys(self.client, self.group, self._route if self._route is not None else await self.route())

    # --- for the send queues -------------------------------------------------------------------------------------------

    async def route(self, *, missing: bool = False) -> TopicRoute:
        """Return the topic's route, or the last known one while no name server can be reached.

        `missing`: a broker reports that the topic does not exist. Raises ClusterError if no name server knows the topic: FATAL if
        it is `missing` or never had a route, else REFRESH. A route that disappears is no proof that the topic was deleted: name
        servers drop the topics of a broker that restarts, and all topics when they restart themselves.
        """
        try:
            if self._route is None:  # this query raises RETRY while no master is registered: the topic may exist then
                route = await Admin(self.client).route(self.topic)
            else:
                route = await self.client.routes.get(self.topic)
        except ClusterError as error:
            if self._route is None or error.failure is Failure.FATAL:
                raise
            log.log(
                retry_log_level(error, logging.INFO),
                "using the last known route of topic %s, because querying it failed: %s",
                self.topic,
                error,
            )
            return self._route
        if route is not None:
            self._route = route
            return route
        if self._route is None or missing:
            problem = f"no name server knows topic {self.topic!r}; create it, or correct the name"
            raise ServerRefused(problem, Status.TOPIC_NOT_EXIST, Failure.FATAL)
        raise ClusterError(f"no name server knows topic {self.topic!r} now, but it existed before", Failure.REFRESH)

    def send_elsewhere(self, request: SendRequest, avoid: str | None) -> bool:
        """Send the request to a healthy queue not at the broker `avoid` (None: at any broker); return False without one."""
        for queue in self._route.write_queues() if self._route is not None else ():
            send_queue = self._send_queues.get(queue)
            if queue.broker != avoid and (send_queue is None or send_queue.healthy):
                self._add(queue, request, count=1)  # the number of messages is only for errors, and the size was checked before
                return True
        return False

    def on_queue_empty(self) -> None:
        """Wake `close` if no send queue has a pending send; called by a send queue that has none."""
        if self._all_sent is not None and not self._all_sent.done() and not self.pending:
            self._all_sent.set_result(None)

    @property
    def pending(self) -> int:
        """The number of sends without a result."""
        return sum(send_queue.pending for send_queue in self._send_queues.values())

    def _on_route(self, route: TopicRoute) -> None:
        self._route = route
        self._announce_change()
        for send_queue in self._send_queues.values():
            send_queue.on_route(route)

    def _announce_change(self) -> None:
        changed, self._route_changed = self._route_changed, asyncio.Event()
        changed.set()

    @property
    def failing(self) -> Iterable[FailingSends]:
        """The failures of each queue since a message was stored there."""
        return (queue.failing for queue in self._send_queues.values())

    async def close(self, timeout: float = CLOSE_TIMEOUT_S) -> None:
        """Wait up to `timeout` seconds for the results of pending sends; those without a result then fail.

        Their error is ConnectionLost (FATAL). New sends are accepted until the wait ends.
        """
        if self.closing:
            return
        if self.pending:
            self._all_sent = self._loop.create_future()
            await asyncio.wait([self._all_sent], timeout=timeout)
        self.closing = True
        self._announce_change()
        self._stop_watching_route()
        for send_queue in list(self._send_queues.values()):
            await send_queue.stop()
        await self.client.remove_producer(self.group)
