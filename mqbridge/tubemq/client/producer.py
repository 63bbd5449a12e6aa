"""Sending to named partitions of a topic: a `Sender` has a `Line` for each.

Sending to whichever partition takes a message, without order, is in `spread`.
"""

import asyncio
import contextlib
from collections.abc import Callable, Iterable
from ipaddress import IPv4Address

from mqbridge.errors import LocalProtocolError, MqbridgeError
from mqbridge.tubemq.client.line import Line
from mqbridge.tubemq.client.routes import Routes, TopicRoute
from mqbridge.tubemq.client.send_result import Done, SenderClosed, SendResult
from mqbridge.tubemq.client.session import Session
from mqbridge.tubemq.client.sessions import Sessions
from mqbridge.tubemq.client.stats import SendCounters
from mqbridge.tubemq.wire import codes
from mqbridge.tubemq.wire.send import SendRequestEncoder

MAX_MESSAGE_BYTES = (20 << 20) + (10 << 10)
"""The most that any Broker can be set to take; below it the Broker decides."""
WINDOW_REQUESTS = 1000
"""In flight on one partition where order does not matter."""
NO_CHECK_SUM = -1
CLOSE_TIMEOUT_S = 10.0


class Sender:
    """A way into one topic; made by `Producer.sender`. `queued_bytes` are submitted and not decided."""

    def __init__(
        self, producer: "Producer", route: TopicRoute, *, window: int, max_elapsed_s: float | None, ordered: bool = False
    ) -> None:
        self.topic = route.topic
        self.route = route
        self.routes = producer.routes
        self.window, self.ordered = window, ordered
        self.max_elapsed_s = max_elapsed_s
        self.closing = False
        self.is_withdrawn: Callable[[Done], bool] = _never
        """Whether a message, known by its callback, is not to be sent (again); `withdraw` has it asked of those that wait."""
        self.counters = SendCounters()
        self.connectivity = producer.sessions.connectivity
        self.queued = self.queued_bytes = 0
        self.loop = asyncio.get_running_loop()
        self._sessions = producer.sessions
        self._lines: dict[str, Line] = {}
        self._room: list[tuple[int, asyncio.Future[None]]] = []

    def submit(self, partition: str, data: bytes, flag: int, msg_type: str | None, msg_time: str | None, *, done: Done) -> None:
        """Send to a partition (its name) in order, without waiting; `done` is called when it is decided.

        Transient failures are retried for `max_elapsed_s`; then, and for refusals, `done` gets the exception. Raises KeyError
        for a partition that the topic does not have. Whoever submits faster than Brokers store waits for `room`.
        """
        line = self._lines.get(partition)
        if line is None:
            line = self._lines[partition] = Line(self, partition)
        if len(data) > MAX_MESSAGE_BYTES or self.closing:
            self.counters.failed += 1
            self.loop.call_soon(done, self._unsendable(len(data)))
            return
        self.queued += 1
        self.queued_bytes += len(data)
        line.add(data, flag, (msg_type, msg_time), done)

    def withdraw(self, partitions: Iterable[str]) -> None:
        """Give up what `is_withdrawn` of what waits for these partitions: it fails with Withdrawn (RETRY), and others go on."""
        for name in partitions:
            if name in self._lines:
                self._lines[name].withdraw()

    def _unsendable(self, size: int) -> MqbridgeError:
        if self.closing:
            return SenderClosed(f"the sender to {self.topic} is closed")
        said = f"{size} bytes, {MAX_MESSAGE_BYTES} at most"
        return codes.refused(f"a message for {self.topic}", codes.OVER_MAX_LENGTH, said)

    def send(
        self, partition: str, data: bytes, flag: int = 0, msg_type: str | None = None, msg_time: str | None = None
    ) -> "asyncio.Future[SendResult]":
        """Like `submit`, with a future: awaited each by each or all together."""
        future: asyncio.Future[SendResult] = self.loop.create_future()

        def done(result: SendResult | MqbridgeError) -> None:
            settle(future, result)

        self.submit(partition, data, flag, msg_type, msg_time, done=done)
        return future

    @property
    def idle(self) -> bool:
        """Nothing waits and nothing is in flight."""
        return not self.queued

    def settled(self, size: int) -> None:
        """A line's message is decided: somebody may be waiting for its room."""
        self.queued -= 1
        self.queued_bytes -= size
        if self._room:
            self._wake()

    async def room(self, max_bytes: int) -> None:
        """Wait until at most so many bytes are submitted and not decided."""
        if self.queued_bytes > max_bytes:
            await self._until(max_bytes)

    async def flush(self) -> None:
        """Wait until everything is decided."""
        if self.queued:
            await self._until(-1)

    async def close(self, timeout: float = CLOSE_TIMEOUT_S) -> None:
        """Wait for what is in flight, at most `timeout` seconds; the rest fails with SenderClosed, a ConnectionLost."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                await self.flush()
        self.closing = True
        for line in self._lines.values():
            await line.stop()

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
        """-1 stands for nothing at all: messages without a byte count too."""
        for entry in list(self._room):
            most, future = entry
            if (not self.queued if most < 0 else self.queued_bytes <= most) and not future.done():
                future.set_result(None)
                self._room.remove(entry)

    def encoder_for(self, name: str) -> SendRequestEncoder:
        """Encodes the requests of one partition. Raises KeyError for a partition that the topic does not have."""
        routes, partition = self.routes, self.route.partitions[name].partition
        return SendRequestEncoder(routes.client_id, self.topic, partition, NO_CHECK_SUM, _signed_address(routes.host))

    def session_for(self, name: str) -> Session:
        """The session of the Broker that has the partition."""
        ref = self.route.partitions[name]
        return self._sessions.to(ref.broker.host, ref.broker.port, str(ref.key))


def _never(_: Done) -> bool:
    return False


def settle(future: "asyncio.Future[SendResult]", result: SendResult | MqbridgeError) -> None:
    """Hand a result to whoever awaits it."""
    if future.done():
        return
    if isinstance(result, MqbridgeError):
        future.set_exception(result)
    else:
        future.set_result(result)


def _signed_address(host: str) -> int:
    value = int(IPv4Address(host))
    return value - (1 << 32) if value >> 31 else value


class Producer:
    """A producer of any number of topics."""

    def __init__(self, routes: Routes, sessions: Sessions) -> None:
        self.routes, self.sessions = routes, sessions

    async def sender(
        self, topic: str, *, ordered: bool = True, in_flight: int | None = None, max_elapsed_s: float | None = None
    ) -> Sender:
        """A way into a topic. Raises ServerRefused (FATAL), which names it, when the Master knows no such topic.

        `ordered` keeps one request of each partition in flight and so the order whatever happens. `in_flight` says how many
        instead: order then holds as long as the Broker refuses nothing, which `counters.overtaken` tells. When an ordered message
        is given up, all that wait behind it are, too.
        """
        window = in_flight or (1 if ordered else WINDOW_REQUESTS)
        if window < 1:
            raise LocalProtocolError(f"{in_flight} requests in flight on a partition; it must be 1 at least")
        return Sender(self, await self.routes.topic(topic), window=window, ordered=ordered, max_elapsed_s=max_elapsed_s)
