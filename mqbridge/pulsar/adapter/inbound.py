"""Consuming: a consumer per partition, a lane for as long as it is the one that gets the entries.

With exclusive and shared subscriptions a lane lasts until it is released. With failover it comes and goes as the broker
activates one member or another. New partitions of a topic are looked for now and then, and read from their beginning. A topic
that is deleted takes its lanes with it; nothing here makes it anew, which any other SUBSCRIBE does where the broker is set up so.
"""

import asyncio
import itertools
import logging
import uuid
from collections.abc import AsyncIterator

from mqbridge.adapter.deadlines import CLOSE_S
from mqbridge.adapter.inbound import InboundSpec, Start
from mqbridge.errors import ClusterError
from mqbridge.message import Partition
from mqbridge.net.connectivity import level_of
from mqbridge.net.tasks import cancel, spawn
from mqbridge.pulsar.adapter.config import PulsarInboundOptions
from mqbridge.pulsar.adapter.lane import PulsarLane
from mqbridge.pulsar.adapter.topics import Topics
from mqbridge.pulsar.client.client import PulsarClient
from mqbridge.pulsar.client.consumer import Consumer
from mqbridge.pulsar.client.credit import CreditPool
from mqbridge.pulsar.client.subscription import Subscription, Types
from mqbridge.pulsar.wire.codes import is_missing

log = logging.getLogger(__name__)

BATCHES_AHEAD = 8
"""How many batches what is read ahead makes at least, whatever their entries take in memory: with fewer a route would wait for a
target's answer after nearly each."""

SUBSCRIPTION_TYPES = {
    "failover": Types.Failover,
    "exclusive": Types.Exclusive,
    "shared": Types.Shared,
    "key_shared": Types.Key_Shared,
}


class PulsarInbound:
    """A membership in a subscription; `open` subscribes to everything there is now."""

    def __init__(self, client: PulsarClient, topics: Topics, spec: InboundSpec, refresh_s: float) -> None:
        assert spec.options is None or isinstance(spec.options, PulsarInboundOptions)  # noqa: S101 - by the registry
        self._client, self._topics, self._spec, self._refresh_s = client, topics, spec, refresh_s
        self._options = spec.options or PulsarInboundOptions()
        self._type = SUBSCRIPTION_TYPES[self._options.subscription_type]
        self.individual_ack = self._type in (Types.Shared, Types.Key_Shared)
        self._consumer_name = self._options.consumer_name or f"mqbridge-{uuid.uuid4().hex[:12]}"
        self._pool = CreditPool(spec.max_bytes)
        self._consumers: dict[Partition, Consumer] = {}
        self._held: dict[Partition, PulsarLane] = {}
        self._new: asyncio.Queue[PulsarLane | Exception | None] = asyncio.Queue()
        self._looking: asyncio.Task[None] | None = None
        self._watching: set[asyncio.Task[None]] = set()

    async def open(self) -> None:
        """Subscribe. Raises ClusterError (FATAL for a missing topic); then nothing stays open."""
        try:
            await self._subscribe_all(first=True)
        except BaseException:
            await self.close()
            raise
        self._looking = spawn(self._look_for_partitions(), f"new partitions for {self._spec.group}")

    async def lanes(self) -> AsyncIterator[PulsarLane]:
        """Lanes as they are assigned."""
        while (lane := await self._new.get()) is not None:
            if isinstance(lane, Exception):
                raise lane
            if not lane.revoked.is_set():
                yield lane

    async def close(self, deadline: float | None = None) -> None:
        """Release all lanes and close all consumers."""
        if deadline is None:
            deadline = asyncio.get_running_loop().time() + CLOSE_S
        await cancel(self._looking, *self._watching)
        for lane in self._held.values():
            lane.revoke()
        await asyncio.gather(*(consumer.close(deadline) for consumer in self._consumers.values()))
        self._new.put_nowait(None)

    # --- partitions -------------------------------------------------------------------------------------------------

    async def _subscribe_all(self, *, first: bool) -> None:
        found = [await self._topics.partitions(topic, missing=not first) for topic in self._spec.topics]
        self._pool.consumers = sum(map(len, found))
        for partition in itertools.chain(*found):
            if partition not in self._consumers:
                await self._subscribe(partition, first=first)

    async def _subscribe(self, partition: Partition, *, first: bool) -> None:
        earliest = self._spec.start_of(partition.topic, partition.name) is Start.EARLIEST or not first
        subscription = Subscription(
            self._spec.group,
            self._type,
            earliest=earliest,
            consumer_name=self._consumer_name,
            batch_index_ack=self.individual_ack,  # a broker that is not configured for it waits for the whole entry
            create_topic=not self._topics.is_kept(partition.topic),
        )
        try:
            consumer = await self._client.consumer(self._topics.concrete(partition), subscription, self._pool)
        except ClusterError as error:
            if not is_missing(error):
                raise
            log.info("%s is counted, and not there yet: %s", partition, error)
            return
        self._consumers[partition] = consumer
        task = spawn(self._watch(partition, consumer), f"lane {partition}")
        self._watching.add(task)
        task.add_done_callback(self._watching.discard)

    async def _watch(self, partition: Partition, consumer: Consumer) -> None:
        """Hand out a lane whenever the consumer is the active one."""
        try:
            while True:
                await consumer.wait_active(True)
                lane = self._held[partition] = PulsarLane(
                    partition, consumer, self._options.batch_bytes, self._pool.max_bytes // BATCHES_AHEAD
                )
                term = consumer.term  # it may be over, and the next one begun, before anybody runs who waits for that
                self._new.put_nowait(lane)
                await consumer.wait_over(term)
                lane.revoke()
        except ClusterError as error:
            if is_missing(error):
                await self._drop(partition, consumer)
            elif not consumer.closed:
                self._new.put_nowait(error)

    async def _drop(self, partition: Partition, consumer: Consumer) -> None:
        log.warning("%s was deleted; it is read again when it is there again", partition)
        if (lane := self._held.pop(partition, None)) is not None:
            lane.revoke()
        await consumer.close()
        del self._consumers[partition]

    async def _look_for_partitions(self) -> None:
        while True:
            await asyncio.sleep(self._refresh_s)
            try:
                await self._subscribe_all(first=False)
            except ClusterError as error:
                log.log(level_of(error, logging.WARNING), "looking for new partitions for %s: %s", self._spec.group, error)
