"""Produces batches to one topic.

Ordered routes have one request in flight per queue, because Brokers handle the requests of a connection concurrently.
"""

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
from mqbridge.receipts import ReceiptAggregator, closed_outbound_future
from mqbridge.rocketmq.adapter.config import RocketMQOutboundOptions
from mqbridge.rocketmq.adapter.operations import partition_name
from mqbridge.rocketmq.client.queue_producer import QueueProducer
from mqbridge.rocketmq.client.route import TopicRoute, queue_label
from mqbridge.rocketmq.client.send_request import SendResult
from mqbridge.rocketmq.mapping.limits import Limits
from mqbridge.rocketmq.mapping.request import EncodedRequest, encode
from mqbridge.rocketmq.wire.bodies.queue import Queue
from mqbridge.stored_positions import last_stored
from mqbridge.wire.javahash import java_string_hash

log = logging.getLogger(__name__)


class RocketMQOutbound:
    """Outbound of a route to one topic."""

    formats = ()

    def __init__(
        self,
        cluster: Cluster,
        producer: QueueProducer,
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
        self._pending: dict[asyncio.Future[Receipt], tuple[Queue, list[asyncio.Future[SendResult]]]] = {}
        """The queue and the requests of each send that has no receipt yet."""
        self._origin_of = spec.origin_of
        self._loop = asyncio.get_running_loop()
        self._closed = False
        self._on_close: list[Callable[[], None]] = []

    @property
    def partitions(self) -> int:
        """The number of writable queues; grows with the topic."""
        return len(self._queues)

    def on_close(self, callback: Callable[[], None]) -> None:
        """Call `callback` when the outbound is closed."""
        self._on_close.append(callback)

    def follow(self, route: TopicRoute) -> None:
        """Adopt the topic's current queues.

        Queues of a Broker that is absent from the route keep their indexes, because it may return. An index whose queue is no
        longer writable is assigned to another queue.
        """
        queues, known = route.write_queues(), self._queues
        if len(queues) > len(known):
            self._queues = list(queues)
            return
        remaining = [queue for queue in known if route.takes(queue) or route.master(queue.broker) is None]
        if remaining and len(remaining) < len(known):
            self._queues = [
                queue if queue in remaining else remaining[index % len(remaining)] for index, queue in enumerate(known)
            ]
            log.warning("%s is no longer writable in %s", self._spec.topic, ", ".join(map(queue_label, {*known} - {*remaining})))

    def send(self, partition: int, share: Share) -> "asyncio.Future[Receipt]":
        """Send a share in order; the receipt has the positions of its messages."""
        if not 0 <= partition < len(self._queues):
            raise LocalProtocolError(f"topic {self._spec.topic!r} has {len(self._queues)} queues, and no partition {partition}")
        if self._closed:
            return closed_outbound_future(repr(self._spec.topic))
        prefix = self._origin_of(share.batch.partition)
        encoded, failures = encode(
            share.messages, prefix, self._limits, int(time.time() * 1000), self._producer.client.reserve_ids
        )
        share.held_bytes = sum(len(out.body) + len(out.properties) for out in encoded)
        receipt = ReceiptAggregator(share.count, failures, self._loop)
        queue = self._queue_of(partition, receipt.future)
        requests = [self._submit(queue, out) for out in encoded]
        for out, request in zip(encoded, requests, strict=True):
            receipt.wait_for(request, out.indexes, partial(_positions, out))
        future = receipt.sent()
        if not future.done():
            self._pending[future] = queue, requests
            future.add_done_callback(self._pending.pop)
        return future

    def _queue_of(self, partition: int, receipt: "asyncio.Future[Receipt]") -> Queue:
        """Return the queue to send to: while the partition's previous send has no receipt, its queue, to keep their order."""
        queue, waiting = self._last_sent.get(partition, (None, None))
        if queue is None or waiting is None or waiting.done():
            queue = self._queues[partition]
        self._last_sent[partition] = (queue, receipt)
        return queue

    def _submit(self, queue: Queue, out: EncodedRequest) -> "asyncio.Future[SendResult]":
        if out.is_batch:
            return self._producer.send_batch(queue, out.body, out.count, out.born)
        return self._producer.send_single(queue, out.body, out.properties, out.flag, out.sys_flag, out.born)

    def withdraw(self, sends: "Collection[asyncio.Future[Receipt]]") -> None:
        """Withdraw sends that are still queued; requests that a Broker may have received wait for their responses."""
        by_queue: dict[Queue, set[asyncio.Future[SendResult]]] = {}
        for send in sends:
            if (pending := self._pending.get(send)) is not None:
                queue, requests = pending
                by_queue.setdefault(queue, set()).update(requests)
        for queue, found in by_queue.items():
            self._producer.withdraw(queue, found)

    def partition_of(self, key: bytes) -> int:
        """Return the partition of a key, as the Java client's hash selector: absolute hash code modulo the number of queues."""
        return _HASHES[key] % len(self._queues)

    async def resume(self, source: Partition, since: Mapping[int, Position] | None = None) -> Mapping[int, Position]:
        """Return the last stored source positions, read back from the topic.

        Other producers cannot be fenced, because Brokers have no sequence numbers.
        """
        partitions = {index: partition_name(queue) for index, queue in enumerate(self._queues)}
        return await last_stored(self._cluster, self._spec.topic, partitions, source, since)

    async def close(self, deadline: float | None = None) -> None:
        """Wait for sends in flight, then close; sends without a receipt by the deadline fail."""
        if not self._closed:
            self._closed = True
            for callback in self._on_close:
                callback()
            await self._producer.close(seconds_until(deadline))


def _hash(key: bytes) -> int:
    return abs(java_string_hash(key.decode(errors="replace")))


_HASHES = BoundedCache[bytes, int](_hash)
"""Keys repeat, and a lookup is faster than hashing."""


def _positions(out: EncodedRequest, result: SendResult) -> list[Position]:
    return [() if out.delayed else (result.offset + index,) for index in range(out.count)]
