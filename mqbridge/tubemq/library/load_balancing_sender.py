"""Send messages to any partition that accepts them: round robin, without the Brokers on the blocklist.

Messages have no order, so a failed message is retried on the next partition, which is usually at another Broker. If only the
response to the first attempt was lost, the message is stored twice, on different partitions. Pending messages are limited by
number and by bytes.
"""

import asyncio
import contextlib
import random

from mqbridge.errors import ClusterError, ConnectionLost, Failure, MqbridgeError
from mqbridge.net.backoff import Backoff
from mqbridge.net.home_loop import HomeLoop
from mqbridge.tubemq.client.connection.connection_pool import ConnectionPool
from mqbridge.tubemq.client.producer.broker_reconnector import FIRST_RETRY_S, MAX_RETRY_S
from mqbridge.tubemq.client.producer.partition_sender import (
    CLOSE_TIMEOUT_S,
    PartitionSender,
    open_partition_sender,
    settle_future,
)
from mqbridge.tubemq.client.producer.routes import Routes
from mqbridge.tubemq.client.producer.send_result import SendCallback, SendResult
from mqbridge.tubemq.library.broker_blocklist import BrokerBlocklist
from mqbridge.tubemq.wire.string_formats import PartitionRef

MAX_PENDING = 500_000
"""Maximum number of pending messages; the Java SDK has the same limit."""
MAX_PENDING_BYTES = 256 << 20
"""Maximum size of the data of all pending messages."""
MAX_PENDING_PER_PARTITION = 50_000
"""A partition with this many pending messages is skipped."""


class PendingMessage:
    """A submitted message and the state of its attempts.

    `ref` is the partition of its last attempt, `backoff` the pauses between its attempts, None before the first failure.
    `give_up_at` is the event loop time after which it is not retried, None for no limit.
    """

    __slots__ = ("backoff", "data", "done", "flag", "give_up_at", "msg_time", "msg_type", "ref", "sender")

    def __init__(
        self,
        sender: "LoadBalancingSender",
        data: bytes,
        flag: int,
        msg_type: str | None,
        msg_time: str | None,
        give_up_at: float | None,
        done: SendCallback,
    ) -> None:
        self.sender, self.data = sender, data
        self.flag, self.done, self.give_up_at = flag, done, give_up_at
        self.msg_type, self.msg_time = msg_type, msg_time
        self.ref: PartitionRef | None = None
        self.backoff: Backoff | None = None

    def on_attempt_done(self, result: SendResult | MqbridgeError) -> None:
        """Pass the result of one attempt to the sender. The partition sender calls this."""
        self.sender.on_attempt_done(self, result)


class LoadBalancingSender:
    """A sender to all partitions of one topic; made by `open_load_balancing_sender`.

    pending        number of messages without a result; `pending_bytes` is the size of their data
    blocklist      the Brokers to avoid
    bounded        True: `submit` raises while MAX_PENDING messages or MAX_PENDING_BYTES are pending; False: it does not, since
                   the caller limits them
    closed         True once `close` has stopped waiting: messages then fail instead of being sent or retried
    max_elapsed_s  seconds for which a failed message is retried, from its submission on; None for ever
    """

    def __init__(self, sender: PartitionSender, *, max_elapsed_s: float | None = None, bounded: bool = True) -> None:
        self._home = HomeLoop(f"the sender of topic {sender.topic!r}")
        self.sender = sender
        self.bounded = bounded
        self.blocklist = BrokerBlocklist()
        self.pending = self.pending_bytes = 0
        self.closed = False
        self._max_elapsed_s = max_elapsed_s
        self._round_robin = random.randrange(1 << 16)  # noqa: S311 - so that producers begin with different partitions
        self._pending_of: dict[str, int] = {}
        """Pending messages by partition name."""
        self._loop = asyncio.get_running_loop()
        self._is_empty = asyncio.Event()
        self._is_empty.set()

    def submit(self, data: bytes, flag: int, msg_type: str | None, msg_time: str | None, *, done: SendCallback) -> PendingMessage:
        """Send without waiting; `done` is called with the result. Raises ClusterError (RETRY) if too many messages are pending.

        `data` is the encoded message; bit 0 of `flag` is set if it begins with an attribute block. `msg_time` is a minute in the
        cluster's time zone, YYYYMMDDHHMM. The returned object has the partition of the last attempt as `ref`.
        """
        self._home.check()
        if self.bounded and (self.pending >= MAX_PENDING or self.pending_bytes >= MAX_PENDING_BYTES):
            raise ClusterError(
                f"cannot send to topic {self.sender.topic}: {self.pending} messages with {self.pending_bytes} bytes are pending; "
                "send more when some of them are stored",
                Failure.RETRY,
            )
        limit = self._max_elapsed_s
        give_up_at = None if limit is None else self._loop.time() + limit
        self.pending += 1
        self.pending_bytes += len(data)
        self._is_empty.clear()
        message = PendingMessage(self, data, flag, msg_type, msg_time, give_up_at, done)
        self._send(message)
        return message

    def send(
        self, data: bytes, flag: int = 0, msg_type: str | None = None, msg_time: str | None = None
    ) -> "asyncio.Future[SendResult]":
        """Like `submit`, but return a future of the result."""
        future: asyncio.Future[SendResult] = self._loop.create_future()
        self.submit(data, flag, msg_type, msg_time, done=lambda result: settle_future(future, result))
        return future

    async def flush(self) -> None:
        """Wait until no message is pending."""
        self._home.check()
        await self._is_empty.wait()

    async def close(self, timeout: float = CLOSE_TIMEOUT_S) -> None:
        """Wait for pending messages at most `timeout` seconds; those still pending fail. `submit` accepts messages meanwhile."""
        if self._home.is_over():
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                await self.flush()
        self.closed = True
        await self.sender.close(timeout=0)

    def on_attempt_done(self, message: PendingMessage, result: SendResult | MqbridgeError) -> None:
        """Report the message's result to its caller, or schedule a retry on the next partition."""
        ref = message.ref
        assert ref is not None  # noqa: S101 - set before each attempt
        self._pending_of[ref.name] -= 1
        if isinstance(result, SendResult):
            self.blocklist.count_stored(ref.broker)
            self._settle(message, result)
            return
        now = self._loop.time()
        self.blocklist.count_failed(ref.broker, result, now)
        # Any other error, also of the protocol, may not occur at another Broker.
        is_final = isinstance(result, ClusterError) and result.failure in (Failure.REFUSED, Failure.FATAL)
        if is_final or self.closed or (message.give_up_at is not None and now >= message.give_up_at):
            self._settle(message, result)
            return
        message.backoff = message.backoff or Backoff(FIRST_RETRY_S, MAX_RETRY_S)
        self._loop.call_later(message.backoff.delay(), self._send, message)

    def _settle(self, message: PendingMessage, result: SendResult | MqbridgeError) -> None:
        self.pending -= 1
        self.pending_bytes -= len(message.data)
        message.done(result)
        if not self.pending:
            self._is_empty.set()

    def _send(self, message: PendingMessage) -> None:
        """Begin an attempt: submit the message to the next partition."""
        if self.closed:
            error = ConnectionLost(f"the sender to topic {self.sender.topic} was closed before this message was stored")
            self._settle(message, error)
            return
        ref = message.ref = self._choose_partition()
        self._pending_of[ref.name] = self._pending_of.get(ref.name, 0) + 1
        self.blocklist.count_sent(ref.broker, self._loop.time())
        self.sender.submit(ref.name, message.data, message.flag, message.msg_type, message.msg_time, done=message.on_attempt_done)

    def _choose_partition(self) -> PartitionRef:
        """Return the next partition by round robin, without those that are full or on the blocklist; if all are, the next one."""
        refs = self.sender.route.listed
        now = self._loop.time()
        pending_of = self._pending_of
        avoids = self.blocklist.avoids
        self._round_robin += 1
        for index in range(self._round_robin, self._round_robin + len(refs)):
            ref = refs[index % len(refs)]
            if pending_of.get(ref.name, 0) < MAX_PENDING_PER_PARTITION and not avoids(ref.broker, now):
                self._round_robin = index
                return ref
        return refs[self._round_robin % len(refs)]


async def open_load_balancing_sender(
    routes: Routes, connections: ConnectionPool, topic: str, *, max_elapsed_s: float | None = None, bounded: bool = True
) -> LoadBalancingSender:
    """Open a sender to all partitions of a topic; `LoadBalancingSender` explains the parameters.

    Raises ServerRefused (FATAL), which names the topic, if the Master does not know the topic.
    """
    # With max_elapsed_s=0 the partition sender tries each message once; the load-balancing sender retries on another partition.
    sender = await open_partition_sender(routes, connections, topic, ordered=False, max_elapsed_s=0.0)
    return LoadBalancingSender(sender, max_elapsed_s=max_elapsed_s, bounded=bounded)
