"""Outbound of a memory cluster.

One task stores the sends in order, so a fault delays the sends behind it, as in the other systems.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from zlib import crc32

from mqbridge.adapter.outbound import OutboundSpec, SendFailure
from mqbridge.adapter.receipt import MessageFailure, Receipt
from mqbridge.adapter.tools.deadlines import seconds_until
from mqbridge.adapter.tools.receipts import refused_whole
from mqbridge.errors import ClusterError, Failure, LocalProtocolError, TopicChanged
from mqbridge.message import Message, Partition, Position, Share, format_position, next_origin, origin_prefix, position_of
from mqbridge.net.backoff import Backoff
from mqbridge.net.connectivity import Connectivity
from mqbridge.net.failing_sends import FailingSends, longest_failing
from mqbridge.net.tasks import cancel, spawn
from mqbridge.testing.memory.adapter.config import MemoryConfig
from mqbridge.testing.memory.broker import Broker, StoredPartition


class _Send:
    """A queued `send`; `deadline` is a loop time, None without a limit.

    The messages of an unedited share are decoded only when they are stored; until then it holds no memory besides the batch.
    """

    __slots__ = ("_messages", "_share", "count", "deadline", "future", "origin_prefix", "partition")

    def __init__(
        self,
        partition: StoredPartition,
        share: Share,
        origin_prefix: str | None,
        future: "asyncio.Future[Receipt]",
        deadline: float | None,
    ) -> None:
        self.partition, self.origin_prefix = partition, origin_prefix
        self.future, self.deadline = future, deadline
        self.count = share.count
        self._share, self._messages = share, share.messages if share.is_edited else None
        share.held_bytes = sum(len(message.payload or b"") for message in self._messages or ())

    def take_messages(self) -> Sequence[Message]:
        """Return the messages, and let the batch drop its decoded copy; call this once."""
        if self._messages is not None:
            return self._messages
        messages = self._share.messages
        self._share.batch.release_messages()
        return messages

    def failed_receipt(self, reason: str) -> Receipt:
        """Return a receipt in which every message failed with RETRY."""
        return Receipt(failures=[MessageFailure(index, Failure.RETRY, reason) for index in range(self.count)])


class MemoryOutbound:
    """An outbound that writes to one topic."""

    formats = ()
    """No batch is sent without decoding it."""

    def __init__(self, broker: Broker, config: MemoryConfig, spec: OutboundSpec, connectivity: Connectivity) -> None:
        self._connectivity = connectivity
        self._broker, self._config, self._spec = broker, config, spec
        # The broker's own list grows with the topic; a copy keeps the present number of partitions.
        self._stored = partitions = broker.topics[spec.topic]
        """The topic as the broker holds it, by which its deletion is noticed."""
        self._partitions = partitions if config.growing_outbound else list(partitions)
        self._queue: deque[_Send] = deque()
        self._queued = asyncio.Event()
        """Set when a send is added to the queue."""
        self._in_flight: set[asyncio.Future[Receipt]] = set()
        self._origin_of = replace(spec, stamp_origin=spec.stamp_origin or spec.sender is not None).origin_of
        self._closed = False
        self._failing = FailingSends()
        self._store_task = spawn(self._store_loop(), f"memory outbound {spec.topic}")

    @property
    def partitions(self) -> int:
        """Number of partitions now, or with the option `growing_outbound: false`, when the outbound was opened."""
        return len(self._partitions)

    def send(self, partition: int, share: Share) -> "asyncio.Future[Receipt]":
        """Queue a share; the future gets its receipt."""
        if not 0 <= partition < self.partitions:
            raise LocalProtocolError(f"topic {self._spec.topic!r} has {self.partitions} partitions, and no partition {partition}")
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Receipt] = loop.create_future()
        if self._closed:
            future.set_exception(self._closed_error())
            return future
        self._in_flight.add(future)
        future.add_done_callback(self._in_flight.discard)
        deadline = None if self._spec.max_elapsed_s is None else loop.time() + self._spec.max_elapsed_s
        self._queue.append(_Send(self._partitions[partition], share, self._origin_of(share.batch.partition), future, deadline))
        self._queued.set()
        return future

    def withdraw(self, sends: "Collection[asyncio.Future[Receipt]]") -> None:
        """Remove these sends from the queue and fail them; a send that is stored already is not in the queue."""
        withdrawn = set(sends)
        for send in self._remove_queued(lambda send: send.future in withdrawn):
            _resolve(send.future, send.failed_receipt("the send was withdrawn"))

    def _remove_queued(self, is_chosen: Callable[[_Send], bool]) -> list[_Send]:
        """Remove the sends for which `is_chosen` returns True from the queue, and return them."""
        removed = [send for send in self._queue if is_chosen(send)]
        self._queue = deque(send for send in self._queue if not is_chosen(send))
        return removed

    def partition_of(self, key: bytes) -> int:
        """Return the CRC32 of the key modulo the number of partitions."""
        return crc32(key) % self.partitions

    async def resume(
        self, source: Partition, since: Mapping[int, Position] | None = None, partitions: Collection[int] | None = None
    ) -> Mapping[int, Position]:
        """Return the last position of `source` stored in each partition, by index, from the origins of the stored messages.

        `since` has the position in each target partition, by index, from which its messages are searched; without one, all are.
        With `partitions`, only these are searched.
        """
        last_positions: dict[int, Position] = {}
        prefix = origin_prefix(source, self._spec.writer)
        for number, stored in enumerate(self._partitions):
            if partitions is not None and number not in partitions:
                continue
            (begin,) = (since or {}).get(number, (stored.first,))
            messages = stored.messages[max(0, begin - stored.first) :]
            positions = [position for m in messages if (position := position_of(m.origin, prefix)) is not None]
            if positions:
                last_positions[number] = positions[-1]
        return last_positions

    async def close(self, deadline: float | None = None) -> None:
        """Wait for the sends in flight until the deadline (loop time; None: CLOSE_S from now), then fail the rest with FATAL."""
        self._closed = True
        if self._in_flight:
            await asyncio.wait(self._in_flight, timeout=seconds_until(deadline))
        await cancel(self._store_task)
        for future in list(self._in_flight):
            future.set_exception(self._closed_error())

    def _closed_error(self) -> ClusterError:
        return ClusterError(f"the outbound into {self._spec.topic!r} is closed", Failure.FATAL)

    async def _store_loop(self) -> None:
        """Store the queued sends in order, with retries until the deadline of each."""
        while True:
            if not self._queue:
                self._queued.clear()
                await self._queued.wait()
                continue
            send = self._queue[0]
            is_in_time = await self._wait_storable(send)
            if not self._queue or self._queue[0] is not send:  # withdrawn meanwhile
                continue
            self._queue.popleft()
            if send.future.done():  # the caller cancelled it
                continue
            if self._broker.faults.fatal is not None:
                send.future.set_exception(ClusterError(self._broker.faults.fatal, Failure.FATAL))
            elif self._broker.topics.get(self._spec.topic) is not self._stored:
                send.future.set_exception(TopicChanged(f"topic {self._spec.topic!r} does not exist any more: create it again"))
            elif is_in_time:
                self._send_receipt(send.future, self._store(send.partition, send.take_messages(), send.origin_prefix))
            else:
                self._send_receipt(send.future, send.failed_receipt("the send could not be stored before the deadline"))
                self._fail_later_sends(send)

    def _fail_later_sends(self, failed: _Send) -> None:
        """Fail the later sends to the same partition if sends are ordered: they must not overtake the failed one."""
        for send in self._remove_queued(lambda send: self._spec.ordered and send.partition is failed.partition):
            self._send_receipt(send.future, send.failed_receipt("an earlier send could not be stored"))

    async def _wait_storable(self, send: _Send) -> bool:
        """Wait while the broker is disconnected or has transient faults, unless the send has ended; False after its deadline."""
        backoff = Backoff(initial_s=0.001, max_s=0.05)
        while not send.future.done() and (self._broker.faults.transient or not self._broker.connected.is_set()):
            if send.deadline is not None and asyncio.get_running_loop().time() >= send.deadline:
                return False
            self._connectivity.retries += 1
            outage = not self._broker.connected.is_set()
            self._failing.record(ClusterError("the broker is disconnected" if outage else self._broker.faults.transient_error))
            self._broker.faults.transient = max(0, self._broker.faults.transient - 1)
            await asyncio.sleep(backoff.delay())
        self._failing.clear()
        return True

    @property
    def send_failure(self) -> SendFailure | None:
        """Why sends fail; None while messages are stored."""
        failing = longest_failing([self._failing])
        return None if failing is None else SendFailure(*failing)

    def _store(self, partition: StoredPartition, messages: Sequence[Message], origin_prefix: str | None) -> Receipt:
        """Store the messages that are not refused; return the receipt of all messages, refused ones included.

        With an `origin_prefix`, each stored message gets a new origin and counts one more hop.
        """
        positions: list[Position] = [()] * len(messages)
        failures: list[MessageFailure] = []
        accepted: list[Message] = []
        for index, message in enumerate(messages):
            if (reason := self._refusal_reason(message)) is not None:
                if self._spec.whole_shares:
                    return refused_whole(len(messages), [MessageFailure(index, Failure.REFUSED, reason)])
                failures.append(MessageFailure(index, Failure.REFUSED, reason))
                continue
            stamp = None if origin_prefix is None else origin_prefix + format_position(message.position)
            origin, hops = next_origin(message, stamp)
            positions[index] = (partition.next + len(accepted),)
            accepted.append(message.replace(position=positions[index], origin=origin, hops=hops))
        partition.append(accepted)
        return Receipt(positions, failures)

    def _refusal_reason(self, message: Message) -> str | None:
        """Return the reason why the message is refused; None if it is accepted."""
        if message.defect is not None:
            return f"it could not be read: {message.defect}"
        if message.payload is not None and len(message.payload) > self._config.max_message_bytes:
            max_bytes = self._config.max_message_bytes
            return f"the payload has {len(message.payload)} bytes; at most {max_bytes} are accepted (max_message_bytes)"
        if message.payload == b"" and not self._config.empty_payload:
            return "the payload has no bytes"
        return self._broker.faults.refuse(message) if self._broker.faults.refuse is not None else None

    def _send_receipt(self, future: "asyncio.Future[Receipt]", receipt: Receipt) -> None:
        """Resolve the future now, or later if the injected faults withhold or delay receipts."""
        faults = self._broker.faults
        if faults.hold_receipts:
            self._broker.withheld_receipts.append(partial(_resolve, future, receipt))
        elif faults.receipt_delay_s:
            asyncio.get_running_loop().call_later(faults.receipt_delay_s, _resolve, future, receipt)
        else:
            _resolve(future, receipt)


def _resolve(future: "asyncio.Future[Receipt]", receipt: Receipt) -> None:
    """Set the receipt, unless the caller has cancelled the future."""
    if not future.done():
        future.set_result(receipt)
