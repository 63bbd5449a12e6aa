"""SendRequests: each message is stored in its partition, and answered when it is, in any order.

A message that is not stored within the time that its client waits is withdrawn, and not answered. What was on its way to the
cluster may be stored all the same: clients send nothing again by themselves.
"""

import asyncio
import time

from mqbridge.errors import ClusterError, Failure
from mqbridge.listener.publish_queues import PendingSend, PublishQueue, PublishQueues
from mqbridge.listener.publisher import Stored
from mqbridge.message import Unit
from mqbridge.tubemq.mapping.sdk_units import SentMessageFormat
from mqbridge.tubemq.mapping.unit_format import unit_of_data
from mqbridge.tubemq.server.broker import HEADROOM_BYTES, MIN_MESSAGE_BYTES, ServedBroker
from mqbridge.tubemq.server.connection import Served, ServedConnection, failure, timeout_s
from mqbridge.tubemq.server.refusals import CodedRefusal, text_of
from mqbridge.tubemq.wire import codes, rpc
from mqbridge.tubemq.wire.payload import checksum
from mqbridge.tubemq.wire.received_send import NO_CHECKSUM, ReceivedSend, decode_send, encode_send_response
from mqbridge.tubemq.wire.rpc import Request


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
        known = self.queues.find(send.topic, send.partition)
        if known is None:
            return self._open_and_store(link, serial, request, send)
        self._store(link, serial, request, send, known)
        return None

    async def _open_and_store(self, link: ServedConnection, serial: int, request: Request, send: ReceivedSend) -> bytes | None:
        topic = await self._broker.partition_topic(send.topic, send.partition)
        queue = await self.queues.open(topic, send.partition)
        self._store(link, serial, request, send, queue)
        return None

    def _store(self, link: ServedConnection, serial: int, request: Request, send: ReceivedSend, queue: PublishQueue) -> None:
        """Store a message, and answer when it is. Raises CodedRefusal for one that no Broker accepts."""
        self._check(send)
        unit: Unit = unit_of_data(send.data, send.flag)
        self._broker.count_received(len(send.data))
        link.begin()
        self._pending += 1

        def answer(stored: Stored, index: int) -> None:
            self._pending -= 1
            link.end()
            problem = stored.problem
            if problem is None:
                link.answer(serial, request, self._response(queue, stored, index))
            elif self._loop.time() < deadline:
                link.refused_requests += 1
                code = codes.BAD_REQUEST if problem.failure is Failure.REFUSED else codes.INTERNAL_ERROR
                link.answer(serial, request, failure(rpc.SEND, code, text_of(problem)))

        deadline = self._loop.time() + timeout_s(request)
        self.queues.add(queue, PendingSend([unit], answer, deadline), len(unit.data))

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
