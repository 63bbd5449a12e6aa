"""Producing to one topic: batches, one at a time per queue where order is kept, because Brokers handle requests side by side."""

import asyncio
import logging
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial

from mqbridge.adapter.cluster import Cluster
from mqbridge.adapter.deadlines import seconds_until
from mqbridge.adapter.outbound import OutboundSpec
from mqbridge.adapter.receipt import Receipt
from mqbridge.errors import LocalProtocolError
from mqbridge.mapping.bounded_cache import BoundedCache
from mqbridge.message import Partition, Position, Share
from mqbridge.ranges import last_stored
from mqbridge.receipts import ReceiptAggregator, closed
from mqbridge.rocketmq.adapter.config import RocketMQOutboundOptions
from mqbridge.rocketmq.adapter.operations import name_of
from mqbridge.rocketmq.client.producer import Producer
from mqbridge.rocketmq.client.route import TopicRoute, shown
from mqbridge.rocketmq.client.send_request import SendResult
from mqbridge.rocketmq.mapping.limits import Limits
from mqbridge.rocketmq.mapping.request import EncodedRequest, encode
from mqbridge.rocketmq.wire.bodies.queue import Queue
from mqbridge.wire.javahash import java_string_hash

log = logging.getLogger(__name__)


class RocketMQOutbound:
    """A way into one topic."""

    formats = ()

    def __init__(
        self,
        cluster: Cluster,
        producer: Producer,
        spec: OutboundSpec,
        queues: Sequence[Queue],
        *,
        max_message_bytes: int,
        delay_levels: Sequence[int] = (),
    ) -> None:
        assert spec.options is None or isinstance(spec.options, RocketMQOutboundOptions)  # noqa: S101 - by the registry
        options = spec.options or RocketMQOutboundOptions()
        self._cluster, self._producer, self._spec = cluster, producer, spec
        self._queues = list(queues)
        self._limits = Limits(
            max_bytes=min(options.batch_bytes, max_message_bytes),
            max_messages=options.batch_messages,
            max_message_bytes=max_message_bytes,
            levels=delay_levels,
        )
        self._last_sent: dict[int, tuple[Queue, asyncio.Future[Receipt]]] = {}
        self._undecided: dict[asyncio.Future[Receipt], tuple[Queue, list[asyncio.Future[SendResult]]]] = {}
        """The queue and the requests of each send that has no receipt yet."""
        self._origin_of = spec.origin_of
        self._loop = asyncio.get_running_loop()
        self._closed = False
        self._ends: list[Callable[[], None]] = []

    @property
    def partitions(self) -> int:
        """Queues that may be written to; grows with the topic."""
        return len(self._queues)

    def on_close(self, end: Callable[[], None]) -> None:
        """What else is to end with this."""
        self._ends.append(end)

    def follow(self, route: TopicRoute) -> None:
        """The topic's queues are these now. A Broker that is away keeps its places; those of removed queues go to others."""
        queues, known = route.write_queues(), self._queues
        if len(queues) > len(known):
            self._queues = list(queues)
            return
        left = [queue for queue in known if route.takes(queue) or route.master(queue.broker) is None]
        if left and len(left) < len(known):
            self._queues = [left[place % len(left)] if queue not in left else queue for place, queue in enumerate(known)]
            log.warning("%s may be written to no more in %s", self._spec.topic, ", ".join(map(shown, {*known} - {*left})))

    def send(self, partition: int, share: Share) -> "asyncio.Future[Receipt]":
        """Send in order; the receipt's positions are those of its messages."""
        if not 0 <= partition < len(self._queues):
            raise LocalProtocolError(f"topic {self._spec.topic!r} has {len(self._queues)} queues, there is no {partition}")
        if self._closed:
            return closed(repr(self._spec.topic))
        prefix = self._origin_of(share.batch.partition)
        outgoing, failures = encode(
            share.messages, prefix, self._limits, int(time.time() * 1000), self._producer.client.reserve_ids
        )
        share.held_bytes = sum(len(out.body) + len(out.properties) for out in outgoing)
        receipt = ReceiptAggregator(share.count, failures, self._loop)
        queue = self._queue_of(partition, receipt.future)
        requests = [self._hand_over(queue, out) for out in outgoing]
        for out, request in zip(outgoing, requests, strict=True):
            receipt.wait_for(request, out.indexes, partial(_positions, out))
        future = receipt.sent()
        if not future.done():
            self._undecided[future] = queue, requests
            future.add_done_callback(self._undecided.pop)
        return future

    def _queue_of(self, partition: int, receipt: "asyncio.Future[Receipt]") -> Queue:
        """Where a send goes: with those before it as long as these have no receipts, or it could overtake them."""
        queue, waiting = self._last_sent.get(partition, (None, None))
        if queue is None or waiting is None or waiting.done():
            queue = self._queues[partition]
        self._last_sent[partition] = (queue, receipt)
        return queue

    def _hand_over(self, queue: Queue, out: EncodedRequest) -> "asyncio.Future[SendResult]":
        if out.is_batch:
            return self._producer.send_batch(queue, out.body, out.count, out.born)
        return self._producer.send_single(queue, out.body, out.properties, out.flag, out.sys_flag, out.born)

    def withdraw(self, sends: "Collection[asyncio.Future[Receipt]]") -> None:
        """Take back what waits in the queues; what a Broker may have, waits for its answer."""
        by_queue: dict[Queue, set[asyncio.Future[SendResult]]] = {}
        for send in sends:
            if (undecided := self._undecided.get(send)) is not None:
                queue, requests = undecided
                by_queue.setdefault(queue, set()).update(requests)
        for queue, found in by_queue.items():
            self._producer.withdraw(queue, found)

    def partition_of(self, key: bytes) -> int:
        """As the Java client's selector by hash does: the key's hash code, without its sign, modulo the number of queues."""
        return _HASHES[key] % len(self._queues)

    async def resume(self, source: Partition, since: Mapping[int, Position] | None = None) -> Mapping[int, Position]:
        """Read back from the ends. Producers of others cannot be fenced off: Brokers know no sequence numbers."""
        partitions = {index: name_of(queue) for index, queue in enumerate(self._queues)}
        return await last_stored(self._cluster, self._spec.topic, partitions, source, since)

    async def close(self, deadline: float | None = None) -> None:
        """Wait for what is in flight, then let go; what has no receipt by then fails."""
        if not self._closed:
            self._closed = True
            for end in self._ends:
                end()
            await self._producer.close(seconds_until(deadline))


def _hash(key: bytes) -> int:
    return abs(java_string_hash(key.decode(errors="replace")))


_HASHES = BoundedCache[bytes, int](_hash)
"""Keys repeat, and hashing one takes longer than looking it up."""


def _positions(out: EncodedRequest, result: SendResult) -> list[Position]:
    return [() if out.delayed else (result.offset + index,) for index in range(out.count)]
