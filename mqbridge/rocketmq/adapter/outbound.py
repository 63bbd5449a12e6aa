"""Outbound of one topic: encodes shares of batches to send requests, and reports where their messages are stored.

A share is the part of a batch for one partition.

On ordered routes each queue has only one request in flight, because Brokers process the requests of a connection concurrently.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial

from mqbridge.adapter.cluster import Cluster
from mqbridge.adapter.known_brokers import list_order
from mqbridge.adapter.outbound import OutboundSpec, SendFailure
from mqbridge.adapter.receipt import MessageFailure, Receipt
from mqbridge.adapter.target_order import TargetOrder
from mqbridge.adapter.tools.deadlines import seconds_until
from mqbridge.adapter.tools.receipts import ReceiptAggregator, closed_outbound_future, refused_whole
from mqbridge.adapter.tools.stored_positions import last_stored
from mqbridge.errors import LocalProtocolError
from mqbridge.mapping.bounded_cache import BoundedCache
from mqbridge.message import Partition, Position, Share, Unit
from mqbridge.net.failing_sends import longest_failing
from mqbridge.net.waiting_sends import Caller
from mqbridge.rocketmq.adapter.config import RocketMQOutboundOptions
from mqbridge.rocketmq.adapter.operations import partition_name
from mqbridge.rocketmq.client.connection.route import TopicRoute, queue_label, queue_order
from mqbridge.rocketmq.client.producer.queue_producer import QueueProducer
from mqbridge.rocketmq.client.producer.send_request import DIVIDED, OnDivided, SendRequest, SendResult
from mqbridge.rocketmq.mapping import unit_format
from mqbridge.rocketmq.mapping.limits import Limits
from mqbridge.rocketmq.mapping.request import EncodedRequest, encode
from mqbridge.rocketmq.mapping.unit_request import encode_units
from mqbridge.rocketmq.wire import compression
from mqbridge.rocketmq.wire.bodies.queue import Queue
from mqbridge.wire.javahash import java_string_hash

log = logging.getLogger(__name__)


class RocketMQOutbound:
    """Produces the messages of a route to one topic. The partition with index i is the i-th of its writable queues.

    They are counted by number first and then by broker, so that queues which every broker gets are at the end. `order` is the
    order by which `identity` and `table` choose one (None: a new one).
    `delay_levels` are the delays (ms), from level 1 on, of Brokers before 5.0; empty for later ones, which deliver at any time.
    `requires_keys` is True for a compacted topic, whose messages need KEYS. `max_batch_bytes` is the `maxMessageSize` of the
    Brokers, which also limits a batch (None: unknown); `max_message_bytes` is that of the configuration.
    """

    def __init__(
        self,
        cluster: Cluster,
        producer: QueueProducer,
        spec: OutboundSpec,
        queues: Sequence[Queue],
        *,
        max_message_bytes: int,
        max_batch_bytes: int | None = None,
        delay_levels: Sequence[int] = (),
        requires_keys: bool = False,
        order: TargetOrder | None = None,
    ) -> None:
        assert spec.options is None or isinstance(spec.options, RocketMQOutboundOptions)  # noqa: S101 - by the registry
        options = spec.options or RocketMQOutboundOptions()
        self._cluster, self._producer, self._spec = cluster, producer, spec
        self._order = order or TargetOrder(map(partition_name, queues))
        self._sorted_queues: list[Queue] = []
        """The queue of each partition."""
        self._queues: list[Queue] = []
        """The queue that gets the messages of each partition: another one if its own is not writable."""
        self.indexed: list[int] = []
        """The partition of each index by which `identity` and `table` choose; see `KeepsIndexes`."""
        self._adopt(queues)
        if spec.whole_shares and max_batch_bytes is not None:  # what the Brokers refuse now is refused before the first request
            max_message_bytes = min(max_message_bytes, max_batch_bytes)
        self._limits = Limits(
            max_bytes=min(options.batch_bytes, max_message_bytes, max_batch_bytes or max_message_bytes),
            max_messages=options.batch_messages,
            max_message_bytes=max_message_bytes,
            levels=delay_levels,
            requires_keys=requires_keys,
            codec=compression.NAMES.get(options.compression),
        )
        self._last_sent: dict[Queue, tuple[Queue, asyncio.Future[Receipt]]] = {}
        """The last send of each partition, by the partition's own queue: the queue of the send, and its receipt."""
        # RocketMQ has nothing beside a message that could hold the sender's position. So with a sender each message is stamped,
        # and `resume` finds the stamps.
        self._origin_of = replace(spec, stamp_origin=spec.stamp_origin or spec.sender is not None).origin_of
        """Returns the origin prefix to stamp on messages of a source partition; None if they keep their origin."""
        # With a sender, units become messages, which are stamped. A compacted topic needs KEYS, which a unit may lack.
        self._keeps_units = spec.keep_units and spec.sender is None and not requires_keys
        self.formats = (unit_format.NAME,) if self._keeps_units else ()
        """The formats of units that are stored as they are; the native property block, flag and body travel unchanged."""
        self._loop = asyncio.get_running_loop()
        self._closed = False
        self._on_close: list[Callable[[], None]] = []

    @property
    def send_failure(self) -> SendFailure | None:
        """Why sends to a queue fail; None while messages are stored."""
        failing = longest_failing(self._producer.failing)
        return None if failing is None else SendFailure(*failing)

    @property
    def partitions(self) -> int:
        """The number of writable queues; grows with the topic."""
        return len(self._sorted_queues)

    def on_close(self, callback: Callable[[], None]) -> None:
        """Call `callback` when `close` begins."""
        self._on_close.append(callback)

    def on_route(self, route: TopicRoute) -> None:
        """Adopt the queues of a new topic route, the list of Brokers and queues from the name server.

        A queue of a Broker without a master keeps its index, because the master may return. On ordered routes so does a queue
        without the permission to write. If there are more queues than before, all are used. Otherwise the number of partitions
        stays the same, and each index whose queue is not writable gets a new queue, or if there is none, shares another one,
        until its own is writable again. If no queue is left, nothing changes.
        """
        frozen = route.frozen_queues if self._spec.ordered else frozenset()
        kept = {
            queue
            for queue in self._sorted_queues
            if route.is_writable(queue) or queue in frozen or route.master(queue.broker) is None
        }
        usable = sorted({*route.write_queues(), *kept}, key=_list_order)
        if len(usable) > len(self._sorted_queues):
            self._adopt(usable)
        elif usable:
            new_queues = iter([queue for queue in usable if queue not in kept])
            self._use(
                [
                    queue if queue in kept else next(new_queues, usable[index % len(usable)])
                    for index, queue in enumerate(self._sorted_queues)
                ]
            )

    def _use(self, queues: list[Queue]) -> None:
        """Send the messages of each partition to these queues, and log what changes."""
        before, self._queues = {*self._queues}, queues
        cluster, topic = self._cluster.name, self._spec.topic
        if removed := before - {*queues}:
            text = "cluster %s: topic %s: using other queues instead of %s, which are no longer writable"
            log.warning(text, cluster, topic, ", ".join(map(queue_label, removed)))
        if returned := {*queues} - before:
            log.info("cluster %s: topic %s: using %s again", cluster, topic, ", ".join(map(queue_label, returned)))

    def _adopt(self, queues: Collection[Queue]) -> None:
        """Use these queues, and no others."""
        self._sorted_queues = self._queues = sorted(queues, key=_list_order)
        numbers = {queue: number for number, queue in enumerate(self._queues)}
        self._java_order = [numbers[queue] for queue in sorted(queues, key=queue_order)]
        """The index of each queue, in the order in which Java's producers count queues."""
        names = {partition_name(queue): number for queue, number in numbers.items()}
        self._order.grow(names.keys())
        # An index whose queue is gone gets another one.
        self.indexed = [names.get(name, index % len(names)) for index, name in enumerate(self._order.names)]

    def send(self, partition: int, share: Share) -> "asyncio.Future[Receipt]":
        """Queue a share for sending, in order; the receipt has the positions of its messages.

        Sets `share.held_bytes` to the bytes of the requests, which are held in memory until the receipt.
        """
        if not 0 <= partition < len(self._queues):
            raise LocalProtocolError(
                f"topic {self._spec.topic!r} has {len(self._queues)} queues, so no partition {partition} (counted from 0)"
            )
        if self._closed:
            return closed_outbound_future(repr(self._spec.topic))
        requests, failures = self._encode(share)
        if failures and self._spec.whole_shares:
            return self._refused_whole(share.count, failures)
        share.held_bytes = sum(len(request.body) + len(request.properties) for request in requests)
        aggregator = ReceiptAggregator(share.count, failures, self._loop)
        queue = self._queue_of(partition, aggregator.future)
        caller = Caller(aggregator.future, share.batch.partition, (aggregator.future,))
        for request in requests:
            result = self._submit(queue, request, caller, partial(self._on_divided, aggregator, request))
            aggregator.add_request(result, request.indexes, partial(_positions, request))
        return aggregator.finish_adding()

    def _encode(self, share: Share) -> tuple[list[EncodedRequest], list[MessageFailure]]:
        """Encode the units of a share as they are, or its messages."""
        origin, now = self._origin_of(share.batch.partition), int(time.time() * 1000)
        units = self._units_of(share) if self._keeps_units and origin is None else None
        if units is not None:
            return encode_units(units, self._limits, now, share.deliver_at)
        return encode(share.messages, origin, self._limits, now, self._producer.client.reserve_ids)

    def _units_of(self, share: Share) -> Sequence[Unit] | None:
        """Return the units that can be stored instead of the messages of the share; None if there are none."""
        batch = share.batch
        if batch.format not in self.formats or share.indexes is not None or share.has_edits:
            return None
        units = batch.units
        return None if units is None or any(unit.message_count != 1 or unit.left_out for unit in units) else units

    def _refused_whole(self, count: int, failures: Sequence[MessageFailure]) -> "asyncio.Future[Receipt]":
        future: asyncio.Future[Receipt] = self._loop.create_future()
        future.set_result(refused_whole(count, failures))
        return future

    def _queue_of(self, partition: int, receipt: "asyncio.Future[Receipt]") -> Queue:
        """Return the queue of a partition, and record `receipt` as that of its last send.

        While the previous send of the partition has no receipt, this is the queue of that send, even if the route has changed:
        the order is kept only within a queue.
        """
        own_queue = self._sorted_queues[partition]  # not the index, which is that of another queue when there are more
        queue, last_receipt = self._last_sent.get(own_queue, (None, None))
        if queue is None or last_receipt is None or last_receipt.done():
            queue = self._queues[partition]
        self._last_sent[own_queue] = (queue, receipt)
        return queue

    def _submit(
        self, queue: Queue, request: EncodedRequest, caller: Caller, on_divided: OnDivided
    ) -> "asyncio.Future[SendResult]":
        if request.is_batch:
            return self._producer.send_batch(
                queue,
                request.body,
                request.count,
                request.born,
                request.sys_flag,
                request.reconsume_times,
                caller=caller,
                on_divided=on_divided,
            )
        return self._producer.send_single(
            queue,
            request.body,
            request.properties,
            request.flag,
            request.sys_flag,
            request.born,
            request.reconsume_times,
            caller=caller,
        )

    def _on_divided(self, aggregator: ReceiptAggregator, request: EncodedRequest, parts: Sequence[SendRequest]) -> None:
        """Collect the results of the parts of a batch that the Broker has refused as a whole."""
        for part in parts:
            indexes = request.indexes[part.first : part.first + part.count]
            aggregator.add_request(part.future, indexes, partial(_positions_of_part, part.count))

    def withdraw(self, sends: "Collection[asyncio.Future[Receipt]]") -> None:
        """Cancel the requests of these sends that are not on the wire; the others wait for their responses."""
        self._producer.withdraw(frozenset(sends))

    def partition_of(self, key: bytes) -> int:
        """Return the partition of a key: its absolute Java hash code modulo the number of queues, as SelectMessageQueueByHash."""
        order = self._java_order
        return order[_HASH_CACHE[key] % len(order)]

    async def resume(
        self, source: Partition, since: Mapping[int, Position] | None = None, partitions: Collection[int] | None = None
    ) -> Mapping[int, Position]:
        """Return the last position of this source partition that each queue has stored, by partition index.

        The positions are read from the topic's messages, in each partition from `since` on (None: from its beginning); with
        `partitions`, only in those. Other producers are not fenced, because RocketMQ cannot do it.
        """
        names = {
            index: partition_name(queue) for index, queue in enumerate(self._queues) if partitions is None or index in partitions
        }
        return await last_stored(self._cluster, self._spec.topic, names, source, since, self._spec.writer)

    async def close(self, deadline: float | None = None) -> None:
        """Wait for sends in flight until the deadline, then close; sends without a receipt then fail.

        The deadline is a loop time; None: in 30 s (`deadlines.CLOSE_S`).
        """
        if not self._closed:
            self._closed = True
            for callback in self._on_close:
                callback()
            await self._producer.close(seconds_until(deadline))


def _list_order(queue: Queue) -> tuple[int, tuple[bool, int, str, int]]:
    return list_order(partition_name(queue))


def _absolute_hash(key: bytes) -> int:
    return abs(java_string_hash(key.decode(errors="replace")))


_HASH_CACHE = BoundedCache[bytes, int](_absolute_hash)
"""Hashes of recent keys: keys repeat, and a look-up is faster than hashing in Python."""


def _positions(request: EncodedRequest, result: SendResult) -> Sequence[Position]:
    """Return the position of each message of a request; () for delayed messages, which are stored in another topic first."""
    return [()] if request.delayed else _positions_of_part(request.count, result)


def _positions_of_part(count: int, result: SendResult) -> Sequence[Position]:
    """Return the position of each of `count` messages; () if the batch was divided, because its parts have the positions."""
    return [()] * count if result.offset == DIVIDED else [(result.offset + index,) for index in range(count)]
