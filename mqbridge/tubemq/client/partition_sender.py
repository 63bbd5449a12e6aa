"""Send encoded messages to named partitions of a topic. A `PartitionSender` has one `PartitionSendQueue` per partition."""

import asyncio
import contextlib
from collections.abc import Callable, Iterable
from ipaddress import IPv4Address

from mqbridge.errors import LocalProtocolError, MqbridgeError
from mqbridge.tubemq.client.connection_pool import ConnectionPool
from mqbridge.tubemq.client.counters import SendCounters
from mqbridge.tubemq.client.partition_send_queue import PartitionSendQueue
from mqbridge.tubemq.client.routes import Routes, TopicRoute
from mqbridge.tubemq.client.send_result import SendCallback, SenderClosed, SendResult
from mqbridge.tubemq.client.server_connection import ServerConnection
from mqbridge.tubemq.wire import codes
from mqbridge.tubemq.wire.send import SendRequestEncoder

MAX_MESSAGE_BYTES = (20 << 20) + (10 << 10)
"""The largest message limit that a Broker can be configured with. The Broker checks its own, lower limit."""
WINDOW_REQUESTS = 1000
"""Maximum requests in flight on one partition if order does not matter."""
NO_CHECK_SUM = -1
"""The `checkSum` of a send request whose producer computes no checksum."""
CLOSE_TIMEOUT_S = 10.0


class PartitionSender:
    """A sender to one topic; made by `open_partition_sender`.

    `queued` messages with `queued_bytes` are submitted, and neither stored nor failed yet.
    """

    def __init__(
        self,
        routes: Routes,
        connections: ConnectionPool,
        route: TopicRoute,
        *,
        window: int,
        max_elapsed_s: float | None,
        ordered: bool = False,
    ) -> None:
        self.topic = route.topic
        self.route = route
        self.routes = routes
        self.window, self.ordered = window, ordered
        self.max_elapsed_s = max_elapsed_s
        self.closing = False
        self.is_withdrawn: Callable[[SendCallback], bool] = _never
        """Function that returns True if the message with this callback is withdrawn: it must not be sent or retried."""
        self.counters = SendCounters()
        self.connectivity = connections.connectivity
        self.queued = self.queued_bytes = 0
        self.loop = asyncio.get_running_loop()
        self._connections = connections
        self._queues: dict[str, PartitionSendQueue] = {}
        self._room: list[tuple[int, asyncio.Future[None]]] = []

    def submit(
        self, partition: str, data: bytes, flag: int, msg_type: str | None, msg_time: str | None, *, done: SendCallback
    ) -> None:
        """Queue a message for a partition, given by name; `done` is called later with the result.

        Transient failures are retried for `max_elapsed_s`; after that, and for refusals, `done` gets the exception. Raises
        KeyError if the topic has no such partition. A caller that submits faster than Brokers store should await `room`.
        """
        queue = self._queues.get(partition)
        if queue is None:
            queue = self._queues[partition] = PartitionSendQueue(self, partition)
        if len(data) > MAX_MESSAGE_BYTES or self.closing:
            self.counters.failed += 1
            self.loop.call_soon(done, self._unsendable(len(data)))
            return
        self.queued += 1
        self.queued_bytes += len(data)
        queue.add(data, flag, (msg_type, msg_time), done)

    def withdraw(self, partitions: Iterable[str]) -> None:
        """Fail, with Withdrawn (RETRY), the waiting messages of these partitions for which `is_withdrawn` returns True."""
        for name in partitions:
            if name in self._queues:
                self._queues[name].withdraw()

    def _unsendable(self, size: int) -> MqbridgeError:
        if self.closing:
            return SenderClosed(f"the sender to {self.topic} is closed")
        limit = f"{size} bytes, {MAX_MESSAGE_BYTES} at most"
        return codes.refusal_error(f"a message for {self.topic}", codes.OVER_MAX_LENGTH, limit)

    def send(
        self, partition: str, data: bytes, flag: int = 0, msg_type: str | None = None, msg_time: str | None = None
    ) -> "asyncio.Future[SendResult]":
        """Like `submit`, but return a future of the result."""
        future: asyncio.Future[SendResult] = self.loop.create_future()

        def done(result: SendResult | MqbridgeError) -> None:
            settle(future, result)

        self.submit(partition, data, flag, msg_type, msg_time, done=done)
        return future

    @property
    def closed(self) -> bool:
        """True once `close` was called."""
        return self.closing

    @property
    def idle(self) -> bool:
        """True if no message waits or is in flight."""
        return not self.queued

    def settled(self, size: int) -> None:
        """Record that a message is stored or has failed; wake callers of `room` and `flush`."""
        self.queued -= 1
        self.queued_bytes -= size
        if self._room:
            self._wake()

    async def room(self, max_bytes: int) -> None:
        """Wait until at most `max_bytes` are queued."""
        if self.queued_bytes > max_bytes:
            await self._until(max_bytes)

    async def flush(self) -> None:
        """Wait until all messages are stored or have failed."""
        if self.queued:
            await self._until(-1)

    async def close(self, timeout: float = CLOSE_TIMEOUT_S) -> None:
        """Wait for pending messages at most `timeout` seconds; those still pending fail with SenderClosed, a ConnectionLost."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                await self.flush()
        self.closing = True
        for queue in self._queues.values():
            await queue.stop()

    async def _until(self, max_bytes: int) -> None:
        future: asyncio.Future[None] = self.loop.create_future()
        entry = max_bytes, future
        self._room.append(entry)
        try:
            await future
        finally:
            if entry in self._room:
                self._room.remove(entry)

    def _wake(self) -> None:
        """Wake callers of `room` and `flush`. A limit of -1 waits for zero messages, since an empty message has zero bytes."""
        for entry in list(self._room):
            limit, future = entry
            if (not self.queued if limit < 0 else self.queued_bytes <= limit) and not future.done():
                future.set_result(None)
                self._room.remove(entry)

    def encoder_for(self, name: str) -> SendRequestEncoder:
        """Return the encoder of one partition's requests. Raises KeyError if the topic has no such partition."""
        routes, partition = self.routes, self.route.partitions[name].partition
        return SendRequestEncoder(routes.client_id, self.topic, partition, NO_CHECK_SUM, _signed_address(routes.host))

    def connection_for(self, name: str) -> ServerConnection:
        """Return the connection to the partition's Broker."""
        ref = self.route.partitions[name]
        return self._connections.to(ref.broker.host, ref.broker.port, str(ref.key))


def _never(_: SendCallback) -> bool:
    return False


def settle(future: "asyncio.Future[SendResult]", result: SendResult | MqbridgeError) -> None:
    """Set the result or the exception of a future, unless it is done or cancelled."""
    if future.done():
        return
    if isinstance(result, MqbridgeError):
        future.set_exception(result)
    else:
        future.set_result(result)


def _signed_address(host: str) -> int:
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
    """Open a sender of a topic. Raises ServerRefused (FATAL), which names the topic, if the Master does not know the topic.

    `ordered` keeps one request of each partition in flight, and so keeps the order across all failures. `in_flight` sets another
    number: the order then holds as long as the Broker refuses no message; `counters.overtaken` counts violations. If an ordered
    message fails for good, all messages queued after it fail, too.
    """
    window = in_flight or (1 if ordered else WINDOW_REQUESTS)
    if window < 1:
        raise LocalProtocolError(f"in_flight is {in_flight}; a partition needs at least one request in flight")
    route = await routes.topic(topic)
    return PartitionSender(routes, connections, route, window=window, ordered=ordered, max_elapsed_s=max_elapsed_s)
