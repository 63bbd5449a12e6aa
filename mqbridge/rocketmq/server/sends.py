"""Sends: messages and batches are stored in their queue, and answered when they are, in any order.

There is one `SendQueue` for each queue that clients send to:

    OPENING  its publisher is being opened; sends wait
    OPEN     sends are stored: all that come in one iteration of the event loop together
    CLOSED   its publisher has failed, or nobody has sent for a while; the next send opens another one

        (opened)         OPENING -> OPEN
        (failed, idle)   OPENING, OPEN -> CLOSED

A send that is not stored within ANSWER_S is withdrawn and answered as busy, because clients wait little longer, and then close
their connection. What was on its way to the cluster may be stored all the same, and once more when the client tries again.
"""

import asyncio
import logging
import random
import secrets
import time
from collections.abc import Awaitable, Callable, Sequence
from enum import Enum
from typing import NamedTuple

from mqbridge.adapter.formats import batch_of_units
from mqbridge.errors import ClusterError, Failure
from mqbridge.listener.publisher import Publication, Publisher, Stored
from mqbridge.listener.publisher import State as PublisherState
from mqbridge.listener.topics import ListenedTopic
from mqbridge.message import Unit
from mqbridge.net.tasks import spawn
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

GATHERED_BYTES = 512 << 10
"""Maximum bytes that are stored with one publication, if they came with several sends."""
MAX_PENDING_SENDS = 10_000
"""Maximum number of sends of a connection that are not answered; then nothing more is read from it. A broker queues as many."""
IDLE_S = 60.0
"""Time without a send after which the publisher of a queue is closed."""
SWEEP_S = 15.0
"""Time between two looks for those."""
MAX_RETRIES = 16
"""Redeliveries after which a message becomes a dead letter, if neither the client nor the request says otherwise."""
MAX_QUEUES = 20_000
"""Maximum number of queues whose publishers are open."""
_FORMAT = SentRecordFormat()
_ID_PREFIX = name_prefix(Name.UNIQ_KEY)
_BODY_AT = 88
"""Where the body of a record in neutral form begins; its size is before it."""


class SendState(Enum):
    """The state of a queue that is sent to, see the module."""

    OPENING = "opening"
    OPEN = "open"
    CLOSED = "closed"


class PendingSend(NamedTuple):
    """Messages that wait to be stored.

    units     the messages
    done      called with the result, and the index of their first message in it
    deadline  loop time at which they are withdrawn, and answered as busy
    """

    units: Sequence[Unit]
    done: "Callable[[Stored, int], None]"
    deadline: float


class SendQueue:
    """See the module."""

    def __init__(self, broker: Broker, topic: ListenedTopic, queue: int) -> None:
        self.state = SendState.OPENING
        self.topic, self.queue = topic, queue
        self.loop = asyncio.get_running_loop()
        """The running loop, stored because `get_running_loop` costs a system call."""
        self.used_at = self.loop.time()
        """Loop time of the last send, or of the opening."""
        self._broker = broker
        self._publisher: Publisher | None = None
        self._index = 0
        self._waiting: list[PendingSend] = []
        self._waiting_bytes = 0

    async def open(self) -> None:
        """Open the publisher. Raises RequestRefused, ClusterError."""
        publishers = self._broker.services.publishers
        try:
            self._publisher = await publishers.open(self.topic, self.queue)
            self._index = publishers.outbound_index(self._publisher, self.queue)
        except BaseException:
            self.state = SendState.CLOSED
            raise
        self.state = SendState.OPEN

    @property
    def is_open(self) -> bool:
        """True if sends can be added."""
        publisher = self._publisher
        return self.state is SendState.OPEN and publisher is not None and publisher.state is PublisherState.OPEN

    def add(self, send: PendingSend, size: int) -> bool:
        """Add messages that are stored with the next `flush`; return True if they are the first."""
        self.used_at = self.loop.time()
        if self._waiting_bytes + size > GATHERED_BYTES:
            self.flush()
        is_first = not self._waiting
        self._waiting.append(send)
        self._waiting_bytes += size
        return is_first

    def flush(self) -> None:
        """Store what waits."""
        waiting, self._waiting, self._waiting_bytes = self._waiting, [], 0
        if not waiting:
            return
        if not self.is_open:  # closed in this iteration of the event loop, perhaps because the topic was deleted
            _fail(waiting, ClusterError(f"queue {self.queue} of topic {self.topic.name} was closed; send again"))
            return
        try:
            self.publish(waiting)
        except Exception as error:  # these clients get it, and the sends of other queues go on
            log.exception("sends to %s/%d failed unexpectedly", self.topic.name, self.queue)
            _fail(waiting, ClusterError(repr(error), Failure.FATAL))

    def publish(self, sends: Sequence[PendingSend], deliver_at: int | None = None) -> None:
        """Store messages, and call back with the result, or when it has taken too long."""
        publisher = self._publisher
        assert publisher is not None  # noqa: S101 - it is open
        self.used_at = self.loop.time()
        batch = batch_of_units(_FORMAT, [unit for send in sends for unit in send.units])
        publishing = _Publishing(self, publisher, sends)
        publishing.publication = publisher.publish(self._index, batch, publishing.on_stored, deliver_at=deliver_at)

    async def close(self) -> None:
        """Close the publisher."""
        self.state = SendState.CLOSED
        publisher, self._publisher = self._publisher, None
        if publisher is not None:
            await self._broker.services.publishers.close(publisher)


def _fail(sends: Sequence[PendingSend], problem: ClusterError) -> None:
    """Answer that nothing was stored."""
    for send in sends:
        send.done(Stored(problem=problem), 0)


class _Publishing:
    """One publication for several sends, which are answered once."""

    def __init__(self, queue: SendQueue, publisher: Publisher, sends: Sequence[PendingSend]) -> None:
        self.publication: Publication | None = None
        self._queue = queue
        self._publisher, self._sends = publisher, sends
        self._timer = queue.loop.call_at(min([send.deadline for send in sends]), self._on_slow)

    def on_stored(self, stored: Stored) -> None:
        """Answer all sends, unless they were answered as busy."""
        self._timer.cancel()
        sends, self._sends = self._sends, ()
        problem = stored.problem
        if problem is not None and problem.failure is Failure.REFUSED and len(sends) > 1 and self._queue.is_open:
            for send in sends:  # only one of them may be refused, and some may be stored: each gets its own answer
                self._queue.publish([send])
            return
        first = 0
        for send in sends:
            send.done(stored, first)
            first += len(send.units)

    def _on_slow(self) -> None:
        problem = ClusterError(f"nothing was stored within {ANSWER_S:g} s; the message may be stored all the same")
        self.on_stored(Stored(problem=problem))
        if self.publication is not None:
            self._publisher.withdraw(self.publication)


class SendRequests:
    """Serves the sends of all clients."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._loop = asyncio.get_running_loop()
        """The running loop, stored because `get_running_loop` costs a system call."""
        self._queues: dict[tuple[str, int], SendQueue] = {}
        """By the topic's name for clients, and the queue."""
        self._opening: dict[tuple[str, int], asyncio.Task[SendQueue]] = {}
        self._to_flush: list[SendQueue] = []
        self._pending: dict[ServedConnection, int] = {}
        """Number of sends of a connection that are not answered."""
        self._ids = UniqueIds(b"\x7f\0\0\1", secrets.randbits(16), secrets.randbits(31), secrets.randbits(16))
        self._sweep: asyncio.TimerHandle | None = None
        self.prepare: Callable[[ServedConnection, Command, SendHeader, Unit], Awaitable[Command]] | None = None
        """Stores a half message; `Transactions` sets this."""

    def forget(self, topic: str) -> None:
        """Close the queues of a topic that was deleted."""
        for key in [key for key in self._queues if key[0] == topic]:
            spawn(self._queues.pop(key).close(), f"close of {key}")

    def start(self) -> None:
        """Begin to look for queues that nobody sends to."""
        self._sweep = self._loop.call_later(SWEEP_S, self._close_idle)

    def stop(self) -> None:
        """End that."""
        if self._sweep is not None:
            self._sweep.cancel()
            self._sweep = None

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
        if due_ms is None:
            known = self._queues.get((header.topic, header.queue_id))
            if known is not None and known.is_open:
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
            opened = await self.open(topic, queue)
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

    async def open(self, topic: ListenedTopic, queue: int) -> SendQueue:
        """Return a queue that is open. It goes on being opened if the caller gives up. Raises RequestRefused, ClusterError."""
        key = topic.name, queue
        known = self._queues.get(key)
        if known is not None and known.is_open:
            return known
        if known is not None:
            del self._queues[key]
            spawn(known.close(), f"close of {key}")
        if len(self._queues) >= MAX_QUEUES:
            raise CodedRefusal(f"clients send to {MAX_QUEUES} queues already", Status.SYSTEM_BUSY)
        task = self._opening.get(key)
        if task is None:
            task = self._opening[key] = spawn(self._open(topic, queue), f"producer of {key}", log_errors=False)
            task.add_done_callback(lambda task: self._on_opened(key, task))
        return await asyncio.shield(task)

    async def _open(self, topic: ListenedTopic, queue: int) -> SendQueue:
        opened = SendQueue(self._broker, topic, queue)
        await opened.open()
        return opened

    def _on_opened(self, key: tuple[str, int], task: "asyncio.Task[SendQueue]") -> None:
        del self._opening[key]
        if not task.cancelled() and task.exception() is None:
            self._queues[key] = task.result()

    def _store(self, link: ServedConnection, request: Command, queue: SendQueue, units: Sequence[Unit], deadline: float) -> None:
        done = self._answering(link, request, queue, units)
        if queue.add(PendingSend(units, done, deadline), sum([len(unit.data) for unit in units])):
            if not self._to_flush:
                self._loop.call_soon(self._flush)
            self._to_flush.append(queue)

    def _flush(self) -> None:
        """Store what all connections have sent in this iteration of the event loop."""
        queues, self._to_flush = self._to_flush, []
        for queue in queues:
            queue.flush()

    # --- answers ----------------------------------------------------------------------------------------------------------

    def _answering(
        self, link: ServedConnection, request: Command, queue: SendQueue, units: Sequence[Unit]
    ) -> Callable[[Stored, int], None]:
        """Return what answers a send once it is stored."""
        name, count = queue_name(queue.topic, queue.queue), len(units)
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
            link.answer(request, result(request, ids, queue.queue, numbers[0] if numbers else 0, unique_id))

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

    # --- the end ----------------------------------------------------------------------------------------------------------

    def _close_idle(self) -> None:
        oldest = self._loop.time() - IDLE_S
        for key, queue in list(self._queues.items()):
            if queue.used_at < oldest or not queue.is_open:
                del self._queues[key]
                spawn(queue.close(), f"close of {key}")
        self.start()


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
