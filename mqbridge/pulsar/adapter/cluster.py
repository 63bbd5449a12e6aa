"""Pulsar as the gateway sees it."""

import asyncio
import logging
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing, suppress

from mqbridge.adapter.cluster import Capabilities
from mqbridge.adapter.deadlines import seconds_until
from mqbridge.adapter.inbound import Inbound, InboundSpec
from mqbridge.adapter.operations import Operations
from mqbridge.adapter.outbound import Outbound, OutboundSpec
from mqbridge.adapter.registry import Adapter
from mqbridge.adapter.topics import Bounds, Stretch, Topic
from mqbridge.errors import ClusterError, Failure
from mqbridge.message import Batch, Position
from mqbridge.net.connectivity import Connectivity
from mqbridge.net.dial import speaking
from mqbridge.pulsar.adapter.auth import auth_of
from mqbridge.pulsar.adapter.config import PulsarCluster, PulsarInboundOptions, PulsarOutboundOptions
from mqbridge.pulsar.adapter.inbound import PulsarInbound
from mqbridge.pulsar.adapter.measuring import stretches_between
from mqbridge.pulsar.adapter.operations import PulsarOperations
from mqbridge.pulsar.adapter.outbound import PulsarOutbound
from mqbridge.pulsar.adapter.reading import RangeReader, bounds_of, whole_position
from mqbridge.pulsar.adapter.topics import Topics
from mqbridge.pulsar.client.admin import Admin
from mqbridge.pulsar.client.client import PulsarClient, Timing
from mqbridge.pulsar.client.pool import parse_service_url
from mqbridge.pulsar.client.rights import Denied
from mqbridge.pulsar.mapping.preview import preview
from mqbridge.pulsar.mapping.table import TABLE
from mqbridge.pulsar.wire.names import TopicName, parse_topic

log = logging.getLogger(__name__)

SYSTEM_NAMESPACE = "pulsar/system"


class Pulsar:
    """A configured Pulsar cluster. A position is (ledger, entry, index in the entry's batch)."""

    def __init__(self, name: str, config: PulsarCluster) -> None:
        self.name = name
        self.capabilities = Capabilities(seek=True, delay=True)
        self._config = config
        timing = Timing(config.operation_timeout, config.request_timeout, config.connect_timeout, config.keep_alive)
        service = parse_service_url(config.service_url, tls=config.is_tls)
        self.connectivity = Connectivity(name, service)
        self._tls = config.make_tls(name)
        self._auth = auth_of(config.auth, config.certificate)
        tls = self._tls if config.is_tls else None
        self._client = PulsarClient(service, tls=tls, auth=self._auth, timing=timing, connectivity=self.connectivity)
        if config.sends_openly:
            log.warning(
                "cluster %s: %s goes over connections without TLS, where anybody on the way reads it", name, self._auth.shown
            )
        self._topics = Topics(self._client, name, config.namespace)
        self._admin: Admin | None = None
        if config.admin_url:
            self._admin = Admin(
                config.admin_url, config.operation_timeout, tls=self._tls, auth=self._auth, is_guess=config.admin_is_guessed
            )
        self._operations = PulsarOperations(name, self._topics, self._admin, self.bounds)

    @property
    def operations(self) -> Operations:
        """What people may ask; without `admin_url` only for the newest messages."""
        return self._operations

    async def connect(self) -> None:
        """Shake hands with a broker."""
        self.connectivity.open()
        with speaking("a Pulsar broker", self._config.service_url):
            await self._client.connect()

    async def close(self, deadline: float | None = None) -> None:
        """Close every connection."""
        self.connectivity.close()
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds_until(deadline)):
                await self._client.close()
                if self._admin is not None:
                    await self._admin.close()
                await self._auth.close()

    @property
    def expiries(self) -> Mapping[str, float]:
        """Of certificates and of the token."""
        found = dict(self._tls.expiries) if self._tls is not None else {}
        if (ends := self.credentials_end) is not None:
            found[self._auth.method] = ends
        return found

    @property
    def credentials_end(self) -> float | None:
        """When those that were read last expire, s since the epoch; None when never, or not known."""
        return self._auth.ends

    # --- topics -----------------------------------------------------------------------------------------------------

    async def topics(self) -> list[str]:
        """Topics of all namespaces with an `admin_url`, of the default namespace without; no system topics."""
        namespace = self._config.namespace
        found: set[str] = set()
        for each in await self._namespaces():
            if each != SYSTEM_NAMESPACE:
                names = [parse_topic(topic).parent for topic in await self._client.topics(each)]
                found.update(topic.short(namespace) for topic in names if not topic.local.startswith("__"))
        return sorted(found)

    async def _namespaces(self) -> list[str]:
        """Of all tenants for a super user, of the default one's tenant for its administrator, else the default one alone."""
        own = self._config.namespace
        if self._admin is not None:
            for tenant in (None, own.partition("/")[0]):
                try:
                    return await self._admin.namespaces(tenant)
                except Denied as error:
                    log.info("the topics of fewer namespaces are listed: %s", error)
        return [own]

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
        have = await self._missing(full, partitions)
        if have is not None and max(have, 1) >= partitions:
            return
        if self._admin is None:
            await self._create_by_asking(str(full), partitions)
        elif have is None:
            await self._admin.create(full, partitions)
        else:
            await self._admin.grow(full, partitions)

    async def check_create(self, topic: str, partitions: int) -> None:
        """Without `admin_url` a broker makes topics as it is set up to, so more than one partition is refused beforehand."""
        full = self._topics.parse(topic)
        have = await self._missing(full, partitions)
        if have is not None and max(have, 1) >= partitions:
            return
        if self._admin is not None:
            await self._admin.policies(f"{full.tenant}/{full.namespace}")
        elif have is not None or partitions > 1:
            what = "made with" if have is None else "given"
            raise ClusterError(
                f"topic {full} cannot be {what} {partitions} partitions: set admin_url of cluster {self.name!r} "
                "(its REST interface, such as http://host:8080), or do it yourself",
                Failure.FATAL,
            )

    async def _missing(self, topic: TopicName, partitions: int) -> int | None:
        """How many partitions it has now, None when it is not there. Raises ClusterError (FATAL) for what can never be."""
        if partitions < 1:
            raise ClusterError(f"topic {topic} cannot have {partitions} partitions", Failure.FATAL)
        have = await self._client.partitions(str(topic))
        if have == 0 and partitions > 1:
            raise ClusterError(f"topic {topic} exists without partitions and cannot get {partitions}", Failure.FATAL)
        return have

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
        timeout_s = self._config.request_timeout
        names = map(self._topics.concrete, partitions)
        found = await asyncio.gather(*(bounds_of(self._client, name, timeout_s) for name in names))
        return {partition.name: bounds for partition, bounds in zip(partitions, found, strict=True)}

    async def committed(self, topic: str, group: str) -> Mapping[str, Position]:
        """The position behind everything that the subscription has acknowledged without a gap; needs `admin_url`."""
        return await self._operations.committed(topic, group)

    # --- ends -------------------------------------------------------------------------------------------------------

    async def read(self, topic: str, partition: str, begin: Position, end: Position | None = None) -> AsyncGenerator[Batch, None]:
        """By a reader, which the broker forgets."""
        found = next((one for one in await self._topics.partitions(topic) if one.name == partition), None)
        if found is None:
            raise ClusterError(f"topic {topic!r} has no partition {partition}", Failure.FATAL)
        concrete = self._topics.concrete(found)
        reader = RangeReader(self._client, found, concrete, begin, end, self._config.request_timeout)
        async with aclosing(reader.batches()) as batches:
            async for batch in batches:
                yield batch

    async def measure(self, topic: str, partition: str, begin: Position, end: Position) -> Sequence[Stretch]:
        """By entries; without `admin_url`, what begins in a ledger that is closed is one unit up to the ledger of the end."""
        begin, end = whole_position(begin), whole_position(end)
        is_one_ledger = begin[0] == end[0]
        entries = None if is_one_ledger else await self._operations.entries_of_ledgers(topic, partition)
        return stretches_between(begin, end, entries)

    async def inbound(self, spec: InboundSpec) -> Inbound:
        """Subscribe."""
        inbound = PulsarInbound(self._client, self._topics, spec, self._config.refresh)
        await inbound.open()
        return inbound

    async def check_inbound(self, spec: InboundSpec) -> None:
        """Whether the topics are there and we may consume; with `admin_url`, whether the subscription is there or may be made."""
        for topic in spec.topics:
            first, *_ = await self._topics.partitions(topic)
            await self._client.check_consuming(self._topics.concrete(first), spec.group)
            if self._admin is not None:
                await self._operations.check_subscription(topic, spec.group)

    async def outbound(self, spec: OutboundSpec) -> Outbound:
        """Open a way into a topic."""
        targets = await self._topics.partitions(spec.topic)
        return PulsarOutbound(
            self,
            self._client,
            self._topics,
            spec,
            targets,
            await self._client.max_message_size(),
            self._operations.warn_undeduplicated,
        )

    async def check_outbound(self, spec: OutboundSpec) -> None:
        """Whether the topic is there, and we may produce to it."""
        first, *_ = await self._topics.partitions(spec.topic)
        await self._client.check_producing(self._topics.concrete(first))


ADAPTER = Adapter(
    system="pulsar",
    cluster_model=PulsarCluster,
    inbound_options=PulsarInboundOptions,
    outbound_options=PulsarOutboundOptions,
    make_cluster=Pulsar,
    table=TABLE,
    preview=preview,
)
