"""Batches the messages of one queue: messages that are added while a request is in flight share the next request."""

import asyncio
from collections import deque
from collections.abc import Sequence
from functools import partial

from mqbridge.errors import MappingError
from mqbridge.library.contract import SendReceipt
from mqbridge.library.send_window import SendWindow
from mqbridge.rocketmq.client.producer.queue_producer import QueueProducer
from mqbridge.rocketmq.client.producer.send_request import DIVIDED, OnDivided, SendRequest, SendResult
from mqbridge.rocketmq.library.encoding import MAX_BATCH_BYTES, MAX_BATCH_MESSAGES, MessageEncoder
from mqbridge.rocketmq.library.outgoing import OutgoingMessage
from mqbridge.rocketmq.library.partitions import partition_name
from mqbridge.rocketmq.mapping.request import EncodedRequest
from mqbridge.rocketmq.wire.bodies.queue import Queue
from mqbridge.rocketmq.wire.codes import status_name


class PendingMessage:
    """A message that has no receipt yet.

    future    the future on which the caller of `send` waits
    number    the number that the send window gave to the message; `SendWindow.leave` takes it
    size      its bytes in the send window
    movable   True if it may be sent to another queue when sends to its own fail
    """

    __slots__ = ("future", "message", "movable", "number", "size")

    def __init__(
        self, message: OutgoingMessage, future: "asyncio.Future[SendReceipt]", number: int, size: int, *, movable: bool
    ) -> None:
        self.message, self.future = message, future
        self.number, self.size, self.movable = number, size, movable


class QueueBatcher:
    """Sends the messages of one queue in batches, at most `in_flight_per_queue` requests at a time (except in `send_request`).

    If no request is in flight, a message waits only until the next iteration of the event loop: messages of concurrent `send`
    calls are added in the same iteration, and share a batch.
    """

    def __init__(self, queue: Queue, producer: QueueProducer, encoder: MessageEncoder, window: SendWindow) -> None:
        self._queue, self._producer = queue, producer
        self._encoder, self._window = encoder, window
        self._queued: deque[PendingMessage] = deque()
        self._in_flight = 0
        """Number of requests without a response."""
        self._is_scheduled = False
        """True while a call of `_send_batches` is scheduled for the next loop iteration."""
        self._loop = asyncio.get_running_loop()

    def add(self, pending: PendingMessage) -> None:
        """Queue a message behind all messages added before."""
        self._queued.append(pending)
        if not self._is_scheduled and self._in_flight < self._producer.in_flight_per_queue:
            self._is_scheduled = True
            self._loop.call_soon(self._send_batches)

    def send_request(self, request: EncodedRequest, *, movable: bool) -> "asyncio.Future[SendResult]":
        """Send a request that the caller has encoded, such as that of `send_batch`, behind all messages added before.

        To keep this order, those still queued are submitted at once, even if more than `in_flight_per_queue` requests are then
        in flight.
        """
        while self._queued:
            self._send_batch()
        return self._submit(request, movable=movable)

    def _send_batches(self) -> None:
        """Send queued messages as long as a further request may be in flight."""
        self._is_scheduled = False
        while self._queued and self._in_flight < self._producer.in_flight_per_queue:
            self._send_batch()

    def _send_batch(self) -> None:
        """Encode and send as many queued messages as one batch may hold; those that cannot be batched get their own requests."""
        batch: list[PendingMessage] = []
        size = 0
        while self._queued and size < MAX_BATCH_BYTES and len(batch) < MAX_BATCH_MESSAGES:
            pending = self._queued.popleft()
            if pending.future.done():  # the call of `send` was cancelled
                self._window.leave(pending.number, pending.size)
            else:
                batch.append(pending)
                size += pending.size
        try:
            requests, failures = self._encoder.encode([pending.message for pending in batch])
        except Exception:  # noqa: BLE001 - a message has a field of a wrong type: fail only this one
            batch = [pending for pending in batch if self._is_encodable(pending)]
            requests, failures = self._encoder.encode([pending.message for pending in batch])
        for failure in failures:
            self._fail(
                batch[failure.index], MappingError(f"cannot send a message to topic {self._queue.topic}: {failure.reason}")
            )
        for request in requests:
            messages = [batch[index] for index in request.indexes]
            is_movable = all(pending.movable for pending in messages)
            send = self._submit(request, movable=is_movable, on_divided=partial(self._on_divided, messages))
            send.add_done_callback(partial(self._on_send_done, messages, request.delayed))

    def _is_encodable(self, pending: PendingMessage) -> bool:
        """Return True if the message can be encoded; otherwise make its `send` raise the error."""
        try:
            self._encoder.encode([pending.message])
        except Exception as error:  # noqa: BLE001 - errors of any type
            self._fail(pending, error)
            return False
        return True

    def _submit(
        self, request: EncodedRequest, *, movable: bool, on_divided: OnDivided | None = None
    ) -> "asyncio.Future[SendResult]":
        """Pass the request to the queue producer; `on_divided` gets the parts of a batch that the broker refuses."""
        if request.is_batch:
            send = self._producer.send_batch(
                self._queue, request.body, request.count, request.born, movable=movable, on_divided=on_divided
            )
        else:
            send = self._producer.send_single(
                self._queue, request.body, request.properties, request.flag, request.sys_flag, request.born, movable=movable
            )
        self._in_flight += 1
        send.add_done_callback(self._on_response)
        return send

    def _on_response(self, _: "asyncio.Future[SendResult]") -> None:
        self._in_flight -= 1
        if not self._is_scheduled:
            self._send_batches()

    def _on_divided(self, messages: Sequence[PendingMessage], parts: Sequence[SendRequest]) -> None:
        """Wait for the results of the parts of a refused batch."""
        for part in parts:
            done = partial(self._on_send_done, messages[part.first : part.first + part.count], False)
            part.future.add_done_callback(done)

    def _on_send_done(self, messages: Sequence[PendingMessage], delayed: bool, send: "asyncio.Future[SendResult]") -> None:
        """Give the messages of a request their receipts, or its error."""
        error = send.exception()
        if error is not None:
            for pending in messages:
                self._fail(pending, error)
            return
        if send.result().offset == DIVIDED:
            return
        receipts = make_send_receipts(send.result(), len(messages), delayed=delayed)
        for pending, receipt in zip(messages, receipts, strict=True):
            if not pending.future.done():
                pending.future.set_result(receipt)
            self._window.leave(pending.number, pending.size)

    def fail_queued(self, error: Exception) -> None:
        """Fail all messages that are still queued."""
        while self._queued:
            self._fail(self._queued.popleft(), error)

    def _fail(self, pending: PendingMessage, error: BaseException) -> None:
        if not pending.future.done():
            pending.future.set_exception(error)
        self._window.leave(pending.number, pending.size)


def make_send_receipts(result: SendResult, count: int, *, delayed: bool = False) -> list[SendReceipt]:
    """Return one receipt per message of a send.

    A delayed message has no position: the broker stores it in another topic first, so its offset in the queue is not known yet.
    """
    topic = result.queue.topic
    partition = partition_name(result.queue)
    status = status_name(result.status)
    ids = result.message_id.split(",")
    if len(ids) != count:  # a broker that stores the batch as one record returns one id for all messages
        ids = [result.message_id] * count
    return [
        SendReceipt(topic, partition, () if delayed else (result.offset + index,), message_id, status)
        for index, message_id in enumerate(ids)
    ]
