"""Outbound of a memory cluster. One worker stores in order, so a fault delays the sends behind it, as in the other systems."""

import asyncio
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from zlib import crc32

from mqbridge.adapter.deadlines import seconds_until
from mqbridge.adapter.outbound import OutboundSpec
from mqbridge.adapter.receipt import MessageFailure, Receipt
from mqbridge.errors import ClusterError, Failure, LocalProtocolError
from mqbridge.memory.adapter.config import MemoryConfig
from mqbridge.memory.broker import Broker, StoredPartition
from mqbridge.message import Message, Partition, Position, Share, format_position, position_of
from mqbridge.net.backoff import Backoff
from mqbridge.net.connectivity import Connectivity
from mqbridge.net.tasks import cancel, spawn


class _Send:
    """A queued `send`. The messages of an unedited share are decoded only when they are stored."""

    __slots__ = ("_messages", "_share", "count", "deadline", "future", "prefix", "stored")

    def __init__(
        self,
        stored: StoredPartition,
        share: Share,
        prefix: str | None,
        future: "asyncio.Future[Receipt]",
        deadline: float | None,
    ) -> None:
        self.stored, self.prefix, self.future, self.deadline = stored, prefix, future, deadline
        self.count = share.count
        self._share, self._messages = share, share.messages if share.is_edited else None
        share.held_bytes = sum(len(message.payload or b"") for message in self._messages or ())

    def take_messages(self) -> Sequence[Message]:
        """Return the messages and release the batch's copy; call this once."""
        if self._messages is not None:
            return self._messages
        messages = self._share.messages
        self._share.batch.release_messages()
        return messages

    def failed(self, reason: str) -> Receipt:
        """Return a receipt that reports every message as failed, to be retried."""
        return Receipt(failures=[MessageFailure(index, Failure.RETRY, reason) for index in range(self.count)])


class MemoryOutbound:
    """An outbound that writes to one topic."""

    formats = ()

    def __init__(self, broker: Broker, config: MemoryConfig, spec: OutboundSpec, connectivity: Connectivity) -> None:
        self._connectivity = connectivity
        self._broker, self._config, self._spec = broker, config, spec
        # The broker's own list grows with the topic; its copy keeps the present number of partitions.
        stored = broker.topics[spec.topic]
        self._stored = stored if config.growing_outbound else list(stored)
        self._queue: deque[_Send] = deque()
        self._queued = asyncio.Event()
        self._open: set[asyncio.Future[Receipt]] = set()
        self._origin_of = spec.origin_of
        self._closed = False
        self._worker = spawn(self._work(), f"memory outbound {spec.topic}")

    @property
    def partitions(self) -> int:
        """Number of partitions, now or (without `growing_outbound`) when the outbound was opened."""
        return len(self._stored)

    def send(self, partition: int, share: Share) -> "asyncio.Future[Receipt]":
        """Queue a share for the worker; the future gets its receipt."""
        if not 0 <= partition < self.partitions:
            raise LocalProtocolError(f"topic {self._spec.topic!r} has {self.partitions} partitions, and no partition {partition}")
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Receipt] = loop.create_future()
        if self._closed:
            future.set_exception(self._closed_error())
            return future
        self._open.add(future)
        future.add_done_callback(self._open.discard)
        deadline = None if self._spec.max_elapsed_s is None else loop.time() + self._spec.max_elapsed_s
        self._queue.append(_Send(self._stored[partition], share, self._origin_of(share.batch.partition), future, deadline))
        self._queued.set()
        return future

    def withdraw(self, sends: "Collection[asyncio.Future[Receipt]]") -> None:
        """Cancel these sends while they are queued or wait for a retry; none of them is stored yet."""
        withdrawn = set(sends)
        for send in self._take_out(lambda send: send.future in withdrawn):
            _answer(send.future, send.failed("it was taken back"))()

    def _take_out(self, chosen: Callable[[_Send], bool]) -> list[_Send]:
        """Remove the sends for which `chosen` is true from the queue, and return them."""
        removed = [send for send in self._queue if chosen(send)]
        self._queue = deque(send for send in self._queue if not chosen(send))
        return removed

    def partition_of(self, key: bytes) -> int:
        """Return the CRC32 of the key modulo the number of partitions."""
        return crc32(key) % self.partitions

    async def resume(self, source: Partition, since: Mapping[int, Position] | None = None) -> Mapping[int, Position]:
        """Return the last source position per partition, read from the origins of the stored messages."""
        found: dict[int, Position] = {}
        for number, stored in enumerate(self._stored):
            (begin,) = (since or {}).get(number, (stored.first,))
            messages = stored.messages[max(0, begin - stored.first) :]
            positions = [position for m in messages if (position := position_of(m.origin, source)) is not None]
            if positions:
                found[number] = positions[-1]
        return found

    async def close(self, deadline: float | None = None) -> None:
        """Wait for the outstanding receipts until the deadline, then fail the others."""
        self._closed = True
        if self._open:
            await asyncio.wait(self._open, timeout=seconds_until(deadline))
        await cancel(self._worker)
        for future in list(self._open):
            future.set_exception(self._closed_error())

    def _closed_error(self) -> ClusterError:
        return ClusterError(f"the outbound into {self._spec.topic!r} is closed", Failure.FATAL)

    async def _work(self) -> None:
        while True:
            if not self._queue:
                self._queued.clear()
                await self._queued.wait()
                continue
            send = self._queue[0]
            in_time = await self._retry(send)
            if not self._queue or self._queue[0] is not send:  # withdrawn meanwhile
                continue
            self._queue.popleft()
            if send.future.done():  # the caller cancelled it
                continue
            if self._broker.faults.fatal is not None:
                send.future.set_exception(ClusterError(self._broker.faults.fatal, Failure.FATAL))
            elif in_time:
                self._answer(send.future, self._store(send.stored, send.take_messages(), send.prefix))
            else:
                self._answer(send.future, send.failed("could not be stored in the time allowed"))
                self._fail_behind(send)

    def _fail_behind(self, late: _Send) -> None:
        """Fail the later sends to the same partition if sends are ordered: they must not overtake the late one."""
        for send in self._take_out(lambda send: self._spec.ordered and send.stored is late.stored):
            self._answer(send.future, send.failed("what was sent before it could not be stored"))

    async def _retry(self, send: _Send) -> bool:
        """Wait out disconnection and transient faults; False when the deadline passed."""
        backoff = Backoff(0.001, 0.05)
        while not send.future.done() and (self._broker.faults.transient or not self._broker.connected.is_set()):
            if send.deadline is not None and asyncio.get_running_loop().time() >= send.deadline:
                return False
            self._connectivity.retries += 1
            self._broker.faults.transient = max(0, self._broker.faults.transient - 1)
            await asyncio.sleep(backoff.delay())
        return True

    def _store(self, stored: StoredPartition, messages: Sequence[Message], prefix: str | None) -> Receipt:
        positions: list[Position] = [()] * len(messages)
        failures: list[MessageFailure] = []
        taken: list[Message] = []
        for index, message in enumerate(messages):
            if (reason := self._refusal(message)) is not None:
                failures.append(MessageFailure(index, Failure.REFUSED, reason))
                continue
            origin = message.origin if prefix is None else prefix + format_position(message.position)
            hops = message.hops + (prefix is not None)
            positions[index] = (stored.next + len(taken),)
            taken.append(message.replace(position=positions[index], origin=origin, hops=hops))
        stored.append(taken)
        return Receipt(positions, failures)

    def _refusal(self, message: Message) -> str | None:
        if message.defect is not None:
            return f"it could not be read: {message.defect}"
        if message.payload is not None and len(message.payload) > self._config.max_message_bytes:
            return f"the payload has {len(message.payload)} bytes, at most {self._config.max_message_bytes} are taken"
        if message.payload == b"" and not self._config.empty_payload:
            return "the payload has no bytes"
        return self._broker.faults.refuse(message) if self._broker.faults.refuse is not None else None

    def _answer(self, future: "asyncio.Future[Receipt]", receipt: Receipt) -> None:
        faults = self._broker.faults
        answer = _answer(future, receipt)
        if faults.hold_receipts:
            self._broker.withheld_receipts.append(answer)
        elif faults.receipt_delay_s:
            asyncio.get_running_loop().call_later(faults.receipt_delay_s, answer)
        else:
            answer()


def _answer(future: "asyncio.Future[Receipt]", receipt: Receipt) -> Callable[[], None]:
    def answer() -> None:
        if not future.done():
            future.set_result(receipt)

    return answer
