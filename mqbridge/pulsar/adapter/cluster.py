"""Pulsar as the gateway sees it."""

import asyncio
from collections.abc import AsyncGenerator, Mapping

from mqbridge.adapter import (
    Adapter,
    Bounds,
    Capabilities,
    Inbound,
    InboundSpec,
    Member,
    Operations,
    Outbound,
    OutboundSpec,
    Topic,
)
from mqbridge.errors import ClusterError, Failure
from mqbridge.message import Batch, Partition, Position
from mqbridge.pulsar.adapter.config import PulsarCluster, PulsarInboundOptions, PulsarOutboundOptions
from mqbridge.pulsar.adapter.inbound import PulsarInbound
from mqbridge.pulsar.adapter.operations import PulsarOperations
from mqbridge.pulsar.adapter.outbound import PulsarOutbound
from mqbridge.pulsar.adapter.topics import WHOLE, Topics
from mqbridge.pulsar.client.admin import Admin
from mqbridge.pulsar.client.client import PulsarClient, Timing
from mqbridge.pulsar.client.consumer import Consumer
from mqbridge.pulsar.client.pool import parse_service_url
from mqbridge.pulsar.client.subscription import reader
from mqbridge.pulsar.mapping.preview import preview
from mqbridge.pulsar.mapping.table import TABLE
from mqbridge.pulsar.wire.ids import EARLIEST
from mqbridge.pulsar.wire.names import parse_topic

EMPTY: Position = (-1, -1, 0)
"""Both bounds of a partition that never held anything: before every position."""
SYSTEM_NAMESPACE = "pulsar/system"


class PulsarClusterClient:
    """A configured Pulsar cluster. A position is (ledger, entry, index in the entry's batch)."""

    def __init__(self, name: str, config: PulsarCluster) -> None:
        self.name = name
        self.backlog_unit = "entries"
        self.capabilities = Capabilities(seek=True, delay=True)
        self._config = config
        timing = Timing(config.operation_timeout, config.request_timeout, config.connect_timeout, config.keep_alive)
        self._client = PulsarClient(parse_service_url(config.service_url, tls=False), timing=timing)
        self._topics = Topics(self._client, name, config.namespace)
        self._admin = Admin(config.admin_url, config.operation_timeout) if config.admin_url else None

    @property
    def operations(self) -> Operations | None:
        """What people may ask."""
        return self

    async def connect(self) -> None:
        """Shake hands with a broker."""
        await self._client.connect()

    async def close(self, deadline: float | None = None) -> None:
        """Close every connection."""
        await self._client.close()
        if self._admin is not None:
            await self._admin.close()

    # --- topics -----------------------------------------------------------------------------------------------------

    async def topics(self) -> list[str]:
        """Topics of all namespaces with an `admin_url`, of the default namespace without; no system topics."""
        namespace = self._config.namespace
        namespaces = [namespace] if self._admin is None else await self._admin.namespaces()
        found: set[str] = set()
        for each in namespaces:
            if each != SYSTEM_NAMESPACE:
                names = [parse_topic(topic).parent for topic in await self._client.topics(each)]
                found.update(topic.short(namespace) for topic in names if not topic.local.startswith("__"))
        return sorted(found)

    async def describe(self, topic: str) -> Topic | None:
        """The topic; one without partitions has the partition `-1`."""
        names = await self._topics.names(topic)
        if names is None:
            return None
        full = self._topics.parse(topic)
        return Topic(topic, names, aliases=(str(full), full.path, full.short(self._config.namespace)))

    async def create(self, topic: str, partitions: int) -> None:
        """Create a partitioned topic, or give it more partitions. Raises ClusterError (FATAL) where that cannot be."""
        full = self._topics.parse(topic)
        if partitions < 1:
            raise ClusterError(f"topic {full} cannot have {partitions} partitions", Failure.FATAL)
        have = await self._client.partitions(str(full))
        if have is not None and max(have, 1) >= partitions:
            return
        if have == 0:
            raise ClusterError(f"topic {full} exists without partitions and cannot get {partitions}", Failure.FATAL)
        if self._admin is None:
            await self._create_by_asking(str(full), partitions)
        elif have is None:
            await self._admin.create(full, partitions)
        else:
            await self._admin.grow(full, partitions)

    async def _create_by_asking(self, topic: str, partitions: int) -> None:
        """Let the broker create it, which decides by itself how many partitions it gets.

        Asking creates a partitioned topic; one without partitions comes into being with its first producer.
        """
        made = await self._client.partitions(topic, create=True)
        if made == 0 and partitions == 1:
            producer = self._client.producer(topic)
            try:
                await producer.opened()
            finally:
                await producer.close()
        if made is None or max(made, 1) < partitions:
            problem = f"topic {topic} has {made} partitions instead of {partitions}"
            raise ClusterError(f"{problem}: set admin_url of cluster {self.name!r}, or create it yourself", Failure.FATAL)

    # --- positions --------------------------------------------------------------------------------------------------

    async def bounds(self, topic: str) -> Mapping[str, Bounds]:
        """First and next position, by a reader per partition."""
        partitions = await self._topics.partitions(topic)
        found = await asyncio.gather(*map(self._bounds, partitions))
        return {partition.name: bounds for partition, bounds in zip(partitions, found, strict=True)}

    async def _bounds(self, partition: Partition) -> Bounds:
        topic = self._topics.concrete(partition)
        consumer = await self._client.consumer(topic, reader(EARLIEST))
        try:
            return await self._read_bounds(consumer)
        except TimeoutError as error:
            raise ClusterError(f"the first entry of {topic} did not come") from error
        finally:
            await consumer.close()

    async def _read_bounds(self, consumer: Consumer) -> Bounds:
        ledger, entry = await consumer.last_id()
        if entry < 0:
            return Bounds(EMPTY, EMPTY)
        after: Position = (ledger, entry + 1, 0)
        if not await consumer.has_more():
            return Bounds(after, after)
        async with asyncio.timeout(self._config.request_timeout):
            first = await consumer.receive()
        return Bounds((first.ledger, first.entry, 0), after)

    async def groups(self, topic: str) -> list[str]:
        """The subscriptions of the topic; needs `admin_url`."""
        await self._topics.existing(topic)
        return await self._need_admin("listing groups").subscriptions(self._topics.parse(topic))

    async def committed(self, topic: str, group: str) -> Mapping[str, Position]:
        """The position behind everything that the subscription has acknowledged without a gap; needs `admin_url`."""
        admin = self._need_admin("reading the positions of a group")
        found: dict[str, Position] = {}
        full = self._topics.parse(topic)
        for name in await self._topics.existing(topic):
            concrete = full if name == WHOLE else full.partition(int(name))
            place = (await admin.mark_delete_positions(concrete)).get(group)
            if place is not None:
                found[name] = (place[0], place[1] + 1, 0)
        return found

    # --- for people -------------------------------------------------------------------------------------------------

    async def backlog(self, topic: str, group: str) -> Mapping[str, int]:
        """Entries, each of which may hold many messages."""
        return await (await self._operations(topic, "counting a backlog")).backlog(group)

    async def members(self, topic: str, group: str) -> list[Member]:
        """The consumers of the subscription."""
        return await (await self._operations(topic, "listing the members of a group")).members(group)

    async def move(self, topic: str, group: str, positions: Mapping[str, Position]) -> None:
        """Reset the subscription's cursors."""
        operations = await self._operations(topic, "moving a group")
        await operations.move(group, positions, await self.bounds(topic))

    async def position_at(self, topic: str, time_ms: int) -> Mapping[str, Position]:
        """By the time of publishing."""
        operations = await self._operations(topic, "finding a time")
        return await operations.position_at(time_ms, await self.bounds(topic))

    async def newest(self, topic: str, count: int) -> Mapping[str, Position]:
        """So many entries before the end; without `admin_url` not beyond the newest ledger."""
        ends = {name: bounds.next for name, bounds in (await self.bounds(topic)).items()}
        if self._admin is None:
            return {name: (ledger, max(entry - count, min(entry, 0)), 0) for name, (ledger, entry, _) in ends.items()}
        return await (await self._operations(topic, "counting back")).newest(count, ends)

    async def settings(self, topic: str) -> Mapping[str, str]:
        """Policies of its namespace; empty without `admin_url`."""
        return {} if self._admin is None else await (await self._operations(topic, "reading policies")).settings()

    async def _operations(self, topic: str, what: str) -> PulsarOperations:
        admin = self._need_admin(what)
        return PulsarOperations(admin, self._topics.parse(topic), await self._topics.existing(topic))

    def _need_admin(self, what: str) -> Admin:
        if self._admin is None:
            raise ClusterError(f"{what} needs the admin_url of cluster {self.name!r}: add it to its configuration", Failure.FATAL)
        return self._admin

    # --- ends -------------------------------------------------------------------------------------------------------

    async def read(self, topic: str, partition: str, begin: Position, end: Position | None = None) -> AsyncGenerator[Batch, None]:
        """Not yet."""
        raise ClusterError(f"ranges of {topic} {partition} cannot be read yet: {begin} to {end}", Failure.FATAL)
        yield

    async def inbound(self, spec: InboundSpec) -> Inbound:
        """Subscribe."""
        inbound = PulsarInbound(self._client, self._topics, spec, self._config.refresh)
        await inbound.open()
        return inbound

    async def outbound(self, spec: OutboundSpec) -> Outbound:
        """Open a way into a topic."""
        targets = await self._topics.partitions(spec.topic)
        return PulsarOutbound(self._client, self._topics, spec, targets, await self._client.max_message_size())


ADAPTER = Adapter(
    system="pulsar",
    cluster_model=PulsarCluster,
    inbound_options=PulsarInboundOptions,
    outbound_options=PulsarOutboundOptions,
    make_cluster=PulsarClusterClient,
    table=TABLE,
    preview=preview,
)
