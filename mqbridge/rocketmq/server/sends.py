"""Sends: messages and batches are stored in their queue, and answered when they are, in any order.

A send that is not stored within ANSWER_S is withdrawn and answered as busy, because clients wait little longer, and then close
their connection. What was on its way to the cluster may be stored all the same, and once more when the client tries again.
"""

import asyncio
import logging
import random
import secrets
import time
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any

from mqbridge.errors import ClusterError, Failure
from mqbridge.listener.publish_queues import PendingSend, PublishQueue, PublishQueues, QueueWaiter
from mqbridge.listener.publisher import Stored
from mqbridge.listener.topics import ListenedTopic
from mqbridge.message import Unit
from mqbridge.rocketmq.mapping.sdk_units import SentRecordFormat
from mqbridge.rocketmq.mapping.sent_units import unit_of_message, units_of_batch
from mqbridge.rocketmq.server.broker import Broker, queue_name
from mqbridge.rocketmq.server.connection import ANSWER_S, Served, ServedConnection
from mqbridge.rocketmq.server.due_times import due_ms_of
from mqbridge.rocketmq.server.physical_offsets import physical_offsets
from mqbridge.rocketmq.server.refusals import CodedRefusal, status_of, text_of
from mqbridge.rocketmq.server.support import NO_DELAY
from mqbridge.rocketmq.server.topic_names import RETRY_PREFIX, dead_topic
from mqbridge.rocketmq.wire.codes import Code, Status
from mqbridge.rocketmq.wire.command import Command
from mqbridge.rocketmq.wire.headers.send import SendHeader, SendResultHeader
from mqbridge.rocketmq.wire.ids import UniqueIds, offset_id, offset_ids
from mqbridge.rocketmq.wire.properties import MAX_BYTES, Name, join, last_value, name_prefix
from mqbridge.rocketmq.wire.record import SysFlag
from mqbridge.wire.text import decode_text

log = logging.getLogger(__name__)

MAX_PENDING_SENDS = 10_000
"""Maximum number of sends of a connection that are not answered; then nothing more is read from it. A broker queues as many."""
MAX_RETRIES = 16
"""Redeliveries after which a message becomes a dead letter, if neither the client nor the request says otherwise."""
_FORMAT = SentRecordFormat()
_ID_PREFIX = name_prefix(Name.UNIQ_KEY)
_BODY_AT = 88
"""Where the body of a record in neutral form begins; its size is before it."""


class SendRequests:
    """Serves the sends of all clients."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._loop = asyncio.get_running_loop()
        """The running loop, stored because `get_running_loop` costs a system call."""
        self.queues = PublishQueues(broker.services.publishers, _FORMAT)
        self._pending: dict[ServedConnection, int] = {}
        """Number of sends of a connection that are not answered."""
        self._ids = UniqueIds(b"\x7f\0\0\1", secrets.randbits(16), secrets.randbits(31), secrets.randbits(16))
        self.prepare: Callable[[ServedConnection, Command, SendHeader, Unit], Awaitable[Command]] | None = None
        """Stores a half message; `Transactions` sets this."""

    # --- requests ---------------------------------------------------------------------------------------------------------

    def serve(self, link: ServedConnection, request: Command) -> Served:
        """Serve SEND_MESSAGE, SEND_MESSAGE_V2 and SEND_BATCH_MESSAGE."""
        header = SendHeader.decode(request.ext)
        if self._broker.is_draining:
            raise CodedRefusal("the listener is being stopped", Status.SERVICE_NOT_AVAILABLE)
        self._begin(link)
        is_batch = header.batch or request.code == Code.SEND_BATCH_MESSAGE
        try:
            if not is_batch and header.sys_flag & SysFlag.TRANSACTION == SysFlag.PREPARED:
                return self._prepare(link, request, header, self._single(header, request.body))
            header = self._redirected(header)
            units = self._batch(header, request.body) if is_batch else [self._single(header, request.body)]
            due_ms = None if is_batch else due_ms_of(header.properties.encode(), _now_ms())
        except BaseException:
            self._end(link)
            raise
        deadline = self._loop.time() + ANSWER_S
        if due_ms is None and header.queue_id >= 0:
            known = self.queues.find(header.topic, header.queue_id)
            if known is None:
                return self._store_when_open(link, request, header, units, deadline)
            self._store(link, request, known, units, deadline)
            return None
        return self._open_and_store(link, request, header, units, due_ms, deadline)

    def _begin(self, link: ServedConnection) -> None:
        """Count a send that is not answered, and stop reading if there are many."""
        pending = self._pending[link] = self._pending.get(link, 0) + 1
        if pending >= MAX_PENDING_SENDS:
            link.pause_reading("sends")

    def _end(self, link: ServedConnection) -> None:
        pending = self._pending.get(link, 1) - 1
        if pending:
            self._pending[link] = pending
        else:
            self._pending.pop(link, None)
        if pending < MAX_PENDING_SENDS // 2:
            link.resume_reading("sends")

    @property
    def is_any_pending(self) -> bool:
        """True if a send is not answered."""
        return bool(self._pending)

    def drop(self, link: ServedConnection) -> None:
        """Forget a connection that has ended; what it has sent is stored."""
        self._pending.pop(link, None)

    def _redirected(self, header: SendHeader) -> SendHeader:
        """Return the header; that of a message which was redelivered too often names the dead-letter topic of its group."""
        topic = header.topic
        if topic.startswith(RETRY_PREFIX):
            most = MAX_RETRIES if header.max_reconsume_times is None else header.max_reconsume_times
            if header.reconsume_times > most:
                header.topic, header.queue_id = dead_topic(topic[len(RETRY_PREFIX) :]), 0
        return header

    def _single(self, header: SendHeader, body: bytes) -> Unit:
        """Return the unit of a message. Raises CodedRefusal if no broker accepts it."""
        properties = self.with_id(header.properties.encode())
        self.check(body, properties)
        self._broker.count_received(1, len(body))
        return unit_of_message(
            body,
            properties,
            flag=header.flag,
            sys_flag=header.sys_flag,
            born_ms=header.born_timestamp,
            reconsume_times=header.reconsume_times,
        )

    def check(self, body: bytes, properties: bytes) -> None:
        """Raise CodedRefusal for a message that no broker accepts."""
        limit = self._broker.max_message_bytes
        if not body:
            raise CodedRefusal("the message has no body", Status.MESSAGE_ILLEGAL)
        if len(body) > limit:
            raise CodedRefusal(f"the body has {len(body)} bytes, and at most {limit} are accepted", Status.MESSAGE_ILLEGAL)
        check_properties(properties)

    def with_id(self, properties: bytes) -> bytes:
        """Return a property string with a UNIQ_KEY: a broker makes one for a message without."""
        if last_value(properties, _ID_PREFIX) is not None:
            return properties
        end = b"" if not properties or properties.endswith(b"\2") else b"\2"
        made = self._ids.make(_now_ms() % (31 * 86_400_000))
        return properties + end + join([(Name.UNIQ_KEY, made)]).encode()

    def _batch(self, header: SendHeader, body: bytes) -> list[Unit]:
        """Return the units of a batch. Raises CodedRefusal, RemoteProtocolError."""
        limit = self._broker.max_message_bytes
        if len(body) > limit:
            raise CodedRefusal(f"the batch has {len(body)} bytes, and at most {limit} are accepted", Status.MESSAGE_ILLEGAL)
        if header.topic.startswith(RETRY_PREFIX):
            raise CodedRefusal("a batch cannot be sent to a retry topic", Status.MESSAGE_ILLEGAL)
        units = units_of_batch(body, header.born_timestamp)
        if not units:
            raise CodedRefusal("the batch has no messages", Status.MESSAGE_ILLEGAL)
        if len(body) > MAX_BYTES:
            for unit in units:
                if len(unit.data) > MAX_BYTES:
                    check_properties(properties_of(unit))
        self._broker.count_received(len(units), len(body))
        return units

    async def _prepare(self, link: ServedConnection, request: Command, header: SendHeader, unit: Unit) -> Command:
        assert self.prepare is not None  # noqa: S101 - set with the server
        try:
            return await self.prepare(link, request, header, unit)
        finally:
            self._end(link)

    def _store_when_open(
        self, link: ServedConnection, request: Command, header: SendHeader, units: Sequence[Unit], deadline: float
    ) -> Coroutine[Any, Any, None]:
        """Store messages when their queue is open, in the order in which they came; unless their client was answered before.

        Returns what waits for that.
        """
        opened: asyncio.Future[None] = self._loop.create_future()

        def on_open(queue: PublishQueue) -> None:
            if opened.done():
                return
            try:
                self._store(link, request, queue, units, deadline)
            except Exception as error:  # noqa: BLE001 - the client gets it, and the others are stored
                opened.set_exception(error)
            else:
                opened.set_result(None)

        def on_failed(error: Exception) -> None:
            if not opened.done():
                opened.set_exception(error)

        async def find_topic() -> ListenedTopic:
            topic = await self._broker.writable_topic(header.topic)
            self._broker.check_queue(topic, header.queue_id)
            return topic

        self.queues.when_open(header.topic, header.queue_id, find_topic, QueueWaiter(on_open, on_failed))
        return self._wait_open(link, opened)

    async def _wait_open(self, link: ServedConnection, opened: "asyncio.Future[None]") -> None:
        try:
            await opened
        except BaseException:
            self._end(link)
            raise

    async def _open_and_store(
        self,
        link: ServedConnection,
        request: Command,
        header: SendHeader,
        units: Sequence[Unit],
        due_ms: int | None,
        deadline: float,
    ) -> None:
        """Store messages once their queue is open, or park them until they are due."""
        try:
            topic = await self._broker.writable_topic(header.topic)
            queue = self._checked_queue(topic, header.queue_id)
            if due_ms is not None and self._broker.services.parking.is_supported:
                self._park(link, request, topic, queue, units[0], due_ms, deadline)
                return
            self._check_delay(due_ms)
            opened = await self.queues.open(topic, queue)
        except BaseException:
            self._end(link)
            raise
        if due_ms is None:
            self._store(link, request, opened, units, deadline)
        else:
            done = self._answering(link, request, opened, units)
            opened.publish([PendingSend(units, done, deadline)], deliver_at=due_ms)

    def _check_delay(self, due_ms: int | None) -> None:
        """Raise CodedRefusal for a delay if nothing can delay a message."""
        if due_ms is not None and not self._broker.services.delays():
            raise CodedRefusal(NO_DELAY, Status.MESSAGE_ILLEGAL)

    def _checked_queue(self, topic: ListenedTopic, queue: int) -> int:
        """Return the queue of a send: any one if the client has not chosen. Raises CodedRefusal for one that does not exist."""
        if queue < 0:
            return random.choice(sorted(topic.partitions))  # noqa: S311 - no secret
        self._broker.check_queue(topic, queue)
        return queue

    def _store(
        self, link: ServedConnection, request: Command, queue: PublishQueue, units: Sequence[Unit], deadline: float
    ) -> None:
        done = self._answering(link, request, queue, units)
        self.queues.add(queue, PendingSend(units, done, deadline), sum([len(unit.data) for unit in units]))

    # --- answers ----------------------------------------------------------------------------------------------------------

    def _answering(
        self, link: ServedConnection, request: Command, queue: PublishQueue, units: Sequence[Unit]
    ) -> Callable[[Stored, int], None]:
        """Return what answers a send once it is stored."""
        name, count = queue_name(queue.topic, queue.partition), len(units)
        unique_id = None if count > 1 else unique_id_of(units[0])

        def answer(stored: Stored, first: int) -> None:
            self._end(link)
            if stored.problem is not None:
                link.answer(request, refused(request, stored.problem))
                return
            positions = stored.positions[first : first + count]
            number = self._broker.services.numbering.number
            numbers = [number(position) for position in positions if position]
            ids = offset_ids(link.host, physical_offsets(name, numbers) or [0])
            link.answer(request, result(request, ids, queue.partition, numbers[0] if numbers else 0, unique_id))

        return answer

    def _park(
        self,
        link: ServedConnection,
        request: Command,
        topic: ListenedTopic,
        queue: int,
        unit: Unit,
        due_ms: int,
        deadline: float,
    ) -> None:
        """Store a delayed message where it waits, and answer it."""
        unique_id = unique_id_of(unit)
        waiting: list[asyncio.TimerHandle] = []

        def answer(error: ClusterError | None) -> None:
            if not waiting:
                return
            waiting.pop().cancel()
            self._end(link)
            if error is not None:
                link.answer(request, refused(request, error))
            else:
                link.answer(request, result(request, offset_id(link.host, 0), queue, 0, unique_id))

        busy = ClusterError(f"nothing was stored within {ANSWER_S:g} s; the message may be stored all the same")
        waiting.append(self._loop.call_at(deadline, answer, busy))
        self._broker.services.parking.deposit(topic, queue, unit, due_ms, answer)


def check_properties(properties: bytes) -> None:
    """Raise CodedRefusal for a property string that clients cannot read."""
    if len(properties) > MAX_BYTES:
        problem = f"the properties have {len(properties)} bytes, and at most {MAX_BYTES} are accepted"
        raise CodedRefusal(problem, Status.MESSAGE_ILLEGAL)


def properties_of(unit: Unit) -> bytes:
    """Return the property string of a record in neutral form."""
    body_size = int.from_bytes(unit.data[_BODY_AT - 4 : _BODY_AT], "big")
    return unit.data[_BODY_AT + body_size + 3 :]


def unique_id_of(unit: Unit) -> str | None:
    """Return the UNIQ_KEY of a message; None if it has none."""
    value = last_value(properties_of(unit), _ID_PREFIX)
    return None if value is None else decode_text(value)


def refused(request: Command, problem: ClusterError) -> Command:
    """Return the answer to a send that was not stored."""
    status = Status.MESSAGE_ILLEGAL if problem.failure is Failure.REFUSED else status_of(problem)
    return request.answer(Status.SYSTEM_ERROR if status is None else status, remark=text_of(problem))


def result(request: Command, message_id: str, queue: int, offset: int, unique_id: str | None) -> Command:
    """Return the answer to a send that was stored."""
    header = SendResultHeader(message_id, queue, offset, transaction_id=unique_id, region="DefaultRegion", trace_on=True)
    return request.answer(Status.SUCCESS, header.encode())


def _now_ms() -> int:
    return round(time.time() * 1000)
