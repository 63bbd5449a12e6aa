"""Sends encoded messages to named partitions of a topic. A `PartitionSender` has one `PartitionSendQueue` per partition."""

import asyncio
import contextlib
from collections.abc import Collection, Iterable
from ipaddress import IPv4Address

from mqbridge.errors import LocalProtocolError, MqbridgeError
from mqbridge.net.failing_sends import FailingSends
from mqbridge.net.home_loop import HomeLoop
from mqbridge.net.waiting_sends import Caller
from mqbridge.tubemq.client.connection.connection_pool import ConnectionPool
from mqbridge.tubemq.client.connection.counters import SendCounters
from mqbridge.tubemq.client.connection.server_connection import ServerConnection
from mqbridge.tubemq.client.producer.partition_send_queue import PartitionSendQueue
from mqbridge.tubemq.client.producer.routes import DEFAULT_MESSAGE_BYTES, Routes, TopicRoute
from mqbridge.tubemq.client.producer.send_result import SendCallback, SenderClosed, SendResult
from mqbridge.tubemq.wire import codes
from mqbridge.tubemq.wire.send import SendRequestEncoder

MAX_MESSAGE_BYTES = (20 << 20) + (10 << 10)
"""Larger messages fail before they are sent: administrators can set the message limit of a Broker to this value at most. A Broker
with a lower limit refuses messages itself."""
LIMIT_TOLERANCE = 10 << 10
"""A Broker accepts messages that exceed the limit by this number of bytes."""
MAX_UNORDERED_REQUESTS = 1000
"""Maximum requests in flight on one partition, for senders that do not keep the order."""
NO_CHECK_SUM = -1
"""The `checkSum` of a send request whose producer computes no checksum."""
NO_CALLER = Caller(owner=None, stream=None, told_by=())
"""The caller of a message that cannot be withdrawn, and whose callback itself tells its caller the result."""
CLOSE_TIMEOUT_S = 10.0
"""How long `close` waits by default for pending messages."""


class PartitionSender:
    """Sends messages to one topic; created by `open_partition_sender`, which explains the parameters.

    `queued_messages` and `queued_bytes` count the messages that are submitted, and neither stored nor failed yet.
    """

    def __init__(
        self,
        routes: Routes,
        connections: ConnectionPool,
        route: TopicRoute,
        *,
        max_in_flight: int,
        max_elapsed_s: float | None,
        ordered: bool = False,
    ) -> None:
        self._home = HomeLoop(f"the sender of topic {route.topic!r}")
        self.topic = route.topic
        self.route = route
        self.routes = routes
        self.max_in_flight, self.ordered = max_in_flight, ordered
        self.max_elapsed_s = max_elapsed_s
        self.closed = False
        """True once `close` has stopped waiting for pending messages: new messages then fail, and none is retried."""
        self.counters = SendCounters()
        self.connectivity = connections.connectivity
        self.queued_messages = self.queued_bytes = 0
        self.loop = asyncio.get_running_loop()
        self._connections = connections
        self._queues: dict[str, PartitionSendQueue] = {}
        self._room_waiters: list[tuple[int, asyncio.Future[None]]] = []
        """(limit, future) of each call of `room` and `flush` that waits.

        A future is done when at most `limit` bytes are queued or, with limit -1, when no message is queued.
        """

    def submit(
        self,
        partition: str,
        data: bytes,
        flag: int,
        msg_type: str | None,
        msg_time: str | None,
        *,
        done: SendCallback,
        caller: Caller = NO_CALLER,
    ) -> None:
        """Queue a message for a partition, given by name; `done` is called with the result, perhaps before this returns.

        `data` is the encoded message; bit 0 of `flag` is set if it begins with an attribute block. `msg_type` and `msg_time` (a
        minute in the cluster's time zone, YYYYMMDDHHMM) are fields of the request, None to leave them out. Transient failures are
        retried for `max_elapsed_s` seconds, with None for ever. If the message fails after that, or is refused, `done` gets the
        exception. Raises KeyError if the topic has no such partition. A caller that submits faster than Brokers store should
        await `room`. A message without a `caller` cannot be withdrawn; `done` itself tells its caller the result.
        """
        queue = self._queues.get(partition)
        if queue is None:
            queue = self._queues[partition] = PartitionSendQueue(self, partition)
        if len(data) > MAX_MESSAGE_BYTES or self.closed:
            self.counters.failed += 1
            self.loop.call_soon(done, self._rejection_error(len(data)))
            return
        self.queued_messages += 1
        self.queued_bytes += len(data)
        queue.add(data, flag, msg_type, msg_time, done, caller)

    def why_too_large(self, size: int) -> str | None:
        """Return why the Brokers would refuse a message of this size, by what is known now; None if it is not too large."""
        limit = max(self.route.max_message_bytes or self.routes.max_message_bytes, DEFAULT_MESSAGE_BYTES) + LIMIT_TOLERANCE
        return None if size <= limit else f"it has {size} bytes, at most {limit} are allowed"

    @property
    def failing(self) -> Iterable[FailingSends]:
        """The failures of each partition since a message was stored there."""
        return (queue.failing for queue in self._queues.values())

    def withdraw(self, owners: Collection[object]) -> None:
        """Report the messages whose callers have one of these owners as failed with Withdrawn (RETRY).

        Messages in flight are not withdrawn, but they are not retried if they fail.
        """
        for queue in self._queues.values():
            queue.withdraw(owners)

    def _rejection_error(self, size: int) -> MqbridgeError:
        if self.closed:
            return SenderClosed(f"the sender to topic {self.topic} is closed")
        problem = f"it has {size} bytes, at most {MAX_MESSAGE_BYTES} are allowed"
        return codes.refusal_error(f"a message for topic {self.topic}", codes.OVER_MAX_LENGTH, problem)

    def send(
        self, partition: str, data: bytes, flag: int = 0, msg_type: str | None = None, msg_time: str | None = None
    ) -> "asyncio.Future[SendResult]":
        """Like `submit`, but return a future that gets the result or the exception."""
        self._home.check()
        future: asyncio.Future[SendResult] = self.loop.create_future()

        def done(result: SendResult | MqbridgeError) -> None:
            settle_future(future, result)

        self.submit(partition, data, flag, msg_type, msg_time, done=done, caller=Caller(future, None, (future,)))
        return future

    @property
    def idle(self) -> bool:
        """True if no message waits, is in flight, or has to be retried."""
        return not self.queued_messages

    def on_settled(self, size: int) -> None:
        """Record that a message is stored or has failed (called by its queue); wake callers of `room` and `flush`."""
        self.queued_messages -= 1
        self.queued_bytes -= size
        if self._room_waiters:
            self._wake_room_waiters()

    async def room(self, max_bytes: int) -> None:
        """Wait until at most `max_bytes` bytes are queued."""
        self._home.check()
        if self.queued_bytes > max_bytes:
            await self._wait_until_queued(max_bytes)

    async def flush(self) -> None:
        """Wait until all messages are stored or have failed."""
        self._home.check()
        if self.queued_messages:
            await self._wait_until_queued(-1)

    async def close(self, timeout: float = CLOSE_TIMEOUT_S) -> None:
        """Wait at most `timeout` seconds for pending messages; then those that are not in flight fail with SenderClosed.

        Messages in flight get their results later: the response, or an error when the connection ends. They are not retried.
        """
        if self._home.is_over():
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                await self.flush()
        self.closed = True
        for queue in self._queues.values():
            await queue.stop()

    async def _wait_until_queued(self, max_bytes: int) -> None:
        """Wait until at most `max_bytes` bytes are queued; -1: until no message is queued."""
        future: asyncio.Future[None] = self.loop.create_future()
        entry = max_bytes, future
        self._room_waiters.append(entry)
        try:
            await future
        finally:
            if entry in self._room_waiters:
                self._room_waiters.remove(entry)

    def _wake_room_waiters(self) -> None:
        """Wake the callers of `room` and `flush` whose condition holds.

        `flush` has the limit -1 and waits for zero messages, not zero bytes, since an empty message has zero bytes.
        """
        for entry in list(self._room_waiters):
            limit, future = entry
            is_reached = not self.queued_messages if limit < 0 else self.queued_bytes <= limit
            if is_reached and not future.done():
                future.set_result(None)
                self._room_waiters.remove(entry)

    def encoder_for(self, name: str) -> SendRequestEncoder:
        """Return the encoder of the requests to one partition. Raises KeyError if the topic has no such partition."""
        routes, partition = self.routes, self.route.partitions[name].partition
        return SendRequestEncoder(routes.client_id, self.topic, partition, NO_CHECK_SUM, _signed_address(routes.host))

    def connection_for(self, name: str) -> ServerConnection:
        """Return the connection to the partition's Broker."""
        ref = self.route.partitions[name]
        return self._connections.connection_to(ref.broker.host, ref.broker.port, str(ref.key))


def settle_future(future: "asyncio.Future[SendResult]", result: SendResult | MqbridgeError) -> None:
    """Set the result or the exception of a future, unless it is done or cancelled."""
    if future.done():
        return
    if isinstance(result, MqbridgeError):
        future.set_exception(result)
    else:
        future.set_result(result)


def _signed_address(host: str) -> int:
    """Return an IPv4 address as a signed 32 bit integer, for the field sentAddr."""
    value = int(IPv4Address(host))
    return value - (1 << 32) if value >> 31 else value


async def open_partition_sender(
    routes: Routes,
    connections: ConnectionPool,
    topic: str,
    *,
    ordered: bool = True,
    in_flight: int | None = None,
    max_elapsed_s: float | None = None,
) -> PartitionSender:
    """Open a sender to a topic. Raises ServerRefused (FATAL), which names the topic, if the Master does not know the topic.

    ordered        True: each partition has only one request in flight, so that the order survives all failures, and if a message
                   fails for good, all messages that wait behind it fail, too. False: each partition has
                   at most MAX_UNORDERED_REQUESTS in flight
    in_flight      another number of requests in flight per partition; None for the number that `ordered` says. With more
                   than one, the order holds only while the Broker refuses no message; `counters.overtaken` counts violations
    max_elapsed_s  seconds for which a failed message is retried, from its first failure on; None for ever, 0.0 for no retry
    """
    max_in_flight = (1 if ordered else MAX_UNORDERED_REQUESTS) if in_flight is None else in_flight
    if max_in_flight < 1:
        raise LocalProtocolError(f"in_flight is {in_flight}, but must be at least 1 (requests in flight per partition)")
    route = await routes.topic(topic)
    return PartitionSender(routes, connections, route, max_in_flight=max_in_flight, ordered=ordered, max_elapsed_s=max_elapsed_s)
