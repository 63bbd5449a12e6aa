"""Producing to TubeMQ: each message is a request of its own, a receipt waits for all of its batch."""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping
from datetime import tzinfo
from functools import partial
from zlib import crc32

from mqbridge.adapter.deadlines import seconds_until
from mqbridge.adapter.outbound import OutboundSpec
from mqbridge.adapter.receipt import MessageFailure, Receipt
from mqbridge.errors import ClusterError, Failure, LocalProtocolError, MappingError, MqbridgeError
from mqbridge.message import Partition, Position, Share
from mqbridge.tubemq.client.producer import Sender
from mqbridge.tubemq.client.send_result import Done, SenderClosed, SendResult, failure_of
from mqbridge.tubemq.mapping.share import encode_share

REQUEST_BYTES = 450
"""What a message that waits takes besides its data. Measured with a million of 1 and of 20 bytes: 390 and 440."""

LastStored = Callable[[str, Mapping[int, str], Partition, Mapping[int, Position] | None], Awaitable[Mapping[int, Position]]]
"""What a topic's partitions, by index and name, hold of a source, since a position of each."""


class _Delivery:
    """One `send`: where it goes, how many of its messages are undecided, and what became of the others."""

    __slots__ = ("ended", "failures", "future", "is_withdrawn", "left", "name", "positions")

    def __init__(
        self, name: str, future: "asyncio.Future[Receipt]", count: int, ended: "Callable[[asyncio.Future[Receipt]], object]"
    ) -> None:
        self.name, self.future, self.left, self.ended = name, future, count, ended
        self.is_withdrawn = False
        self.positions: list[Position] = [()] * count
        self.failures: list[MessageFailure] = []

    def decided(self, index: int, result: SendResult | MqbridgeError) -> None:
        """What became of one message."""
        if isinstance(result, SendResult):
            self.positions[index] = (result.offset, 0)
        else:
            kind = failure_of(result)
            if isinstance(result, SenderClosed):
                kind, result = Failure.FATAL, ClusterError(str(result), Failure.FATAL)
            if kind is Failure.FATAL and not self.future.done():
                self.future.set_exception(result)
            self.failures.append(MessageFailure(index, kind, str(result)))
        self.left -= 1
        if not self.left:
            self.finish()

    def finish(self) -> None:
        """Hand the receipt out."""
        self.ended(self.future)
        if not self.future.done():
            self.failures.sort(key=lambda failure: failure.index)
            self.future.set_result(Receipt(self.positions, self.failures))


def _is_withdrawn(done: Done) -> bool:
    """By the callback, of which a message has no other trace of its send."""
    return isinstance(done, partial) and done.func.__self__.is_withdrawn  # type: ignore[attr-defined]  # it is bound


class TubeMQOutbound:
    """A way into one topic."""

    formats = ()

    def __init__(self, sender: Sender, spec: OutboundSpec, zone: tzinfo, last_stored: LastStored) -> None:
        self._sender, self._spec, self._zone, self._last_stored = sender, spec, zone, last_stored
        self._names = list(sender.route.partitions)
        self._origin_of = spec.origin_of
        self._closed = False
        self._open: dict[asyncio.Future[Receipt], _Delivery] = {}
        sender.is_withdrawn = _is_withdrawn
        self.partitions = len(self._names)

    def send(self, partition: int, share: Share) -> "asyncio.Future[Receipt]":
        """Encode and hand to the partition's line."""
        if not 0 <= partition < self.partitions:
            raise LocalProtocolError(f"topic {self._spec.topic!r} has {self.partitions} partitions, there is no {partition}")
        future: asyncio.Future[Receipt] = asyncio.get_running_loop().create_future()
        if self._closed:
            future.set_exception(ClusterError(f"the outbound into {self._spec.topic!r} is closed", Failure.FATAL))
            return future
        messages = share.messages
        name, submit, zone = self._names[partition], self._sender.submit, self._zone
        delivery = self._open[future] = _Delivery(name, future, len(messages), self._open.pop)
        if not messages:
            delivery.finish()
        requests = encode_share(messages, self._origin_of(share.batch.partition), zone)
        decided = delivery.decided
        failed, held = dict(requests.failures), 0
        for index in range(len(messages)):
            if index in failed:
                decided(index, MappingError(failed[index]))
            else:
                request = requests[index]
                held += len(request[0]) + REQUEST_BYTES
                submit(name, *request, done=partial(decided, index))
        share.held_bytes = held
        return future

    def withdraw(self, sends: "Collection[asyncio.Future[Receipt]]") -> None:
        """What waits in its partition's line is given up; what is on its way is not sent again when its answer is lost."""
        names = set()
        for future in sends:
            if (delivery := self._open.get(future)) is not None:
                delivery.is_withdrawn = True
                names.add(delivery.name)
        self._sender.withdraw(names)

    def partition_of(self, key: bytes) -> int:
        """TubeMQ's producers know no keys and take turns; this keeps a key to a partition by its CRC-32."""
        return crc32(key) % self.partitions

    async def resume(self, source: Partition, since: Mapping[int, Position] | None = None) -> Mapping[int, Position]:
        """From the origins that are stamped on what is stored; TubeMQ has nothing that would fence other producers."""
        return await self._last_stored(self._spec.topic, dict(enumerate(self._names)), source, since)

    async def close(self, deadline: float | None = None) -> None:
        """Wait for the receipts; what is not decided by then fails, but for what was taken back and is still on its way."""
        if not self._closed:
            self._closed = True
            await self._sender.close(seconds_until(deadline))
            for future, delivery in self._open.items():
                if not future.done() and not delivery.is_withdrawn:
                    problem = f"the outbound into {self._spec.topic!r} was closed before it was known what became of this send"
                    future.set_exception(ClusterError(problem, Failure.FATAL))
