"""Inbound: a consumer per partition, and a lane, which yields its batches, while that consumer is the active one.

On exclusive, shared and key_shared subscriptions a lane lasts until the route releases it. On failover subscriptions a lane
begins when the broker makes this member's consumer the active one, and ends when another member's becomes active. New partitions
of a topic are checked for periodically and read from their beginning. Deleting a topic revokes its lanes. An ordinary SUBSCRIBE
would re-create the topic at once if the broker auto-creates topics, so ours forbids it, except for non-persistent topics.
"""

import asyncio
import itertools
import logging
import uuid
from collections.abc import AsyncIterator, Mapping

from mqbridge.adapter.inbound import InboundSpec, Sharing, Start
from mqbridge.adapter.tools.deadlines import CLOSE_S
from mqbridge.errors import ClusterError
from mqbridge.message import Partition
from mqbridge.net.connectivity import retry_log_level
from mqbridge.net.tasks import cancel, spawn
from mqbridge.pulsar.adapter.config import PulsarInboundOptions
from mqbridge.pulsar.adapter.lane import PulsarLane
from mqbridge.pulsar.adapter.topics import Topics
from mqbridge.pulsar.client.cluster_client import ClusterClient
from mqbridge.pulsar.client.consumer.entry_consumer import EntryConsumer
from mqbridge.pulsar.client.consumer.flow_permits import ReceiveBudget
from mqbridge.pulsar.client.consumer.subscription import Subscription, Types
from mqbridge.pulsar.wire.codes import is_topic_missing

log = logging.getLogger(__name__)

MIN_BATCHES_AHEAD = 8
"""Minimum number of batches that fit into the read-ahead budget: with fewer, a route would wait for a target's response after
nearly every batch."""

SUBSCRIPTION_TYPES = {
    Sharing.FAILOVER: Types.Failover,
    Sharing.EXCLUSIVE: Types.Exclusive,
    Sharing.SHARED: Types.Shared,
    Sharing.KEY_SHARED: Types.Key_Shared,
}
"""How members share a partition -> number in the protocol. The option `subscription_type` has the values of `Sharing`.

A broker refuses a second member of an exclusive subscription, which is FATAL. After a crash it refuses the next member, too,
until it notices that the connection is gone; a member that was open reconnects without a limit."""


class PulsarInbound:
    """A member of a subscription; `open` subscribes to all existing partitions.

    New partitions are checked for every `refresh_s` seconds.
    """

    def __init__(self, client: ClusterClient, topics: Topics, spec: InboundSpec, refresh_s: float) -> None:
        assert spec.options is None or isinstance(spec.options, PulsarInboundOptions)  # noqa: S101 - validated with that model
        self._client, self._topics = client, topics
        self._spec, self._refresh_s = spec, refresh_s
        self._options = spec.options or PulsarInboundOptions()
        self._type = SUBSCRIPTION_TYPES[spec.sharing or Sharing(self._options.subscription_type)]
        self.individual_ack = self._type in (Types.Shared, Types.Key_Shared)
        """True if messages may be acknowledged in any order; see `mqbridge.adapter.inbound.Inbound`."""
        # Brokers report consumers by name, and choose the active one of a failover subscription by it, so a name is made unique.
        self._consumer_name = self._options.consumer_name or f"{spec.member or 'mqbridge'}-{uuid.uuid4().hex[:12]}"
        self._budget = ReceiveBudget(spec.max_bytes)
        self._consumers: dict[Partition, EntryConsumer] = {}
        self._latest_lanes: dict[Partition, PulsarLane] = {}
        """The latest lane of each partition; it may be revoked already."""
        self._new_lanes: asyncio.Queue[PulsarLane | Exception | None] = asyncio.Queue()
        """Lanes for `lanes` to yield, an error for it to raise, or None to end it."""
        self._refresh_task: asyncio.Task[None] | None = None
        self._lane_tasks: set[asyncio.Task[None]] = set()

    async def open(self) -> None:
        """Subscribe to all existing partitions. On ClusterError (FATAL for a missing topic) everything is closed again."""
        try:
            await self._subscribe_all(is_opening=True)
        except BaseException:
            await self.close()
            raise
        self._refresh_task = spawn(self._refresh_partitions(), f"new partitions for {self._spec.group}")

    async def lanes(self) -> AsyncIterator[PulsarLane]:
        """Yield lanes as they are assigned. Raises the ClusterError of a consumer that cannot continue."""
        while (lane := await self._new_lanes.get()) is not None:
            if isinstance(lane, Exception):
                raise lane
            if not lane.revoked.is_set():
                yield lane

    @property
    def pauses(self) -> Mapping[str, str]:
        """Why brokers do not accept consumers again that were open before, by partition."""
        refusals = ((partition, consumer.refusal) for partition, consumer in self._consumers.items())
        return {f"{partition.topic}/{partition.name}": why for partition, why in refusals if why is not None}

    def find_consumer(self, group: str, topic: str, partition: str) -> EntryConsumer | None:
        """Return the open consumer of this subscription and partition; None if there is none."""
        consumers = self._consumers.items() if group == self._spec.group else ()
        for each, consumer in consumers:
            if (each.topic, each.name) == (topic, partition) and not consumer.closed:
                return consumer
        return None

    async def close(self, deadline: float | None = None) -> None:
        """Revoke all lanes and close all consumers by `deadline` (loop time; None: CLOSE_S seconds from now)."""
        if deadline is None:
            deadline = asyncio.get_running_loop().time() + CLOSE_S
        await cancel(self._refresh_task, *self._lane_tasks)
        for lane in self._latest_lanes.values():
            lane.revoke()
        await asyncio.gather(*(consumer.close(deadline) for consumer in self._consumers.values()))
        self._new_lanes.put_nowait(None)

    # --- partitions -------------------------------------------------------------------------------------------------

    async def _subscribe_all(self, *, is_opening: bool) -> None:
        """Subscribe to the partitions that have no consumer yet; `is_opening` is False for later checks."""
        partitions = [await self._topics.partitions(topic, allow_missing=not is_opening) for topic in self._spec.topics]
        self._budget.consumers = sum(map(len, partitions))
        for partition in itertools.chain(*partitions):
            if partition not in self._consumers:
                await self._subscribe(partition, is_opening=is_opening)

    async def _subscribe(self, partition: Partition, *, is_opening: bool) -> None:
        """Subscribe to one partition and start to offer its lanes; a missing partition is left to the next check."""
        # The configured start is for the partitions that exist when the route starts; a later one is read from its beginning.
        earliest = self._spec.start_of(partition.topic, partition.name) is Start.EARLIEST or not is_opening
        subscription = Subscription(
            self._spec.group,
            self._type,
            earliest=earliest,
            consumer_name=self._consumer_name,
            batch_index_ack=self.individual_ack,  # a broker without it waits until all messages of an entry are acknowledged
            create_topic=not self._topics.is_persistent(partition.topic),  # a non-persistent topic exists only while it is in use
            keeps_packed=self._spec.keep_units,
        )
        try:
            consumer = await self._client.consumer(self._topics.partition_topic_name(partition), subscription, self._budget)
        except ClusterError as error:
            if not is_topic_missing(error):
                raise
            log.info(
                "subscription %s: partition %s is listed but does not exist yet, trying again in %g s: %s",
                self._spec.group,
                partition,
                self._refresh_s,
                error,
            )
            return
        self._consumers[partition] = consumer
        task = spawn(self._offer_lanes(partition, consumer), f"lane {partition}")
        self._lane_tasks.add(task)
        task.add_done_callback(self._lane_tasks.discard)

    async def _offer_lanes(self, partition: Partition, consumer: EntryConsumer) -> None:
        """Offer a lane whenever the consumer becomes the active one, and revoke it when another consumer does."""
        try:
            while True:
                await consumer.wait_active(active=True)
                lane = self._latest_lanes[partition] = PulsarLane(
                    partition, consumer, self._options.batch_bytes, self._budget.max_bytes // MIN_BATCHES_AHEAD
                )
                # Counted, because the consumer may become passive and active again before this task runs.
                deactivations = consumer.deactivations
                self._new_lanes.put_nowait(lane)
                await consumer.wait_deactivated(deactivations)
                lane.revoke()
        except ClusterError as error:
            if is_topic_missing(error):
                await self._drop(partition, consumer)
            elif not consumer.closed:  # closing the consumer ends it with an error, too
                self._new_lanes.put_nowait(error)

    async def _drop(self, partition: Partition, consumer: EntryConsumer) -> None:
        """Revoke the lane of a deleted partition, and close its consumer."""
        log.warning(
            "subscription %s: partition %s was deleted; consuming continues when the partition is created again",
            self._spec.group,
            partition,
        )
        if (lane := self._latest_lanes.pop(partition, None)) is not None:
            lane.revoke()
        await consumer.close()
        del self._consumers[partition]

    async def _refresh_partitions(self) -> None:
        while True:
            await asyncio.sleep(self._refresh_s)
            try:
                await self._subscribe_all(is_opening=False)
            except ClusterError as error:
                log.log(
                    retry_log_level(error, logging.WARNING),
                    "subscription %s: checking for new partitions failed, checking again in %g s: %s",
                    self._spec.group,
                    self._refresh_s,
                    error,
                )
