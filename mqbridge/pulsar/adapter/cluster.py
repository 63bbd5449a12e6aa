"""The `Cluster` of Pulsar's adapter: lists and creates topics, reads positions, and opens inbounds and outbounds."""

import asyncio
import logging
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from weakref import WeakSet

from mqbridge.adapter.cluster import Capabilities
from mqbridge.adapter.inbound import Inbound, InboundSpec, Sharing
from mqbridge.adapter.numbering import PackedNumbering
from mqbridge.adapter.operations import Operations
from mqbridge.adapter.outbound import Outbound, OutboundSpec
from mqbridge.adapter.reader import READ_BYTES, PartitionReader
from mqbridge.adapter.tools.deadlines import seconds_until
from mqbridge.adapter.tools.sharing import check_sharing
from mqbridge.adapter.topics import Bounds, Topic, UnitRange
from mqbridge.errors import ClusterError, Failure, ServerRefused
from mqbridge.message import Partition, Position
from mqbridge.net.connectivity import Connectivity
from mqbridge.net.dial import detect_wrong_port
from mqbridge.pulsar.adapter.auth import make_auth
from mqbridge.pulsar.adapter.bounds import EMPTY_PARTITION, request_bounds, with_batch_index
from mqbridge.pulsar.adapter.config import GROUP_NAME, TOPIC_NAME, PulsarCluster, PulsarOutboundOptions
from mqbridge.pulsar.adapter.deletions import Deletions
from mqbridge.pulsar.adapter.inbound import PulsarInbound
from mqbridge.pulsar.adapter.known_entries import KnownEntries
from mqbridge.pulsar.adapter.operations import PulsarOperations
from mqbridge.pulsar.adapter.outbound import PulsarOutbound
from mqbridge.pulsar.adapter.partition_reader import PulsarReader
from mqbridge.pulsar.adapter.topics import Topics
from mqbridge.pulsar.adapter.unit_ranges import unit_ranges_between
from mqbridge.pulsar.client.admin.admin import Admin
from mqbridge.pulsar.client.admin.admin_http import HTTP_CONFLICT
from mqbridge.pulsar.client.cluster_client import ClusterClient, Timing
from mqbridge.pulsar.client.connection.authorization import AccessDenied
from mqbridge.pulsar.client.connection.service_url import parse_service_url
from mqbridge.pulsar.wire.names import PARTITION_INFIX, TopicName
from mqbridge.pulsar.wire.schemas import STRING, Schema, avro, json_record
from mqbridge.pulsar.wire.topic_lists import parse_names

log = logging.getLogger(__name__)

SYSTEM_NAMESPACE = "pulsar/system"
"""Namespace of the brokers' own topics, which are not listed."""


class Pulsar:
    """A configured Pulsar cluster. A position is (ledger, entry, index in the entry's batch)."""

    numbering = PackedNumbering(3, EMPTY_PARTITION)

    def __init__(self, name: str, config: PulsarCluster) -> None:
        self.name, self.identity = name, config.identity
        self.capabilities = Capabilities(
            acknowledges_dropped=True,
            seek=True,
            delay=True,
            delete_topics=config.admin_url is not None,
            sharing=frozenset(Sharing),
            topic_name=TOPIC_NAME,
            group_name=GROUP_NAME,
        )
        self._config = config
        timing = Timing(config.operation_timeout, config.request_timeout, config.connect_timeout, config.keep_alive)
        service = parse_service_url(config.service_url, tls=config.is_tls)
        self.connectivity = Connectivity(name, service)
        self._tls = config.make_tls(name)
        self._auth = make_auth(config.auth, config.certificate)
        tls = self._tls if config.is_tls else None  # the REST interface may use TLS where brokers do not
        self._client = ClusterClient(
            service,
            tls=tls,
            auth=self._auth,
            timing=timing,
            connectivity=self.connectivity,
            addresses=config.addresses,
            listener_name=config.listener_name,
        )
        if config.sends_credentials_unencrypted:
            log.warning(
                "cluster %s: %s is sent over connections without TLS, readable by anybody on the network path",
                name,
                self._auth.description,
            )
        self._topics = Topics(self._client, name, config.namespace)
        self._admin: Admin | None = None
        if config.admin_url:
            self._admin = Admin(
                config.admin_url,
                config.operation_timeout,
                tls=self._tls,
                auth=self._auth,
                is_guess=config.admin_is_guessed,
                proxy=config.admin_proxy,
                addresses=config.addresses,
            )
        self._operations = PulsarOperations(name, self._topics, self._admin, self.bounds)
        self._known_entries = KnownEntries()
        self._deletions = Deletions(self._known_entries, self._admin)
        self._inbounds: WeakSet[PulsarInbound] = WeakSet()
        """The inbounds in use: brokers tell the cursor of a subscription to its consumers."""

    @property
    def operations(self) -> Operations:
        """Administrative requests; without `admin_url` most of them raise ClusterError."""
        return self._operations

    async def connect(self) -> None:
        """Connect to a broker, which tells its limit for the size of an entry.

        Larger messages are stored in chunks, but an entry that is stored as it is cannot be larger.
        """
        self.connectivity.open()
        with detect_wrong_port("a Pulsar broker", self._config.service_url):
            await self._client.connect()
        self.capabilities = replace(self.capabilities, max_message_bytes=await self._client.max_message_size())

    async def close(self, deadline: float | None = None) -> None:
        """Close every connection; stop waiting for that at `deadline` (loop time; None: in 30 s, `deadlines.CLOSE_S`)."""
        self.connectivity.close()
        self._config.addresses.log_unused(self.name)
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds_until(deadline)):
                await self._client.close()
                if self._admin is not None:
                    await self._admin.close()
                await self._auth.close()

    @property
    def expiries(self) -> Mapping[str, float]:
        """Expiry times in s since the epoch. The keys are names of certificates (see `Tls.expiries`) and the auth method."""
        expiries = dict(self._tls.expiries) if self._tls is not None else {}
        if (expires_at := self.credentials_expire_at) is not None:
            expiries[self._auth.method] = expires_at
        return expiries

    @property
    def credentials_expire_at(self) -> float | None:
        """Expiry time of the credentials that were read last, s since the epoch; None if they never expire or it is unknown."""
        return self._auth.expires_at

    # --- topics -----------------------------------------------------------------------------------------------------

    async def topics(self) -> list[str]:
        """Return the topics of all namespaces that our credentials may list (see `_namespaces`), without system topics."""
        default_namespace = self._config.namespace
        topics: set[str] = set()
        for namespace in await self._namespaces():
            if namespace != SYSTEM_NAMESPACE:
                names = [name.parent for name in parse_names(await self._client.topics(namespace))]
                topics.update(name.short(default_namespace) for name in names if not name.local.startswith("__"))
        return sorted(topics)

    async def _namespaces(self) -> list[str]:
        """Return the namespaces that our credentials may list.

        These are the namespaces of all tenants for a super user, those of the default namespace's tenant for an administrator of
        that tenant, and otherwise, or without `admin_url`, the default namespace alone.
        """
        default_namespace = self._config.namespace
        if self._admin is not None:
            default_tenant = default_namespace.partition("/")[0]
            # What can be listed instead, if the namespaces of all tenants (None) or of the default tenant cannot.
            alternatives = {None: f"the namespaces of tenant {default_tenant}", default_tenant: f"namespace {default_namespace}"}
            for tenant, alternative in alternatives.items():
                try:
                    return await self._admin.namespaces(tenant)
                except AccessDenied as error:
                    denied = "all tenants" if tenant is None else f"tenant {tenant}"
                    text = "cluster %s: the namespaces of %s cannot be listed, so only topics of %s are found: %s"
                    log.info(text, self.name, denied, alternative, error)
        return [default_namespace]

    async def describe(self, topic: str) -> Topic | None:
        """Return the topic; an unpartitioned topic has the partition `-1`. None if it does not exist."""
        names = await self._topics.partition_names(topic)
        if names is None:
            return None
        full = self._topics.parse(topic)
        return Topic(topic, names, aliases=(str(full), full.path, full.short(self._config.namespace)))

    async def delete(self, topic: str) -> None:
        """Delete the topic with its subscriptions. Raises ClusterError, FATAL while it has producers or consumers.

        Subscriptions without consumers do not prevent it.
        """
        await self._operations.delete_topic(topic)

    async def create(self, topic: str, partitions: int) -> None:
        """Create a partitioned topic, or add partitions to it. Raises ClusterError (FATAL) if that is impossible."""
        full = self._topics.parse(topic)
        existing = await self._existing_partitions(full, partitions)
        if existing is not None and max(existing, 1) >= partitions:  # 0: unpartitioned, so the topic is its only partition
            return
        if self._admin is None:
            await self._auto_create(str(full), partitions)
        elif existing is None:
            await self._create_missing(self._admin, full, partitions)
        else:
            await self._admin.grow(full, partitions)

    async def _create_missing(self, admin: Admin, topic: TopicName, partitions: int) -> None:
        """Create a partitioned topic; another instance may do so at the same time."""
        try:
            await admin.create(topic, partitions)
        except ServerRefused as error:
            existing = await self._existing_partitions(topic, partitions) if error.code == HTTP_CONFLICT else None
            if existing is None or max(existing, 1) < partitions:
                raise

    async def check_create(self, topic: str, partitions: int) -> None:
        """Raise ClusterError (FATAL) if `create` would fail.

        Without `admin_url` only the broker's auto-creation is left: it grows no topic, and the broker's settings decide how many
        partitions a new topic gets. So the check fails if an existing topic has too few partitions, or if a missing topic
        needs more than one.
        """
        full = self._topics.parse(topic)
        existing = await self._existing_partitions(full, partitions)
        if existing is not None and max(existing, 1) >= partitions:
            return
        if existing is None and PARTITION_INFIX in full.local and (self._admin is not None or partitions > 1):
            raise ClusterError(
                f"topic {full} cannot be created: brokers create no partitioned topic whose name contains {PARTITION_INFIX}. "
                "Choose another name",
                Failure.FATAL,
            )
        if self._admin is not None:
            await self._admin.policies(f"{full.tenant}/{full.namespace}")  # fails without the namespace or without permission
        elif existing is not None or partitions > 1:
            action = "created with" if existing is None else "grown to"
            raise ClusterError(
                f"topic {full} cannot be {action} {partitions} partitions: set admin_url of cluster {self.name!r} "
                "(its REST interface, such as http://host:8080), or use pulsar-admin",
                Failure.FATAL,
            )

    async def _existing_partitions(self, topic: TopicName, partitions: int) -> int | None:
        """Return the topic's current number of partitions: 0 for an unpartitioned topic, None for a missing one.

        Raises ClusterError (FATAL) if the topic can never have `partitions` partitions.
        """
        if partitions < 1:
            raise ClusterError(f"topic {topic} cannot have {partitions} partitions: give it 1 at least", Failure.FATAL)
        existing = await self._client.partitions(str(topic))
        if existing == 0 and partitions > 1:
            raise ClusterError(
                f"topic {topic} is unpartitioned and cannot grow to {partitions} partitions: use another topic",
                Failure.FATAL,
            )
        return existing

    async def _auto_create(self, topic: str, partitions: int) -> None:
        """Let the broker create the topic; the broker's settings decide its number of partitions.

        A metadata request creates a partitioned topic; an unpartitioned one is created with its first producer.
        """
        created = await self._client.partitions(topic, create=True)
        if created == 0 and partitions == 1:
            producer = self._client.producer(topic)
            try:
                await producer.opened()
            finally:
                await producer.close()
        if created is None or max(created, 1) < partitions:
            problem = f"auto-creation left topic {topic} with {created or 'no'} partitions instead of {partitions}"
            raise ClusterError(
                f"{problem}: set admin_url of cluster {self.name!r}, or create the topic with pulsar-admin", Failure.FATAL
            )

    # --- positions --------------------------------------------------------------------------------------------------

    async def bounds(self, topic: str, partition: str | None = None) -> Mapping[str, Bounds]:
        """Return by partition name where the oldest entry begins and the newest ends; opens a reader on each partition.

        With `partition`, of this one only. Raises ClusterError (FATAL) for a topic that is not persistent, whose messages have no
        positions.
        """
        if not self._topics.is_persistent(topic):
            raise ClusterError(
                f"topic {self._topics.parse(topic)} is not persistent: its broker stores no messages, so it has no positions and "
                "cannot be read by positions; read it with a group while it is written",
                Failure.FATAL,
            )
        partitions = await self._topics.partitions(topic) if partition is None else [await self._partition(topic, partition)]
        timeout_s = self._config.request_timeout
        names = [self._topics.partition_topic_name(partition) for partition in partitions]
        all_bounds = await asyncio.gather(*(request_bounds(self._client, name, timeout_s) for name in names))
        for name, bounds in zip(names, all_bounds, strict=True):
            self._known_entries.add_before(name, bounds.next)
        return {each.name: bounds for each, bounds in zip(partitions, all_bounds, strict=True)}

    async def _partition(self, topic: str, name: str) -> Partition:
        """Return the partition with this name. Raises ClusterError (FATAL) if it does not exist."""
        for partition in await self._topics.partitions(topic):
            if partition.name == name:
                return partition
        raise ClusterError(f"topic {topic!r} has no partition {name}", Failure.FATAL)

    async def committed(self, topic: str, group: str) -> Mapping[str, Position]:
        """Return by partition name the position before which the subscription acknowledged everything; needs `admin_url`."""
        return await self._operations.committed(topic, group)

    async def deleted_unread(self, topic: str, partition: str, group: str, begin: Position, first: Position) -> bool | None:
        """Return True if messages from `begin` on were deleted unread; see `deletions`. None without an inbound of the group.

        False for a topic that is not persistent: nothing that it loses was ever stored.
        """
        if not self._topics.is_persistent(topic):
            return False
        consumers = (inbound.find_consumer(group, topic, partition) for inbound in self._inbounds)
        consumer = next(filter(None, consumers), None)
        cursor = None if consumer is None else await consumer.cursor()
        partition_topic = self._topics.name_of_partition(topic, partition)
        return await self._deletions.deleted_unread(self._topics.parse(topic), partition_topic, begin, first, cursor)

    # --- data -------------------------------------------------------------------------------------------------------

    async def reader(
        self, topic: str, partition: str, begin: Position, end: Position | None = None, *, max_bytes: int = READ_BYTES
    ) -> PartitionReader:
        """Return a reader from `begin` to before `end`, or without an end. It connects with the first `receive`."""
        source = await self._partition(topic, partition)
        topic_name = self._topics.partition_topic_name(source)
        return PulsarReader(
            self._client, source, topic_name, begin, end, self._config.request_timeout, self._known_entries, max_bytes
        )

    async def measure(self, topic: str, partition: str, begin: Position, end: Position) -> Sequence[UnitRange]:
        """Return the range from `begin` to before `end` as one unit range per ledger. A unit is an entry.

        Without `admin_url` the sizes of closed ledgers are unknown: everything before the ledger of `end` is then one unit.
        """
        begin, end = with_batch_index(begin), with_batch_index(end)
        is_one_ledger = begin[0] == end[0]
        # In the ledger of `end` the positions themselves show the number of entries.
        entry_counts = None if is_one_ledger else await self._operations.entries_of_ledgers(topic, partition)
        for ledger, count in (entry_counts or {}).items():
            self._known_entries.add(self._topics.name_of_partition(topic, partition), ledger, count)
        return unit_ranges_between(begin, end, entry_counts)

    async def inbound(self, spec: InboundSpec) -> Inbound:
        """Subscribe to all partitions of the topics in `spec`."""
        check_sharing(self, spec)
        inbound = PulsarInbound(self._client, self._topics, spec, self._config.refresh)
        await inbound.open()
        self._inbounds.add(inbound)
        return inbound

    async def check_inbound(self, spec: InboundSpec) -> None:
        """Check topics, permission to consume, and with `admin_url` that the subscription exists or may be created."""
        check_sharing(self, spec)
        for topic in spec.topics:
            first, *_ = await self._topics.partitions(topic)  # permissions are the same for all partitions
            await self._client.check_consuming(self._topics.partition_topic_name(first), spec.group)
            if self._admin is not None:
                await self._operations.check_subscription(topic, spec.group)

    async def outbound(self, spec: OutboundSpec) -> Outbound:
        """Make an outbound to an existing topic; its producers are opened by `resume` or the first send."""
        targets = await self._topics.partitions(spec.topic)
        return PulsarOutbound(
            self,
            self._client,
            self._topics,
            spec,
            targets,
            await self._client.max_message_size(),
            self._operations.warn_undeduplicated,
            await self._schema(spec),
            await self._operations.why_unchunked(spec.topic),
        )

    async def check_outbound(self, spec: OutboundSpec) -> None:
        """Check that the topic exists, producing is permitted, and with `admin_url` that the topic accepts the schema."""
        first, *_ = await self._topics.partitions(spec.topic)
        await self._client.check_producing(self._topics.partition_topic_name(first))
        schema = await self._schema(spec)
        if self._admin is not None:
            await self._operations.check_schema(spec.topic, schema)

    async def _schema(self, spec: OutboundSpec) -> Schema | None:
        """Return the schema of a target's producers, None for none. Raises ClusterError (FATAL) if the topic should have one."""
        if not isinstance(spec.options, PulsarOutboundOptions) or spec.options.schema_type == "none":
            return None
        if spec.options.schema_type == "string":
            return STRING
        if spec.options.schema_type != "topic":
            assert spec.options.schema_definition is not None  # noqa: S101 - its model requires it
            make = avro if spec.options.schema_type == "avro" else json_record
            return make(spec.options.schema_definition)
        topic = self._topics.parse(spec.topic)
        if (registered := await self._client.schema(str(topic))) is None:
            problem = f"topic {topic} has no schema, but the target's schema_type is topic"
            raise ClusterError(f"{problem}: register a schema, or write schema_type: none", Failure.FATAL)
        return registered.schema
