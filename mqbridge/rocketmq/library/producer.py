"""Producer of one topic: sends messages to its queues, batched per queue; messages with the same key keep their order."""

import asyncio
import logging
from collections.abc import Sequence
from typing import Self

from mqbridge.errors import ClusterError, ConnectionLost, Failure, MappingError
from mqbridge.library.contract import CLOSE_TIMEOUT_S, Properties, SendReceipt
from mqbridge.library.send_window import MAX_PENDING_BYTES, SendWindow
from mqbridge.net.home_loop import HomeLoop
from mqbridge.rocketmq.client.admin.compat_v4 import delay_levels
from mqbridge.rocketmq.client.connection.access_errors import AccessRefused
from mqbridge.rocketmq.client.producer.queue_producer import QueueProducer
from mqbridge.rocketmq.library.encoding import MessageEncoder
from mqbridge.rocketmq.library.outgoing import OutgoingMessage
from mqbridge.rocketmq.library.partitions import find_queue, partition_name
from mqbridge.rocketmq.library.queue_batcher import PendingMessage, QueueBatcher, make_send_receipts
from mqbridge.rocketmq.library.queue_wait import QueueWait
from mqbridge.rocketmq.mapping.compressed_body import Compression
from mqbridge.rocketmq.mapping.request import EncodedRequest
from mqbridge.rocketmq.wire.bodies.queue import Queue

log = logging.getLogger(__name__)


class Producer:
    """Sends messages to all queues of a topic; opened by `RocketMQClient.producer`.

    The hash of the key chooses the queue, like Java's SelectMessageQueueByHash. Messages without a key are sent to the queues in
    turn, and to another queue if sends to the chosen one fail. If a connection is lost before the response, the request is sent
    again, so its messages may be stored twice. `RocketMQClient.producer` explains the parameters.
    """

    def __init__(
        self,
        queue_producer: QueueProducer,
        *,
        compression: Compression = "none",
        max_pending_bytes: int = MAX_PENDING_BYTES,
        requires_keys: bool = False,
    ) -> None:
        self._home = HomeLoop(f"the producer of topic {queue_producer.topic!r}")
        client = queue_producer.client
        self._queue_producer = queue_producer
        self._queue_wait = QueueWait(queue_producer)
        self._encoder = MessageEncoder(
            client.reserve_ids, client.unique_id, compression, queue_producer.max_message_bytes, requires_keys=requires_keys
        )
        self._window = SendWindow(max_pending_bytes)
        self._batchers: dict[Queue, QueueBatcher] = {}
        self._closed = False
        self._loop = asyncio.get_running_loop()

    @property
    def topic(self) -> str:
        """The topic given to `RocketMQClient.producer`."""
        return self._queue_producer.topic

    @property
    def closed(self) -> bool:
        """True once `close` was called."""
        return self._closed

    async def partitions(self) -> list[str]:
        """Return the names of the writable queues, `broker:queue`. Raises ClusterError."""
        self._home.check()
        return [partition_name(queue) for queue in await self._queue_producer.queues()]

    async def send(
        self,
        payload: bytes | None,
        *,
        key: str | bytes | None = None,
        keys: Sequence[str] = (),
        msg_type: str | None = None,
        properties: Properties = (),
        event_time: int | None = None,
        deliver_at: int | None = None,
        delay_level: int = 0,
        flag: int = 0,
        partition: str | None = None,
    ) -> SendReceipt:
        """Send a message, wait until it is stored, and return its receipt. Waits first while `max_pending_bytes` are in flight.

        `OutgoingMessage` describes the fields. `partition` is the queue, `broker:queue`; None: the key chooses it, and messages
        without a key are sent to the queues in turn. The receipt of a delayed message has no position. Raises ClusterError, and
        MappingError for a message that RocketMQ cannot store.
        """
        self._home.check()
        self._check_open()
        message = OutgoingMessage(payload, key, keys, msg_type, properties, event_time, deliver_at, delay_level, flag)
        if deliver_at is not None:
            await self._ensure_delay_levels()
        size = message.size
        number = await self._window.enter(size)  # identifies the message to `leave`
        try:
            batcher = self._batcher(await self._choose_queue(message, partition))
        except BaseException:
            self._window.leave(number, size)
            raise
        future: asyncio.Future[SendReceipt] = self._loop.create_future()
        batcher.add(PendingMessage(message, future, number, size, movable=key is None and partition is None))
        return await future

    async def send_batch(self, messages: Sequence[OutgoingMessage], *, partition: str | None = None) -> list[SendReceipt]:
        """Send messages as one batch to one queue, which stores all or none of them.

        The queue is `partition` (`broker:queue`); None: the one that the first message's key chooses; without a key, the next in
        turn. Raises the errors of `send`, and MappingError for messages that do not fit one batch: more than 1000 messages or
        1 MiB (or the brokers' `maxMessageSize`, if smaller), or one that is delayed or compressed.
        """
        self._home.check()
        self._check_open()
        if not messages:
            return []
        requests, failures = self._encoder.encode(messages)
        if failures:
            raise MappingError(f"cannot send message {failures[0].index} of a batch to topic {self.topic}: {failures[0].reason}")
        if len(requests) != 1 or not requests[0].is_batch:
            raise MappingError(
                f"{len(messages)} messages for topic {self.topic} do not fit into one batch, because they are too many, too "
                "large, delayed or compressed: send them one by one"
            )
        size = sum(message.size for message in messages)
        number = await self._window.enter(size)
        try:
            batcher = self._batcher(await self._choose_queue(messages[0], partition))
            movable = partition is None and all(message.key is None for message in messages)
            return make_send_receipts(await batcher.send_request(requests[0], movable=movable), len(messages))
        finally:
            self._window.leave(number, size)

    async def send_oneway(self, message: OutgoingMessage, *, partition: str | None = None) -> None:
        """Send a message that the broker does not confirm, so it may get lost unnoticed.

        Waits first while `max_pending_bytes` are in flight, and while the broker does not read what was sent before, at most
        `request_timeout_s`: await each call, or few of them together. Raises ClusterError (RequestTimeout if the broker does not
        read), MappingError.
        """
        self._home.check()
        self._check_open()
        await self._queue_producer.queues()  # raises if there is none: such a message is not waited for
        size = message.size
        number = await self._window.enter(size)
        try:
            queue = await self._choose_queue(message, partition)
            request = self._encoder.encode_single(message) if message.deliver_at is None else await self._encode_delayed(message)
            await self._queue_producer.send_oneway(
                queue, request.body, request.properties, request.flag, request.sys_flag, request.born
            )
        finally:
            self._window.leave(number, size)

    async def flush(self) -> None:
        """Wait until all messages sent so far are stored or have failed; those of `send_oneway`: until they are written."""
        self._home.check()
        await self._window.drain()

    async def close(self, timeout: float = CLOSE_TIMEOUT_S) -> None:
        """Wait for receipts, at most `timeout` seconds, then close; messages without a receipt fail with ConnectionLost."""
        if self._closed or self._home.is_over():
            return
        self._closed = True
        try:
            async with asyncio.timeout(timeout):
                await self._window.drain()
        except TimeoutError:
            pass
        finally:
            error = ConnectionLost(f"the producer of topic {self.topic} was closed before a broker confirmed this message")
            error.failure = Failure.FATAL  # unlike for another ConnectionLost, a retry cannot succeed
            self._window.abort(error)
            for batcher in self._batchers.values():
                batcher.fail_queued(error)
            await self._queue_producer.close(0.0)  # no time is left to wait for its pending sends

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    # --- queues -----------------------------------------------------------------------------------------------------

    async def _choose_queue(self, message: OutgoingMessage, partition: str | None) -> Queue:
        """Choose the queue. Concurrent calls keep their order, because this waits only while no queue is known, and in order."""
        queues = await self._queue_wait.queues()
        if partition is None:
            return self._queue_producer.choose(message.queue_key)
        return find_queue(self.topic, queues, partition)

    def _check_open(self) -> None:
        if self._closed:
            raise ClusterError(f"the producer of topic {self.topic} is closed", Failure.FATAL)

    def _batcher(self, queue: Queue) -> QueueBatcher:
        batcher = self._batchers.get(queue)
        if batcher is None:
            batcher = self._batchers[queue] = QueueBatcher(queue, self._queue_producer, self._encoder, self._window)
        return batcher

    async def _encode_delayed(self, message: OutgoingMessage) -> EncodedRequest:
        """Encode a message with `deliver_at`, for the timer or the delay levels of the brokers. Raises MappingError."""
        await self._ensure_delay_levels()
        requests, failures = self._encoder.encode([message])
        if failures:
            raise MappingError(f"cannot send a message to topic {self.topic}: {failures[0].reason}")
        return requests[0]

    async def _ensure_delay_levels(self) -> None:
        """Query the delay levels of the brokers before a message with `deliver_at`, until one query has succeeded."""
        if self._encoder.delay_levels is None:
            await self._query_delay_levels()

    async def _query_delay_levels(self) -> None:
        """Query the delay levels of the masters, one after the other, up to the first that has levels (a version before 5.0)."""
        levels: Sequence[int] = ()  # 5.x brokers delay until any time
        for address in (await self._queue_producer.route()).masters():
            try:
                levels = levels or await delay_levels(self._queue_producer.client, address)
            except AccessRefused:  # these credentials may not read the broker's settings: assume version 5.x
                continue
            except ClusterError as error:
                log.warning(
                    "topic %s: assuming that broker %s supports delays of any length until the next message with deliver_at, "
                    "because the query of its delay levels failed: %s",
                    self.topic,
                    address,
                    error,
                )
                return
        self._encoder.delay_levels = levels
