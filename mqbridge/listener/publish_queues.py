"""What clients send: gathered by partition, stored, and answered when it is stored, in any order.

There is one `PublishQueue` for each partition that clients send to:

    OPENING  its publisher is being opened; sends wait
    OPEN     sends are stored: all that come in one iteration of the event loop together
    CLOSED   its publisher has failed, or nobody has sent for a while; the next send opens another one

        (opened)         OPENING -> OPEN
        (failed, idle)   OPENING, OPEN -> CLOSED

Sends that come while their queue is not open wait for it in their order (`when_open`), and later ones behind them.

A send that is not stored by its deadline is withdrawn and answered as failed, because its client waits little longer. What was on
its way to the cluster may be stored all the same, and once more when the client tries again.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from enum import Enum
from typing import NamedTuple

from mqbridge.adapter.formats import UnitFormat, batch_of_units
from mqbridge.errors import ClusterError, Failure, RefusalReason, RequestRefused
from mqbridge.listener.limits import limited
from mqbridge.listener.publisher import Publication, Publisher, Stored
from mqbridge.listener.publisher import State as PublisherState
from mqbridge.listener.publishers import Publishers
from mqbridge.listener.topics import ListenedTopic
from mqbridge.message import Unit
from mqbridge.net.tasks import spawn

log = logging.getLogger(__name__)

GATHERED_BYTES = 512 << 10
"""Maximum bytes that are stored with one publication, if they came with several sends."""
IDLE_S = 60.0
"""Time without a send after which the publisher of a partition is closed."""
SWEEP_S = 15.0
"""Time between two looks for those."""
MAX_QUEUES = 20_000
"""Maximum number of partitions whose publishers are open."""


class SendState(Enum):
    """The state of a partition that clients send to, see the module."""

    OPENING = "opening"
    OPEN = "open"
    CLOSED = "closed"


class PendingSend(NamedTuple):
    """Messages that wait to be stored.

    units     the messages
    done      called with the result, and the index of their first message in it
    deadline  loop time at which they are withdrawn, and answered as failed
    """

    units: Sequence[Unit]
    done: "Callable[[Stored, int], None]"
    deadline: float


class PublishQueue:
    """See the module."""

    def __init__(self, publishers: Publishers, unit_format: UnitFormat, topic: ListenedTopic, partition: int) -> None:
        self.state = SendState.OPENING
        self.topic, self.partition = topic, partition
        self.loop = asyncio.get_running_loop()
        """The running loop, stored because `get_running_loop` costs a system call."""
        self.used_at = self.loop.time()
        """Loop time of the last send, or of the opening."""
        self._publishers, self._format = publishers, unit_format
        self._publisher: Publisher | None = None
        self._index = 0
        self._waiting: list[PendingSend] = []
        self._waiting_bytes = 0

    async def open(self) -> None:
        """Open the publisher. Raises RequestRefused, ClusterError."""
        try:
            self._publisher = await self._publishers.open(self.topic, self.partition)
            self._index = self._publishers.outbound_index(self._publisher, self.partition)
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
            _fail(waiting, ClusterError(f"partition {self.partition} of topic {self.topic.name} was closed; send again"))
            return
        try:
            self.publish(waiting)
        except Exception as error:  # these clients get it, and the sends of other queues go on
            log.exception("sends to %s/%d failed unexpectedly", self.topic.name, self.partition)
            _fail(waiting, ClusterError(repr(error), Failure.FATAL))

    def publish(self, sends: Sequence[PendingSend], deliver_at: int | None = None) -> None:
        """Store messages, and call back with the result, or when it has taken too long."""
        publisher = self._publisher
        assert publisher is not None  # noqa: S101 - it is open
        self.used_at = self.loop.time()
        batch = batch_of_units(self._format, [unit for send in sends for unit in send.units])
        publishing = _Publishing(self, publisher, sends)
        publishing.publication = publisher.publish(self._index, batch, publishing.on_stored, deliver_at=deliver_at)

    async def close(self) -> None:
        """Close the publisher."""
        self.state = SendState.CLOSED
        publisher, self._publisher = self._publisher, None
        if publisher is not None:
            await self._publishers.close(publisher)


def _fail(sends: Sequence[PendingSend], problem: ClusterError) -> None:
    """Answer that nothing was stored."""
    for send in sends:
        send.done(Stored(problem=problem), 0)


class _Publishing:
    """One publication for several sends, which are answered once."""

    def __init__(self, queue: PublishQueue, publisher: Publisher, sends: Sequence[PendingSend]) -> None:
        self.publication: Publication | None = None
        self._queue = queue
        self._publisher, self._sends = publisher, sends
        self._timer = queue.loop.call_at(min([send.deadline for send in sends]), self._on_slow)

    def on_stored(self, stored: Stored) -> None:
        """Answer all sends, unless that was done when it took too long."""
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
        problem = ClusterError("nothing was stored in time; the message may be stored all the same")
        self.on_stored(Stored(problem=problem))
        if self.publication is not None:
            self._publisher.withdraw(self.publication)


class QueueWaiter(NamedTuple):
    """Waits for a queue; one of the two is called once, and neither raises.

    on_open    called with the queue when it is open
    on_failed  called with the reason if it cannot be opened
    """

    on_open: Callable[[PublishQueue], None]
    on_failed: Callable[[Exception], None]


class PublishQueues:
    """The queues of all clients of a listener."""

    def __init__(self, publishers: Publishers, unit_format: UnitFormat) -> None:
        """`unit_format` is the format of what clients send."""
        self._publishers, self._format = publishers, unit_format
        self._loop = asyncio.get_running_loop()
        """The running loop, stored because `get_running_loop` costs a system call."""
        self._queues: dict[tuple[str, int], PublishQueue] = {}
        """By the topic's name for clients, and the partition."""
        self._opening: dict[tuple[str, int], asyncio.Task[PublishQueue]] = {}
        self._waiting: dict[tuple[str, int], list[QueueWaiter]] = {}
        """Those that wait for a queue, in order."""
        self._tasks: set[asyncio.Task[None]] = set()
        """Tasks that open queues for them."""
        self._to_flush: list[PublishQueue] = []
        self._sweep: asyncio.TimerHandle | None = None

    def find(self, topic: str, partition: int) -> PublishQueue | None:
        """Return the queue of a partition, by the topic's name for clients, if it is open and nobody waits for it."""
        known = self._queues.get((topic, partition))
        return known if known is not None and known.is_open and (topic, partition) not in self._waiting else None

    def when_open(
        self, topic: str, partition: int, find_topic: Callable[[], Awaitable[ListenedTopic]], waiter: QueueWaiter
    ) -> None:
        """Call back once the queue of a partition is open, in the order of these calls; `find_topic` finds the topic."""
        key = topic, partition
        waiting = self._waiting.setdefault(key, [])
        waiting.append(waiter)
        if len(waiting) == 1:
            task = spawn(self._open_for_waiters(key, find_topic), f"producer of {key}")
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _open_for_waiters(self, key: tuple[str, int], find_topic: Callable[[], Awaitable[ListenedTopic]]) -> None:
        try:
            async with limited(f"opening a producer of topic {key[0]}"):
                queue = await self.open(await find_topic(), key[1])
        except Exception as error:  # noqa: BLE001 - those that wait get it
            for waiter in self._waiting.pop(key):
                waiter.on_failed(error)
            return
        except BaseException:
            for waiter in self._waiting.pop(key):
                waiter.on_failed(ClusterError("the listener is being stopped"))
            raise
        for waiter in self._waiting.pop(key):
            waiter.on_open(queue)

    async def open(self, topic: ListenedTopic, partition: int) -> PublishQueue:
        """Return a queue that is open. It goes on being opened if the caller gives up. Raises RequestRefused, ClusterError."""
        key = topic.name, partition
        known = self._queues.get(key)
        if known is not None and known.is_open:
            return known
        if known is not None:
            del self._queues[key]
            spawn(known.close(), f"close of {key}")
        if len(self._queues) >= MAX_QUEUES:
            raise RequestRefused(f"clients send to {MAX_QUEUES} partitions already", RefusalReason.BUSY)
        task = self._opening.get(key)
        if task is None:
            task = self._opening[key] = spawn(self._open(topic, partition), f"producer of {key}", log_errors=False)
            task.add_done_callback(lambda task: self._on_opened(key, task))
        return await asyncio.shield(task)

    async def _open(self, topic: ListenedTopic, partition: int) -> PublishQueue:
        opened = PublishQueue(self._publishers, self._format, topic, partition)
        await opened.open()
        return opened

    def _on_opened(self, key: tuple[str, int], task: "asyncio.Task[PublishQueue]") -> None:
        del self._opening[key]
        if not task.cancelled() and task.exception() is None:
            self._queues[key] = task.result()

    def add(self, queue: PublishQueue, send: PendingSend, size: int) -> None:
        """Store messages with all that come to their queue in this iteration of the event loop."""
        if queue.add(send, size):
            if not self._to_flush:
                self._loop.call_soon(self._flush)
            self._to_flush.append(queue)

    def _flush(self) -> None:
        """Store what all connections have sent in this iteration of the event loop."""
        queues, self._to_flush = self._to_flush, []
        for queue in queues:
            queue.flush()

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

    def _close_idle(self) -> None:
        oldest = self._loop.time() - IDLE_S
        for key, queue in list(self._queues.items()):
            if queue.used_at < oldest or not queue.is_open:
                del self._queues[key]
                spawn(queue.close(), f"close of {key}")
        self.start()
