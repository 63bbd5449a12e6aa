"""Writing to the memory: one worker stores in order, so that faults hold up what comes after them, as they do elsewhere."""

import asyncio
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from zlib import crc32

from mqbridge.adapter import MessageFailure, OutboundSpec, Receipt, seconds_until
from mqbridge.errors import ClusterError, Failure, LocalProtocolError
from mqbridge.memory.adapter.config import MemoryConfig
from mqbridge.memory.broker import Broker, StoredPartition
from mqbridge.message import Message, Partition, Position, Share, format_position, position_of
from mqbridge.net.backoff import Backoff
from mqbridge.net.connectivity import Connectivity
from mqbridge.net.tasks import cancel, spawn

_Send = tuple[StoredPartition, Sequence[Message], str | None, "asyncio.Future[Receipt]", float | None]


class MemoryOutbound:
    """A way into one topic."""

    formats = ()

    def __init__(self, broker: Broker, config: MemoryConfig, spec: OutboundSpec, connectivity: Connectivity) -> None:
        self._connectivity = connectivity
        self._broker, self._config, self._spec = broker, config, spec
        # The broker's own list, which grows with the topic, or what it holds now.
        stored = broker.topics[spec.topic]
        self._stored = stored if config.growing_outbound else list(stored)
        self._queue: asyncio.Queue[_Send] = asyncio.Queue()
        self._open: set[asyncio.Future[Receipt]] = set()
        self._queued: Counter[StoredPartition] = Counter()
        self._doomed: Counter[StoredPartition] = Counter()
        """How many of those that are queued were sent behind one that failed: they must not overtake it."""
        self._origin_of = spec.origin_of
        self._closed = False
        self._worker = spawn(self._work(), f"memory outbound {spec.topic}")

    @property
    def partitions(self) -> int:
        """How many the topic has, or had when this was opened."""
        return len(self._stored)

    def send(self, partition: int, share: Share) -> "asyncio.Future[Receipt]":
        """Queue for the worker."""
        if not 0 <= partition < self.partitions:
            raise LocalProtocolError(f"topic {self._spec.topic!r} has {self.partitions} partitions, there is no {partition}")
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Receipt] = loop.create_future()
        if self._closed:
            future.set_exception(self._closed_error())
            return future
        self._open.add(future)
        future.add_done_callback(self._open.discard)
        deadline = None if self._spec.max_elapsed_s is None else loop.time() + self._spec.max_elapsed_s
        self._queued[self._stored[partition]] += 1
        self._queue.put_nowait(
            (self._stored[partition], share.messages, self._origin_of(share.batch.partition), future, deadline)
        )
        return future

    def withdraw(self, sends: "Collection[asyncio.Future[Receipt]]") -> None:
        """Everything is on its way at once."""

    def partition_of(self, key: bytes) -> int:
        """CRC32 of the key modulo the partitions."""
        return crc32(key) % self.partitions

    async def resume(self, source: Partition) -> Mapping[int, Position]:
        """From the origins of all that is stored."""
        found: dict[int, Position] = {}
        for number, stored in enumerate(self._stored):
            positions = [position for m in stored.messages if (position := position_of(m.origin, source)) is not None]
            if positions:
                found[number] = positions[-1]
        return found

    async def close(self, deadline: float | None = None) -> None:
        """Wait for the receipts."""
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
            stored, messages, prefix, future, deadline = await self._queue.get()
            self._queued[stored] -= 1
            overtakes = self._spec.ordered and self._doomed[stored] > 0
            self._doomed[stored] -= overtakes
            ready = not overtakes and await self._retry(deadline)
            if self._broker.faults.fatal is not None:
                if not future.done():
                    future.set_exception(ClusterError(self._broker.faults.fatal, Failure.FATAL))
                continue
            if ready:
                receipt = self._store(stored, messages, prefix)
            else:
                late = "what was sent before it could not be stored" if overtakes else "could not be stored in the time allowed"
                receipt = Receipt(failures=[MessageFailure(index, Failure.RETRY, late) for index in range(len(messages))])
                if not overtakes:
                    self._doomed[stored] = self._queued[stored]
            self._answer(future, receipt)

    async def _retry(self, deadline: float | None) -> bool:
        """Wait out disconnection and transient faults; False when the deadline passed."""
        backoff = Backoff(0.001, 0.05)
        while self._broker.faults.transient or not self._broker.connected.is_set():
            if deadline is not None and asyncio.get_running_loop().time() >= deadline:
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
            self._broker.held.append(answer)
        elif faults.receipt_delay_s:
            asyncio.get_running_loop().call_later(faults.receipt_delay_s, answer)
        else:
            answer()


def _answer(future: "asyncio.Future[Receipt]", receipt: Receipt) -> Callable[[], None]:
    def answer() -> None:
        if not future.done():
            future.set_result(receipt)

    return answer
