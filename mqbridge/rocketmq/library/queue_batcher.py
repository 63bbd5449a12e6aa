"""Messages to one queue: those that come while a request is on its way go together in the next one."""

import asyncio
from collections import deque
from collections.abc import Sequence
from functools import partial

from mqbridge.errors import MappingError
from mqbridge.library.contract import SendReceipt
from mqbridge.library.send_window import SendWindow
from mqbridge.rocketmq.client.queue_producer import QueueProducer
from mqbridge.rocketmq.client.send_request import SendResult
from mqbridge.rocketmq.library.encoding import BATCH_BYTES, BATCH_MESSAGES, MessageEncoder
from mqbridge.rocketmq.library.outgoing import OutgoingMessage
from mqbridge.rocketmq.library.partitions import partition_name
from mqbridge.rocketmq.mapping.request import EncodedRequest
from mqbridge.rocketmq.wire.bodies.queue import Queue


class PendingMessage:
    """A message that has no receipt yet: its caller's future, and its room in the window.

    movable   it may go to another queue if its own fails
    """

    __slots__ = ("future", "message", "movable", "number", "size")

    def __init__(
        self, message: OutgoingMessage, future: "asyncio.Future[SendReceipt]", number: int, size: int, *, movable: bool
    ) -> None:
        self.message, self.future, self.number, self.size, self.movable = message, future, number, size, movable


class QueueBatcher:
    """One queue of a producer. A message that comes while nothing is on its way waits for the end of the loop's step only."""

    def __init__(self, queue: Queue, producer: QueueProducer, encoder: MessageEncoder, window: SendWindow) -> None:
        self._queue, self._producer, self._encoder, self._window = queue, producer, encoder, window
        self._waiting: deque[PendingMessage] = deque()
        self._requests = 0
        """Requests without a response."""
        self._is_scheduled = False
        self._loop = asyncio.get_running_loop()

    def add(self, pending: PendingMessage) -> None:
        """Send a message behind all before it."""
        self._waiting.append(pending)
        if not self._is_scheduled and self._requests < self._producer.in_flight_per_queue:
            self._is_scheduled = True
            self._loop.call_soon(self._send_what_fits)

    def send_behind(self, request: EncodedRequest, *, movable: bool) -> "asyncio.Future[SendResult]":
        """Send an encoded request behind all messages before it."""
        while self._waiting:
            self._send_batch()
        return self._hand_over(request, movable=movable)

    def _send_what_fits(self) -> None:
        self._is_scheduled = False
        while self._waiting and self._requests < self._producer.in_flight_per_queue:
            self._send_batch()

    def _send_batch(self) -> None:
        """Encode and send about one batch of what waits."""
        batch: list[PendingMessage] = []
        size = 0
        while self._waiting and size < BATCH_BYTES and len(batch) < BATCH_MESSAGES:
            pending = self._waiting.popleft()
            if pending.future.done():  # its caller was cancelled
                self._window.leave(pending.number, pending.size)
            else:
                batch.append(pending)
                size += pending.size
        try:
            requests, failures = self._encoder.encode([pending.message for pending in batch])
        except Exception:  # noqa: BLE001 - one of the messages has fields of wrong types
            batch = [pending for pending in batch if self._is_encodable(pending)]
            requests, failures = self._encoder.encode([pending.message for pending in batch])
        for failure in failures:
            self._fail(batch[failure.index], MappingError(f"a message for {self._queue.topic}: {failure.reason}"))
        for request in requests:
            messages = [batch[index] for index in request.indexes]
            stored = self._hand_over(request, movable=all(pending.movable for pending in messages))
            stored.add_done_callback(partial(self._stored, messages, request.delayed))

    def _is_encodable(self, pending: PendingMessage) -> bool:
        """Return False for a message with fields of wrong types, whose `send` then raises the error."""
        try:
            self._encoder.encode([pending.message])
        except Exception as error:  # noqa: BLE001 - errors of any type
            self._fail(pending, error)
            return False
        return True

    def _hand_over(self, request: EncodedRequest, *, movable: bool) -> "asyncio.Future[SendResult]":
        if request.is_batch:
            stored = self._producer.send_batch(self._queue, request.body, request.count, request.born, movable=movable)
        else:
            stored = self._producer.send_single(
                self._queue, request.body, request.properties, request.flag, request.sys_flag, request.born, movable=movable
            )
        self._requests += 1
        stored.add_done_callback(self._answered)
        return stored

    def _answered(self, _: "asyncio.Future[SendResult]") -> None:
        self._requests -= 1
        if not self._is_scheduled:
            self._send_what_fits()

    def _stored(self, messages: Sequence[PendingMessage], delayed: bool, stored: "asyncio.Future[SendResult]") -> None:
        error = stored.exception()
        if error is not None:
            for pending in messages:
                self._fail(pending, error)
            return
        receipts = receipts_of(stored.result(), len(messages), delayed=delayed)
        for pending, receipt in zip(messages, receipts, strict=True):
            if not pending.future.done():
                pending.future.set_result(receipt)
            self._window.leave(pending.number, pending.size)

    def fail_all(self, error: Exception) -> None:
        """Fail what was not handed over."""
        while self._waiting:
            self._fail(self._waiting.popleft(), error)

    def _fail(self, pending: PendingMessage, error: BaseException) -> None:
        if not pending.future.done():
            pending.future.set_exception(error)
        self._window.leave(pending.number, pending.size)


def receipts_of(result: SendResult, count: int, *, delayed: bool = False) -> list[SendReceipt]:
    """One receipt per message. A delayed message is stored elsewhere first: no position of its queue is known."""
    topic, partition, ids = result.queue.topic, partition_name(result.queue), result.message_id.split(",")
    if len(ids) != count:  # a broker that stores the batch as one entry gives it one id
        ids = [result.message_id] * count
    return [
        SendReceipt(topic, partition, () if delayed else (result.offset + index,), message_id)
        for index, message_id in enumerate(ids)
    ]
