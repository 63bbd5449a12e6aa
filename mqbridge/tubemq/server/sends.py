"""SendRequests: each message is stored in its partition, and answered when it is, in any order.

A message that is not stored within the time that its client waits is withdrawn, and not answered. What was on its way to the
cluster may be stored all the same: clients send nothing again by themselves.
"""

import asyncio
import time
from functools import partial
from typing import NamedTuple

from mqbridge.errors import ClusterError
from mqbridge.listener.publish_queues import PendingSend, PublishQueue, PublishQueues, QueueWaiter
from mqbridge.listener.publisher import Stored
from mqbridge.message import Unit
from mqbridge.tubemq.mapping.sdk_units import SentMessageFormat
from mqbridge.tubemq.mapping.unit_format import unit_of_data
from mqbridge.tubemq.server.broker import HEADROOM_BYTES, MIN_MESSAGE_BYTES, ServedBroker
from mqbridge.tubemq.server.connection import Served, ServedConnection, timeout_s
from mqbridge.tubemq.server.refusals import CodedRefusal
from mqbridge.tubemq.wire import codes
from mqbridge.tubemq.wire.payload import checksum
from mqbridge.tubemq.wire.received_send import NO_CHECKSUM, ReceivedSend, decode_send, encode_send_response
from mqbridge.tubemq.wire.rpc import Request


class _Sent(NamedTuple):
    """A message that is not stored yet; `deadline` is the loop time until which its client waits."""

    link: ServedConnection
    serial: int
    request: Request
    unit: Unit
    deadline: float


class SendRequests:
    """Serves the sends of all clients."""

    def __init__(self, broker: ServedBroker) -> None:
        self._broker = broker
        self._loop = asyncio.get_running_loop()
        """The running loop, stored because `get_running_loop` costs a system call."""
        self.queues = PublishQueues(broker.services.publishers, SentMessageFormat())
        self._pending = 0

    @property
    def is_any_pending(self) -> bool:
        """True if a send is not answered."""
        return self._pending > 0

    def serve(self, link: ServedConnection, serial: int, request: Request) -> Served:
        """Serve SEND."""
        if self._broker.is_draining:
            raise ClusterError("the listener is being stopped")
        send = decode_send(request.body)
        self._check(send)
        self._broker.count_received(len(send.data))
        sent = _Sent(link, serial, request, unit_of_data(send.data, send.flag), self._loop.time() + timeout_s(request))
        link.begin()
        self._pending += 1
        queue = self.queues.find(send.topic, send.partition)
        if queue is not None:
            self._store(sent, queue)
        else:
            self._store_when_open(sent, send)
        return None

    def _store_when_open(self, sent: _Sent, send: ReceivedSend) -> None:
        """Store a message when its queue is open; its bytes count as in flight until then."""
        size, in_flight = len(sent.unit.data), self._broker.services.in_flight
        in_flight.add(size)

        def on_open(queue: PublishQueue) -> None:
            in_flight.release(size)
            self._store(sent, queue)

        def on_failed(error: Exception) -> None:
            in_flight.release(size)
            self._refuse(sent, error)

        find_topic = partial(self._broker.partition_topic, send.topic, send.partition)
        self.queues.when_open(send.topic, send.partition, find_topic, QueueWaiter(on_open, on_failed))

    def _refuse(self, sent: _Sent, error: Exception) -> None:
        """Answer that a message was not stored, unless its client does not wait any more."""
        self._end(sent)
        if self._loop.time() < sent.deadline:
            sent.link.refuse(sent.serial, sent.request, error)

    def _end(self, sent: _Sent) -> None:
        self._pending -= 1
        sent.link.end()

    def _store(self, sent: _Sent, queue: PublishQueue) -> None:
        """Store a message, and answer when it is; one whose client does not wait any more is left out."""
        if self._loop.time() >= sent.deadline:
            self._end(sent)
            return

        def answer(stored: Stored, index: int) -> None:
            if stored.problem is not None:
                self._refuse(sent, stored.problem)
                return
            self._end(sent)
            sent.link.answer(sent.serial, sent.request, self._response(queue, stored, index))

        self.queues.add(queue, PendingSend([sent.unit], answer, sent.deadline), len(sent.unit.data))

    def _check(self, send: ReceivedSend) -> None:
        limit = max(MIN_MESSAGE_BYTES, self._broker.max_message_bytes) + HEADROOM_BYTES
        if not send.client_id.strip():
            raise CodedRefusal("the request has no clientId", codes.BAD_REQUEST)
        if not send.data:
            raise CodedRefusal("the message is empty", codes.BAD_REQUEST)
        if len(send.data) > limit:
            text = f"the message has {len(send.data)} bytes, and at most {limit} are accepted"
            raise CodedRefusal(text, codes.BAD_REQUEST)
        if send.checksum != NO_CHECKSUM and send.checksum != checksum(send.data):
            raise CodedRefusal(f"the checksum is {checksum(send.data)}, not {send.checksum}", codes.FORBIDDEN)

    def _response(self, queue: PublishQueue, stored: Stored, index: int) -> bytes:
        """Return the response to a message that is stored: a dead letter has no offset."""
        position = stored.positions[index] if index < len(stored.positions) else ()
        if not position:
            return encode_send_response(0, round(time.time() * 1000), -1)
        number = self._broker.services.numbering.number(position)
        (message_id,) = self._broker.message_ids(queue.topic, queue.partition, (number,))
        return encode_send_response(message_id, round(time.time() * 1000), self._broker.offset(number))
