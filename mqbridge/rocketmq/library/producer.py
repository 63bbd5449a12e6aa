"""Producer of one topic: messages to its queues, batched per queue, in order per key."""

import asyncio
import logging
from collections.abc import Sequence
from typing import Self

from mqbridge.errors import ClusterError, ConnectionLost, Failure, MappingError
from mqbridge.library.contract import CLOSE_TIMEOUT_S, Properties, SendReceipt
from mqbridge.library.send_window import MAX_PENDING_BYTES, SendWindow
from mqbridge.rocketmq.client.access_errors import AccessRefused
from mqbridge.rocketmq.client.compat_v4 import delay_levels
from mqbridge.rocketmq.client.queue_producer import QueueProducer
from mqbridge.rocketmq.library.encoding import Compression, MessageEncoder
from mqbridge.rocketmq.library.outgoing import OutgoingMessage
from mqbridge.rocketmq.library.partitions import find_queue, partition_name
from mqbridge.rocketmq.library.queue_batcher import PendingMessage, QueueBatcher, receipts_of
from mqbridge.rocketmq.wire.bodies.queue import Queue

log = logging.getLogger(__name__)


class Producer:
    """Sends to all queues of a topic; made by `RocketMQClient.producer`.

    A key chooses the queue as Java's selector by hash does. Messages without a key go round robin over the queues, and to another
    queue when one fails. What a broker may have stored when its response is lost is sent again: it may then be stored twice.
    """

    def __init__(
        self,
        queue_producer: QueueProducer,
        *,
        compression: Compression = "none",
        max_pending_bytes: int = MAX_PENDING_BYTES,
    ) -> None:
        client = queue_producer.client
        self._queue_producer = queue_producer
        self._encoder = MessageEncoder(client.reserve_ids, client.unique_id, compression, queue_producer.max_message_bytes)
        self._window = SendWindow(max_pending_bytes)
        self._batchers: dict[Queue, QueueBatcher] = {}
        self._closed = False
        self._loop = asyncio.get_running_loop()

    @property
    def topic(self) -> str:
        """The topic."""
        return self._queue_producer.topic

    @property
    def closed(self) -> bool:
        """True once `close` was called."""
        return self._closed

    async def partitions(self) -> list[str]:
        """Return the queues that take messages, as `broker:queue`. Raises ClusterError."""
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
        """Send a message and return when it is stored; waits while `max_pending_bytes` are on their way.

        The words are those of `OutgoingMessage`; `partition` (`broker:queue`) is chosen by the key, or round robin, if it is
        None. The receipt of a message with a delay has no position. Raises ClusterError, and MappingError for a message that
        RocketMQ cannot carry.
        """
        self._check_open()
        message = OutgoingMessage(payload, key, keys, msg_type, properties, event_time, deliver_at, delay_level, flag)
        if deliver_at is not None and self._encoder.delay_levels is None:
            await self._ask_delay_levels()
        size = message.size
        number = await self._window.enter(size)
        try:
            batcher = self._batcher(await self._choose(message, partition))
        except BaseException:
            self._window.leave(number, size)
            raise
        future: asyncio.Future[SendReceipt] = self._loop.create_future()
        batcher.add(PendingMessage(message, future, number, size, movable=key is None and partition is None))
        return await future

    async def send_batch(self, messages: Sequence[OutgoingMessage], *, partition: str | None = None) -> list[SendReceipt]:
        """Send messages as one request to one queue, which stores all or none: that of the first one's key, or `partition`.

        Raises as `send`, and MappingError for messages that do not fit one batch: more than 1000, more than 1 MiB, or with a
        delay.
        """
        self._check_open()
        if not messages:
            return []
        requests, failures = self._encoder.encode(messages)
        if failures:
            raise MappingError(f"message {failures[0].index} of a batch for {self.topic}: {failures[0].reason}")
        if len(requests) != 1 or not requests[0].is_batch:
            raise MappingError(f"{len(messages)} messages for {self.topic} do not fit one batch: send them one by one")
        size = sum(message.size for message in messages)
        number = await self._window.enter(size)
        try:
            batcher = self._batcher(await self._choose(messages[0], partition))
            movable = partition is None and all(message.key is None for message in messages)
            return receipts_of(await batcher.send_behind(requests[0], movable=movable), len(messages))
        finally:
            self._window.leave(number, size)

    async def send_oneway(self, message: OutgoingMessage, *, partition: str | None = None) -> None:
        """Send a message without a response: nothing tells whether it is stored. Raises ClusterError, MappingError."""
        self._check_open()
        queue = await self._choose(message, partition)
        request = self._encoder.encode_alone(message)
        await self._queue_producer.send_oneway(
            queue, request.body, request.properties, request.flag, request.sys_flag, request.born
        )

    async def flush(self) -> None:
        """Wait until everything sent so far is stored, or has failed."""
        await self._window.drain()

    async def close(self, timeout: float = CLOSE_TIMEOUT_S) -> None:
        """Wait for receipts, at most `timeout` seconds, then close; what has none by then fails with ConnectionLost."""
        if self._closed:
            return
        self._closed = True
        try:
            async with asyncio.timeout(timeout):
                await self._window.drain()
        except TimeoutError:
            pass
        finally:
            error = ConnectionLost(f"the producer of {self.topic} is closed")
            error.failure = Failure.FATAL
            self._window.abort(error)
            for batcher in self._batchers.values():
                batcher.fail_all(error)
            await self._queue_producer.close(0.0)  # the messages that are pending now have no time left

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    # --- queues -----------------------------------------------------------------------------------------------------

    async def _choose(self, message: OutgoingMessage, partition: str | None) -> Queue:
        """Choose the queue; asks for the route only when no queue is known, so calls side by side keep their order."""
        queues = await self._queue_producer.queues()
        if partition is None:
            return self._queue_producer.choose(message.queue_key)
        return find_queue(self.topic, queues, partition)

    def _check_open(self) -> None:
        if self._closed:
            raise ClusterError(f"the producer of {self.topic} is closed", Failure.FATAL)

    def _batcher(self, queue: Queue) -> QueueBatcher:
        batcher = self._batchers.get(queue)
        if batcher is None:
            batcher = self._batchers[queue] = QueueBatcher(queue, self._queue_producer, self._encoder, self._window)
        return batcher

    async def _ask_delay_levels(self) -> None:
        """Learn whether the brokers keep a message until any time (5.x), or know levels only."""
        found: Sequence[int] = ()
        for address in (await self._queue_producer.route()).masters():
            try:
                found = found or await delay_levels(self._queue_producer.client, address)
            except AccessRefused:  # no right to look at settings: taken for one of 5.x
                continue
            except ClusterError as error:  # the next message asks again
                log.warning("%s is taken to keep messages until any time, as it cannot be asked now: %s", address, error)
                return
        self._encoder.delay_levels = found
